#version 450
// to[i] += from[i] * FACTOR + addend
layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint FACTOR = 1;
layout(set = 0, binding = 0) buffer To { uint to[]; };
layout(set = 0, binding = 1) readonly buffer From { uint from[]; };
layout(push_constant) uniform Constants { uint addend; uint count; };
void main() {
    uint i = gl_GlobalInvocationID.x;
    if (i < count) to[i] += from[i] * FACTOR + addend;
}
