//! The thread that renders frames through a user-mode queue.

use std::io::Write;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use anyhow::Context;
use campanile_guest_driver::commands::CommandBuffer;
use campanile_guest_driver::kernel::KernelSource;
use campanile_guest_driver::node::Node;
use campanile_guest_driver::user_queue::QueueOptions;
#[cfg(feature = "test-vmm")]
use campanile_test_vmm::pause::section::Section;
use zerocopy::IntoBytes;

use super::guest::LIMIT;
use super::guest::Progress;
use crate::target::Machine;

/// The kernel.
const KERNEL: &str = include_str!("frame.wgsl");
/// Steps of the mixing function a word.
const ROUNDS: u32 = 16;

/// What is rendered.
#[derive(Debug, Clone, Copy)]
pub struct Animation {
    /// Frames.
    pub frames: u64,
    /// Words of the picture, and of the trail.
    pub words: u32,
    /// A line for each frame that was right.
    pub tells: bool,
}

/// The word of the picture at `index`.
fn pixel(index: u32, frame: u32) -> u32 {
    let mut x = index ^ frame.wrapping_mul(2_654_435_769);
    for _ in 0..ROUNDS {
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
    }
    x
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u32> {
    bytes.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
}

/// FNV-1a of 64 bits.
fn checksum(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

/// Renders and checks, until the last frame or until all are to end; the trail's checksum goes to `sum`.
pub fn run(
    machine: &Machine,
    progress: &Progress,
    animation: Animation,
    sum: &Mutex<Option<u64>>,
) -> anyhow::Result<()> {
    let device = machine.open()?;
    let kernel = device.create_kernel(&KernelSource::wgsl(KERNEL))?;
    let bytes = u64::from(animation.words) * 4;
    let (picture, seen_trail) = (device.create_buffer(bytes)?, device.create_buffer(bytes)?);
    // In video memory that no CPU sees: moving the VM's memory does not move this.
    let trail = device.create_local_buffer(bytes)?;
    let mut queue = device.create_context(Node::Compute)?.create_user_queue(&QueueOptions::default())?;
    let mut model = vec![0_u32; usize::try_from(animation.words)?];
    let mut seen = vec![0; usize::try_from(bytes)?];
    let groups = [animation.words.div_ceil(64), 1, 1];
    for number in 0..animation.frames {
        if progress.is_over() {
            break;
        }
        let frame = u32::try_from(number)?;
        let mut commands = CommandBuffer::new();
        commands.fill(picture.va(), picture.size(), 0)?.barrier()?;
        let constants = [animation.words, frame, ROUNDS];
        let bindings = [picture.binding(0), trail.binding(1)];
        commands.dispatch(&kernel, groups, &bindings, constants.as_bytes())?;
        commands.barrier()?.copy(trail.va(), seen_trail.va(), bytes)?;
        queue.submit(&commands)?.wait(Some(LIMIT)).with_context(|| format!("frame {number}"))?;
        picture.read(0, &mut seen)?;
        let wrong = (0..).zip(words(&seen)).filter(|(index, word)| pixel(*index, frame) != *word).count();
        anyhow::ensure!(wrong == 0, "WRONG FRAME {number}: {wrong} words of the picture");
        for (index, word) in (0..).zip(&mut model) {
            *word = word.wrapping_mul(1_664_525).wrapping_add(pixel(index, frame));
        }
        seen_trail.read(0, &mut seen)?;
        let wrong = model.iter().zip(words(&seen)).filter(|(model, word)| **model != *word).count();
        anyhow::ensure!(wrong == 0, "WRONG FRAME {number}: {wrong} words of the trail");
        progress.frames.fetch_add(1, Ordering::Relaxed);
        if animation.tells {
            // The reader of this has a clock that goes on while this VM stands still.
            #[cfg(feature = "test-vmm")]
            let _section = Section::enter();
            println!("frame {number}");
            let _unread = std::io::stdout().flush();
        }
    }
    *sum.lock().unwrap_or_else(PoisonError::into_inner) = Some(checksum(&seen));
    progress.over.store(true, Ordering::Relaxed);
    Ok(())
}
