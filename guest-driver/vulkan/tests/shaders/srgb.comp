#version 450
// Colours of sRGB: fetched, as they are stored, sampled between two, and gathered
layout(local_size_x = 8) in;
layout(set = 0, binding = 0) uniform sampler2D colours;
layout(set = 0, binding = 1) uniform sampler2D stored;
layout(set = 1, binding = 0) buffer Found { vec4 found[]; };
void main() {
    uint i = gl_LocalInvocationID.x;
    found[i * 4] = texelFetch(colours, ivec2(i, 0), 0);
    found[i * 4 + 1] = texelFetch(stored, ivec2(i, 0), 0);
    found[i * 4 + 2] = textureLod(colours, vec2((i + 1.0) / 8.0, 0.5), 0.0);
    found[i * 4 + 3] = textureGather(colours, vec2((i + 1.0) / 8.0, 0.5), 1);
}
