#version 450
// Samples an image at each texel, and writes what comes of it
layout(local_size_x = 16, local_size_y = 16) in;
layout(set = 0, binding = 0) uniform sampler2D from;
layout(set = 0, binding = 1, rgba8) uniform writeonly image2D to;
layout(set = 1, binding = 0) buffer Unused { uint unused[]; };
void main() {
    ivec2 at = ivec2(gl_GlobalInvocationID.xy);
    imageStore(to, at, textureLod(from, (vec2(at) + 0.5) / vec2(textureSize(from, 0)), 0.0));
    if (unused[0] == 1) unused[1] = 1;
}
