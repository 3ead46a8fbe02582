#version 450
// to[i] = many[0][i] + many[1][i] * scale: two sets, an array of buffers, a uniform buffer
layout(local_size_x = 64) in;
layout(set = 0, binding = 0) buffer To { uint to[]; };
layout(set = 0, binding = 2) readonly buffer Many { uint words[]; } many[2];
layout(set = 1, binding = 3) uniform Uniform { uint scale; };
void main() {
    uint i = gl_GlobalInvocationID.x;
    to[i] = many[0].words[i] + many[1].words[i] * scale;
}
