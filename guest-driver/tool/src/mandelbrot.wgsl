// One thread a pixel: how often z = z² + c stays within the circle of radius 2.
// Fixed point with 12 bits of fraction, so that every machine gets the same picture, bit for bit.

struct View {
    width: u32,
    height: u32,
    limit: u32,
    step: i32,
    left: i32,
    top: i32,
}

var<immediate> view: View;

@group(0) @binding(0) var<storage, read_write> counts: array<u32>;

@compute @workgroup_size(16, 16)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if (id.x >= view.width || id.y >= view.height) {
        return;
    }
    let cx = view.left + i32(id.x) * view.step;
    let cy = view.top + i32(id.y) * view.step;
    var x = 0;
    var y = 0;
    var count = 0u;
    loop {
        let xx = (x * x) >> 12u;
        let yy = (y * y) >> 12u;
        if (count >= view.limit || xx + yy > (4 << 12u)) {
            break;
        }
        y = ((x * y) >> 11u) + cy;
        x = xx - yy + cx;
        count += 1u;
    }
    counts[id.y * view.width + id.x] = count;
}
