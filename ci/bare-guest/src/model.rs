//! What the GPU should have computed, worked out by this machine's processor.

use crate::fault::Fault;
use crate::memory::Memory;

/// The kernel: a trail in video memory that each frame takes one step further, and a picture of it.
pub(crate) const KERNEL: &str = "
var<immediate> step: u32;
@group(0) @binding(0) var<storage, read_write> trail: array<u32>;
@group(0) @binding(1) var<storage, read_write> picture: array<u32>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    trail[id.x] = trail[id.x] * 1664525u + step + id.x;
    picture[id.x] = trail[id.x] ^ (step * 2654435761u);
}
";
/// Threads of a group.
pub(crate) const GROUP: u64 = 64;
/// Bytes of the kernel's constant.
pub(crate) const CONSTANT_BYTES: u32 = 4;

/// The trail as it should be.
pub(crate) struct Model {
    trail: Memory,
}

impl Model {
    /// Before the first step: zeros.
    pub(crate) fn new(trail: Memory) -> Self {
        trail.zero();
        Self { trail }
    }

    /// Takes a step, and compares every word of the picture and of the copy of the trail with it; a sum over all of them.
    pub(crate) fn check(&mut self, step: u32, picture: Memory, copy: Memory) -> Result<u32, Fault> {
        let mut sum = 0u32;
        for (index, offset) in (0u32..).zip((0..self.trail.length()).step_by(4)) {
            let word =
                self.trail.read32(offset).wrapping_mul(1_664_525).wrapping_add(step).wrapping_add(index);
            self.trail.write32(offset, word);
            let painted = word ^ step.wrapping_mul(2_654_435_761);
            for (name, memory, should) in [("the picture", picture, painted), ("the trail", copy, word)] {
                let is = memory.read32(offset);
                if is != should {
                    return Err(Fault::Wrong(name, offset / 4, is, should));
                }
            }
            sum = sum.rotate_left(5) ^ painted;
        }
        Ok(sum)
    }
}
