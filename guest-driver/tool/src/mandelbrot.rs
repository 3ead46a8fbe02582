//! The Mandelbrot set, by the GPU and by the CPU.

use std::time::Duration;
use std::time::Instant;

use campanile_guest_driver::commands::CommandBuffer;
use campanile_guest_driver::device::Device;
use campanile_guest_driver::kernel::KernelSource;
use campanile_guest_driver::node::Node;
use campanile_guest_driver::user_queue::QueueOptions;
use zerocopy::Immutable;
use zerocopy::IntoBytes;

/// The kernel.
pub const KERNEL: &str = include_str!("mandelbrot.wgsl");
/// Pixels in a row, and rows.
pub const SIDE: u32 = 1024;
/// Most iterations of a pixel.
pub const LIMIT: u32 = 256;

/// Constants of the kernel; coordinates in units of 1/4096.
#[derive(Debug, Clone, Copy, IntoBytes, Immutable)]
#[repr(C)]
struct View {
    width: u32,
    height: u32,
    limit: u32,
    step: i32,
    left: i32,
    top: i32,
}

/// From −2.25 − 1.5i, three units wide and high.
const VIEW: View = View { width: SIDE, height: SIDE, limit: LIMIT, step: 12, left: -9216, top: -6144 };

/// A picture as iterations of each pixel, row by row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Picture {
    /// Iterations.
    pub counts: Vec<u32>,
    /// From compiled kernel and bound memory to the fence.
    pub elapsed: Duration,
}

/// Renders through a user-mode queue.
pub fn render(device: &Device) -> anyhow::Result<Picture> {
    let kernel = device.create_kernel(&KernelSource::wgsl(KERNEL))?;
    let bytes = u64::from(SIDE) * u64::from(SIDE) * 4;
    let buffer = device.create_buffer(bytes)?;
    let context = device.create_context(Node::Compute)?;
    let mut queue = context.create_user_queue(&QueueOptions::default())?;
    let mut commands = CommandBuffer::new();
    let groups = SIDE.div_ceil(16);
    commands.dispatch(&kernel, [groups, groups, 1], &[buffer.binding(0)], VIEW.as_bytes())?;
    let begun = Instant::now();
    queue.submit(&commands)?.wait(None)?;
    let elapsed = begun.elapsed();
    let mut raw = vec![0; usize::try_from(bytes)?];
    buffer.read(0, &mut raw)?;
    let counts =
        raw.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]])).collect();
    Ok(Picture { counts, elapsed })
}

/// Iterations of one pixel, in the kernel's own arithmetic.
fn count(cx: i32, cy: i32) -> u32 {
    let (mut x, mut y) = (0i32, 0i32);
    for count in 0..LIMIT {
        let (xx, yy) = (x.wrapping_mul(x) >> 12, y.wrapping_mul(y) >> 12);
        if xx + yy > 4 << 12 {
            return count;
        }
        y = (x.wrapping_mul(y) >> 11) + cy;
        x = xx - yy + cx;
    }
    LIMIT
}

/// Renders on one CPU.
pub fn reference() -> Picture {
    let begun = Instant::now();
    let mut counts = Vec::new();
    let mut cy = VIEW.top;
    for _ in 0..SIDE {
        let mut cx = VIEW.left;
        for _ in 0..SIDE {
            counts.push(count(cx, cy));
            cx += VIEW.step;
        }
        cy += VIEW.step;
    }
    Picture { counts, elapsed: begun.elapsed() }
}

#[cfg(test)]
mod tests {
    use super::LIMIT;
    use super::SIDE;
    use super::count;
    use super::reference;

    #[test]
    fn the_reference_knows_what_is_in_the_set() {
        assert_eq!(count(0, 0), LIMIT);
        assert_eq!(count(-4096, 0), LIMIT, "-1 is in the set");
        assert_eq!(count(2 * 4096, 0), 2, "0, 2, 6: outside after two steps");
        let picture = reference();
        assert_eq!(picture.counts.len(), usize::try_from(SIDE * SIDE).unwrap());
        let inside = picture.counts.iter().filter(|count| **count == LIMIT).count();
        assert!((100_000..300_000).contains(&inside), "{inside} pixels of the set");
    }
}
