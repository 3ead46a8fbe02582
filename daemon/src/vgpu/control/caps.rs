//! What the device says of itself: the capability set.

use campanile_host_gpu::engine::address::EngineAddress;
use campanile_host_gpu::engine::address::NODES;
use campanile_host_gpu::engine::address::node_index;
use campanile_host_gpu::engine::message::NodeKind;
use campanile_protocol::PAGE_SIZE;
use campanile_protocol::PROTOCOL_VERSION;
use campanile_protocol::capset;
use campanile_protocol::capset::Capset;
use campanile_protocol::capset::NodeMetadata;
use campanile_protocol::control::frame::MAX_CONTROL_BYTES;
use campanile_protocol::device_page;
use campanile_protocol::driver_caps;
use campanile_protocol::driver_caps::DriverCaps;
use campanile_protocol::driver_caps::MAX_SEGMENTS;
use campanile_protocol::driver_caps::Segment;
use campanile_protocol::packet::MAX_DMA_BUFFER;
use campanile_protocol::page_table::ADDRESS_BITS;
use campanile_protocol::page_table::LEVELS;
use campanile_protocol::page_table::TABLE_ENTRIES;
use campanile_protocol::profile::Profile;
use campanile_protocol::queue::doorbell::DoorbellModel;

use crate::vgpu::config::Compute;
use crate::vgpu::vm::Vm;

/// Bytes as they fit in a field of 32 bits.
fn field(bytes: u64) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

/// The capability set.
pub fn capset(vm: &Vm) -> Capset {
    let usable = capset::NODE_FLAG_AVAILABLE
        | capset::NODE_FLAG_USER_MODE_SUBMISSION
        | capset::NODE_FLAG_RING_BUFFER_FENCE_RELEASE;
    let mut nodes = [NodeMetadata::default(); capset::MAX_NODES];
    for node in NODES {
        let available = node == NodeKind::Copy || matches!(vm.config.compute, Compute::Available(_));
        nodes[node_index(node)] = NodeMetadata {
            kind: match node {
                NodeKind::Compute => capset::NODE_KIND_COMPUTE,
                NodeKind::Copy => capset::NODE_KIND_COPY,
            },
            flags: if available { usable | doorbell_flags(vm, node) } else { 0 },
            physical_doorbells: vm
                .config
                .doorbell_modes
                .global_cell(EngineAddress::new(0, node))
                .map_or(vm.config.doorbells, |_| 1),
            max_in_flight_hw_queue_buffers: 0,
            engines: u32::from(vm.config.engines),
            graphics_preemption: capset::GRANULARITY_NONE,
            compute_preemption: match node {
                NodeKind::Compute if vm.config.slice.is_zero() => capset::GRANULARITY_DISPATCH,
                NodeKind::Compute => capset::GRANULARITY_THREAD_GROUP,
                NodeKind::Copy => capset::GRANULARITY_NONE,
            },
            reserved: 0,
        };
    }
    Capset {
        protocol_version: PROTOCOL_VERSION,
        node_count: 2,
        vram_bytes: vm.config.account.quota().max,
        aperture_bytes: vm.memory.allocations.memory().aperture_bytes(),
        doorbell_flags: 0,
        doorbell_bytes: device_page::DOORBELL_BYTES,
        secondary_doorbell_bytes: 0,
        doorbell_reserved: [0; 4],
        max_control_bytes: MAX_CONTROL_BYTES,
        max_dma_buffer_bytes: MAX_DMA_BUFFER,
        scheduling_caps: capset::SCHEDULING_MULTI_ENGINE_AWARE
            | capset::SCHEDULING_PREEMPTION_AWARE
            | capset::SCHEDULING_LOW_IRQL_PREEMPT_COMMAND
            | capset::SCHEDULING_PER_ENGINE_TDR,
        nodes,
        driver: driver_caps(vm),
        segments: described_segments(vm),
    }
}

/// What kernels may use; none where no node runs any.
pub(in crate::vgpu) fn profile(vm: &Vm) -> Option<&Profile> {
    match &vm.config.compute {
        Compute::Available(device) => device.profile.as_deref(),
        Compute::Refused(_) => None,
    }
}

fn doorbell_flags(vm: &Vm, node: NodeKind) -> u32 {
    let mode = vm.config.doorbell_modes.0[node_index(node)];
    let global = if mode.model == DoorbellModel::Global { capset::NODE_FLAG_GLOBAL_DOORBELL } else { 0 };
    global | if vm.config.notify.is_on(node_index(node)) { capset::NODE_FLAG_NOTIFY } else { 0 }
}

fn driver_caps(vm: &Vm) -> DriverCaps {
    // MCDM-43: a device without address spaces of its processes is known by what it lacks.
    let spaces = if vm.config.single_use { 0 } else { driver_caps::DRIVER_GPU_MMU };
    DriverCaps {
        model_version: driver_caps::MODEL_VERSION,
        flags: driver_caps::DRIVER_COMPUTE_ONLY
            | driver_caps::DRIVER_PARAVIRTUALIZATION_SUPPORTED
            | driver_caps::DRIVER_ENGINE_RESET
            | driver_caps::DRIVER_ADAPTER_RESET
            | spaces,
        displays: 0,
        display_caps: 0,
        hw_queue_packet_cap: 0,
        power_components: field(vm.engines.len() as u64),
        power_states: 2,
        history_buffer_bits: u64::BITS,
        invalid_blocks: 0,
        page_table_levels: LEVELS,
        root_page_table_bytes: field(TABLE_ENTRIES * 8),
        address_bits: ADDRESS_BITS,
        page_bytes: field(PAGE_SIZE),
        segment_count: 3,
    }
}

fn described_segments(vm: &Vm) -> [Segment; MAX_SEGMENTS] {
    let memory = vm.memory.allocations.memory();
    let commit_limit = vm.config.account.quota().max;
    let local = Segment {
        kind: driver_caps::SEGMENT_KIND_LOCAL,
        flags: driver_caps::SEGMENT_LINEAR | driver_caps::SEGMENT_EVICTABLE,
        group: driver_caps::GROUP_LOCAL,
        reserved: 0,
        bytes: memory.length() - memory.aperture_bytes(),
        commit_limit,
    };
    let visible = if vm.config.window { driver_caps::SEGMENT_CPU_VISIBLE } else { 0 };
    let window = Segment {
        kind: driver_caps::SEGMENT_KIND_VISIBLE,
        flags: driver_caps::SEGMENT_LINEAR | visible,
        bytes: memory.aperture_bytes(),
        ..local
    };
    let system = Segment {
        kind: driver_caps::SEGMENT_KIND_APERTURE,
        flags: driver_caps::SEGMENT_LINEAR | driver_caps::SEGMENT_CPU_VISIBLE,
        group: driver_caps::GROUP_NON_LOCAL,
        bytes: 0,
        commit_limit: 0,
        ..local
    };
    [local, window, system, Segment::default()]
}
