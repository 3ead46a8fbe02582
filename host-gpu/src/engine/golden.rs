//! The bytes of every message of the engine channel, as they are on the wire.

use campanile_protocol::named_profile::GpuProfile;
use std::collections::BTreeMap;
use std::fmt::Debug;

use campanile_protocol::engine::message as wire;

use super::message::Local;
use super::message::MoveSide;
use super::message::NodeKind;
use super::message::Request;
use super::message::Response;
use super::message::Start;
use super::wire::Message;
use crate::dirty::method::Method;
use crate::kernel::name::KernelName;
use crate::memory::local::LocalMemory;
use crate::memory::local::Passport;

const KERNEL: KernelName = KernelName { root: 0x1122, handle: 0x0003_0000_0000_0004 };

fn start() -> Start {
    Start {
        node: NodeKind::Copy,
        vram_bytes: 0x0102_0304_0506_0708,
        table_bytes: 2,
        spin_microseconds: 3,
        slice_microseconds: 4,
        sandbox: true,
        policy: "fair".to_owned(),
        vulkan_device: Some("ab".to_owned()),
        profile: GpuProfile::Host,
        tracking: Method::BoundRanges,
        local: Local::Host,
        code_mib: 0x1f,
        is_realtime: false,
        is_ahead: false,
    }
}

/// The same with local memory of a device's own: what is between the fixed part and the policy.
fn start_with_local() -> Start {
    let passport = Passport { length: 4, type_index: 5, uuids: [[6; 16], [7; 16]] };
    let local = LocalMemory { start: 1, bytes: 2, evicted_bytes: 3, passport };
    Start { local: Local::Device(local), ..start() }
}

/// The type of a request. A new one does not compile before it is here, and has no golden bytes before it is below.
fn kind_of_request(request: &Request) -> u32 {
    match request {
        Request::Begin { .. } => wire::BEGIN,
        Request::AddSegment { .. } => wire::ADD_SEGMENT,
        Request::RemoveSegment { .. } => wire::REMOVE_SEGMENT,
        Request::CreateKernel { .. } => wire::CREATE_KERNEL,
        Request::DestroyKernel { .. } => wire::DESTROY_KERNEL,
        Request::Move { .. } => wire::MOVE,
    }
}

/// The type of a response, in the same way.
fn kind_of_response(response: &Response) -> u32 {
    match response {
        Response::Started { .. } => wire::STARTED,
        Response::Refused { .. } => wire::REFUSED,
        Response::SegmentAdded { .. } => wire::SEGMENT_ADDED,
        Response::SegmentRefused { .. } => wire::SEGMENT_REFUSED,
        Response::KernelCreated { .. } => wire::KERNEL_CREATED,
        Response::KernelRefused { .. } => wire::KERNEL_REFUSED,
        Response::KernelDestroyed { .. } => wire::KERNEL_DESTROYED,
        Response::Moved { .. } => wire::MOVED,
        Response::MoveRefused { .. } => wire::MOVE_REFUSED,
        Response::Allocated { .. } => wire::ALLOCATED,
        Response::Opened => wire::OPENED,
    }
}

fn requests() -> Vec<(Request, &'static [u8], usize)> {
    let create =
        Request::CreateKernel { kernel: KERNEL, language: 1, entry: Some("ab".to_owned()), alone: false };
    vec![
        (Request::Begin { segments: 0x0102 }, b"", 0),
        (Request::AddSegment { segment: 0x0304, serial: 5, runs: 6 }, b"", 2),
        (Request::RemoveSegment { segment: 0x0708, serial: 9 }, b"", 0),
        (create, b"xyz", 0),
        (Request::DestroyKernel { kernel: KERNEL }, b"", 0),
        (Request::Move { serial: 1, from: MoveSide::Local(2), to: MoveSide::Evicted(3), bytes: 4 }, b"", 0),
    ]
}

fn responses() -> Vec<Response> {
    let reason = "no\n".to_owned();
    vec![
        Response::Started { device: "cpu".to_owned(), is_cpu: true, vram: 0x1020_3000, profile: None },
        Response::Refused { reason: reason.clone() },
        Response::SegmentAdded { segment: 0x0102, serial: 3, address: Some(4) },
        Response::SegmentRefused { segment: 0x0506, reason: reason.clone() },
        Response::KernelCreated {
            kernel: KERNEL,
            workgroup: [7, 8, 9],
            binding_count: 10,
            constant_bytes: 11,
        },
        Response::KernelRefused { kernel: KERNEL, reason },
        Response::KernelDestroyed { kernel: KERNEL },
        Response::Moved { serial: 0x0102 },
        Response::MoveRefused { serial: 3, reason: "no\n".to_owned() },
        Response::Allocated { passport: Passport { length: 1, type_index: 2, uuids: [[3; 16], [4; 16]] } },
        Response::Opened,
    ]
}

/// By type.
const GOLDEN: &[(u32, &[&[u8]])] = &[
    (
        wire::START,
        &[
            b"CPE1\x01\0\0\0N\0\0\0\x09\0\0\0",
            b"\x08\x07\x06\x05\x04\x03\x02\x01\x02\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0",
            b"\x04\0\0\0\0\0\0\0\x01\0\0\0\x02\0\0\0\x03\0\0\0\x04\0\0\0",
            b"\x02\0\0\0\x1f\0\0\0",
            b"fairab",
        ],
    ),
    (wire::HANDOVER, &[b"CPE1\x02\0\0\0\x10\0\0\0\x03\0\0\0"]),
    (wire::BEGIN, &[b"CPE1\x10\0\0\0\x18\0\0\0\0\0\0\0", b"\x02\x01\0\0\0\0\0\0"]),
    (
        wire::ADD_SEGMENT,
        &[b"CPE1\x11\0\0\0\x28\0\0\0\x02\0\0\0", b"\x05\0\0\0\0\0\0\0\x06\0\0\0\0\0\0\0\x04\x03\0\0\0\0\0\0"],
    ),
    (wire::REMOVE_SEGMENT, &[b"CPE1\x12\0\0\0\x20\0\0\0\0\0\0\0", b"\x09\0\0\0\0\0\0\0\x08\x07\0\0\0\0\0\0"]),
    (
        wire::CREATE_KERNEL,
        &[
            b"CPE1\x13\0\0\x005\0\0\0\0\0\0\0",
            b"\x22\x11\0\0\0\0\0\0\x04\0\0\0\0\0\x03\0\x01\0\0\0\x02\0\0\0",
            b"\x03\0\0\0\0\0\0\0",
            b"abxyz",
        ],
    ),
    (
        wire::DESTROY_KERNEL,
        &[b"CPE1\x14\0\0\0\x20\0\0\0\0\0\0\0", b"\x22\x11\0\0\0\0\0\0\x04\0\0\0\0\0\x03\0"],
    ),
    (
        wire::MOVE,
        &[
            b"CPE1\x15\0\0\0\x38\0\0\0\0\0\0\0",
            b"\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0",
            b"\x04\0\0\0\0\0\0\0\x01\0\0\0\x03\0\0\0",
        ],
    ),
    (
        wire::STARTED,
        &[
            b"CPE1\x80\0\0\0\x2b\0\0\0\0\0\0\0",
            b"\x000\x20\x10\0\0\0\0\x01\0\0\0\x03\0\0\0\0\0\0\0\0\0\0\0",
            b"cpu",
        ],
    ),
    (wire::REFUSED, &[b"CPE1\x81\0\0\0\x1b\0\0\0\0\0\0\0", b"\x03\0\0\0\0\0\0\0", b"no\n"]),
    (
        wire::SEGMENT_ADDED,
        &[b"CPE1\x82\0\0\0\x28\0\0\0\0\0\0\0", b"\x03\0\0\0\0\0\0\0\x04\0\0\0\0\0\0\0\x02\x01\0\0\x01\0\0\0"],
    ),
    (wire::SEGMENT_REFUSED, &[b"CPE1\x83\0\0\0\x1b\0\0\0\0\0\0\0", b"\x06\x05\0\0\x03\0\0\0", b"no\n"]),
    (
        wire::KERNEL_CREATED,
        &[
            b"CPE1\x84\0\0\08\0\0\0\0\0\0\0",
            b"\x22\x11\0\0\0\0\0\0\x04\0\0\0\0\0\x03\0\x07\0\0\0\x08\0\0\0",
            b"\x09\0\0\0\n\0\0\0\x0b\0\0\0\0\0\0\0",
        ],
    ),
    (
        wire::KERNEL_REFUSED,
        &[
            b"CPE1\x85\0\0\0\x2b\0\0\0\0\0\0\0",
            b"\x22\x11\0\0\0\0\0\0\x04\0\0\0\0\0\x03\0\x03\0\0\0\0\0\0\0",
            b"no\n",
        ],
    ),
    (
        wire::KERNEL_DESTROYED,
        &[b"CPE1\x86\0\0\0\x20\0\0\0\0\0\0\0", b"\x22\x11\0\0\0\0\0\0\x04\0\0\0\0\0\x03\0"],
    ),
    (wire::MOVED, &[b"CPE1\x87\0\0\0\x18\0\0\0\0\0\0\0", b"\x02\x01\0\0\0\0\0\0"]),
    (
        wire::MOVE_REFUSED,
        &[b"CPE1\x88\0\0\0\x23\0\0\0\0\0\0\0", b"\x03\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0", b"no\n"],
    ),
    (
        wire::ALLOCATED,
        &[b"CPE1\x89\0\0\0\x40\0\0\0\x01\0\0\0", b"\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0", &[3; 16], &[4; 16]],
    ),
    (wire::OPENED, &[b"CPE1\x8a\0\0\0\x10\0\0\0\0\0\0\0"]),
];

fn golden(kind: u32) -> Vec<u8> {
    let found: Vec<_> = GOLDEN.iter().filter(|(of, _)| *of == kind).collect();
    assert_eq!(found.len(), 1, "golden bytes of type {kind:#x}");
    found[0].1.concat()
}

fn stays<T: Message + PartialEq + Debug>(kind: u32, message: &T, behind: &[u8], descriptors: usize) {
    let packet = message.encode(behind, descriptors).unwrap();
    assert_eq!(packet, golden(kind), "{message:?}");
    let (came, with) = T::decode(&packet, descriptors).unwrap();
    assert_eq!((&came, with.as_slice()), (message, behind), "{kind:#x}");
}

#[test]
fn the_bytes_of_every_message_stay_what_they_are() {
    stays(wire::START, &start(), b"", 9);
    stays(wire::HANDOVER, &(), b"", 3);
    for (request, behind, descriptors) in requests() {
        stays(kind_of_request(&request), &request, behind, descriptors);
    }
    for response in responses() {
        let descriptors = usize::from(matches!(response, Response::Allocated { .. }));
        stays(kind_of_response(&response), &response, b"", descriptors);
    }
    let (whole, local) = (start().encode(b"", 8).unwrap(), start_with_local().encode(b"", 11).unwrap());
    let fixed = whole.len() - b"fairab".len();
    let between = [
        &b"\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0"[..],
        b"\x04\0\0\0\0\0\0\0\x05\0\0\0\0\0\0\0",
        &[6; 16],
        &[7; 16],
    ];
    assert_eq!(local[fixed..], [&between.concat()[..], b"fairab"].concat());
    assert_eq!(Start::decode(&local, 11).unwrap().0, start_with_local());
    // The number of a profile, in the second byte of the flags.
    let profile = Start { profile: GpuProfile::Campanile1, ..start() };
    assert_eq!(profile.encode(b"", 8).unwrap(), [&whole[..57], &[1], &whole[58..]].concat());
    // A flag more.
    let realtime = Start { is_realtime: true, ..start() };
    assert_eq!(realtime.encode(b"", 8).unwrap(), [&whole[..56], &[0x23], &whole[57..]].concat());
    // A flag more, and no descriptor.
    let ahead = Start { is_ahead: true, ..start() };
    let expected = [&whole[..12], &[0], &whole[13..56], &[0x13], &whole[57..]].concat();
    assert_eq!(ahead.encode(b"", 0).unwrap(), expected);
    assert_eq!(Start::decode(&expected, 0).unwrap().0, ahead);
    assert!(
        Start::decode(
            &expected[..12].iter().chain(&[9]).chain(&expected[13..]).copied().collect::<Vec<_>>(),
            9
        )
        .is_err()
    );
}

#[test]
fn every_type_that_a_decoder_knows_has_golden_bytes_and_no_two_have_one() {
    let mut seen: BTreeMap<u32, u32> = BTreeMap::new();
    let mut note = |kind| *seen.entry(kind).or_default() += 1;
    note(wire::START);
    note(wire::HANDOVER);
    requests().iter().for_each(|(request, _, _)| note(kind_of_request(request)));
    responses().iter().for_each(|response| note(kind_of_response(response)));
    assert!(seen.values().all(|count| *count == 1), "{seen:x?}");
    assert!(seen.keys().copied().eq(GOLDEN.iter().map(|(kind, _)| *kind)), "{seen:x?}");
    // A type that is none of these is known to no decoder.
    for kind in (0..0x200).filter(|kind| !seen.contains_key(kind)) {
        let packet = [*b"CPE1", kind.to_le_bytes(), 16_u32.to_le_bytes(), [0; 4]].concat();
        let unknown = Err(super::wire::WireError::Kind(kind));
        assert_eq!(Start::decode(&packet, 0).map(drop), unknown);
        assert_eq!(Request::decode(&packet, 0).map(drop), unknown);
        assert_eq!(Response::decode(&packet, 0).map(drop), unknown);
        assert_eq!(<()>::decode(&packet, 0).map(drop), unknown);
    }
}
