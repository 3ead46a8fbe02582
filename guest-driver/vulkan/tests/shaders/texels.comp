#version 450
// Texel buffers of all kinds: fetched, two of an array, handed to a function, read, written, counted, and added to by atomics
layout(local_size_x = 64) in;
layout(set = 0, binding = 0) uniform usamplerBuffer words;
layout(set = 0, binding = 1) uniform samplerBuffer many[2];
layout(set = 0, binding = 3, rgba32f) uniform imageBuffer floats;
layout(set = 0, binding = 4, rgba8) writeonly uniform imageBuffer bytes;
layout(set = 0, binding = 1000, r32ui) coherent uniform uimageBuffer counts;
float first(samplerBuffer from, int i) { return texelFetch(from, i).r; }
void main() {
    int i = int(gl_GlobalInvocationID.x);
    uint w = texelFetch(words, i).r;
    float sum = first(many[0], i) + first(many[1], i);
    imageStore(floats, i, imageLoad(floats, i) + vec4(w, sum, textureSize(words), imageSize(bytes)));
    imageStore(bytes, i, vec4(float(w & 255u) / 255.0, 1.0, 0.0, 0.2));
    imageAtomicAdd(counts, 0, w);
    imageAtomicMax(counts, 1, w);
    imageAtomicAdd(counts, 1000 + i, 7u);
}
