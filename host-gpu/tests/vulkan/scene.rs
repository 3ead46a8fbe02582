//! Compute nodes over one guest's memory, without a daemon: what a reset leaves, and what comes after it.

use std::sync::Arc;
use std::time::Duration;

use campanile_host_gpu::kernel::name::KernelName;
use campanile_host_gpu::kernel::program::Kernel;
use campanile_host_gpu::kernel::sanitizer::sanitize;
use campanile_host_gpu::kernel::source::Source;
use campanile_host_gpu::memory::mapping::Access;
use campanile_host_gpu::memory::mapping::Mapping;
use campanile_host_gpu::memory::page_table::writer::PageTables;
use campanile_host_gpu::memory::page_table::writer::Root;
use campanile_host_gpu::memory::segment::Place;
use campanile_host_gpu::memory::segment::Segments;
use campanile_host_gpu::node::buffer::Buffer;
use campanile_host_gpu::node::buffer::Node;
use campanile_host_gpu::node::buffer::Step;
use campanile_host_gpu::node::compute::ComputeNode;
use campanile_host_gpu::node::device_instance::Compiled;
use campanile_host_gpu::node::device_instance::DeviceInstance;
use campanile_host_gpu::node::signal::Signal;
use campanile_host_gpu::node::space::Space;
use campanile_host_gpu::vulkan::driver::Driver;
use campanile_host_gpu::vulkan::options::Executor;
use campanile_protocol::engine::block::BLOCK_BYTES;
use campanile_protocol::handle::Handle;
use campanile_protocol::packet;
use campanile_protocol::packet::Binding;
use campanile_protocol::packet::Dispatch;
use campanile_protocol::packet::DispatchBase;
use campanile_protocol::packet::DispatchIndirect;
use campanile_protocol::packet::PacketHeader;
use campanile_protocol::page_table::FIRST_ADDRESS;
use campanile_protocol::page_table::SegmentId;
use zerocopy::IntoBytes;

use crate::bench::map;
use crate::bench::memfd;

/// Where the guest's memory begins.
pub(crate) const BASE: u64 = FIRST_ADDRESS;
/// Where the packets lie.
const PACKETS: u64 = BASE + BYTES - 0x1000;
const BYTES: u64 = 1 << 20;

/// Memory, address space and shared block, which outlive every node.
pub(crate) struct Scene {
    tables: PageTables,
    root: Root,
    segments: Segments,
    pub(crate) memory: Arc<Mapping>,
    pub(crate) shared: Arc<Mapping>,
}

struct NoSignals;

impl Signal for NoSignals {
    fn signal(&self, _segments: &Segments, _place: &Place, _value: u64) -> bool {
        false
    }
}

impl Scene {
    pub(crate) fn new() -> Self {
        let memory = map(&memfd(BYTES), 0, BYTES, Access::ReadWrite);
        let mut tables = PageTables::new().expect("tables");
        let root = tables.create_root().expect("a root");
        tables.map(root, BASE, SegmentId::VRAM, 0, BYTES, true).expect("a mapping");
        let mut segments = Segments::default();
        segments.insert(SegmentId::VRAM, Arc::clone(&memory));
        let shared = map(&memfd(BLOCK_BYTES), 0, BLOCK_BYTES, Access::ReadWrite);
        Self { tables, root, segments, memory, shared }
    }

    /// A compute node with kernels 1, 2, …, whose slices are to take `slice`; on two device instances where there are slices, and
    /// kernels run on the CPU.
    pub(crate) fn node(&self, driver: Driver, kernels: &[&str], slice: Duration) -> Node {
        let kernels = kernels.iter().map(|text| sanitize(&Source::wgsl(text)).expect("a kernel")).collect();
        self.node_of(driver, kernels, slice)
    }

    /// The same, of kernels that are sanitized.
    pub(crate) fn node_of(&self, driver: Driver, kernels: Vec<Kernel>, slice: Duration) -> Node {
        let has_two = !slice.is_zero() && driver.executor() == Executor::Cpu && !driver.copies_memory();
        let secondary = has_two.then(|| driver.secondary().expect("a secondary device"));
        let compiled = |driver: &Driver, serial: u64, kernel: &Kernel| {
            let pipeline = driver.pipeline(kernel).expect("a pipeline");
            (KernelName { root: self.root.0, handle: serial }, Compiled { serial, pipeline, candidate: None })
        };
        let (mut firsts, mut seconds) = (Vec::new(), Vec::new());
        for (serial, kernel) in (1..).zip(kernels) {
            firsts.push(compiled(&driver, serial, &kernel));
            seconds.extend(secondary.as_ref().map(|secondary| compiled(secondary, serial, &kernel)));
        }
        let instances = std::iter::once(driver).chain(secondary).map(DeviceInstance::new).collect();
        let mut node = ComputeNode::new(instances, Arc::clone(&self.shared), slice);
        firsts.into_iter().for_each(|(name, compiled)| node.add_kernel(name, compiled));
        seconds.into_iter().for_each(|(name, compiled)| node.add_secondary_kernel(name, compiled));
        Node::Compute(Box::new(node))
    }

    /// The buffer with these packets, from its beginning.
    pub(crate) fn buffer(&self, packets: &[u8]) -> Buffer {
        let length = u64::try_from(packets.len()).expect("short");
        self.memory.slice(PACKETS - BASE, length).expect("inside").copy_from(packets);
        Buffer::fetch(&self.space(), PACKETS, u32::try_from(length).expect("short")).expect("fetched")
    }

    pub(crate) fn run(
        &self,
        buffer: &mut Buffer,
        node: &mut Node,
        should_pause: &mut dyn FnMut() -> bool,
    ) -> Step {
        buffer.run(node, &self.space(), &NoSignals, should_pause)
    }

    /// The address space.
    pub(crate) fn root(&self) -> u64 {
        self.root.0
    }

    fn space(&self) -> Space<'_> {
        Space { tables: self.tables.mapping(), root: self.root.0, segments: &self.segments }
    }
}

/// A dispatch of kernel `handle` over the `length` bytes at `offset`, bound at 0.
pub(crate) fn dispatch(handle: u64, grid: [u32; 3], offset: u64, length: u64) -> Vec<u8> {
    let body =
        Dispatch { kernel: Handle(handle), groups: grid, binding_count: 1, constant_bytes: 0, reserved: 0 };
    packet(packet::DISPATCH, body.as_bytes(), offset, length)
}

/// The same, of texels of a format.
pub(crate) fn dispatch_texels(handle: u64, grid: [u32; 3], offset: u64, length: u64, format: u16) -> Vec<u8> {
    let mut whole = dispatch(handle, grid, offset, length);
    let binding = Binding::new(BASE + offset, length, 0).as_texels(format);
    let at = whole.len() - size_of::<Binding>();
    whole[at..].copy_from_slice(binding.as_bytes());
    whole
}

/// The same, with groups numbered from `base`.
pub(crate) fn dispatch_base(
    handle: u64,
    base: [u32; 3],
    groups: [u32; 3],
    offset: u64,
    length: u64,
) -> Vec<u8> {
    let dispatch =
        Dispatch { kernel: Handle(handle), groups, binding_count: 1, constant_bytes: 0, reserved: 0 };
    let body = DispatchBase { dispatch, base, reserved: 0 };
    packet(packet::DISPATCH_BASE, body.as_bytes(), offset, length)
}

/// The same, with the grid read from `grid`.
pub(crate) fn dispatch_indirect(handle: u64, grid: u64, offset: u64, length: u64) -> Vec<u8> {
    let body = DispatchIndirect {
        kernel: Handle(handle),
        groups_va: BASE + grid,
        binding_count: 1,
        constant_bytes: 0,
    };
    packet(packet::DISPATCH_INDIRECT, body.as_bytes(), offset, length)
}

fn packet(opcode: u16, body: &[u8], offset: u64, length: u64) -> Vec<u8> {
    let binding = Binding::new(BASE + offset, length, 0);
    let size = size_of::<PacketHeader>() + body.len() + size_of::<Binding>();
    let header = PacketHeader { opcode, flags: 0, size: u32::try_from(size).expect("short") };
    [header.as_bytes(), body, binding.as_bytes()].concat()
}
