#version 450
// Never ends while to[0] is 0.
layout(local_size_x = 1) in;
layout(set = 0, binding = 0) coherent buffer To { uint to[]; };
void main() {
    while (atomicAdd(to[0], 0u) == 0u) {}
}
