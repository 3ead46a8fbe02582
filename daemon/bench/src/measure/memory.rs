//! Video memory: mapping, eviction, overcommit, fragmentation; each beside what the machine does without it.

use std::fmt;
use std::time::Duration;
use std::time::Instant;

use anyhow::Context;
use campanile_guest_driver::commands::CommandBuffer;
use campanile_guest_driver::device::Device;
use campanile_guest_driver::node::Node;
use campanile_guest_driver::residency::Eviction;
use campanile_guest_driver::residency::LocalBuffer;
use campanile_guest_driver::residency::WhenFull;
use campanile_guest_driver::user_queue::QueueOptions;
use campanile_guest_driver::user_queue::UserQueue;
use campanile_host_gpu::memory::mapping::Access;
use campanile_host_gpu::memory::mapping::Mapping;
use campanile_host_gpu::memory::vram::create_memfd;
use serde::Serialize;

use super::daemon::DaemonProcess;
use super::guests::open_guest;
use campanile_daemon::vgpu::memory::vidmm::ranges::Ranges;

const MIB: u64 = 1 << 20;
const PAGE: u64 = 4096;
/// Mappings of one round.
const MAPPINGS: u64 = 10_000;
/// Bytes that are moved out and back.
const MOVED: u64 = 64 * MIB;
/// Buffers of the working set, and those that are allocated besides, 4 MiB each, in 128 MiB of local memory.
const WORKING_SET: usize = 24;
const OTHERS: usize = 40;
/// How long anything may take.
const LIMIT: Duration = Duration::from_secs(60);
/// Seconds of a week.
const WEEK: u64 = 7 * 24 * 3600;

/// How much is measured.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// Rounds of each figure.
    pub rounds: usize,
}

/// What was measured; medians.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MemoryFigures {
    /// Mapping one of 10,000 pages at addresses of their own, by lists of 1024.
    pub map_ns: u64,
    /// Unmapping one, until no engine has it.
    pub unmap_ns: u64,
    /// mmap of one of as many pages of a file.
    pub mmap_ns: u64,
    /// munmap of one.
    pub munmap_ns: u64,
    /// Bytes a second while 64 MiB are evicted.
    pub evict_bytes_per_second: f64,
    /// While they are brought back.
    pub restore_bytes_per_second: f64,
    /// While as much is copied within one process.
    pub memcpy_bytes_per_second: f64,
    /// Both moves over that.
    pub moves_over_memcpy: f64,
    /// A round over a working set that fits, where twice as much is allocated as there is.
    pub overcommitted_ns: u64,
    /// The same without anything else.
    pub alone_ns: u64,
    /// The median of what rounds in turn took, one over the other.
    pub overcommit_ratio: f64,
    /// Of a simulated week: the mean share of memory that is free when there is no piece for a request.
    pub fragmentation: f64,
    /// Requests of that week that found no piece, of all.
    pub refused_requests: f64,
}

impl fmt::Display for MemoryFigures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gib = |bytes: f64| bytes / f64::from(1 << 30);
        writeln!(f, "map, of 10,000           {:>8} ns each   mmap {} ns", self.map_ns, self.mmap_ns)?;
        writeln!(f, "unmap                    {:>8} ns each   munmap {} ns", self.unmap_ns, self.munmap_ns)?;
        writeln!(f, "evict                    {:>8.2} GiB/s", gib(self.evict_bytes_per_second))?;
        writeln!(f, "restore                  {:>8.2} GiB/s", gib(self.restore_bytes_per_second))?;
        writeln!(
            f,
            "memcpy                   {:>8.2} GiB/s       evict and restore are {:.2} of it",
            gib(self.memcpy_bytes_per_second),
            self.moves_over_memcpy
        )?;
        writeln!(
            f,
            "working set, overcommit  {:>8} ns        alone {} ns, ratio {:.3}",
            self.overcommitted_ns, self.alone_ns, self.overcommit_ratio
        )?;
        writeln!(
            f,
            "fragmentation            {:>8.1} %         of a simulated week; {:.2} % of requests found no piece",
            self.fragmentation * 100.0,
            self.refused_requests * 100.0
        )
    }
}

fn median<T: Copy>(mut values: Vec<T>, order: impl Fn(&T, &T) -> std::cmp::Ordering) -> Option<T> {
    values.sort_unstable_by(order);
    values.get(values.len() / 2).copied()
}

fn median_ns(samples: Vec<Duration>, each: u64) -> u64 {
    let middle = median(samples, Ord::cmp).unwrap_or_default();
    u64::try_from(middle.as_nanos()).unwrap_or(u64::MAX) / each.max(1)
}

#[expect(clippy::cast_precision_loss, reason = "figures of a measurement")]
fn rate(bytes: u64, samples: &[Duration]) -> f64 {
    let middle = median(samples.to_vec(), Ord::cmp).unwrap_or_default();
    bytes as f64 / middle.as_secs_f64().max(f64::MIN_POSITIVE)
}

fn timed<T>(samples: &mut Vec<Duration>, act: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
    let begun = Instant::now();
    let outcome = act()?;
    samples.push(begun.elapsed());
    Ok(outcome)
}

#[derive(Default)]
struct Samples {
    map: Vec<Duration>,
    unmap: Vec<Duration>,
    mmap: Vec<Duration>,
    munmap: Vec<Duration>,
    evict: Vec<Duration>,
    restore: Vec<Duration>,
    memcpy: Vec<Duration>,
    over: Vec<Duration>,
    alone: Vec<Duration>,
}

fn mappings(device: &Device, rounds: usize, samples: &mut Samples) -> anyhow::Result<()> {
    let buffer = device.create_local_buffer(MAPPINGS * PAGE)?;
    let file = create_memfd("campanile-bench", MAPPINGS * PAGE)?;
    for _ in 0..rounds {
        let base = timed(&mut samples.map, || Ok(device.map_pages(&buffer)?))?;
        timed(&mut samples.unmap, || Ok(device.unmap_pages(&buffer, base)?))?;
        let files = (0..MAPPINGS).map(|_| file.try_clone()).collect::<Result<Vec<_>, _>>();
        let files = files.context("descriptors for as many mappings")?;
        let mapped = timed(&mut samples.mmap, || {
            let map = |(index, file)| Mapping::new(file, index * PAGE, PAGE, Access::ReadWrite);
            Ok((0..).zip(files).map(map).collect::<Result<Vec<_>, _>>()?)
        })?;
        timed(&mut samples.munmap, || {
            drop(mapped);
            Ok(())
        })?;
    }
    Ok(())
}

fn moves(device: &Device, rounds: usize, samples: &mut Samples) -> anyhow::Result<()> {
    let buffer = device.create_local_buffer(MOVED)?;
    let context = device.create_context(Node::Copy)?;
    let mut queue = context.create_user_queue(&QueueOptions::default())?;
    let mut fill = CommandBuffer::new();
    fill.fill(buffer.va(), MOVED, 7)?;
    queue.submit(&fill)?.wait(Some(LIMIT))?;
    let [from, to] = ["from", "to"].map(|name| create_memfd(name, MOVED));
    let map = |file: std::io::Result<std::fs::File>| -> anyhow::Result<Mapping> {
        Ok(Mapping::new(file?, 0, MOVED, Access::ReadWrite)?)
    };
    let (from, to) = (map(from)?, map(to)?);
    for round in 0..=rounds {
        let mut first = Samples::default();
        // The first round touches memory for the first time.
        let samples = if round == 0 { &mut first } else { &mut *samples };
        device.evict(&[&buffer], Eviction::WhenNeeded)?;
        timed(&mut samples.evict, || Ok(device.evict(&[&buffer], Eviction::Now)?))?;
        timed(&mut samples.restore, || Ok(device.make_resident(&[&buffer], WhenFull::Fail)?))?;
        timed(&mut samples.memcpy, || {
            let slices = from.slice(0, MOVED).zip(to.slice(0, MOVED)).context("slices")?;
            slices.0.copy_to_volatile_slice(slices.1);
            Ok(())
        })?;
    }
    Ok(())
}

/// Works on the buffers of its set, one after the other.
struct Worker {
    queue: UserQueue,
    set: Vec<LocalBuffer>,
    _others: Vec<LocalBuffer>,
    _device: Device,
    _daemon: DaemonProcess,
}

impl Worker {
    fn start(settings: &[std::ffi::OsString], others: usize) -> anyhow::Result<Self> {
        let daemon = DaemonProcess::with_memory("vram=256M,vram-max=512M", settings)?;
        let device = open_guest(&daemon.socket())?;
        let queue = device.create_context(Node::Copy)?.create_user_queue(&QueueOptions::default())?;
        let allocate =
            |count| (0..count).map(|_| device.create_local_buffer(4 * MIB)).collect::<Result<Vec<_>, _>>();
        let (others, set) = (allocate(others)?, allocate(WORKING_SET)?);
        let mut worker = Self { queue, set, _others: others, _device: device, _daemon: daemon };
        // Everything was used once, the set last.
        let all: Vec<u64> = worker._others.iter().chain(&worker.set).map(LocalBuffer::va).collect();
        worker.fill(&all)?;
        worker.round()?;
        Ok(worker)
    }

    fn fill(&mut self, addresses: &[u64]) -> anyhow::Result<()> {
        for va in addresses {
            let mut commands = CommandBuffer::new();
            commands.fill(*va, 4 * MIB, 1)?;
            self.queue.submit(&commands)?.wait(Some(LIMIT))?;
        }
        Ok(())
    }

    fn round(&mut self) -> anyhow::Result<()> {
        let set: Vec<u64> = self.set.iter().map(LocalBuffer::va).collect();
        self.fill(&set)
    }
}

/// A week of an allocator: a request or an end each second, of sizes as buffers have them, as full as can be.
/// The mean share that is free when a request finds no piece, and the share of such requests.
#[expect(clippy::cast_precision_loss, reason = "shares")]
fn simulate_week() -> (f64, f64) {
    const PAGES: u64 = 1 << 18;
    let mut ranges = Ranges::new(0, PAGES);
    let mut live: Vec<(u64, u64)> = Vec::new();
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) % below.max(1)
    };
    let (mut wasted, mut refused, mut requests) = (0.0, 0u32, 0u32);
    for _ in 0..WEEK {
        if !live.is_empty() && random(5) < 2 {
            let at = usize::try_from(random(live.len() as u64)).unwrap_or(0);
            let (start, length) = live.swap_remove(at);
            ranges.release(start, length);
            continue;
        }
        // From one page to 8 MiB, small ones most often.
        let most = 1 << (1 + random(11));
        let size = random(most) + 1;
        requests += 1;
        match ranges.allocate(size) {
            Some(start) => live.push((start, size)),
            None => {
                wasted += ranges.free_bytes() as f64 / PAGES as f64;
                refused += 1;
                // Whoever needs it has something else go.
                if !live.is_empty() {
                    let at = usize::try_from(random(live.len() as u64)).unwrap_or(0);
                    let (start, length) = live.swap_remove(at);
                    ranges.release(start, length);
                }
            }
        }
    }
    let mean = if refused == 0 { 0.0 } else { wasted / f64::from(refused) };
    (mean, f64::from(refused) / f64::from(requests.max(1)))
}

/// Measures all of it.
pub fn measure(settings: &[std::ffi::OsString], effort: Effort) -> anyhow::Result<MemoryFigures> {
    let mut samples = Samples::default();
    {
        let daemon = DaemonProcess::with_memory("vram=512M", settings)?;
        let device = open_guest(&daemon.socket())?;
        mappings(&device, effort.rounds, &mut samples)?;
        moves(&device, effort.rounds, &mut samples)?;
    }
    let mut sides = [Worker::start(settings, OTHERS)?, Worker::start(settings, 0)?];
    let mut ratios = Vec::new();
    for round in 0..4 * effort.rounds {
        let order = if round % 2 == 0 { [0, 1] } else { [1, 0] };
        for side in order {
            let into = if side == 0 { &mut samples.over } else { &mut samples.alone };
            timed(into, || sides[side].round())?;
        }
        if let (Some(over), Some(alone)) = (samples.over.last(), samples.alone.last()) {
            ratios.push(over.as_secs_f64() / alone.as_secs_f64());
        }
    }
    let (fragmentation, refused_requests) = simulate_week();
    let (evict, restore) = (rate(MOVED, &samples.evict), rate(MOVED, &samples.restore));
    let memcpy = rate(MOVED, &samples.memcpy);
    Ok(MemoryFigures {
        map_ns: median_ns(samples.map, MAPPINGS),
        unmap_ns: median_ns(samples.unmap, MAPPINGS),
        mmap_ns: median_ns(samples.mmap, MAPPINGS),
        munmap_ns: median_ns(samples.munmap, MAPPINGS),
        evict_bytes_per_second: evict,
        restore_bytes_per_second: restore,
        memcpy_bytes_per_second: memcpy,
        moves_over_memcpy: 2.0 / (1.0 / evict + 1.0 / restore) / memcpy,
        overcommitted_ns: median_ns(samples.over, 1),
        alone_ns: median_ns(samples.alone, 1),
        overcommit_ratio: median(ratios, f64::total_cmp).unwrap_or_default(),
        fragmentation,
        refused_requests,
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn little_is_lost_to_fragmentation_in_a_simulated_week() {
        let (free_when_refused, _) = super::simulate_week();
        assert!(free_when_refused < 0.1, "{free_when_refused}");
    }
}
