//! Memory, an address space and a kernel for compute nodes that serve no guest.

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;
use std::time::Instant;

use campanile_protocol::engine::block::BLOCK_BYTES;
use campanile_protocol::handle::Handle;
use campanile_protocol::packet::Binding;
use campanile_protocol::packet::DISPATCH;
use campanile_protocol::packet::Dispatch;
use campanile_protocol::packet::PacketHeader;
use campanile_protocol::page_table::FIRST_ADDRESS;
use campanile_protocol::page_table::SegmentId;
use zerocopy::IntoBytes;

use super::buffer::Buffer;
use super::buffer::Node;
use super::buffer::Step;
use super::compute::ComputeNode;
use super::device_instance::Compiled;
use super::device_instance::DeviceInstance;
use super::signal::Signal;
use super::space::Space;
use crate::kernel::name::KernelName;
use crate::kernel::program::Kernel;
use crate::kernel::sanitizer::sanitize;
use crate::kernel::source::Source;
use crate::memory::mapping::Access;
use crate::memory::mapping::Mapping;
use crate::memory::page_table::writer::PageTables;
use crate::memory::page_table::writer::Root;
use crate::memory::segment::Place;
use crate::memory::segment::Segments;
use crate::memory::vram::create_memfd;
use crate::vulkan::driver::Driver;
use crate::vulkan::error::VulkanError;

/// Tens of microseconds a group, which counts itself in the word of its column.
const KERNEL: &str = "
@group(0) @binding(0) var<storage, read_write> cells: array<atomic<u32>>;
@compute @workgroup_size(64) fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    var x = group.x + lane;
    for (var turn = 0u; turn < 2000u; turn++) { x = x * 1664525u + 1013904223u; }
    if lane == 0u { atomicAdd(&cells[group.x], 1u); }
    if x == 3u { atomicMax(&cells[1024], x); }
}";
/// Its name.
const HANDLE: u64 = 1;
/// Groups in x: the words that count them, behind which is one more.
const COLUMNS: u32 = 1024;
const CELLS: u64 = (COLUMNS as u64 + 1) * 4;
/// Bytes of memory, in the last page of which packets lie.
const BYTES: u64 = 1 << 20;
const PACKETS: u64 = BYTES - 0x1000;

/// One guest's memory without a guest.
pub(super) struct Scene {
    tables: PageTables,
    root: Root,
    segments: Segments,
    memory: Arc<Mapping>,
    shared: Arc<Mapping>,
    kernel: Kernel,
    /// Dispatches by how many of their groups ran.
    ran: BTreeMap<u64, u32>,
}

struct NoSignals;

impl Signal for NoSignals {
    fn signal(&self, _segments: &Segments, _place: &Place, _value: u64) -> bool {
        false
    }
}

fn failed(error: &dyn Error) -> VulkanError {
    VulkanError::SelfTest { reason: error.to_string() }
}

fn mapping(bytes: u64) -> Result<Arc<Mapping>, VulkanError> {
    let file = create_memfd("campanile-check-gpu", bytes).map_err(|e| failed(&e))?;
    Mapping::new(file, 0, bytes, Access::ReadWrite).map(Arc::new).map_err(|e| failed(&e))
}

/// How many groups of column `column` are among the first `done`.
fn in_column(done: u64, column: u32) -> u32 {
    let (rows, rest) = (done / u64::from(COLUMNS), done % u64::from(COLUMNS));
    u32::try_from(rows).unwrap_or(u32::MAX).saturating_add(u32::from(u64::from(column) < rest))
}

impl Scene {
    pub(super) fn new() -> Result<Self, VulkanError> {
        let (memory, shared) = (mapping(BYTES)?, mapping(BLOCK_BYTES)?);
        let mut tables = PageTables::new().map_err(|e| failed(&e))?;
        let root = tables.create_root().map_err(|e| failed(&e))?;
        tables.map(root, FIRST_ADDRESS, SegmentId::VRAM, 0, BYTES, true).map_err(|e| failed(&e))?;
        let mut segments = Segments::default();
        segments.insert(SegmentId::VRAM, Arc::clone(&memory));
        let kernel = sanitize(&Source::wgsl(KERNEL)).map_err(|e| failed(&e))?;
        Ok(Self { tables, root, segments, memory, shared, kernel, ran: BTreeMap::new() })
    }

    /// A node over one or two instances of a device, whose slices are to take `slice`; zero for none.
    pub(super) fn node(&self, drivers: Vec<Driver>, slice: Duration) -> Result<Node, VulkanError> {
        let name = KernelName { root: self.root.0, handle: HANDLE };
        let (mut instances, mut compiled) = (Vec::new(), Vec::new());
        for driver in drivers {
            let pipeline = driver.pipeline(&self.kernel)?;
            compiled.push(Compiled { serial: 1, pipeline, candidate: None });
            let mut instance = DeviceInstance::new(driver);
            instance.import_ahead(SegmentId::VRAM, &self.memory)?;
            instances.push(instance);
        }
        let mut node = ComputeNode::new(instances, Arc::clone(&self.shared), slice);
        let mut compiled = compiled.into_iter();
        compiled.next().into_iter().for_each(|first| node.add_kernel(name, first));
        compiled.for_each(|second| node.add_secondary_kernel(name, second));
        Ok(Node::Compute(Box::new(node)))
    }

    /// A buffer with a dispatch of as many rows of groups.
    fn buffer(&self, rows: u32) -> Result<Buffer, VulkanError> {
        let body = Dispatch {
            kernel: Handle(HANDLE),
            groups: [COLUMNS, rows, 1],
            binding_count: 1,
            constant_bytes: 0,
            reserved: 0,
        };
        let binding = Binding::new(FIRST_ADDRESS, CELLS, 0);
        let size = size_of::<PacketHeader>() + size_of::<Dispatch>() + size_of::<Binding>();
        let size = u32::try_from(size).map_err(|e| failed(&e))?;
        let header = PacketHeader { opcode: DISPATCH, flags: 0, size };
        let packet = [header.as_bytes(), body.as_bytes(), binding.as_bytes()].concat();
        let place = self.memory.slice(PACKETS, size.into());
        let place =
            place.ok_or_else(|| VulkanError::SelfTest { reason: "packets have no room".to_owned() })?;
        place.copy_from(&packet);
        let fetched = Buffer::fetch(&self.space(), FIRST_ADDRESS + PACKETS, size);
        fetched.map_err(|stop| VulkanError::SelfTest { reason: format!("packets cannot be read: {stop:?}") })
    }

    fn space(&self) -> Space<'_> {
        Space { tables: self.tables.mapping(), root: self.root.0, segments: &self.segments }
    }

    /// Goes on with a buffer until its end, or until it stops. Whether it ended.
    fn advance(
        &self,
        node: &mut Node,
        buffer: &mut Buffer,
        should_pause: &mut dyn FnMut() -> bool,
    ) -> Result<bool, VulkanError> {
        match buffer.run(node, &self.space(), &NoSignals, should_pause) {
            Step::Done => Ok(true),
            Step::Paused => Ok(false),
            other => Err(VulkanError::SelfTest { reason: format!("a dispatch ended with {other:?}") }),
        }
    }

    /// Notes what has run of a buffer.
    fn note(&mut self, rows: u32, buffer: &Buffer, has_ended: bool) {
        let all = u64::from(COLUMNS) * u64::from(rows);
        let done = if has_ended { all } else { buffer.save().done_in_packet };
        *self.ran.entry(done).or_default() += 1;
    }

    /// Runs a dispatch of as many rows to its end, and tells how long that took.
    pub(super) fn run(&mut self, node: &mut Node, rows: u32) -> Result<Duration, VulkanError> {
        let mut buffer = self.buffer(rows)?;
        let begun = Instant::now();
        let has_ended = self.advance(node, &mut buffer, &mut || false)?;
        let took = begun.elapsed();
        self.note(rows, &buffer, has_ended);
        Ok(took)
    }

    /// How many rows take `least`, of at most `most`.
    pub(super) fn rows(&mut self, node: &mut Node, least: Duration, most: u32) -> Result<u32, VulkanError> {
        // The first run touches memory.
        self.run(node, 1)?;
        let mut rows = 1;
        loop {
            let took = self.run(node, rows)?;
            if took * 4 >= least || rows >= most {
                let times = least.as_nanos().div_ceil(took.as_nanos().max(1));
                return Ok(u32::try_from(u128::from(rows) * times).unwrap_or(most).min(most));
            }
            rows = rows.saturating_mul(4).min(most);
        }
    }

    /// Runs a dispatch, stopped at each boundary, to its end. How long each run took that was stopped.
    pub(super) fn stop_at_each(&mut self, node: &mut Node, rows: u32) -> Result<Vec<Duration>, VulkanError> {
        let mut buffer = self.buffer(rows)?;
        let mut times = Vec::new();
        loop {
            let begun = Instant::now();
            if self.advance(node, &mut buffer, &mut || true)? {
                self.note(rows, &buffer, true);
                return Ok(times);
            }
            times.push(begun.elapsed());
        }
    }

    /// Runs a dispatch that another thread tells to stop after a while, and gives it up. How long it ran from then on; none where it had ended.
    pub(super) fn stop_after(
        &mut self,
        node: &mut Node,
        rows: u32,
        after: Duration,
    ) -> Result<Option<Duration>, VulkanError> {
        let mut buffer = self.buffer(rows)?;
        let asked: OnceLock<Instant> = OnceLock::new();
        let (has_ended, end) = thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(after);
                asked.get_or_init(Instant::now);
            });
            let has_ended = self.advance(node, &mut buffer, &mut || asked.get().is_some());
            (has_ended, Instant::now())
        });
        let has_ended = has_ended?;
        self.note(rows, &buffer, has_ended);
        let asked = asked.get().filter(|_| !has_ended);
        Ok(asked.map(|asked| end.saturating_duration_since(*asked)))
    }

    /// Whether each group of what ran did so once.
    ///
    /// # Errors
    /// One did not, or more often.
    pub(super) fn check(&self) -> Result<(), VulkanError> {
        for column in 0..COLUMNS {
            let times = self.ran.iter().map(|(done, dispatches)| in_column(*done, column) * dispatches);
            let expected: u32 = times.sum();
            let word = self.memory.word32(u64::from(column) * 4);
            let found = word.map_or(0, |word| word.load(Ordering::Relaxed));
            if found != expected {
                let reason = format!("{found} groups of column {column} ran, and not {expected}");
                return Err(VulkanError::SelfTest { reason });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::COLUMNS;
    use super::Scene;
    use super::in_column;

    #[test]
    fn groups_are_counted_in_x_first() {
        let done = u64::from(COLUMNS) * 3 + 5;
        assert_eq!([0, 4, 5, COLUMNS - 1].map(|column| in_column(done, column)), [4, 4, 3, 3]);
    }

    #[test]
    fn a_group_that_ran_twice_or_not_at_all_is_noticed() {
        let mut scene = Scene::new().unwrap();
        scene.ran.extend([(5, 2), (u64::from(COLUMNS), 1)]);
        let set = |column: u64, count: u32| {
            scene.memory.word32(column * 4).unwrap().store(count, Ordering::Relaxed);
        };
        for column in 0..COLUMNS.into() {
            set(column, if column < 5 { 3 } else { 1 });
        }
        assert!(scene.check().is_ok());
        for (column, count) in [(4, 2), (5, 2), (1023, 0)] {
            let before = scene.memory.word32(column * 4).unwrap().load(Ordering::Relaxed);
            set(column, count);
            let said = scene.check().unwrap_err().to_string();
            assert!(said.contains(&format!("{count} groups of column {column} ran")), "{said}");
            set(column, before);
        }
    }
}
