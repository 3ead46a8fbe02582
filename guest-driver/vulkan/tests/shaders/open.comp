#version 450
#extension GL_EXT_nonuniform_qualifier : require
// Arrays that are as long as the pipeline's layout says: two of images of one type, and one of buffers
layout(local_size_x = 4) in;
layout(set = 0, binding = 0, r32ui) uniform uimage2D to[];
layout(set = 0, binding = 1, r32ui) uniform uimage2D from[];
layout(set = 1, binding = 0) buffer Found { uint found[4]; } buffers[];
void main() {
    uint i = gl_LocalInvocationID.x;
    if (i < 3) imageStore(to[nonuniformEXT(i)], ivec2(0), imageLoad(from[nonuniformEXT(i & 1u)], ivec2(0)) + 10u * i);
    buffers[imageLoad(from[0], ivec2(0)).x & 1u].found[i] = 100u + i;
}
