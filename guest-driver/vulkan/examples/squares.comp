#version 450
layout(local_size_x = 64) in;
layout(push_constant) uniform Numbers { uint first; };
layout(std430, set = 0, binding = 0) writeonly buffer Squares { uint squares[]; };

void main() {
    uint number = first + gl_GlobalInvocationID.x;
    squares[gl_GlobalInvocationID.x] = number * number;
}
