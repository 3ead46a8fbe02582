//! What dirty tracking costs: work with and without it, side by side, and the queries themselves.

use std::any::Any;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use std::time::Instant;

use anyhow::Context;
use campanile_guest::percentiles::Percentiles;
use campanile_guest::percentiles::median;
use campanile_guest_driver::buffer::Buffer;
use campanile_guest_driver::commands::CommandBuffer;
use campanile_guest_driver::device::Device;
use campanile_guest_driver::kernel::Kernel;
use campanile_guest_driver::kernel::KernelSource;
use campanile_guest_driver::node::Node;
use campanile_guest_driver::residency::LocalBuffer;
use campanile_guest_driver::user_queue::QueueOptions;
use campanile_guest_driver::user_queue::UserQueue;
use campanile_host_gpu::dirty::basis::Range;
use campanile_host_gpu::dirty::method::Method;
use campanile_host_gpu::dirty::requests::BasisHandle;
use campanile_host_gpu::dirty::tracker::Tracker;
use serde::Serialize;

use super::guests::can_compute;
use super::guests::open_guest;
use super::guests::user_round_trips;
use campanile_daemon::vgpu::memory::dirty::TrackerBoard;

/// A store to each word.
const STORES: &str = "
    var<immediate> round: u32;
    @group(0) @binding(0) var<storage, read_write> data: array<u32>;
    @compute @workgroup_size(256) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
        data[id.x] = id.x ^ round;
    }";
const PAGE: u64 = 4096;
/// Bytes that the kernel writes.
const WRITTEN: u64 = 48 << 20;
const THREADS: u64 = 256;
/// Of the vGPU whose plane is asked.
const PLANE_BYTES: u64 = 4 << 30;
/// Pages of it that are written for a plane that is 1 % dirty, and how far they lie apart.
const DIRTY_PAGES: u64 = PLANE_BYTES / PAGE / 100;
const STRIDE: u64 = 85 * PAGE;
/// Fills in one buffer.
const FILLS: u64 = 1000;
/// Memory that the guest's CPU sees, to be hashed.
const VISIBLE: u64 = 64 << 20;
/// What is read at a time, of what is sent.
const CHUNK: u64 = 1 << 20;
/// How long anything may take.
const LIMIT: Duration = Duration::from_secs(60);

/// How much is measured.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// Pairs of kernels, with tracking and without.
    pub pairs: usize,
    /// Round trips of an empty buffer on each side.
    pub round_trips: u64,
    /// Queries of each kind.
    pub queries: usize,
}

/// A host with one vGPU, for as long as it is kept.
pub struct Subject {
    /// Its socket.
    pub socket: PathBuf,
    /// Where its trackers are.
    pub trackers: Arc<TrackerBoard>,
    /// The host.
    pub host: Box<dyn Any>,
}

/// Starts hosts: with this method, and this much video memory.
pub type Start<'a> = dyn Fn(Method, u64) -> anyhow::Result<Subject> + 'a;

/// What one method costs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MethodFigures {
    /// Its name.
    pub method: &'static str,
    /// A kernel that stores to each word of [`WRITTEN`] bytes, which it has written before.
    pub kernel_ns: Percentiles,
    /// The same without tracking, in turn with it.
    pub untracked_kernel_ns: Percentiles,
    /// Median of the quotients of each pair.
    pub ratio: f64,
    /// The same kernel just after its bits were cleared: each page is stored to for the first time.
    pub first_write_kernel_ns: Percentiles,
    /// What that costs a page.
    pub first_write_page_ns: f64,
    /// Round trip of an empty buffer.
    pub round_trip_ns: Percentiles,
    /// The same without tracking.
    pub untracked_round_trip_ns: Percentiles,
    /// Query-and-clear of a plane of 4 GiB with both engines, nothing dirty.
    pub clean_query_ns: Percentiles,
    /// The same with 1 % of the pages written since, one by one.
    pub one_percent_query_ns: Percentiles,
    /// Comparing 64 MiB that the guest's CPU can write with what was sent of it.
    pub hash_64_mib_ns: Percentiles,
}

/// Of all methods that work here.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DirtyFigures {
    /// One after the other.
    pub methods: Vec<MethodFigures>,
}

impl fmt::Display for DirtyFigures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for figures in &self.methods {
            writeln!(f, "{}", figures.method)?;
            writeln!(f, "48 MiB stored, tracked     {}", figures.kernel_ns)?;
            writeln!(
                f,
                "48 MiB stored, untracked   {}   {:.4} x",
                figures.untracked_kernel_ns, figures.ratio
            )?;
            let each = figures.first_write_page_ns;
            writeln!(
                f,
                "each page for the first time {}   {each:.0} ns a page",
                figures.first_write_kernel_ns
            )?;
            writeln!(f, "round trip, tracked        {}", figures.round_trip_ns)?;
            writeln!(f, "round trip, untracked      {}", figures.untracked_round_trip_ns)?;
            writeln!(f, "4 GiB clean, query+clear   {}", figures.clean_query_ns)?;
            writeln!(f, "4 GiB 1 % dirty            {}", figures.one_percent_query_ns)?;
            writeln!(f, "64 MiB hashed              {}", figures.hash_64_mib_ns)?;
        }
        Ok(())
    }
}

/// A host with a guest that stores. Fields end in order: first who needs the next.
struct Side {
    queue: UserQueue,
    stores: CommandBuffer,
    view: Option<View>,
    _kernel: Kernel,
    _data: LocalBuffer,
    _device: Device,
    _subject: Subject,
}

/// A basis of all video memory.
struct View {
    tracker: Arc<Tracker>,
    basis: BasisHandle,
    bits: Vec<u8>,
}

impl View {
    fn new(board: &TrackerBoard) -> anyhow::Result<Self> {
        let [tracker, _] = board.trackers().context("the session is gone")?;
        let all = Range { offset: 0, length: tracker.length() };
        let basis = tracker.create_memory_basis(tracker.segment(), &[all])?;
        tracker.start_dirty_tracking(basis)?;
        let bits = vec![0; usize::try_from((tracker.length() / PAGE).div_ceil(8))?];
        Ok(Self { tracker, basis, bits })
    }

    fn clear(&mut self) -> anyhow::Result<Duration> {
        let begun = Instant::now();
        self.tracker.query_dirty_bit_data(self.basis, None, &mut self.bits, true)?;
        Ok(begun.elapsed())
    }

    /// As a migration, where nothing is compared of which nothing was sent.
    fn send_all(&self) -> anyhow::Result<()> {
        let mut chunk = vec![0; usize::try_from(CHUNK)?];
        for at in (0..self.tracker.length()).step_by(chunk.len()) {
            let length = CHUNK.min(self.tracker.length() - at);
            self.tracker.read(self.basis, at, &mut chunk[..usize::try_from(length)?])?;
        }
        Ok(())
    }

    fn dirty(&self) -> u64 {
        self.bits.iter().map(|byte| u64::from(byte.count_ones())).sum()
    }
}

impl Side {
    fn start(start: &Start<'_>, method: Method) -> anyhow::Result<Self> {
        let subject = start(method, 256 << 20)?;
        let device = open_guest(&subject.socket)?;
        anyhow::ensure!(can_compute(&device), "no compute node, so nothing is dispatched");
        let kernel = device.create_kernel(&KernelSource::wgsl(STORES))?;
        let data = device.create_local_buffer(WRITTEN)?;
        let queue = device.create_context(Node::Compute)?.create_user_queue(&QueueOptions::default())?;
        let mut stores = CommandBuffer::new();
        let groups = u32::try_from(WRITTEN / 4 / THREADS)?;
        stores.dispatch(&kernel, [groups, 1, 1], &[data.binding(0)], &1u32.to_ne_bytes())?;
        let view = if method == Method::Off { None } else { Some(View::new(&subject.trackers)?) };
        Ok(Self { queue, stores, view, _kernel: kernel, _data: data, _device: device, _subject: subject })
    }

    fn store(&mut self) -> anyhow::Result<Duration> {
        let begun = Instant::now();
        self.queue.submit(&self.stores)?.wait(Some(LIMIT))?;
        Ok(begun.elapsed())
    }
}

/// Queries of a plane of 4 GiB.
struct Queries {
    clean: Vec<Duration>,
    one_percent: Vec<Duration>,
    hashed: Vec<Duration>,
}

fn queries(start: &Start<'_>, method: Method, count: usize) -> anyhow::Result<Queries> {
    let subject = start(method, PLANE_BYTES)?;
    let device = open_guest(&subject.socket)?;
    let large = device.create_local_buffer(DIRTY_PAGES * STRIDE)?;
    let mut queues = Vec::new();
    for node in [Node::Copy, Node::Compute] {
        if node == Node::Copy || can_compute(&device) {
            queues.push(device.create_context(node)?.create_user_queue(&QueueOptions::default())?);
        }
    }
    let mut view = View::new(&subject.trackers)?;
    if !method.is_performant() {
        view.send_all()?;
    }
    let (mut clean, mut one_percent) = (Vec::new(), Vec::new());
    for round in 0..=count {
        // Half of them by each engine.
        let engines = queues.len() as u64;
        for (index, queue) in (0u64..).zip(&mut queues) {
            for first in (0..DIRTY_PAGES).step_by(usize::try_from(FILLS)?) {
                let mut commands = CommandBuffer::new();
                for page in (first..DIRTY_PAGES.min(first + FILLS)).filter(|page| page % engines == index) {
                    // Other contents in each round, the first included: costly tracking compares them.
                    commands.fill(large.va() + page * STRIDE, 64, u32::try_from(round + 1)?)?;
                }
                queue.submit(&commands)?.wait(Some(LIMIT))?;
            }
        }
        let took = view.clear()?;
        anyhow::ensure!(view.dirty() >= DIRTY_PAGES, "{} pages are dirty, not {DIRTY_PAGES}", view.dirty());
        let rest = view.clear()?;
        anyhow::ensure!(view.dirty() < 1000, "{} pages of a clean plane are dirty", view.dirty());
        // In the first the daemon's own pages are touched for the first time.
        if round > 0 {
            one_percent.push(took);
            clean.push(rest);
        }
    }
    Ok(Queries { clean, one_percent, hashed: hashing(&device, &mut view, count)? })
}

/// What a query takes more for memory in the window.
fn hashing(device: &Device, view: &mut View, count: usize) -> anyhow::Result<Vec<Duration>> {
    view.clear()?;
    let without = (0..count).map(|_| view.clear()).collect::<anyhow::Result<Vec<_>>>()?;
    let _shown: Buffer = device.create_buffer(VISIBLE)?;
    view.clear()?;
    // What was sent of it is known from here on.
    let mut page = vec![0; usize::try_from(PAGE)?];
    let dirty: Vec<u64> =
        (0u64..).zip(&view.bits).filter(|(_, byte)| **byte != 0).map(|(at, _)| at * 8).collect();
    for first in dirty {
        for page_index in first..first + 8 {
            view.tracker.read(view.basis, page_index * PAGE, &mut page)?;
        }
    }
    view.clear()?;
    anyhow::ensure!(view.dirty() < 1000, "{} pages in the window are not settled", view.dirty());
    let with = (0..count).map(|_| view.clear()).collect::<anyhow::Result<Vec<_>>>()?;
    let base = Duration::from_nanos(Percentiles::of(without).p50);
    Ok(with.into_iter().map(|took| took.saturating_sub(base)).collect())
}

fn measure_method(start: &Start<'_>, method: Method, effort: Effort) -> anyhow::Result<MethodFigures> {
    let mut sides = [Side::start(start, method)?, Side::start(start, Method::Off)?];
    for side in &mut sides {
        side.store()?;
        side.store()?;
    }
    let (mut kernels, mut quotients): ([Vec<Duration>; 2], _) = (<[Vec<Duration>; 2]>::default(), Vec::new());
    for pair in 0..effort.pairs {
        let mut times = [Duration::ZERO; 2];
        for index in if pair % 2 == 0 { [0, 1] } else { [1, 0] } {
            times[index] = sides[index].store()?;
            kernels[index].push(times[index]);
        }
        quotients.push(times[0].as_secs_f64() / times[1].as_secs_f64());
    }
    let mut first_writes = Vec::new();
    for _ in 0..effort.pairs {
        sides[0].view.as_mut().context("a side without tracking")?.clear()?;
        first_writes.push(sides[0].store()?);
    }
    let mut round_trips = <[Vec<Duration>; 2]>::default();
    let empty = CommandBuffer::new();
    for turn in 0..10 {
        for index in if turn % 2 == 0 { [0, 1] } else { [1, 0] } {
            user_round_trips(&mut sides[index].queue, &empty, 10)?;
            let more = user_round_trips(&mut sides[index].queue, &empty, effort.round_trips / 10)?;
            round_trips[index].extend(more);
        }
    }
    drop(sides);
    let Queries { clean, one_percent, hashed } = queries(start, method, effort.queries)?;
    let ([kernel, untracked_kernel], [round_trip, untracked_round_trip]) =
        (kernels.map(Percentiles::of), round_trips.map(Percentiles::of));
    let first_write = Percentiles::of(first_writes);
    let more = Duration::from_nanos(first_write.p50.saturating_sub(kernel.p50));
    let pages = u32::try_from(WRITTEN / PAGE)?;
    Ok(MethodFigures {
        method: method.name(),
        kernel_ns: kernel,
        untracked_kernel_ns: untracked_kernel,
        ratio: median(quotients),
        first_write_kernel_ns: first_write,
        first_write_page_ns: more.as_secs_f64() * 1e9 / f64::from(pages),
        round_trip_ns: round_trip,
        untracked_round_trip_ns: untracked_round_trip,
        clean_query_ns: Percentiles::of(clean),
        one_percent_query_ns: Percentiles::of(one_percent),
        hash_64_mib_ns: Percentiles::of(hashed),
    })
}

/// Measures these methods, each against none.
pub fn measure(start: &Start<'_>, methods: &[Method], effort: Effort) -> anyhow::Result<DirtyFigures> {
    let methods = methods.iter().map(|method| measure_method(start, *method, effort));
    Ok(DirtyFigures { methods: methods.collect::<anyhow::Result<_>>()? })
}
