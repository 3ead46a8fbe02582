#version 450
// to[i] = the i-th member of a uniform block as storage buffers have it, and of a scalar one; a buffer may be shorter than its block,
// and a binding may have any number
#extension GL_EXT_scalar_block_layout : require
layout(local_size_x = 1) in;
struct Pair { uint a; uint b; };
layout(set = 0, binding = 0) buffer To { uint to[]; };
layout(set = 0, binding = 1) buffer Short { uvec4 short_ones[]; };
layout(set = 0, binding = 2, std430) uniform Standard { uint words[3]; Pair pair; };
layout(set = 0, binding = 1000, scalar) uniform Scalar { uint first; uvec3 vector; uvec2 last; };
void main() {
    for (uint i = 0; i < 3; i++) to[i] = words[i];
    to[3] = pair.a;
    to[4] = pair.b;
    to[5] = first;
    for (uint i = 0; i < 3; i++) to[6 + i] = vector[i];
    to[9] = last.x;
    to[10] = last.y;
    uvec4 all = short_ones[0];
    to[11] = all.x;
    to[12] = all.y + all.z + all.w;
    short_ones[0] = uvec4(7);
}
