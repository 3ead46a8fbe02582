#version 450
#extension GL_EXT_samplerless_texture_functions : require
// Images and samplers of arrays that an index chooses at run time
layout(local_size_x = 4) in;
layout(set = 0, binding = 0) uniform sampler2D both[3];
layout(set = 0, binding = 1) uniform texture2D images[4];
layout(set = 0, binding = 2) uniform sampler alone[2];
layout(set = 0, binding = 3, r32ui) uniform uimage2D counts[3];
layout(set = 0, binding = 4, rgba8) uniform writeonly image2D written[2];
layout(set = 0, binding = 5) uniform usampler2D numbers[1];
layout(set = 1, binding = 0) buffer Found { uint chosen[16]; vec4 found[]; };
void main() {
    uint i = gl_LocalInvocationID.x, group = gl_WorkGroupID.x;
    uint which = chosen[group];
    int at = int(i);
    uint n = (group * 4 + i) * 8;
    vec2 place = vec2((i + 1.0) / 4.0, 0.5);
    found[n] = textureLod(both[which], place, 0.0);
    found[n + 1] = texelFetch(images[which], ivec2(at, 0), 0);
    found[n + 2] = textureLod(sampler2D(images[which], alone[which % 2]), place, 0.0);
    found[n + 3] = textureGather(both[which], place, 0);
    found[n + 4] = vec4(textureSize(images[which], 0), texelFetch(both[1], ivec2(at, 0), 0).xy);
    uint before = imageAtomicAdd(counts[which], ivec2(at, 0), 10 + i);
    memoryBarrierImage();
    found[n + 5] = vec4(before, imageLoad(counts[which], ivec2(at, 0)).x, imageSize(counts[which]));
    uint swapped = imageAtomicCompSwap(counts[which], ivec2(at, 1), 5u, 1000 + which);
    found[n + 6] = vec4(swapped, texelFetch(numbers[which / 100], ivec2(at, 0), 0).x, imageAtomicExchange(counts[which], ivec2(at, 2), which), 0);
    imageStore(written[which % 2], ivec2(at, group), vec4(which, i, 0, 255) / 255.0);
}
