// One thread a word: a picture that depends on the frame's number alone, and a trail that depends on all before it.

struct Frame {
    words: u32,
    number: u32,
    rounds: u32,
}

var<immediate> frame: Frame;

@group(0) @binding(0) var<storage, read_write> picture: array<u32>;
@group(0) @binding(1) var<storage, read_write> trail: array<u32>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if (id.x >= frame.words) {
        return;
    }
    var x = id.x ^ (frame.number * 2654435769u);
    for (var round = 0u; round < frame.rounds; round += 1u) {
        x ^= x << 13u;
        x ^= x >> 17u;
        x ^= x << 5u;
    }
    picture[id.x] = x;
    trail[id.x] = trail[id.x] * 1664525u + x;
}
