//! What is run, and what it must come to. All numbers are whole and small, so that floats hold them exactly.

use std::time::Duration;

use serde::Serialize;

/// Sets `x` to the index modulo 1024, and `y` to zero.
pub(super) const START: &str = "
@group(0) @binding(0) var<storage, read_write> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@compute @workgroup_size(256) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let at = id.y * 65536u + id.x;
    x[at] = f32(at % 1024u);
    y[at] = 0.0;
}";

pub(super) const SAXPY: &str = "
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@compute @workgroup_size(256) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let at = id.y * 65536u + id.x;
    y[at] = 2.0 * x[at] + y[at];
}";

/// Sets the factors of the product.
pub(super) const FACTORS: &str = "
@group(0) @binding(0) var<storage, read_write> a: array<f32>;
@group(0) @binding(1) var<storage, read_write> b: array<f32>;
@compute @workgroup_size(256) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let at = id.y * 65536u + id.x;
    a[at] = f32(at % 5u);
    b[at] = f32(at % 7u);
}";

/// A product of square matrices, in tiles of 16 by 16 in workgroup memory.
pub(super) const MATMUL: &str = "
var<immediate> side: u32;
var<workgroup> left: array<array<f32, 16>, 16>;
var<workgroup> right: array<array<f32, 16>, 16>;
@group(0) @binding(0) var<storage, read> a: array<f32>;
@group(0) @binding(1) var<storage, read> b: array<f32>;
@group(0) @binding(2) var<storage, read_write> c: array<f32>;
@compute @workgroup_size(16, 16) fn main(
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(local_invocation_id) local: vec3<u32>,
) {
    var sum = 0.0;
    for (var tile = 0u; tile < side; tile += 16u) {
        left[local.y][local.x] = a[id.y * side + tile + local.x];
        right[local.y][local.x] = b[(tile + local.y) * side + id.x];
        workgroupBarrier();
        for (var k = 0u; k < 16u; k++) { sum += left[local.y][k] * right[k][local.x]; }
        workgroupBarrier();
    }
    c[id.y * side + id.x] = sum;
}";

/// The smallest dispatch that does something.
pub(super) const COUNT: &str = "
@group(0) @binding(0) var<storage, read_write> y: array<f32>;
@compute @workgroup_size(1) fn main() { y[0] = y[0]; }";

/// Bytes that a row of groups of [`SAXPY`] works on.
const ROW: u64 = 65536 * 4;

/// What is timed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Work {
    /// `y = 2 x + y`.
    Saxpy,
    /// A product of matrices.
    Matmul,
    /// One buffer copied to another.
    Copy,
}

impl Work {
    /// All of them, in the order in which a round has them.
    pub const ALL: [Self; 3] = [Self::Saxpy, Self::Matmul, Self::Copy];
}

/// How much of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Sizes {
    /// Bytes of each vector, and of each copy.
    pub vector_bytes: u64,
    /// Rows and columns of each matrix.
    pub side: u32,
}

impl Sizes {
    /// Groups over vectors.
    pub(super) fn vector_groups(&self) -> anyhow::Result<[u32; 3]> {
        Ok([256, u32::try_from(self.vector_bytes / ROW)?, 1])
    }

    /// Groups over the elements of a matrix, as if it were a vector.
    pub(super) fn matrix_groups(&self) -> anyhow::Result<[u32; 3]> {
        Ok([256, u32::try_from(self.matrix_bytes() / ROW)?, 1])
    }

    /// Groups of a product.
    pub(super) fn product_groups(&self) -> [u32; 3] {
        [self.side / 16, self.side / 16, 1]
    }

    /// Bytes of a matrix.
    pub(super) fn matrix_bytes(&self) -> u64 {
        u64::from(self.side) * u64::from(self.side) * 4
    }

    /// What `work` moves or computes: bytes, or floating point operations.
    pub(super) fn amount(&self, work: Work) -> u64 {
        match work {
            Work::Saxpy => 3 * self.vector_bytes,
            Work::Matmul => 2 * u64::from(self.side).pow(3),
            Work::Copy => self.vector_bytes,
        }
    }

    /// Bytes of the result of `work`.
    pub(super) fn result_bytes(&self, work: Work) -> u64 {
        match work {
            Work::Saxpy | Work::Copy => self.vector_bytes,
            Work::Matmul => self.matrix_bytes(),
        }
    }

    /// Element `at` of the result of `work` after `runs` runs. A copy is the last of all, and of the vector x.
    pub(super) fn expected(&self, work: Work, at: u64, runs: u32) -> f32 {
        let float = |value: u64| f32::from(u16::try_from(value).unwrap_or(u16::MAX));
        match work {
            Work::Saxpy => 2.0 * float(u64::from(runs)) * float(at % 1024),
            Work::Copy => float(at % 1024),
            Work::Matmul => {
                let side = u64::from(self.side);
                let (row, column) = (at / side, at % side);
                (0..side).map(|k| float((row * side + k) % 5) * float((k * side + column) % 7)).sum()
            }
        }
    }
}

/// Thousand millions a second.
#[expect(clippy::cast_precision_loss, reason = "a rate")]
pub(super) fn rate(amount: u64, nanoseconds: u64) -> f64 {
    amount as f64 / nanoseconds.max(1) as f64
}

/// Where results are looked at: bytes, and how many.
pub(super) fn samples(bytes: u64) -> [(u64, u64); 3] {
    [(0, SAMPLE), (bytes / 2, SAMPLE), (bytes - SAMPLE, SAMPLE)]
}

/// Bytes of each of [`samples`].
pub(super) const SAMPLE: u64 = 4096;

/// A way to run it.
pub(super) trait Side {
    /// Runs it once, and says how long that took.
    fn run(&mut self, work: Work) -> anyhow::Result<Duration>;
    /// Launches the smallest dispatch.
    fn launch(&mut self) -> anyhow::Result<Duration>;
    /// Those bytes of the result that [`samples`] names, one after the other.
    fn result(&mut self, work: Work) -> anyhow::Result<Vec<u8>>;
}

/// Whether a side's result is right after `runs` runs.
pub(super) fn check(side: &mut dyn Side, sizes: Sizes, work: Work, runs: u32) -> anyhow::Result<()> {
    let found = side.result(work)?;
    let places = samples(sizes.result_bytes(work))
        .into_iter()
        .flat_map(|(start, length)| (start / 4)..((start + length) / 4));
    let words = found.as_chunks::<4>().0;
    anyhow::ensure!(words.len() as u64 * 4 == 3 * SAMPLE, "{} bytes of a result", found.len());
    for (at, word) in places.zip(words) {
        let (found, expected) = (f32::from_ne_bytes(*word), sizes.expected(work, at, runs));
        anyhow::ensure!(
            found.to_bits() == expected.to_bits(),
            "element {at} of {work:?} is {found} instead of {expected} after {runs} runs"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::Sizes;
    use super::Work;

    #[test]
    fn results_are_those_of_arithmetic() {
        let sizes = Sizes { vector_bytes: 1 << 20, side: 16 };
        assert_eq!(sizes.expected(Work::Saxpy, 1030, 3).to_bits(), 36.0_f32.to_bits());
        assert_eq!(sizes.expected(Work::Copy, 1030, 3).to_bits(), 6.0_f32.to_bits());
        // Element 1, 2 of the product, by hand: the sum over k of ((16 + k) mod 5) ((16 k + 2) mod 7).
        let by_hand: u32 = (0..16).map(|k| ((16 + k) % 5) * ((16 * k + 2) % 7)).sum();
        let found = sizes.expected(Work::Matmul, 18, 1);
        assert_eq!(found.to_bits(), f32::from(u16::try_from(by_hand).unwrap()).to_bits());
        assert_eq!((sizes.amount(Work::Matmul), sizes.amount(Work::Saxpy)), (8192, 3 << 20));
    }
}
