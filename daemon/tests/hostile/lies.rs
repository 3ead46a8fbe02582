//! Every message of the engine channel, as an engine may send it.

use campanile_protocol::engine::message as wire;
use zerocopy::IntoBytes;

use crate::puppet;

/// A packet with `descriptors` beside it, as its header says.
pub(crate) fn packet(kind: u32, descriptors: u32, behind: &[u8]) -> Vec<u8> {
    let size = u32::try_from(size_of::<wire::Header>() + behind.len()).unwrap();
    [wire::Header { magic: wire::MAGIC, kind, size, descriptors }.as_bytes(), behind].concat()
}

/// Every type, with what is right for it behind the header.
pub(crate) fn messages() -> Vec<(&'static str, u32, Vec<u8>)> {
    let text = |fixed: &[u8], text: &[u8]| [fixed, text].concat();
    let longest = wire::MAX_REASON_BYTES;
    let reason = vec![b'x'; usize::try_from(longest).unwrap()];
    let start = wire::Start {
        vram_bytes: puppet::VRAM,
        table_bytes: 4096,
        policy_bytes: 4,
        ..wire::Start::default()
    };
    let refused = wire::Refused { reason_bytes: longest, reserved: 0 };
    let segment_refused = wire::SegmentRefused { segment: 1, reserved: 0, reason_bytes: longest };
    let kernel_refused = wire::KernelRefused { reason_bytes: longest, ..wire::KernelRefused::default() };
    let move_refused = wire::MoveRefused { reason_bytes: longest, ..wire::MoveRefused::default() };
    let create = wire::CreateKernel { source_bytes: 1, ..wire::CreateKernel::default() };
    let started = wire::Started { vram: u64::MAX, is_cpu: 1, device_bytes: 1, ..Default::default() };
    vec![
        ("START", wire::START, text(start.as_bytes(), b"fair")),
        ("HANDOVER", wire::HANDOVER, Vec::new()),
        ("BEGIN", wire::BEGIN, wire::Begin { segments: u64::MAX }.as_bytes().to_vec()),
        ("ADD_SEGMENT", wire::ADD_SEGMENT, wire::AddSegment::default().as_bytes().to_vec()),
        ("REMOVE_SEGMENT", wire::REMOVE_SEGMENT, wire::RemoveSegment::default().as_bytes().to_vec()),
        ("CREATE_KERNEL", wire::CREATE_KERNEL, text(create.as_bytes(), b"x")),
        ("DESTROY_KERNEL", wire::DESTROY_KERNEL, wire::DestroyKernel::default().as_bytes().to_vec()),
        ("MOVE", wire::MOVE, wire::Move { bytes: 4096, ..wire::Move::default() }.as_bytes().to_vec()),
        ("STARTED", wire::STARTED, text(started.as_bytes(), b"x")),
        ("REFUSED", wire::REFUSED, text(refused.as_bytes(), &reason)),
        ("SEGMENT_ADDED", wire::SEGMENT_ADDED, wire::SegmentAdded::default().as_bytes().to_vec()),
        ("SEGMENT_REFUSED", wire::SEGMENT_REFUSED, text(segment_refused.as_bytes(), &reason)),
        ("KERNEL_CREATED", wire::KERNEL_CREATED, wire::KernelCreated::default().as_bytes().to_vec()),
        ("KERNEL_REFUSED", wire::KERNEL_REFUSED, text(kernel_refused.as_bytes(), &reason)),
        ("KERNEL_DESTROYED", wire::KERNEL_DESTROYED, wire::KernelDestroyed::default().as_bytes().to_vec()),
        ("MOVED", wire::MOVED, wire::Moved::default().as_bytes().to_vec()),
        ("MOVE_REFUSED", wire::MOVE_REFUSED, text(move_refused.as_bytes(), &reason)),
        ("ALLOCATED", wire::ALLOCATED, wire::Passport::default().as_bytes().to_vec()),
        ("OPENED", wire::OPENED, Vec::new()),
    ]
}

/// Constants of the protocol's module of messages that are no type.
pub(crate) const NO_TYPES: [&str; 25] = [
    "MAX_CODE_MIB",
    "MAGIC",
    "MAX_DESCRIPTORS",
    "MAX_NAME_BYTES",
    "MAX_REASON_BYTES",
    "MAX_SOURCE_BYTES",
    "MAX_REQUEST_BYTES",
    "MAX_RESPONSE_BYTES",
    "NODE_COMPUTE",
    "NODE_COPY",
    "TRACKING_OFF",
    "TRACKING_WRITE_PROTECT",
    "TRACKING_BOUND_RANGES",
    "START_SANDBOX",
    "START_DEVICE",
    "START_LOCAL",
    "START_ALLOCATE",
    "START_AHEAD",
    "START_REALTIME",
    "START_PROFILE_SHIFT",
    "START_PROFILE",
    "SIDE_ZERO",
    "SIDE_LOCAL",
    "SIDE_VISIBLE",
    "SIDE_EVICTED",
];
