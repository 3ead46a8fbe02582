//! Capability set 24: what a guest learns before it opens a context.

use zerocopy::FromBytes;
use zerocopy::Immutable;
use zerocopy::IntoBytes;
use zerocopy::KnownLayout;

use crate::driver_caps::DriverCaps;
use crate::driver_caps::MAX_SEGMENTS;
use crate::driver_caps::Segment;

/// Capset id. Below 31, because Linux keeps a 32-bit mask of them.
pub const CAPSET_ID: u32 = 24;
/// Version of [`Capset`].
pub const CAPSET_VERSION: u32 = 1;
/// Nodes that a capset can describe.
pub const MAX_NODES: usize = 8;

/// Most engines that a node can have: physical adapters that are linked (TDR-07).
pub const MAX_ENGINES: usize = 4;

/// Node 0: compute.
pub const NODE_COMPUTE: u32 = 0;
/// Node 1: copy.
pub const NODE_COPY: u32 = 1;

/// What a node can do (UMS-18, UMS-23).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct NodeMetadata {
    /// `NODE_KIND_*`.
    pub kind: u32,
    /// `NODE_FLAG_*`.
    pub flags: u32,
    /// Physical doorbells of the node (UMS-12); 1 in the global model, for each guest process.
    pub physical_doorbells: u32,
    /// User-mode buffers in flight a queue; 0 means no limit (UMS-23).
    pub max_in_flight_hw_queue_buffers: u32,
    /// Engines (linked physical adapters) that have this node.
    pub engines: u32,
    /// Where graphics work can be stopped (PRE-10, PRE-11): `GRANULARITY_NONE`, nothing here runs any.
    pub graphics_preemption: u32,
    /// Where compute work can be stopped (PRE-10, PRE-12): `GRANULARITY_*`; NONE where the node runs none.
    pub compute_preemption: u32,
    /// Zero.
    pub reserved: u32,
}

/// Cannot be stopped, nor what is queued behind it (PRE-14).
pub const GRANULARITY_NONE: u32 = 0;
/// The running buffer finishes, nothing behind it starts (PRE-15).
pub const GRANULARITY_DMA_BUFFER: u32 = 100;
/// The running dispatch finishes, the next does not start (PRE-16).
pub const GRANULARITY_DISPATCH: u32 = 200;
/// The running thread groups finish, the next do not start (PRE-16).
pub const GRANULARITY_THREAD_GROUP: u32 = 300;
/// The running threads finish (PRE-12).
pub const GRANULARITY_THREAD: u32 = 400;
/// The running instruction finishes (PRE-12).
pub const GRANULARITY_SHADER: u32 = 500;

/// Scheduling cap: nodes are scheduled each for itself (PRE-07).
pub const SCHEDULING_MULTI_ENGINE_AWARE: u32 = 0x1;
/// Scheduling cap: power is saved by what displays do: never set (MCDM-46).
pub const SCHEDULING_VSYNC_POWER_SAVE_AWARE: u32 = 0x2;
/// Scheduling cap: preemption can be asked for at any time (PRE-07).
pub const SCHEDULING_PREEMPTION_AWARE: u32 = 0x4;
/// Scheduling cap: physical addresses need no patching; Campanile's buffers hold virtual ones alone, and MCDM wants it
/// clear (PRE-54, MCDM-46).
pub const SCHEDULING_NO_DMA_PATCHING: u32 = 0x8;
/// Scheduling cap: queued packets can be cancelled (PRE-09).
pub const SCHEDULING_CANCEL_COMMAND_AWARE: u32 = 0x10;
/// Scheduling cap: a request to preempt may be made from any thread (PRE-18, MCDM-46).
pub const SCHEDULING_LOW_IRQL_PREEMPT_COMMAND: u32 = 0x20;
/// A node is reset without the others (TDR-01, PRE-73).
pub const SCHEDULING_PER_ENGINE_TDR: u32 = 0x100;

/// The node runs compute kernels and every packet.
pub const NODE_KIND_COMPUTE: u32 = 1;
/// The node copies and fills.
pub const NODE_KIND_COPY: u32 = 2;

/// The node is there and takes work. Without it creation on the node fails, and says why.
pub const NODE_FLAG_AVAILABLE: u32 = 1 << 0;
/// User-mode queues and doorbells exist on the node (UMS-18).
pub const NODE_FLAG_USER_MODE_SUBMISSION: u32 = 1 << 1;
/// The device writes the progress fence after the buffer is no longer used (UMS-24).
pub const NODE_FLAG_RING_BUFFER_FENCE_RELEASE: u32 = 1 << 2;

/// The node's doorbells follow the global model: all queues of a process ring one cell (UMS-07, UMS-08). Without it
/// each has a cell of its own.
pub const NODE_FLAG_GLOBAL_DOORBELL: u32 = 1 << 3;
/// Every connect on the node answers CONNECTED_NOTIFY (UMS-51).
pub const NODE_FLAG_NOTIFY: u32 = 1 << 4;

/// Capability set, version 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Capset {
    /// [`crate::PROTOCOL_VERSION`] of the daemon.
    pub protocol_version: u32,
    /// Nodes described below.
    pub node_count: u32,
    /// Bytes of video memory that this VM may use.
    pub vram_bytes: u64,
    /// Bytes of it that the CPU can see at one time.
    pub aperture_bytes: u64,
    /// Doorbell flags; bit 0 secondary doorbells, which Campanile has not (UMS-21).
    pub doorbell_flags: u32,
    /// Bytes of a doorbell (UMS-20).
    pub doorbell_bytes: u32,
    /// Bytes of a secondary doorbell: 0.
    pub secondary_doorbell_bytes: u32,
    /// Zero (UMS-21).
    pub doorbell_reserved: [u32; 4],
    /// Largest control message, bytes.
    pub max_control_bytes: u32,
    /// Largest DMA buffer, bytes.
    pub max_dma_buffer_bytes: u32,
    /// `SCHEDULING_*`.
    pub scheduling_caps: u32,
    /// One entry a node.
    pub nodes: [NodeMetadata; MAX_NODES],
    /// What the device declares itself to be.
    pub driver: DriverCaps,
    /// Its memory.
    pub segments: [Segment; MAX_SEGMENTS],
}

/// Scheduling caps that contradict each other: an adapter that reports such must not be started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CapsContradict {
    /// The cap that is set.
    pub cap: u32,
    /// Those without which it must not be.
    pub needs: u32,
}

/// Checks that no cap is set without those that it needs (PRE-08, PRE-09).
pub const fn check_scheduling_caps(caps: u32) -> Result<(), CapsContradict> {
    let rules = [
        (SCHEDULING_PREEMPTION_AWARE, SCHEDULING_MULTI_ENGINE_AWARE),
        (SCHEDULING_NO_DMA_PATCHING, SCHEDULING_PREEMPTION_AWARE | SCHEDULING_MULTI_ENGINE_AWARE),
        (SCHEDULING_CANCEL_COMMAND_AWARE, SCHEDULING_MULTI_ENGINE_AWARE),
    ];
    let mut index = 0;
    while index < rules.len() {
        let (cap, needs) = rules[index];
        if caps & cap != 0 && caps & needs != needs {
            return Err(CapsContradict { cap, needs });
        }
        index += 1;
    }
    Ok(())
}

/// Where the compute work of these nodes can be stopped: the coarsest of those that run any (PRE-13).
fn coarsest_compute(nodes: &[NodeMetadata]) -> u32 {
    let runs_kernels =
        |node: &&NodeMetadata| node.kind == NODE_KIND_COMPUTE && node.flags & NODE_FLAG_AVAILABLE != 0;
    let nodes = nodes.iter().filter(runs_kernels);
    nodes.map(|node| node.compute_preemption).min().unwrap_or(GRANULARITY_NONE)
}

impl Capset {
    /// Where the adapter can stop compute work (PRE-13, PRE-73).
    pub fn compute_preemption(&self) -> u32 {
        coarsest_compute(&self.nodes)
    }
}

#[cfg(test)]
mod tests {
    use super::CapsContradict;
    use super::GRANULARITY_DISPATCH;
    use super::GRANULARITY_NONE;
    use super::GRANULARITY_THREAD_GROUP;
    use super::NODE_FLAG_AVAILABLE;
    use super::NODE_KIND_COMPUTE;
    use super::NODE_KIND_COPY;
    use super::NodeMetadata;
    use super::SCHEDULING_CANCEL_COMMAND_AWARE;
    use super::SCHEDULING_MULTI_ENGINE_AWARE;
    use super::SCHEDULING_NO_DMA_PATCHING;
    use super::SCHEDULING_PREEMPTION_AWARE;
    use super::check_scheduling_caps;
    use super::coarsest_compute;

    #[test]
    fn pre_08_pre_09_caps_without_those_that_they_need_are_found() {
        let (multi, preemption) = (SCHEDULING_MULTI_ENGINE_AWARE, SCHEDULING_PREEMPTION_AWARE);
        for good in [0, multi, multi | preemption, multi | SCHEDULING_CANCEL_COMMAND_AWARE] {
            assert_eq!(check_scheduling_caps(good), Ok(()));
        }
        assert_eq!(check_scheduling_caps(multi | preemption | SCHEDULING_NO_DMA_PATCHING), Ok(()));
        for (bad, cap, needs) in [
            (preemption, preemption, multi),
            (SCHEDULING_NO_DMA_PATCHING | multi, SCHEDULING_NO_DMA_PATCHING, preemption | multi),
            (SCHEDULING_CANCEL_COMMAND_AWARE, SCHEDULING_CANCEL_COMMAND_AWARE, multi),
        ] {
            assert_eq!(check_scheduling_caps(bad), Err(CapsContradict { cap, needs }));
        }
    }

    #[test]
    fn pre_13_the_adapter_reports_the_coarsest_of_the_nodes_that_run_kernels() {
        let node = |kind, compute_preemption| NodeMetadata {
            kind,
            compute_preemption,
            flags: NODE_FLAG_AVAILABLE,
            ..NodeMetadata::default()
        };
        let fine = node(NODE_KIND_COMPUTE, GRANULARITY_THREAD_GROUP);
        let coarse = node(NODE_KIND_COMPUTE, GRANULARITY_DISPATCH);
        let copy = node(NODE_KIND_COPY, GRANULARITY_NONE);
        assert_eq!(coarsest_compute(&[fine, coarse, copy]), GRANULARITY_DISPATCH);
        assert_eq!(coarsest_compute(&[fine, copy]), GRANULARITY_THREAD_GROUP);
        let gone = NodeMetadata { flags: 0, ..coarse };
        assert_eq!(coarsest_compute(&[fine, gone]), GRANULARITY_THREAD_GROUP);
        assert_eq!(coarsest_compute(&[copy]), GRANULARITY_NONE);
    }
}
