//! Memory of the device's own that is evicted, brought back, and read as a migration reads it, each beside a copy of as much by the bare driver.
//!
//! ```text
//!   evict      guest ▶ daemon ▶ copy engine ▶ device      local memory ▶ host memory    beside vkCmdCopyBuffer, device ▶ imported host memory, and vkCmdFillBuffer
//!   restore    the same, the other way                    host memory ▶ local memory    beside vkCmdCopyBuffer, imported host memory ▶ device
//!   read-back  a pass of a migration ▶ copy process ▶ device    local memory ▶ its records, which are thrown away    beside vkCmdCopyBuffer, device ▶ imported host memory
//! ```

use std::io;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicU64;
use std::thread;
use std::time::Duration;
use std::time::Instant;

use anyhow::Context;
use campanile_daemon::migration::error::MigrationError;
use campanile_daemon::migration::memory::MovingMemory;
use campanile_daemon::migration::passes::dirty_bitmap::DirtyBitmap;
use campanile_daemon::migration::passes::pass::Manner;
use campanile_daemon::migration::passes::pass::Sink;
use campanile_daemon::migration::passes::pass::send_pending;
use campanile_daemon::migration::tracked::TrackedMemory;
use campanile_guest::percentiles::Percentiles;
use campanile_guest::percentiles::median;
use campanile_guest_driver::commands::CommandBuffer;
use campanile_guest_driver::device::Device;
use campanile_guest_driver::node::Node;
use campanile_guest_driver::residency::Eviction;
use campanile_guest_driver::residency::LocalBuffer;
use campanile_guest_driver::residency::WhenFull;
use campanile_guest_driver::user_queue::UserQueue;
use campanile_host_gpu::dirty::tracker::Tracker;
use campanile_host_gpu::vulkan::driver::Driver;
use campanile_host_gpu::vulkan::import::Import;
use campanile_host_gpu::vulkan::local::Copier;
use serde::Serialize;

use super::native::host;
use crate::measure::dirty::Subject;
use crate::measure::guests::open_guest;
use crate::measure::guests::user_queue;

/// How long what is not timed may take.
const LIMIT: Duration = Duration::from_secs(60);
/// Bytes that are looked at at a time.
const LOOK: u64 = 1 << 20;
/// What fills the buffer.
const WORD: u32 = 0x5eed_0001;

/// A host whose local memory is the device's own, with one vGPU of so much video memory.
pub type Start<'a> = dyn Fn(u64) -> anyhow::Result<Subject> + 'a;

/// A line that goes nowhere.
struct Discarded(u64);

impl Sink for Discarded {
    fn next_sequence(&self) -> u64 {
        self.0
    }

    fn put(&mut self, _frame: &[u8]) -> Result<(), MigrationError> {
        self.0 += 1;
        Ok(())
    }

    fn finish_pass(&mut self, _pass: u32) -> Result<(), MigrationError> {
        Ok(())
    }
}

/// Evicted memory, of which nothing is sent.
struct Nothing;

impl MovingMemory for Nothing {
    fn length(&self) -> u64 {
        0
    }

    fn page_size(&self) -> u64 {
        4096
    }

    fn is_tracked(&self) -> bool {
        true
    }

    fn is_performant(&self) -> bool {
        true
    }

    fn begin(&self, _bits: &mut [u8]) -> io::Result<()> {
        Ok(())
    }

    fn begin_paused(&self, _bits: &mut [u8]) -> io::Result<()> {
        Ok(())
    }

    fn query_and_clear(&self, _bits: &mut [u8]) -> io::Result<()> {
        Ok(())
    }

    fn end(&self) {}

    fn read(&self, offset: u64, _buffer: &mut [u8]) -> io::Result<()> {
        Err(io::Error::other(format!("nothing lies at byte {offset}")))
    }
}

/// A way in which memory moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Move {
    /// From local memory to host memory, until all of it was zeroed and is free: a copy and a fill.
    Evict,
    /// Back, until a guest may use it.
    Restore,
    /// To the records of a migration.
    ReadBack,
}

/// What was measured of it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MoveFigures {
    /// Which.
    pub what: Move,
    /// Bytes of each.
    pub bytes: u64,
    /// Through Campanile.
    pub campanile_ns: Percentiles,
    /// The copy by the bare driver.
    pub native_ns: Percentiles,
    /// Throughput through Campanile over that of the bare driver: median of the rounds.
    pub ratio: f64,
    /// GB/s through Campanile.
    pub campanile_rate: f64,
    /// GB/s by the bare driver.
    pub native_rate: f64,
}

/// The guest's side.
struct Moved {
    buffer: LocalBuffer,
    queue: UserQueue,
    tracker: Arc<Tracker>,
    /// Bytes of local memory.
    local: u64,
    device: Device,
    _host: Subject,
}

impl Moved {
    fn new(start: &Start<'_>, bytes: u64, aperture: u64) -> anyhow::Result<Self> {
        let host = start(aperture + 2 * bytes)?;
        let device = open_guest(&host.socket)?;
        let local = device.memory_info()?.local;
        let buffer = device.create_local_buffer(bytes)?;
        let mut queue = user_queue(&device, Node::Copy)?;
        let mut fill = CommandBuffer::new();
        fill.fill(buffer.va(), bytes, WORD)?;
        queue.submit(&fill)?.wait(Some(LIMIT))?;
        let [tracker, _] = host.trackers.trackers().context("the session is gone")?;
        Ok(Self { buffer, queue, tracker, local, device, _host: host })
    }

    /// Waits until as much local memory is free.
    fn settle(&self, free: u64) -> anyhow::Result<()> {
        let begun = Instant::now();
        while self.device.memory_info()?.local_free < free {
            anyhow::ensure!(begun.elapsed() < LIMIT, "local memory is not zeroed");
            thread::yield_now();
        }
        Ok(())
    }

    fn evict(&self) -> anyhow::Result<Duration> {
        let begun = Instant::now();
        // Answered when it is on its way.
        self.device.evict(&[&self.buffer], Eviction::Now)?;
        self.settle(self.local)?;
        Ok(begun.elapsed())
    }

    fn restore(&self) -> anyhow::Result<Duration> {
        let begun = Instant::now();
        self.device.make_resident(&[&self.buffer], WhenFull::Fail)?;
        let took = begun.elapsed();
        // It is not held.
        self.device.evict(&[&self.buffer], Eviction::WhenNeeded)?;
        Ok(took)
    }

    /// Has what was ever written of the video memory read, by a pass over one line. How long the bytes of the buffer take at that rate.
    fn read_back(&self) -> anyhow::Result<Duration> {
        let memory = TrackedMemory::new(Arc::clone(&self.tracker));
        let memories = [&memory as &dyn MovingMemory, &Nothing];
        let mut dirty = DirtyBitmap::begin(memories)?;
        let (stop, progress) = (AtomicBool::new(false), AtomicU64::new(0));
        let manner = Manner { zstd: None, pace: None, stop: &stop, progress: &progress };
        let begun = Instant::now();
        let sent = send_pending(&Mutex::new(&mut dirty), memories, &mut [Discarded(0)], 1, &manner)?;
        let took = begun.elapsed();
        let (bytes, filled) = (self.buffer.size(), (sent.pages - sent.zero_pages) * 4096);
        anyhow::ensure!(filled >= bytes, "{filled} bytes were read, and the buffer has {bytes}");
        Ok(took.mul_f64(fraction(bytes, sent.bytes())))
    }

    /// Whether the buffer holds what it was filled with.
    fn check(&mut self) -> anyhow::Result<()> {
        let staging = self.device.create_buffer(LOOK)?;
        let last = self.buffer.size() - LOOK;
        for at in [0, last / 2 / LOOK * LOOK, last] {
            let mut copy = CommandBuffer::new();
            copy.copy(self.buffer.va() + at, staging.va(), LOOK)?;
            self.queue.submit(&copy)?.wait(Some(LIMIT))?;
            let mut found = vec![0; usize::try_from(LOOK)?];
            staging.read(0, &mut found)?;
            let is_right = found.as_chunks::<4>().0.iter().all(|word| *word == WORD.to_le_bytes());
            anyhow::ensure!(is_right, "what was evicted and brought back is not what it was, at byte {at}");
        }
        Ok(())
    }
}

/// The bare driver's.
struct Plain {
    device: Import,
    host: Import,
    copier: Copier,
    bytes: u64,
}

impl Plain {
    fn new(driver: &Driver, bytes: u64) -> anyhow::Result<Self> {
        let (host, _) = host(driver, bytes)?;
        Ok(Self { device: driver.allocate(bytes, None)?, host, copier: Copier::new(driver)?, bytes })
    }

    fn evict(&mut self) -> anyhow::Result<Duration> {
        let begun = Instant::now();
        self.read_back()?;
        self.copier.fill(&self.device, 0, self.bytes, 0)?;
        Ok(begun.elapsed())
    }

    fn restore(&mut self) -> anyhow::Result<Duration> {
        let Self { device, host, copier, bytes } = self;
        let begun = Instant::now();
        copier.copy(host, device, *bytes)?;
        Ok(begun.elapsed())
    }

    fn read_back(&mut self) -> anyhow::Result<Duration> {
        let Self { device, host, copier, bytes } = self;
        let begun = Instant::now();
        copier.copy(device, host, *bytes)?;
        Ok(begun.elapsed())
    }
}

#[derive(Default)]
struct Samples {
    campanile: Vec<Duration>,
    native: Vec<Duration>,
}

impl Samples {
    fn figures(self, what: Move, bytes: u64) -> MoveFigures {
        let pairs = self.campanile.iter().zip(&self.native);
        let quotient = |(ours, native): (&Duration, &Duration)| {
            native.as_secs_f64() / ours.as_secs_f64().max(f64::MIN_POSITIVE)
        };
        let ratio = median(pairs.map(quotient).collect());
        let [campanile_ns, native_ns] = [self.campanile, self.native].map(Percentiles::of);
        let rate = |taken: Percentiles| super::work::rate(bytes, taken.p50);
        let (campanile_rate, native_rate) = (rate(campanile_ns), rate(native_ns));
        MoveFigures { what, bytes, campanile_ns, native_ns, ratio, campanile_rate, native_rate }
    }
}

#[expect(clippy::cast_precision_loss, reason = "a rate")]
fn fraction(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64
}

/// Moves `bytes` there and back in each round, and reads them, in a vGPU whose guest's CPU sees the first `aperture` bytes of video memory.
///
/// # Errors
/// There is no such memory, it is not moved, or what was moved is not what it was.
pub fn measure(
    start: &Start<'_>,
    driver: &Driver,
    bytes: u64,
    aperture: u64,
    rounds: u32,
) -> anyhow::Result<Vec<MoveFigures>> {
    let mut moved = Moved::new(start, bytes, aperture)?;
    let mut plain = Plain::new(driver, bytes)?;
    let mut all: [Samples; 3] = Default::default();
    // The first round touches memory, and opens what copies.
    for round in 0..=rounds {
        let (evict, to_host) = (moved.evict()?, plain.evict()?);
        let (restore, to_device) = (moved.restore()?, plain.restore()?);
        let (read, again) = (moved.read_back()?, plain.read_back()?);
        if round > 0 {
            let pairs = [(evict, to_host), (restore, to_device), (read, again)];
            for (samples, (campanile, native)) in all.iter_mut().zip(pairs) {
                samples.campanile.push(campanile);
                samples.native.push(native);
            }
        }
    }
    moved.check()?;
    let figures = all.into_iter().zip([Move::Evict, Move::Restore, Move::ReadBack]);
    Ok(figures.map(|(samples, what)| samples.figures(what, bytes)).collect())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::Move;
    use super::Samples;

    #[test]
    fn a_move_that_takes_twice_as_long_has_half_the_rate() {
        let times = |ms: [u64; 3]| ms.map(Duration::from_millis).to_vec();
        let samples = Samples { campanile: times([20, 40, 30]), native: times([10, 10, 15]) };
        let figures = samples.figures(Move::Evict, 30_000_000);
        let found = vec![figures.ratio, figures.campanile_rate, figures.native_rate];
        assert_eq!(found, vec![0.5, 1.0, 3.0]);
    }
}
