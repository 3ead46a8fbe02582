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

/// Copies of the trail that are kept in this machine's memory, one a step. The GPU alone writes them, so that a page that is lost on a
/// machine's way shows.
pub(crate) const KEPT: u32 = 32;

/// Bytes of the ballast that a step fills.
pub(crate) const PIECE: u64 = 1 << 20;

/// Where in a ballast of so many bytes a step fills.
pub(crate) fn piece(step: u32, bytes: u64) -> u64 {
    u64::from(step) % (bytes / PIECE) * PIECE
}

/// And with what; step 0 fills all of it.
pub(crate) fn filling(step: u32) -> u32 {
    1 << 31 | step
}

/// The trail as it should be.
pub(crate) struct Model {
    trail: Memory,
    /// Sums over the copies that are kept.
    sums: [Option<u32>; KEPT as usize],
}

/// Folds a word into a sum.
fn fold(sum: u32, word: u32) -> u32 {
    sum.rotate_left(5) ^ word
}

/// Where the copy of a step lies among all copies of so many bytes.
pub(crate) fn place(step: u32, bytes: u64) -> u64 {
    u64::from(step % KEPT) * bytes
}

impl Model {
    /// Before the first step: zeros.
    pub(crate) fn new(trail: Memory) -> Self {
        trail.zero();
        Self { trail, sums: [None; KEPT as usize] }
    }

    /// Compares what was filled of late with what it should be, a word of each 16 pages.
    pub(crate) fn check_ballast(step: u32, ballast: Memory) -> Result<(), Fault> {
        for filled in (1..=step).rev().take(KEPT as usize) {
            let piece = ballast.part(piece(filled, ballast.length()), PIECE);
            for offset in (0..PIECE).step_by(1 << 16) {
                let (is, should) = (piece.read32(offset), filling(filled));
                if is != should {
                    return Err(Fault::Wrong("the ballast", offset / 4, is, should));
                }
            }
        }
        Ok(())
    }

    /// Bytes of the trail, and of each copy of it.
    pub(crate) fn bytes(&self) -> u64 {
        self.trail.length()
    }

    /// Takes a step, and compares every word of the picture and of the copy of the trail with it, and then the oldest copy with what it
    /// was; a sum over the trail.
    pub(crate) fn check(&mut self, step: u32, picture: Memory, copies: Memory) -> Result<u32, Fault> {
        let bytes = self.trail.length();
        let copy = copies.part(place(step, bytes), bytes);
        let mut sum = 0;
        for (index, offset) in (0u32..).zip((0..bytes).step_by(4)) {
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
            sum = fold(sum, word);
        }
        self.sums[(step % KEPT) as usize] = Some(sum);
        self.check_kept(step.wrapping_add(1), copies)?;
        Ok(sum)
    }

    /// Compares what is kept at the place of a step with what it was.
    fn check_kept(&self, step: u32, copies: Memory) -> Result<(), Fault> {
        let bytes = self.trail.length();
        let Some(should) = self.sums[(step % KEPT) as usize] else { return Ok(()) };
        let kept = copies.part(place(step, bytes), bytes);
        let is = (0..bytes).step_by(4).fold(0, |sum, offset| fold(sum, kept.read32(offset)));
        if is == should {
            Ok(())
        } else {
            Err(Fault::Wrong("a copy that is kept", u64::from(step % KEPT), is, should))
        }
    }
}
