"""Compute on wgpu-py, or on wgpudawn, which has its interface: sums, a matrix product in workgroup memory, atomics, an indirect dispatch, textures."""

import importlib
import sys

import numpy as np

wgpu = importlib.import_module(sys.argv[1])
use = wgpu.BufferUsage
adapter = wgpu.gpu.request_adapter_sync()
wanted = [feature for feature in ("shader-f16", "timestamp-query") if feature in adapter.features]
device = adapter.request_device_sync(required_features=wanted)


def run(code, buffers, groups):
    module = device.create_shader_module(code=code)
    pipeline = device.create_compute_pipeline(layout="auto", compute={"module": module, "entry_point": "main"})
    entries = [
        {"binding": number, "resource": {"buffer": buffer, "offset": 0, "size": buffer.size}}
        for number, buffer in enumerate(buffers)
    ]
    group = device.create_bind_group(layout=pipeline.get_bind_group_layout(0), entries=entries)
    encoder = device.create_command_encoder()
    compute = encoder.begin_compute_pass()
    compute.set_pipeline(pipeline)
    compute.set_bind_group(0, group)
    if isinstance(groups, tuple):
        compute.dispatch_workgroups(*groups)
    else:
        compute.dispatch_workgroups_indirect(groups, 4)
    compute.end()
    device.queue.submit([encoder.finish()])


def made(data, usage=use.STORAGE):
    return device.create_buffer_with_data(data=data, usage=usage | use.COPY_SRC)


def read(buffer, kind):
    return np.frombuffer(device.queue.read_buffer(buffer), kind)


numbers = np.arange(10000, dtype=np.float32)
to = device.create_buffer(size=numbers.nbytes, usage=use.STORAGE | use.COPY_SRC)
run(
    """@group(0) @binding(0) var<storage, read> source: array<f32>;
    @group(0) @binding(1) var<storage, read_write> squares: array<f32>;
    @compute @workgroup_size(64)
    fn main(@builtin(global_invocation_id) at: vec3u, @builtin(num_workgroups) groups: vec3u) {
        if (at.x < arrayLength(&source)) { squares[at.x] = source[at.x] * source[at.x] + f32(groups.x); }
    }""",
    [made(numbers), to],
    (157, 1, 1),
)
print("squares", np.array_equal(read(to, np.float32), numbers * numbers + 157))

side = 64
random = np.random.default_rng(1)
left, right = (random.integers(-4, 4, (side, side)).astype(np.float32) for _ in range(2))
product = device.create_buffer(size=left.nbytes, usage=use.STORAGE | use.COPY_SRC)
run(
    """@group(0) @binding(0) var<storage, read> left: array<f32>;
    @group(0) @binding(1) var<storage, read> right: array<f32>;
    @group(0) @binding(2) var<storage, read_write> product: array<f32>;
    @group(0) @binding(3) var<uniform> side: vec4u;
    var<workgroup> a: array<array<f32, 16>, 16>;
    var<workgroup> b: array<array<f32, 16>, 16>;
    @compute @workgroup_size(16, 16)
    fn main(@builtin(global_invocation_id) at: vec3u, @builtin(local_invocation_id) here: vec3u) {
        var sum = 0.0;
        for (var tile = 0u; tile < side.x / 16u; tile++) {
            a[here.y][here.x] = left[at.y * side.x + tile * 16u + here.x];
            b[here.y][here.x] = right[(tile * 16u + here.y) * side.x + at.x];
            workgroupBarrier();
            for (var k = 0u; k < 16u; k++) { sum += a[here.y][k] * b[k][here.x]; }
            workgroupBarrier();
        }
        product[at.y * side.x + at.x] = sum;
    }""",
    [made(left), made(right), product, made(np.array([side, 0, 0, 0], np.uint32), use.UNIFORM)],
    (side // 16, side // 16, 1),
)
print("product", np.array_equal(read(product, np.float32).reshape(side, side), left @ right))

sums = made(np.zeros(16, np.uint32))
run(
    """@group(0) @binding(0) var<storage, read_write> sums: array<atomic<u32>, 16>;
    @compute @workgroup_size(32)
    fn main(@builtin(global_invocation_id) at: vec3u) { atomicAdd(&sums[at.x % 16u], at.x); }""",
    [sums],
    made(np.array([0, 8, 1, 1], np.uint32), use.INDIRECT | use.STORAGE),
)
print("atomics", np.array_equal(read(sums, np.uint32), np.arange(256).reshape(16, 16).sum(0)))

if "shader-f16" in wanted:
    halves = made(np.arange(32, dtype=np.float16))
    run(
        """enable f16;
        @group(0) @binding(0) var<storage, read_write> halves: array<f16>;
        @compute @workgroup_size(32)
        fn main(@builtin(global_invocation_id) at: vec3u) { halves[at.x] = halves[at.x] * 2.0h; }""",
        [halves],
        (1, 1, 1),
    )
    print("halves", np.array_equal(read(halves, np.float16), np.arange(32) * 2))

# Textures: one is written, then sampled with filters, and copied to a buffer.
texture = device.create_texture(
    size=(side, side, 1),
    format="rgba8unorm",
    usage=wgpu.TextureUsage.STORAGE_BINDING | wgpu.TextureUsage.TEXTURE_BINDING | wgpu.TextureUsage.COPY_SRC,
)
texels = device.create_buffer(size=side * side * 4, usage=use.COPY_DST | use.COPY_SRC)
sampled = device.create_buffer(size=side * side * 16, usage=use.STORAGE | use.COPY_SRC)
sampler = device.create_sampler(
    mag_filter="linear", min_filter="linear", address_mode_u="repeat", address_mode_v="mirror-repeat"
)
passes = [
    (
        """@group(0) @binding(0) var image: texture_storage_2d<rgba8unorm, write>;
        @compute @workgroup_size(8, 8)
        fn main(@builtin(global_invocation_id) at: vec3u) {
            textureStore(image, vec2i(at.xy), vec4f(f32(at.x) / 63.0, f32(at.y) / 63.0, 0.5, 1.0));
        }""",
        [texture.create_view()],
    ),
    (
        """@group(0) @binding(0) var image: texture_2d<f32>;
        @group(0) @binding(1) var with_filter: sampler;
        @group(0) @binding(2) var<storage, read_write> sampled: array<vec4f>;
        @compute @workgroup_size(8, 8)
        fn main(@builtin(global_invocation_id) at: vec3u) {
            let place = (vec2f(at.xy) * 1.375 + 0.25) / 64.0;
            sampled[at.y * 64u + at.x] = textureSampleLevel(image, with_filter, place, 0.0);
        }""",
        [texture.create_view(), sampler, {"buffer": sampled, "offset": 0, "size": sampled.size}],
    ),
]
encoder = device.create_command_encoder()
compute = encoder.begin_compute_pass()
for code, resources in passes:
    module = device.create_shader_module(code=code)
    pipeline = device.create_compute_pipeline(layout="auto", compute={"module": module, "entry_point": "main"})
    entries = [{"binding": number, "resource": resource} for number, resource in enumerate(resources)]
    compute.set_pipeline(pipeline)
    compute.set_bind_group(0, device.create_bind_group(layout=pipeline.get_bind_group_layout(0), entries=entries))
    compute.dispatch_workgroups(side // 8, side // 8)
compute.end()
layout = {"buffer": texels, "offset": 0, "bytes_per_row": side * 4, "rows_per_image": side}
encoder.copy_texture_to_buffer({"texture": texture}, layout, (side, side, 1))
device.queue.submit([encoder.finish()])
print("texture", read(texels, np.uint8).astype(int).sum(), [round(float(value), 2) for value in read(sampled, np.float32)[4000:4032]])

# Colours of sRGB: written as they are stored, read as light.
stored = (np.arange(side * side * 4, dtype=np.uint32) * 7 % 256).astype(np.uint8)
for form in ("rgba8unorm-srgb", "bgra8unorm-srgb"):
    colours = device.create_texture(
        size=(side, side, 1), format=form, usage=wgpu.TextureUsage.COPY_DST | wgpu.TextureUsage.TEXTURE_BINDING
    )
    layout = {"offset": 0, "bytes_per_row": side * 4, "rows_per_image": side}
    device.queue.write_texture({"texture": colours}, stored, layout, (side, side, 1))
    module = device.create_shader_module(code=passes[1][0])
    pipeline = device.create_compute_pipeline(layout="auto", compute={"module": module, "entry_point": "main"})
    resources = [colours.create_view(), sampler, {"buffer": sampled, "offset": 0, "size": sampled.size}]
    entries = [{"binding": number, "resource": resource} for number, resource in enumerate(resources)]
    encoder = device.create_command_encoder()
    compute = encoder.begin_compute_pass()
    compute.set_pipeline(pipeline)
    compute.set_bind_group(0, device.create_bind_group(layout=pipeline.get_bind_group_layout(0), entries=entries))
    compute.dispatch_workgroups(side // 8, side // 8)
    compute.end()
    device.queue.submit([encoder.finish()])
    print(form, [round(float(value), 1) for value in read(sampled, np.float32)[4000:4016]])
