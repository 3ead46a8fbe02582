#version 450
// Formats of storage images that not every device has: named by the kernel, and by none
layout(local_size_x = 16) in;
layout(set = 0, binding = 0, r8) uniform image2D bytes;
layout(set = 0, binding = 1, rg16) uniform image2D pairs;
layout(set = 0, binding = 2, r16ui) uniform uimage2D whole;
layout(set = 0, binding = 3) writeonly uniform image2D nameless;
layout(set = 0, binding = 4, rgba8) uniform image2D words;
layout(set = 1, binding = 0) buffer Found { vec4 found[]; };
void main() {
    uint i = gl_LocalInvocationID.x;
    ivec2 at = ivec2(i, 0);
    float part = i / 15.0;
    imageStore(bytes, at, vec4(part));
    imageStore(pairs, at, vec4(part, 1.0 - part, 0.0, 0.0));
    imageStore(whole, at, uvec4(i * 4369u));
    imageStore(nameless, at, vec4(part));
    imageStore(words, at, vec4(part));
    vec2 pair = imageLoad(pairs, at).xy;
    found[i] = vec4(imageLoad(bytes, at).x, pair, imageLoad(whole, at).x);
}
