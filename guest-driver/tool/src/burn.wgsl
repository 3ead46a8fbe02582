// One thread a word: some rounds of a mixing function, which the CPU repeats.

struct Work {
    words: u32,
    seed: u32,
    rounds: u32,
}

var<immediate> work: Work;

@group(0) @binding(0) var<storage, read_write> results: array<u32>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if (id.x >= work.words) {
        return;
    }
    var x = id.x ^ work.seed;
    for (var round = 0u; round < work.rounds; round += 1u) {
        x ^= x << 13u;
        x ^= x >> 17u;
        x ^= x << 5u;
        x += 0x9e3779b9u;
    }
    results[id.x] = x;
}
