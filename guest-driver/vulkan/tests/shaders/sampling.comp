#version 450
// Images of all kinds, sampled by level, by gradients, with offsets, as cubes and gathered
layout(local_size_x = 13) in;
layout(set = 0, binding = 0) uniform sampler2D plain;
layout(set = 0, binding = 1) uniform sampler3D volume;
layout(set = 0, binding = 2) uniform samplerCube cube;
layout(set = 0, binding = 3) uniform sampler1DArray lines;
layout(set = 0, binding = 4) uniform texture2DArray layers;
layout(set = 0, binding = 5) uniform sampler alone[2];
layout(set = 0, binding = 6) uniform usampler2D numbers;
layout(set = 1, binding = 0) buffer Found { vec4 found[]; };
vec4 of(sampler2D from, vec2 at, float level) { return textureLod(from, at, level); }
vec4 from(texture2DArray image, sampler by, vec3 at) { return textureLod(sampler2DArray(image, by), at, 0.3); }
void main() {
    uint i = gl_LocalInvocationID.x;
    vec3 at = vec3(i * 0.273 - 1.9, i * 0.191 - 1.3, 2.2 - i * 0.311);
    float level = i * 0.29 - 0.6;
    vec3 to = vec3(sin(i * 1.3), cos(i * 2.1), sin(i * 0.7 + 1.0));
    uint n = i * 19;
    found[n++] = of(plain, at.xy, level);
    found[n++] = textureLodOffset(plain, at.xy, level, ivec2(2, -3));
    found[n++] = textureGrad(plain, at.xy, vec2(0.11, 0.02) * i, vec2(0.03, 0.07));
    found[n++] = textureProjLod(plain, vec3(at.xy, 1.7), 0.0);
    found[n++] = textureLod(volume, at, level);
    found[n++] = textureLod(cube, to, level);
    found[n++] = textureLod(lines, vec2(at.x, i * 0.3 - 1.0), level);
    found[n++] = textureLod(sampler2DArray(layers, alone[0]), vec3(at.yz, i * 0.4 - 1.0), level);
    found[n++] = from(layers, alone[1], vec3(at.zx, 1.0));
    found[n++] = vec4(textureLod(numbers, at.xz, level));
    found[n++] = textureGather(plain, at.xy, 1);
    found[n++] = textureGather(plain, at.zy, 3);
    found[n++] = vec4(textureGather(numbers, at.xy, 2));
    // Close to an edge of a cube, and to a corner
    found[n++] = textureLod(cube, vec3(1.0, 0.97 - i * 0.005, 0.2), 0.0);
    found[n++] = textureLod(cube, vec3(-0.99, 0.98, 0.98 + i * 0.001), 0.0);
    // The level by how fast a direction turns, and four neighbours on one face or over an edge
    found[n++] = textureGrad(cube, to, vec3(0.05, 0.3, -0.1) * i, vec3(0.2, -0.1, 0.15));
    found[n++] = textureGrad(cube, vec3(to.x, -2.0, to.z), vec3(0.4, 0.0, 0.1), vec3(0.0, 0.9, 0.2) * i);
    found[n++] = textureGather(cube, vec3(0.3 - i * 0.02, 0.4, -0.6), 0);
    found[n++] = textureGather(cube, vec3(-1.0, 0.97, 0.3 - i * 0.03), 0);
}
