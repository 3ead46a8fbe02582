// Never ends.
@group(0) @binding(0) var<storage, read_write> data: array<u32>;

@compute @workgroup_size(1)
fn main() {
    loop {
        data[0] = data[0] + 1u;
        if data[1] == 7u {
            break;
        }
    }
}
