#version 450
#extension GL_EXT_samplerless_texture_functions : require
// Images of all kinds: written, read, handed to functions, fetched from by level and layer, counted, and added to by atomics
layout(local_size_x = 4, local_size_y = 4, local_size_z = 4) in;
layout(set = 0, binding = 0, rgba8) writeonly uniform image2D plain;
layout(set = 0, binding = 1, r32ui) coherent uniform uimage2DArray counts;
layout(set = 0, binding = 2, rgba32f) uniform image3D volume;
layout(set = 0, binding = 3) uniform sampler2D both[2];
layout(set = 0, binding = 4) uniform utexture2DArray layers;
layout(set = 0, binding = 5, r32i) uniform iimage1DArray lines;
layout(set = 1, binding = 1000, rgba16f) uniform imageCube faces;
layout(set = 1, binding = 7) buffer Found { uint found[]; };
vec4 of(sampler2D from, ivec2 at, int level) { return texelFetch(from, at, level); }
void note(uint at, vec4 colour) { found[at] = packUnorm4x8(colour); }
void main() {
    ivec3 at = ivec3(gl_GlobalInvocationID);
    if (at.z == 0) imageStore(plain, at.xy, vec4(at.x / 255.0, at.y / 255.0, 0.0, 1.0));
    imageAtomicAdd(counts, at, uint(at.x + 1));
    imageStore(volume, at, imageLoad(volume, at) + float(at.x + 10 * at.y + 100 * at.z));
    if (at.z == 0) imageStore(lines, at.xy, imageLoad(lines, at.xy) + ivec4(at.x - 7 * at.y));
    imageStore(faces, at, vec4(at.x, at.y * 8 + at.z, 0.0, 0.0));
    if (at != ivec3(0)) return;
    ivec3 three = imageSize(volume);
    ivec3 two = imageSize(counts);
    found[0] = three.x | three.y << 8 | three.z << 16;
    found[1] = two.x | two.y << 8 | two.z << 16;
    found[2] = textureSize(both[1], 1).x | textureSize(both[1], 1).y << 8 | textureQueryLevels(both[1]) << 16;
    found[3] = textureSize(layers, 0).x | textureSize(layers, 0).z << 16 | imageSize(faces).y << 24;
    found[4] = imageSize(lines).x | imageSize(lines).y << 8;
    for (int level = 0; level < 3; level++) {
        note(8 + level * 2, of(both[0], ivec2(1, 1) >> level, level));
        note(9 + level * 2, texelFetch(both[1], ivec2(2, 3) >> level, level));
    }
    for (int layer = 0; layer < 4; layer++) found[16 + layer] = texelFetch(layers, ivec3(3, 2, layer), 0).r;
    // Outside of a level, of the levels, and of the layers
    note(24, texelFetch(both[0], ivec2(4, 0), 1));
    note(25, texelFetch(both[0], ivec2(0, 0), 9));
    found[26] = texelFetch(layers, ivec3(-1, 0, 0), 0).r;
    found[27] = imageLoad(counts, ivec3(0, 0, 3)).r;
    note(28, texelFetchOffset(both[0], ivec2(0, 0), 0, ivec2(1, 1)));
}
