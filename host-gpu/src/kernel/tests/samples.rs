//! Kernels that several tests use.

pub(super) const SAXPY: &str = "
var<immediate> a: f32;
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@compute @workgroup_size(64) fn saxpy(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x < arrayLength(&y) { y[id.x] = a * x[id.x] + y[id.x]; }
}";

pub(super) const MANDELBROT: &str = "
struct View { left: f32, top: f32, step: f32, width: u32, limit: u32 }
var<immediate> view: View;
@group(0) @binding(0) var<storage, read_write> counts: array<u32>;
@compute @workgroup_size(8, 8) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let c = vec2(view.left + f32(id.x) * view.step, view.top + f32(id.y) * view.step);
    var z = vec2(0.0);
    var n = 0u;
    while n < view.limit && dot(z, z) <= 4.0 {
        z = vec2(z.x * z.x - z.y * z.y, 2.0 * z.x * z.y) + c;
        n++;
    }
    counts[id.y * view.width + id.x] = n;
}";

pub(super) const REDUCE: &str = "
var<workgroup> partial: array<u32, 256>;
@group(0) @binding(3) var<storage, read> data: array<u32>;
@group(0) @binding(5) var<storage, read_write> sums: array<atomic<u32>>;
fn fold(at: u32, width: u32) { if at < width { partial[at] += partial[at + width]; } }
@compute @workgroup_size(256) fn reduce(
    @builtin(local_invocation_index) local: u32,
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    partial[local] = data[group.x * 256u + local];
    for (var width = 128u; width > 0u; width >>= 1u) { workgroupBarrier(); fold(local, width); }
    if local == 0u { atomicAdd(&sums[group.x % groups.x], partial[0]); }
}";

/// A module that does only `statements`, over a buffer `b` of words.
pub(super) fn doing(statements: &str) -> String {
    format!(
        "@group(0) @binding(0) var<storage, read_write> b: array<u32>;
         @compute @workgroup_size(1) fn main() {{ {statements} }}"
    )
}
