//! The messages of the engine channel, to bytes and back.

use campanile_protocol::engine::message as wire;
use campanile_protocol::engine::message::MAX_CODE_MIB;
use campanile_protocol::engine::message::MAX_DESCRIPTORS;
use campanile_protocol::engine::message::MAX_NAME_BYTES;
use campanile_protocol::engine::message::MAX_REASON_BYTES;
use campanile_protocol::engine::message::MAX_REQUEST_BYTES;
use campanile_protocol::engine::message::MAX_RESPONSE_BYTES;
use campanile_protocol::engine::message::MAX_SOURCE_BYTES;
use campanile_protocol::engine::message::START_AHEAD;
use campanile_protocol::engine::message::START_ALLOCATE;
use campanile_protocol::engine::message::START_DEVICE;
use campanile_protocol::engine::message::START_LOCAL;
use campanile_protocol::engine::message::START_PROFILE;
use campanile_protocol::engine::message::START_PROFILE_SHIFT;
use campanile_protocol::engine::message::START_REALTIME;
use campanile_protocol::engine::message::START_SANDBOX;
use campanile_protocol::named_profile::GpuProfile;

use super::message::Local;
use super::message::MoveSide;
use super::message::NodeKind;
use super::message::Request;
use super::message::Response;
use super::message::START_DESCRIPTORS;
use super::message::Start;
use super::wire::Message;
use super::wire::Reader;
use super::wire::WireError;
use super::wire::Writer;
use super::wire::checked_name;
use super::wire::flag;
use super::wire::printable;
use super::wire::within;
use super::wire::zero;
use zerocopy::IntoBytes;

use crate::dirty::method::Method;
use crate::kernel::name::KernelName;
use crate::memory::local::LocalMemory;
use crate::memory::local::Passport;

const MOST: usize = MAX_DESCRIPTORS as usize;

/// Nothing behind a message that has nothing there.
fn nothing(behind: &[u8]) -> Result<(), WireError> {
    within("what is behind it", behind.len(), 0).map(drop)
}

impl Message for Start {
    const MAX_BYTES: u32 = MAX_REQUEST_BYTES;

    fn encode(&self, behind: &[u8], descriptors: usize) -> Result<Vec<u8>, WireError> {
        nothing(behind)?;
        let device = self.vulkan_device.as_deref();
        let fixed = wire::Start {
            vram_bytes: self.vram_bytes,
            table_bytes: self.table_bytes,
            spin_microseconds: self.spin_microseconds,
            slice_microseconds: self.slice_microseconds,
            node: match self.node {
                NodeKind::Compute => wire::NODE_COMPUTE,
                NodeKind::Copy => wire::NODE_COPY,
            },
            tracking: match self.tracking {
                Method::Off => wire::TRACKING_OFF,
                Method::WriteProtect => wire::TRACKING_WRITE_PROTECT,
                // Comparing is the daemon's business.
                Method::BoundRanges | Method::ShadowCompare => wire::TRACKING_BOUND_RANGES,
            },
            flags: if self.sandbox { START_SANDBOX } else { 0 }
                | if device.is_some() { START_DEVICE } else { 0 }
                | if self.is_ahead { START_AHEAD } else { 0 }
                | if self.is_realtime { START_REALTIME } else { 0 }
                | self.profile.number() << START_PROFILE_SHIFT
                | match self.local {
                    Local::Host => 0,
                    Local::Device(_) => START_LOCAL,
                    Local::Allocate(_) => START_ALLOCATE,
                },
            policy_bytes: checked_name("the policy", &self.policy, MAX_NAME_BYTES)?,
            device_bytes: checked_name("the device", device.unwrap_or_default(), MAX_NAME_BYTES)?,
            code_mib: self.code_mib,
        };
        let local = match self.local {
            Local::Host => None,
            Local::Device(local) => Some(wire::LocalMemory {
                start: local.start,
                bytes: local.bytes,
                evicted_bytes: local.evicted_bytes,
                passport: written(&local.passport),
            }),
            Local::Allocate(bytes) => Some(wire::LocalMemory { bytes, ..wire::LocalMemory::default() }),
        };
        Writer::new(wire::START, &fixed)
            .part(local.as_ref().map_or(&[][..], IntoBytes::as_bytes))
            .part(self.policy.as_bytes())
            .part(device.unwrap_or_default().as_bytes())
            .finish(descriptors)
    }

    fn decode(packet: &[u8], descriptors: usize) -> Result<(Self, Vec<u8>), WireError> {
        let mut reader = Reader::new(packet, descriptors)?;
        if reader.kind != wire::START {
            return Err(WireError::Kind(reader.kind));
        }
        let fixed: wire::Start = reader.fixed()?;
        let node = match fixed.node {
            wire::NODE_COMPUTE => NodeKind::Compute,
            wire::NODE_COPY => NodeKind::Copy,
            other => return Err(WireError::Field { what: "the node", value: other.into() }),
        };
        let tracking = match fixed.tracking {
            wire::TRACKING_OFF => Method::Off,
            wire::TRACKING_WRITE_PROTECT => Method::WriteProtect,
            wire::TRACKING_BOUND_RANGES => Method::BoundRanges,
            other => return Err(WireError::Field { what: "the tracking method", value: other.into() }),
        };
        let known = START_SANDBOX | START_DEVICE | START_LOCAL | START_ALLOCATE | START_AHEAD;
        zero("an unknown flag", fixed.flags & !(known | START_REALTIME | START_PROFILE))?;
        let number = (fixed.flags & START_PROFILE) >> START_PROFILE_SHIFT;
        let profile = GpuProfile::of_number(number)
            .ok_or(WireError::Field { what: "the profile", value: number.into() })?;
        let local = match fixed.flags & (START_LOCAL | START_ALLOCATE) {
            0 => Local::Host,
            START_LOCAL => {
                let wire::LocalMemory { start, bytes, evicted_bytes, passport } = reader.fixed()?;
                let passport = read_passport(&passport)?;
                Local::Device(LocalMemory { start, bytes, evicted_bytes, passport })
            }
            START_ALLOCATE => {
                let local: wire::LocalMemory = reader.fixed()?;
                if local != (wire::LocalMemory { bytes: local.bytes, ..wire::LocalMemory::default() }) {
                    return Err(WireError::Field { what: "what is to be allocated", value: local.start });
                }
                Local::Allocate(local.bytes)
            }
            both => return Err(WireError::Field { what: "where local memory is", value: both.into() }),
        };
        let has_log = within("the log of compiled code", fixed.code_mib as usize, MAX_CODE_MIB)? != 0;
        let is_ahead = fixed.flags & START_AHEAD != 0;
        let all = START_DESCRIPTORS
            + usize::from(has_log)
            + usize::from(tracking.has_planes())
            + local.descriptors();
        let wanted = if is_ahead { 0 } else { all };
        reader.has_descriptors(wanted, wanted)?;
        let policy = reader.name("the policy", fixed.policy_bytes, MAX_NAME_BYTES)?;
        let device = reader.name("the device", fixed.device_bytes, MAX_NAME_BYTES)?;
        let vulkan_device = if fixed.flags & START_DEVICE != 0 {
            Some(device)
        } else {
            zero("the length of no device", fixed.device_bytes)?;
            None
        };
        reader.end()?;
        let start = Self {
            node,
            vram_bytes: fixed.vram_bytes,
            table_bytes: fixed.table_bytes,
            spin_microseconds: fixed.spin_microseconds,
            slice_microseconds: fixed.slice_microseconds,
            sandbox: fixed.flags & START_SANDBOX != 0,
            policy,
            vulkan_device,
            profile,
            tracking,
            local,
            code_mib: fixed.code_mib,
            is_realtime: fixed.flags & START_REALTIME != 0,
            is_ahead,
        };
        Ok((start, Vec::new()))
    }
}

fn written(passport: &Passport) -> wire::Passport {
    let Passport { length, type_index, uuids: [device, driver] } = *passport;
    wire::Passport { length, type_index, reserved: 0, device, driver }
}

fn read_passport(passport: &wire::Passport) -> Result<Passport, WireError> {
    let wire::Passport { length, type_index, reserved, device, driver } = *passport;
    zero("a reserved field", reserved)?;
    Ok(Passport { length, type_index, uuids: [device, driver] })
}

/// The number of a side, and the offset there.
fn numbered(side: MoveSide) -> (u32, u64) {
    match side {
        MoveSide::Zero => (wire::SIDE_ZERO, 0),
        MoveSide::Local(offset) => (wire::SIDE_LOCAL, offset),
        MoveSide::Visible(offset) => (wire::SIDE_VISIBLE, offset),
        MoveSide::Evicted(offset) => (wire::SIDE_EVICTED, offset),
    }
}

fn side(number: u32, offset: u64) -> Result<MoveSide, WireError> {
    match number {
        wire::SIDE_ZERO => zero("the offset of zeroes", offset).map(|()| MoveSide::Zero),
        wire::SIDE_LOCAL => Ok(MoveSide::Local(offset)),
        wire::SIDE_VISIBLE => Ok(MoveSide::Visible(offset)),
        wire::SIDE_EVICTED => Ok(MoveSide::Evicted(offset)),
        other => Err(WireError::Field { what: "the side of a copy", value: other.into() }),
    }
}

/// What is copied to.
fn target(number: u32, offset: u64) -> Result<MoveSide, WireError> {
    match side(number, offset)? {
        MoveSide::Zero => Err(WireError::Field { what: "what is copied to", value: number.into() }),
        side => Ok(side),
    }
}

impl Message for Request {
    const MAX_BYTES: u32 = MAX_REQUEST_BYTES;

    fn encode(&self, behind: &[u8], descriptors: usize) -> Result<Vec<u8>, WireError> {
        if !matches!(self, Self::CreateKernel { .. }) {
            nothing(behind)?;
        }
        let writer = match self {
            Self::Begin { segments } => Writer::new(wire::BEGIN, &wire::Begin { segments: *segments }),
            Self::AddSegment { segment, serial, runs } => {
                let (segment, serial, runs) = (*segment, *serial, *runs);
                let fixed = wire::AddSegment { serial, runs, segment, reserved: [0; 3] };
                Writer::new(wire::ADD_SEGMENT, &fixed)
            }
            Self::RemoveSegment { segment, serial } => {
                let fixed = wire::RemoveSegment { serial: *serial, segment: *segment, reserved: [0; 3] };
                Writer::new(wire::REMOVE_SEGMENT, &fixed)
            }
            Self::CreateKernel { kernel, language, entry, alone } => {
                let entry = entry.as_deref().unwrap_or_default();
                let fixed = wire::CreateKernel {
                    root: kernel.root,
                    handle: kernel.handle,
                    language: *language,
                    entry_bytes: checked_name("the entry point's name", entry, MAX_NAME_BYTES)?,
                    source_bytes: within("a kernel's source", behind.len(), MAX_SOURCE_BYTES)?,
                    alone: u32::from(*alone),
                };
                Writer::new(wire::CREATE_KERNEL, &fixed).part(entry.as_bytes()).part(behind)
            }
            Self::DestroyKernel { kernel } => {
                let fixed = wire::DestroyKernel { root: kernel.root, handle: kernel.handle };
                Writer::new(wire::DESTROY_KERNEL, &fixed)
            }
            Self::Move { serial, from, to, bytes } => {
                let ((from, from_offset), (to, to_offset)) = (numbered(*from), numbered(*to));
                target(to, to_offset)?;
                let (serial, bytes) = (*serial, *bytes);
                let fixed = wire::Move { serial, from_offset, to_offset, bytes, from, to };
                Writer::new(wire::MOVE, &fixed)
            }
        };
        writer.finish(descriptors)
    }

    fn decode(packet: &[u8], descriptors: usize) -> Result<(Self, Vec<u8>), WireError> {
        let mut reader = Reader::new(packet, descriptors)?;
        let mut source = Vec::new();
        let request = match reader.kind {
            wire::BEGIN => Self::Begin { segments: reader.fixed::<wire::Begin>()?.segments },
            wire::ADD_SEGMENT => {
                let wire::AddSegment { serial, runs, segment, reserved } = reader.fixed()?;
                reserved.into_iter().try_for_each(|word| zero("a reserved field", word))?;
                Self::AddSegment { segment, serial, runs }
            }
            wire::REMOVE_SEGMENT => {
                let wire::RemoveSegment { serial, segment, reserved } = reader.fixed()?;
                reserved.into_iter().try_for_each(|word| zero("a reserved field", word))?;
                Self::RemoveSegment { segment, serial }
            }
            wire::CREATE_KERNEL => {
                let fixed: wire::CreateKernel = reader.fixed()?;
                let alone = flag("whether a kernel is compiled alone", fixed.alone)?;
                let entry = reader.name("the entry point's name", fixed.entry_bytes, MAX_NAME_BYTES)?;
                source = reader.part("a kernel's source", fixed.source_bytes, MAX_SOURCE_BYTES)?.to_vec();
                let kernel = KernelName { root: fixed.root, handle: fixed.handle };
                let entry = Some(entry).filter(|entry| !entry.is_empty());
                Self::CreateKernel { kernel, language: fixed.language, entry, alone }
            }
            wire::DESTROY_KERNEL => {
                let wire::DestroyKernel { root, handle } = reader.fixed()?;
                Self::DestroyKernel { kernel: KernelName { root, handle } }
            }
            wire::MOVE => {
                let wire::Move { serial, from_offset, to_offset, bytes, from, to } = reader.fixed()?;
                let (from, to) = (side(from, from_offset)?, target(to, to_offset)?);
                Self::Move { serial, from, to, bytes }
            }
            other => return Err(WireError::Kind(other)),
        };
        reader.end()?;
        match request {
            Self::AddSegment { .. } => reader.has_descriptors(2, MOST)?,
            _ => reader.has_descriptors(0, 0)?,
        }
        Ok((request, source))
    }
}

impl Message for Response {
    const MAX_BYTES: u32 = MAX_RESPONSE_BYTES;

    /// Words are shortened to what a packet holds, and have no control characters then.
    fn encode(&self, behind: &[u8], descriptors: usize) -> Result<Vec<u8>, WireError> {
        nothing(behind)?;
        let words = |reason: &str| printable(reason, MAX_REASON_BYTES, true);
        let length = |words: &str| within("a reason", words.len(), MAX_REASON_BYTES);
        let writer = match self {
            Self::Started { device, is_cpu, vram, profile } => {
                let device = printable(device, MAX_NAME_BYTES, false);
                let device_bytes = checked_name("the device", &device, MAX_NAME_BYTES)?;
                let (is_cpu, has_profile) = ((*is_cpu).into(), profile.is_some().into());
                let fixed = wire::Started { vram: *vram, is_cpu, device_bytes, has_profile, reserved: 0 };
                let profile = profile.as_deref().map_or(&[][..], IntoBytes::as_bytes);
                Writer::new(wire::STARTED, &fixed).part(profile).part(device.as_bytes())
            }
            Self::Refused { reason } => {
                let reason = words(reason);
                let fixed = wire::Refused { reason_bytes: length(&reason)?, reserved: 0 };
                Writer::new(wire::REFUSED, &fixed).part(reason.as_bytes())
            }
            Self::SegmentAdded { segment, serial, address } => {
                let fixed = wire::SegmentAdded {
                    serial: *serial,
                    address: address.unwrap_or(0),
                    segment: *segment,
                    reserved: 0,
                    has_address: address.is_some().into(),
                };
                Writer::new(wire::SEGMENT_ADDED, &fixed)
            }
            Self::SegmentRefused { segment, reason } => {
                let reason = words(reason);
                let reason_bytes = length(&reason)?;
                let fixed = wire::SegmentRefused { segment: *segment, reserved: 0, reason_bytes };
                Writer::new(wire::SEGMENT_REFUSED, &fixed).part(reason.as_bytes())
            }
            Self::KernelCreated { kernel, workgroup, binding_count, constant_bytes } => {
                let fixed = wire::KernelCreated {
                    root: kernel.root,
                    handle: kernel.handle,
                    workgroup: *workgroup,
                    binding_count: *binding_count,
                    constant_bytes: *constant_bytes,
                    reserved: 0,
                };
                Writer::new(wire::KERNEL_CREATED, &fixed)
            }
            Self::KernelRefused { kernel, reason } => {
                let reason = words(reason);
                let KernelName { root, handle } = *kernel;
                let fixed = wire::KernelRefused { root, handle, reason_bytes: length(&reason)?, reserved: 0 };
                Writer::new(wire::KERNEL_REFUSED, &fixed).part(reason.as_bytes())
            }
            Self::KernelDestroyed { kernel } => {
                let fixed = wire::KernelDestroyed { root: kernel.root, handle: kernel.handle };
                Writer::new(wire::KERNEL_DESTROYED, &fixed)
            }
            Self::Moved { serial } => Writer::new(wire::MOVED, &wire::Moved { serial: *serial }),
            Self::MoveRefused { serial, reason } => {
                let reason = words(reason);
                let fixed =
                    wire::MoveRefused { serial: *serial, reason_bytes: length(&reason)?, reserved: 0 };
                Writer::new(wire::MOVE_REFUSED, &fixed).part(reason.as_bytes())
            }
            Self::Allocated { passport } => Writer::new(wire::ALLOCATED, &written(passport)),
            Self::Opened => Writer::new(wire::OPENED, &()),
        };
        writer.finish(descriptors)
    }

    fn decode(packet: &[u8], descriptors: usize) -> Result<(Self, Vec<u8>), WireError> {
        let mut reader = Reader::new(packet, descriptors)?;
        let response = match reader.kind {
            wire::STARTED => {
                let wire::Started { vram, is_cpu, device_bytes, has_profile, reserved } = reader.fixed()?;
                zero("a reserved field", reserved)?;
                let is_cpu = flag("the kind of device", is_cpu)?;
                let has_profile = flag("whether there is a profile", has_profile)?;
                Self::Started {
                    profile: has_profile.then(|| reader.fixed().map(Box::new)).transpose()?,
                    device: reader.name("the device", device_bytes, MAX_NAME_BYTES)?,
                    is_cpu,
                    vram,
                }
            }
            wire::REFUSED => {
                let wire::Refused { reason_bytes, reserved } = reader.fixed()?;
                zero("a reserved field", reserved)?;
                Self::Refused { reason: reader.text("a reason", reason_bytes, MAX_REASON_BYTES)? }
            }
            wire::SEGMENT_ADDED => {
                let fixed: wire::SegmentAdded = reader.fixed()?;
                zero("a reserved field", fixed.reserved)?;
                let has_address = flag("whether there is an address", fixed.has_address)?;
                if !has_address {
                    zero("no address", fixed.address)?;
                }
                let address = has_address.then_some(fixed.address);
                Self::SegmentAdded { segment: fixed.segment, serial: fixed.serial, address }
            }
            wire::SEGMENT_REFUSED => {
                let wire::SegmentRefused { segment, reserved, reason_bytes } = reader.fixed()?;
                zero("a reserved field", reserved)?;
                let reason = reader.text("a reason", reason_bytes, MAX_REASON_BYTES)?;
                Self::SegmentRefused { segment, reason }
            }
            wire::KERNEL_CREATED => {
                let fixed: wire::KernelCreated = reader.fixed()?;
                zero("a reserved field", fixed.reserved)?;
                Self::KernelCreated {
                    kernel: KernelName { root: fixed.root, handle: fixed.handle },
                    workgroup: fixed.workgroup,
                    binding_count: fixed.binding_count,
                    constant_bytes: fixed.constant_bytes,
                }
            }
            wire::KERNEL_REFUSED => {
                let wire::KernelRefused { root, handle, reason_bytes, reserved } = reader.fixed()?;
                zero("a reserved field", reserved)?;
                let reason = reader.text("a reason", reason_bytes, MAX_REASON_BYTES)?;
                Self::KernelRefused { kernel: KernelName { root, handle }, reason }
            }
            wire::KERNEL_DESTROYED => {
                let wire::KernelDestroyed { root, handle } = reader.fixed()?;
                Self::KernelDestroyed { kernel: KernelName { root, handle } }
            }
            wire::MOVED => Self::Moved { serial: reader.fixed::<wire::Moved>()?.serial },
            wire::MOVE_REFUSED => {
                let wire::MoveRefused { serial, reason_bytes, reserved } = reader.fixed()?;
                zero("a reserved field", reserved)?;
                let reason = reader.text("a reason", reason_bytes, MAX_REASON_BYTES)?;
                Self::MoveRefused { serial, reason }
            }
            wire::ALLOCATED => Self::Allocated { passport: read_passport(&reader.fixed()?)? },
            wire::OPENED => Self::Opened,
            other => return Err(WireError::Kind(other)),
        };
        reader.end()?;
        let descriptors = usize::from(matches!(response, Self::Allocated { .. }));
        reader.has_descriptors(descriptors, descriptors)?;
        Ok((response, Vec::new()))
    }
}

/// Descriptors alone, for a process that is no engine.
impl Message for () {
    const MAX_BYTES: u32 = MAX_RESPONSE_BYTES;

    fn encode(&self, behind: &[u8], descriptors: usize) -> Result<Vec<u8>, WireError> {
        nothing(behind)?;
        Writer::new(wire::HANDOVER, &()).finish(descriptors)
    }

    fn decode(packet: &[u8], descriptors: usize) -> Result<((), Vec<u8>), WireError> {
        let reader = Reader::new(packet, descriptors)?;
        if reader.kind != wire::HANDOVER {
            return Err(WireError::Kind(reader.kind));
        }
        reader.end()?;
        Ok(((), Vec::new()))
    }
}

#[cfg(test)]
mod tests {
    use campanile_protocol::named_profile::GpuProfile;
    use campanile_protocol::profile::Profile;
    use std::fmt::Debug;
    use zerocopy::FromZeros;

    use campanile_protocol::engine::message::MAX_CODE_MIB;
    use campanile_protocol::engine::message::MAX_NAME_BYTES;
    use campanile_protocol::engine::message::MAX_REASON_BYTES;
    use campanile_protocol::engine::message::MAX_SOURCE_BYTES;
    use proptest::collection::vec;
    use proptest::prelude::any;
    use proptest::proptest;

    use super::Local;
    use super::LocalMemory;
    use super::Message;
    use super::MoveSide;
    use super::NodeKind;
    use super::Passport;
    use super::Request;
    use super::Response;
    use super::Start;
    use super::WireError;
    use crate::dirty::method::Method;
    use crate::kernel::name::KernelName;

    const KERNEL: KernelName = KernelName { root: 0x1122, handle: 0x0003_0000_0000_0004 };
    /// Bytes of a header.
    const HEADER: usize = 16;

    fn starts() -> Vec<(Start, Vec<u8>, usize)> {
        let start = Start {
            node: NodeKind::Compute,
            vram_bytes: 1,
            table_bytes: 2,
            spin_microseconds: 3,
            slice_microseconds: 4,
            sandbox: true,
            policy: "fair".to_owned(),
            vulkan_device: Some("llvmpipe".to_owned()),
            profile: GpuProfile::Host,
            tracking: Method::BoundRanges,
            local: Local::Host,
            code_mib: 0,
            is_realtime: false,
            is_ahead: false,
        };
        let other = Start {
            node: NodeKind::Copy,
            sandbox: false,
            vulkan_device: None,
            tracking: Method::WriteProtect,
            ..start.clone()
        };
        let third = Start { tracking: Method::Off, vulkan_device: Some(String::new()), ..other.clone() };
        let passport = Passport { length: 5, type_index: 6, uuids: [[7; 16], [8; 16]] };
        let local = LocalMemory { start: 2, bytes: 3, evicted_bytes: 4, passport };
        let fourth = Start { local: Local::Device(local), ..start.clone() };
        let fifth = Start { local: Local::Allocate(9), ..third.clone() };
        let sixth = Start { code_mib: 32, ..fourth.clone() };
        let seventh = Start { is_ahead: true, ..sixth.clone() };
        let eighth = Start { profile: GpuProfile::Campanile1, ..start.clone() };
        let ninth = Start { is_realtime: true, ..start.clone() };
        vec![
            (start, Vec::new(), 8),
            (other, Vec::new(), 7),
            (third, Vec::new(), 7),
            (fourth, Vec::new(), 10),
            (fifth, Vec::new(), 7),
            (sixth, Vec::new(), 11),
            (seventh, Vec::new(), 0),
            (eighth, Vec::new(), 8),
            (ninth, Vec::new(), 8),
        ]
    }

    fn requests() -> Vec<(Request, Vec<u8>, usize)> {
        let create = |entry: Option<&str>| {
            let entry = entry.map(str::to_owned);
            Request::CreateKernel { kernel: KERNEL, language: 2, entry, alone: true }
        };
        vec![
            (Request::Begin { segments: 5 }, Vec::new(), 0),
            (Request::AddSegment { segment: 6, serial: 7, runs: 8 }, Vec::new(), 2),
            (Request::AddSegment { segment: u16::MAX, serial: u64::MAX, runs: 8 }, Vec::new(), 32),
            (Request::RemoveSegment { segment: 9, serial: 10 }, Vec::new(), 0),
            (create(Some("größe")), b"source".to_vec(), 0),
            (create(None), vec![7; MAX_SOURCE_BYTES as usize], 0),
            (Request::DestroyKernel { kernel: KERNEL }, Vec::new(), 0),
            (copied(MoveSide::Zero, MoveSide::Local(2)), Vec::new(), 0),
            (copied(MoveSide::Local(1), MoveSide::Visible(2)), Vec::new(), 0),
            (copied(MoveSide::Visible(1), MoveSide::Evicted(2)), Vec::new(), 0),
            (copied(MoveSide::Evicted(1), MoveSide::Local(2)), Vec::new(), 0),
        ]
    }

    fn copied(from: MoveSide, to: MoveSide) -> Request {
        Request::Move { serial: 3, from, to, bytes: 4 }
    }

    #[test]
    fn nothing_is_copied_into_zeroes() {
        let refused = copied(MoveSide::Local(1), MoveSide::Zero).encode(&[], 0);
        assert_eq!(refused, Err(WireError::Field { what: "what is copied to", value: 0 }));
    }

    fn responses() -> Vec<(Response, Vec<u8>, usize)> {
        let reason = "two\nlines\tof words".to_owned();
        [
            Response::Started { device: "a device".to_owned(), is_cpu: true, vram: 11, profile: None },
            Response::Started { device: String::new(), is_cpu: false, vram: u64::MAX, profile: None },
            Response::Refused { reason: reason.clone() },
            Response::SegmentAdded { segment: 12, serial: 13, address: Some(0) },
            Response::SegmentAdded { segment: 12, serial: 13, address: None },
            Response::SegmentRefused { segment: 14, reason: reason.clone() },
            Response::KernelCreated {
                kernel: KERNEL,
                workgroup: [15, 16, 17],
                binding_count: 18,
                constant_bytes: 19,
            },
            Response::KernelRefused { kernel: KERNEL, reason },
            Response::KernelDestroyed { kernel: KERNEL },
            Response::Moved { serial: 20 },
            Response::MoveRefused { serial: 21, reason: "why".to_owned() },
            Response::Allocated { passport: Passport { length: 22, type_index: 23, uuids: [[24; 16]; 2] } },
            Response::Started {
                device: "a GPU".to_owned(),
                is_cpu: false,
                vram: 1,
                profile: Some(Box::new(Profile { features: 3, ..Profile::new_zeroed() })),
            },
            Response::Opened,
        ]
        .map(|response| {
            let descriptors = usize::from(matches!(response, Response::Allocated { .. }));
            (response, Vec::new(), descriptors)
        })
        .into()
    }

    fn set(packet: &mut [u8], at: usize, value: u32) {
        packet[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }

    /// The size in the header, as it is.
    fn resized(mut packet: Vec<u8>) -> Vec<u8> {
        let size = u32::try_from(packet.len()).unwrap();
        set(&mut packet, 8, size);
        packet
    }

    fn goes_through<T: Message + PartialEq + Debug>(all: Vec<(T, Vec<u8>, usize)>) {
        for (message, behind, descriptors) in all {
            let packet = message.encode(&behind, descriptors).unwrap();
            assert!(packet.len() <= T::MAX_BYTES as usize, "{message:?}");
            assert_eq!(T::decode(&packet, descriptors), Ok((message, behind)));
        }
    }

    fn is_exact<T: Message + PartialEq + Debug>(all: Vec<(T, Vec<u8>, usize)>) {
        for (message, behind, descriptors) in all {
            let packet = message.encode(&behind, descriptors).unwrap();
            let refused = |packet: &[u8], descriptors| T::decode(packet, descriptors).unwrap_err();
            // A header that knows of it, and one that does not. Each length of long ones is too much.
            for length in (0..packet.len()).filter(|at| *at < 300 || at + 300 > packet.len()) {
                refused(&packet[..length], descriptors);
                if length >= HEADER {
                    refused(&resized(packet[..length].to_vec()), descriptors);
                }
            }
            let longer = [packet.as_slice(), &[0]].concat();
            assert!(matches!(refused(&longer, descriptors), WireError::Size { .. }), "{message:?}");
            assert!(
                matches!(refused(&resized(longer), descriptors), WireError::Length { .. }),
                "{message:?}"
            );
            for other in [descriptors + 1, descriptors.saturating_sub(1), 33]
                .into_iter()
                .filter(|it| *it != descriptors)
            {
                assert!(matches!(refused(&packet, other), WireError::Descriptors { .. }), "{message:?}");
                let mut knows = packet.clone();
                set(&mut knows, 12, u32::try_from(other).unwrap());
                // A list of two to 32 files is one as well as another.
                if descriptors == 0 || !(2..=32).contains(&other) {
                    assert!(matches!(refused(&knows, other), WireError::Descriptors { .. }), "{message:?}");
                }
            }
            let spoilt = |at: usize, value: u32| {
                let mut packet = packet.clone();
                set(&mut packet, at, value);
                refused(&packet, descriptors)
            };
            assert_eq!(spoilt(0, 0x3145_5043 + 1), WireError::Magic(0x3145_5043 + 1));
            for kind in [0, 3, 0x16, 0x7f, 0x8b, u32::MAX] {
                assert_eq!(spoilt(4, kind), WireError::Kind(kind));
            }
        }
    }

    #[test]
    fn every_message_comes_out_as_it_went_in() {
        goes_through(starts());
        goes_through(requests());
        goes_through(responses());
    }

    #[test]
    fn a_packet_with_a_byte_more_or_less_or_other_descriptors_is_refused() {
        is_exact(starts());
        is_exact(requests());
        is_exact(responses());
    }

    #[test]
    fn a_type_of_the_other_direction_is_refused() {
        let request = Request::Begin { segments: 1 }.encode(&[], 0).unwrap();
        assert_eq!(Response::decode(&request, 0), Err(WireError::Kind(0x10)));
        let response = Response::KernelDestroyed { kernel: KERNEL }.encode(&[], 0).unwrap();
        assert_eq!(Request::decode(&response, 0), Err(WireError::Kind(0x86)));
        assert_eq!(Start::decode(&response, 0).unwrap_err(), WireError::Kind(0x86));
    }

    #[test]
    fn fields_outside_their_values_are_refused() {
        // Message, where a field lies behind the header, what it may not be.
        let first = |all: Vec<(Response, Vec<u8>, usize)>, at: usize| all[at].0.encode(&[], 0).unwrap();
        for (which, at, value) in [(0, 8, 2), (2, 4, 1), (3, 18, 1), (3, 20, 2), (6, 36, 1), (7, 20, 1)] {
            let mut packet = first(responses(), which);
            set(&mut packet, HEADER + at, value);
            let came = Response::decode(&packet, 0);
            assert!(matches!(came, Err(WireError::Field { .. })), "{which} {at}: {came:?}");
        }
        let mut packet = first(responses(), 4);
        set(&mut packet, HEADER + 8, 1);
        assert!(matches!(Response::decode(&packet, 0), Err(WireError::Field { .. })), "an address of none");
        let start = starts()[0].0.encode(&[], 8).unwrap();
        for (at, value) in
            [(32, 2), (36, 3), (40, 32), (40, 0x203), (40, 0x1_0003), (40, START_WITHOUT_DEVICE)]
        {
            let mut packet = start.clone();
            set(&mut packet, HEADER + at, value);
            let came = Start::decode(&packet, 8);
            assert!(matches!(came, Err(WireError::Field { .. })), "{at}: {came:?}");
        }
    }

    #[test]
    fn a_log_of_compiled_code_is_bounded_and_has_a_descriptor() {
        let start = starts()[0].0.encode(&[], 8).unwrap();
        let with = |mib, descriptors: u32| {
            let mut packet = start.clone();
            set(&mut packet, 12, descriptors);
            set(&mut packet, HEADER + 52, mib);
            Start::decode(&packet, descriptors as usize)
        };
        assert_eq!(with(MAX_CODE_MIB, 9).unwrap().0.code_mib, MAX_CODE_MIB);
        assert!(matches!(with(1, 8), Err(WireError::Descriptors { .. })));
        assert!(matches!(with(0, 9), Err(WireError::Descriptors { .. })));
        assert!(matches!(with(MAX_CODE_MIB + 1, 9), Err(WireError::TooLong { .. })));
    }

    const START_WITHOUT_DEVICE: u32 = super::START_SANDBOX;

    #[test]
    fn lengths_that_promise_more_than_there_may_be_are_refused_before_anything_is_taken() {
        let mut packet = requests()[4].0.encode(b"source", 0).unwrap();
        for (at, most) in [(HEADER + 20, MAX_NAME_BYTES), (HEADER + 24, MAX_SOURCE_BYTES)] {
            let right = u32::from_le_bytes(*packet[at..].first_chunk().unwrap());
            for (bytes, is_long) in [(most + 1, true), (u32::MAX, true), (most, false)] {
                set(&mut packet, at, bytes);
                let why = Request::decode(&packet, 0).unwrap_err();
                assert_eq!(matches!(why, WireError::TooLong { .. }), is_long, "{why}");
            }
            set(&mut packet, at, right);
        }
        let mut packet = Response::Refused { reason: "no".to_owned() }.encode(&[], 0).unwrap();
        set(&mut packet, HEADER, MAX_REASON_BYTES + 1);
        assert!(matches!(Response::decode(&packet, 0), Err(WireError::TooLong { .. })));
    }

    #[test]
    fn a_profile_is_there_or_not_and_whole() {
        let profile = Some(Box::new(Profile { features: 3, ..Profile::new_zeroed() }));
        let started = Response::Started { device: String::new(), is_cpu: false, vram: 1, profile };
        let packet = started.encode(&[], 0).unwrap();
        // Behind the header and `vram`, `is_cpu` and `device_bytes`.
        let (has_profile, reserved) = (16 + 16, 16 + 20);
        for (at, byte) in [(has_profile, 2), (has_profile, 0), (reserved, 1)] {
            let mut wrong = packet.clone();
            wrong[at] = byte;
            assert!(Response::decode(&wrong, 0).is_err(), "{byte} at {at}");
        }
        let cut = Response::decode(&packet[..packet.len() - 1], 0);
        assert!(cut.is_err());
    }

    #[test]
    fn text_that_is_none_is_refused() {
        let spoilt = |response: &Response, byte: u8| {
            let mut packet = response.encode(&[], 0).unwrap();
            *packet.last_mut().unwrap() = byte;
            Response::decode(&packet, 0).unwrap_err()
        };
        for (response, _, _) in responses() {
            let has_text = match &response {
                Response::Started { device, .. } => !device.is_empty(),
                Response::Refused { .. }
                | Response::SegmentRefused { .. }
                | Response::KernelRefused { .. } => true,
                _ => false,
            };
            if has_text {
                assert!(matches!(spoilt(&response, 0xff), WireError::Utf8(_)), "{response:?}");
                assert!(matches!(spoilt(&response, 0x1b), WireError::Control(_)), "{response:?}");
            }
        }
        let device = Response::Started { device: "x".to_owned(), is_cpu: true, vram: 0, profile: None };
        assert!(matches!(spoilt(&device, b'\n'), WireError::Control(_)), "a name is one line");
    }

    #[test]
    fn a_kernel_that_cannot_be_named_or_is_too_long_is_not_sent() {
        let create = |entry: &str, bytes: usize| {
            let entry = Some(entry.to_owned());
            Request::CreateKernel { kernel: KERNEL, language: 1, entry, alone: false }
                .encode(&vec![0; bytes], 0)
        };
        let longest = "x".repeat(MAX_NAME_BYTES as usize);
        assert!(create(&longest, MAX_SOURCE_BYTES as usize).is_ok());
        assert!(matches!(create(&(longest + "x"), 1), Err(WireError::TooLong { .. })));
        assert!(matches!(create("x", MAX_SOURCE_BYTES as usize + 1), Err(WireError::TooLong { .. })));
        assert!(matches!(create("\x01", 1), Err(WireError::Control(_))));
        let behind = Request::Begin { segments: 0 }.encode(&[0], 0);
        assert!(matches!(behind, Err(WireError::TooLong { .. })));
    }

    #[test]
    fn words_of_an_engine_are_shortened_and_made_printable_before_they_are_sent() {
        let reason = format!("\x1b[2J\n{}", "ä".repeat(MAX_REASON_BYTES as usize));
        let packet = Response::KernelRefused { kernel: KERNEL, reason }.encode(&[], 0).unwrap();
        let (Response::KernelRefused { reason, .. }, _) = Response::decode(&packet, 0).unwrap() else {
            panic!("another message")
        };
        assert!(reason.starts_with("\u{fffd}[2J\nä"), "{}", &reason[..16]);
        assert!((MAX_REASON_BYTES as usize - 1..=MAX_REASON_BYTES as usize).contains(&reason.len()));
    }

    proptest! {
        #[test]
        fn no_bytes_make_a_decoder_panic(
            mut packet in vec(any::<u8>(), 0..200),
            kind in proptest::sample::select(vec![1_u32, 2, 0x10, 0x11, 0x12, 0x13, 0x14, 0x80, 0x81, 0x82, 0x83, 0x84, 0x85, 0x86]),
            descriptors in 0_usize..40,
        ) {
            if packet.len() >= HEADER {
                packet[..4].copy_from_slice(b"CPE1");
                set(&mut packet, 4, kind);
                set(&mut packet, 12, u32::try_from(descriptors).unwrap());
                packet = resized(packet);
            }
            // What is taken is what is sent.
            if let Ok((request, behind)) = Request::decode(&packet, descriptors) {
                assert_eq!(request.encode(&behind, descriptors).unwrap(), packet);
            }
            if let Ok((response, _)) = Response::decode(&packet, descriptors) {
                assert_eq!(response.encode(&[], descriptors).unwrap(), packet);
            }
            if let Ok((start, _)) = Start::decode(&packet, descriptors) {
                assert_eq!(start.encode(&[], descriptors).unwrap(), packet);
            }
        }
    }
}
