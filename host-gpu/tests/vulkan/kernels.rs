//! Kernels that several tests use.

/// Counts of a 1024 × 1024 view.
pub(crate) const MANDELBROT: &str = "
struct View { left: f32, top: f32, step: f32, width: u32, limit: u32 }
var<immediate> view: View;
@group(0) @binding(0) var<storage, read_write> counts: array<u32>;
@compute @workgroup_size(8, 8) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let re = view.left + f32(id.x) * view.step;
    let im = view.top + f32(id.y) * view.step;
    var x = 0.0;
    var y = 0.0;
    var n = 0u;
    while n < view.limit && x * x + y * y <= 4.0 {
        let next = x * x - y * y + re;
        y = 2.0 * x * y + im;
        x = next;
        n++;
    }
    counts[id.y * view.width + id.x] = n;
}";

/// `y = a x + y`.
pub(crate) const SAXPY: &str = "
var<immediate> a: f32;
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    y[id.x] = a * x[id.x] + y[id.x];
}";

/// Every word becomes its own index plus `seed`.
pub(crate) const STAMP: &str = "
var<immediate> seed: u32;
@group(0) @binding(0) var<storage, read_write> words: array<u32>;
@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    words[id.x] = id.x + seed;
}";

/// Takes `turns` steps of a loop that cannot be shortened: about 4 ns each on a CPU.
pub(crate) const SPIN: &str = "
var<immediate> turns: u32;
@group(0) @binding(0) var<storage, read_write> words: array<u32>;
@compute @workgroup_size(1) fn main() {
    var x = words[0];
    for (var i = 0u; i < turns; i++) { x = (x * 1664525u + 1013904223u) ^ (x >> 7u); }
    words[0] = x;
}";
