//! `campanile-guest burn`: steady load, every result checked.

use std::time::Duration;
use std::time::Instant;

use anyhow::Context;
use campanile_guest_driver::buffer::Buffer;
use campanile_guest_driver::commands::CommandBuffer;
use campanile_guest_driver::device::Device;
use campanile_guest_driver::fence::FencePoint;
use campanile_guest_driver::kernel::Kernel;
use campanile_guest_driver::kernel::KernelSource;
use campanile_guest_driver::node::Node;
use campanile_guest_driver::user_queue::QueueOptions;
use campanile_guest_driver::user_queue::UserQueue;
use zerocopy::IntoBytes;

use crate::args::BurnArguments;

/// The kernel.
const KERNEL: &str = include_str!("burn.wgsl");
/// Steps of the mixing function a word.
const ROUNDS: u32 = 64;
/// How long one round may take before it counts as lost.
const LIMIT: Duration = Duration::from_secs(60);
/// Between two lines of output.
const REPORT: Duration = Duration::from_secs(1);

/// One queue, and the memory of the round that it has under way.
struct Lane {
    queue: UserQueue,
    results: Buffer,
    under_way: Option<(u32, FencePoint)>,
}

/// The word that the kernel computes at `index`.
fn expected(index: u32, seed: u32) -> u32 {
    let mut x = index ^ seed;
    for _ in 0..ROUNDS {
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
        x = x.wrapping_add(0x9e37_79b9);
    }
    x
}

impl Lane {
    fn new(device: &Device, words: u32) -> anyhow::Result<Self> {
        let queue = device.create_context(Node::Compute)?.create_user_queue(&QueueOptions::default())?;
        Ok(Self { queue, results: device.create_buffer(u64::from(words) * 4)?, under_way: None })
    }

    fn submit(&mut self, kernel: &Kernel, words: u32, seed: u32) -> anyhow::Result<()> {
        let mut commands = CommandBuffer::new();
        // What the round before left would pass for a result.
        commands.fill(self.results.va(), self.results.size(), 0)?.barrier()?;
        let constants = [words, seed, ROUNDS];
        let groups = [words.div_ceil(64), 1, 1];
        commands.dispatch(kernel, groups, &[self.results.binding(0)], constants.as_bytes())?;
        self.under_way = Some((seed, self.queue.submit(&commands)?));
        Ok(())
    }

    /// Waits for the round under way; the number of wrong words.
    fn check(&mut self, words: u32) -> anyhow::Result<usize> {
        let Some((seed, point)) = self.under_way.take() else { return Ok(0) };
        point.wait(Some(LIMIT)).context("waiting for a round")?;
        let mut bytes = vec![0; usize::try_from(words)? * 4];
        self.results.read(0, &mut bytes)?;
        let found =
            bytes.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]));
        Ok((0..words).zip(found).filter(|(index, word)| *word != expected(*index, seed)).count())
    }
}

/// Burns until the time is over; an error when a single word was wrong.
pub fn run(device: &Device, arguments: &BurnArguments) -> anyhow::Result<()> {
    anyhow::ensure!(arguments.words > 0 && arguments.queues > 0, "words and queues must be 1 or more");
    let kernel = device.create_kernel(&KernelSource::wgsl(KERNEL))?;
    let lanes = (0..arguments.queues).map(|_| Lane::new(device, arguments.words));
    let mut lanes = lanes.collect::<anyhow::Result<Vec<_>>>()?;
    let (begun, mut reported) = (Instant::now(), Instant::now());
    let (mut rounds, mut wrong, mut seed) = (0_u64, 0_usize, std::process::id());
    while arguments.seconds.is_none_or(|seconds| begun.elapsed() < Duration::from_secs(seconds)) {
        for lane in &mut lanes {
            wrong += lane.check(arguments.words)?;
            seed = seed.wrapping_add(1);
            lane.submit(&kernel, arguments.words, seed)?;
            rounds += 1;
        }
        if reported.elapsed() >= REPORT {
            reported = Instant::now();
            println!("{rounds} rounds, {wrong} wrong words");
        }
    }
    for lane in &mut lanes {
        wrong += lane.check(arguments.words)?;
    }
    println!("burnt {rounds} rounds of {} words: {wrong} wrong words", arguments.words);
    anyhow::ensure!(wrong == 0, "{wrong} words are wrong");
    Ok(())
}
