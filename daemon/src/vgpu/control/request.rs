//! Control messages, decoded once: from the code and the bytes of a frame to what a handler takes.

use campanile_protocol::control::away;
use campanile_protocol::control::memory;
use campanile_protocol::control::memory::List;
use campanile_protocol::control::memory::MAX_LIST;
use campanile_protocol::control::message;
use campanile_protocol::control::message::CreateContext;
use campanile_protocol::control::message::CreateDevice;
use campanile_protocol::control::message::CreateDoorbell;
use campanile_protocol::control::message::CreateKernel;
use campanile_protocol::control::message::CreateQueue;
use campanile_protocol::control::message::MapMemory;
use campanile_protocol::control::message::Named;
use campanile_protocol::control::message::Notify;
use campanile_protocol::control::message::Submit;
use campanile_protocol::control::message::UnmapMemory;
use campanile_protocol::control::message::WaitFence;
use campanile_protocol::control::native_fence;
use campanile_protocol::control::native_fence::CreateNativeFence;
use campanile_protocol::control::native_fence::NativeFenceValue;
use campanile_protocol::control::native_fence::OpenNativeFence;
use campanile_protocol::control::scheduling;
use campanile_protocol::control::scheduling::SetProcessClass;
use campanile_protocol::control::scheduling::SetSchedulingProperties;
use campanile_protocol::control::status::Status;
use zerocopy::FromBytes;
use zerocopy::Immutable;
use zerocopy::KnownLayout;

use crate::vgpu::objects::message::Entries;

/// A message of a guest process. Its form is right; whether it may be done is for its handler to say.
#[derive(Debug)]
pub(in crate::vgpu) enum Request<'a> {
    CreateDevice(CreateDevice),
    /// Read by its handler, which logs what is wrong with it.
    AttachDevice(&'a [u8]),
    DestroyDevice,
    ParkDevice,
    QueryCaps,
    QueryProfile,
    MapMemory(MapMemory),
    UnmapMemory(UnmapMemory),
    MapList(Entries<MapMemory>),
    UnmapList(Entries<UnmapMemory>),
    MakeResident(Entries<u32>),
    Evict(Entries<u32>),
    SetPriority(Entries<u32>),
    QueryMemory,
    CreateContext(CreateContext),
    DestroyContext(Named),
    SuspendContext(Named),
    ResumeContext(Named),
    CreateQueue(CreateQueue),
    DestroyQueue(Named),
    CreateDoorbell(CreateDoorbell),
    ConnectDoorbell(Named),
    DestroyDoorbell(Named),
    Notify(Notify),
    CreateKernel(NewKernel<'a>),
    DestroyKernel(Named),
    Submit(Submit),
    SetScheduling(SetSchedulingProperties),
    SetProcessClass(SetProcessClass),
    WaitFence(WaitFence),
    CreateNativeFence(CreateNativeFence),
    OpenNativeFence(OpenNativeFence),
    CloseNativeFence(Named),
    WaitNativeFence(NativeFenceValue),
    SignalNativeFence(NativeFenceValue),
    QueryNativeFence(Named),
}

/// CREATE_KERNEL.
#[derive(Debug)]
pub(in crate::vgpu) struct NewKernel<'a> {
    pub(in crate::vgpu) head: CreateKernel,
    /// The name of its entry point, where it has one.
    pub(in crate::vgpu) entry: Option<&'a [u8]>,
    pub(in crate::vgpu) source: &'a [u8],
    /// The whole body, to wait for an engine.
    pub(in crate::vgpu) body: &'a [u8],
}

impl<'a> Request<'a> {
    /// What a frame says.
    ///
    /// # Errors
    /// UNKNOWN_MESSAGE for a code that no message has; INVALID_PARAMETER for a body of another length than the message's, or
    /// a list that does not hold what its head counts.
    pub(in crate::vgpu) fn decode(opcode: u32, bytes: &'a [u8]) -> Result<Self, Status> {
        Ok(match opcode {
            message::CREATE_DEVICE => Self::CreateDevice(body(bytes)?),
            away::ATTACH_DEVICE => Self::AttachDevice(bytes),
            message::DESTROY_DEVICE => none(bytes, Self::DestroyDevice)?,
            away::PARK_DEVICE => none(bytes, Self::ParkDevice)?,
            message::QUERY_CAPS => none(bytes, Self::QueryCaps)?,
            message::QUERY_PROFILE => none(bytes, Self::QueryProfile)?,
            message::MAP_MEMORY => Self::MapMemory(body(bytes)?),
            message::UNMAP_MEMORY => Self::UnmapMemory(body(bytes)?),
            memory::MAP_LIST => Self::MapList(list(bytes)?),
            memory::UNMAP_LIST => Self::UnmapList(list(bytes)?),
            memory::MAKE_RESIDENT => Self::MakeResident(list(bytes)?),
            memory::EVICT => Self::Evict(list(bytes)?),
            memory::SET_PRIORITY => Self::SetPriority(list(bytes)?),
            memory::QUERY_MEMORY => none(bytes, Self::QueryMemory)?,
            message::CREATE_CONTEXT => Self::CreateContext(body(bytes)?),
            message::DESTROY_CONTEXT => Self::DestroyContext(body(bytes)?),
            message::SUSPEND_CONTEXT => Self::SuspendContext(body(bytes)?),
            message::RESUME_CONTEXT => Self::ResumeContext(body(bytes)?),
            message::CREATE_QUEUE => Self::CreateQueue(body(bytes)?),
            message::DESTROY_QUEUE => Self::DestroyQueue(body(bytes)?),
            message::CREATE_DOORBELL => Self::CreateDoorbell(body(bytes)?),
            message::CONNECT_DOORBELL => Self::ConnectDoorbell(body(bytes)?),
            message::DESTROY_DOORBELL => Self::DestroyDoorbell(body(bytes)?),
            message::NOTIFY => Self::Notify(body(bytes)?),
            message::CREATE_KERNEL => Self::CreateKernel(kernel(bytes)?),
            message::DESTROY_KERNEL => Self::DestroyKernel(body(bytes)?),
            message::SUBMIT => Self::Submit(body(bytes)?),
            scheduling::SET_SCHEDULING_PROPERTIES => Self::SetScheduling(body(bytes)?),
            scheduling::SET_PROCESS_CLASS => Self::SetProcessClass(body(bytes)?),
            message::WAIT_FENCE => Self::WaitFence(body(bytes)?),
            native_fence::CREATE_NATIVE_FENCE => Self::CreateNativeFence(body(bytes)?),
            native_fence::OPEN_NATIVE_FENCE => Self::OpenNativeFence(body(bytes)?),
            native_fence::CLOSE_NATIVE_FENCE => Self::CloseNativeFence(body(bytes)?),
            native_fence::WAIT_NATIVE_FENCE => Self::WaitNativeFence(body(bytes)?),
            native_fence::SIGNAL_NATIVE_FENCE => Self::SignalNativeFence(body(bytes)?),
            native_fence::QUERY_NATIVE_FENCE => Self::QueryNativeFence(body(bytes)?),
            _ => return Err(Status::UnknownMessage),
        })
    }

    /// Whether a device in error takes it too: it ends something, or asks for what is there without a device.
    pub(in crate::vgpu) const fn suits_lost_device(&self) -> bool {
        matches!(
            self,
            Self::CreateDevice(_)
                | Self::DestroyDevice
                | Self::DestroyContext(_)
                | Self::DestroyQueue(_)
                | Self::DestroyDoorbell(_)
                | Self::DestroyKernel(_)
                | Self::UnmapMemory(_)
                | Self::UnmapList(_)
                | Self::CloseNativeFence(_)
                | Self::QueryCaps
                | Self::QueryProfile
                | Self::QueryMemory
        )
    }

    /// Whether it needs an engine, so that the device leaves D3 for it.
    pub(in crate::vgpu) const fn wakes(&self) -> bool {
        matches!(
            self,
            Self::CreateContext(_)
                | Self::ResumeContext(_)
                | Self::CreateDoorbell(_)
                | Self::ConnectDoorbell(_)
                | Self::Notify(_)
                | Self::CreateKernel(_)
                | Self::Submit(_)
                | Self::WaitFence(_)
                | Self::WaitNativeFence(_)
        )
    }
}

/// A body that is exactly a `T`.
fn body<T: FromBytes + KnownLayout + Immutable>(bytes: &[u8]) -> Result<T, Status> {
    T::read_from_bytes(bytes).map_err(|_| Status::InvalidParameter)
}

/// No body.
fn none<'a>(bytes: &[u8], request: Request<'a>) -> Result<Request<'a>, Status> {
    if bytes.is_empty() { Ok(request) } else { Err(Status::InvalidParameter) }
}

/// The head and the entries of a list message.
fn list<T: FromBytes + KnownLayout + Immutable>(bytes: &[u8]) -> Result<Entries<T>, Status> {
    let (head, rest) = List::read_from_prefix(bytes).map_err(|_| Status::InvalidParameter)?;
    let length = head.count as usize * size_of::<T>();
    // Frames are whole words: a list of an odd length of short entries has zeroes behind it.
    if head.count == 0 || head.count > MAX_LIST || rest.len() != length.next_multiple_of(8) {
        return Err(Status::InvalidParameter);
    }
    let (entries, padding) = rest.split_at(length);
    if padding.iter().any(|byte| *byte != 0) {
        return Err(Status::InvalidParameter);
    }
    let entries = entries.chunks_exact(size_of::<T>());
    let entries = entries.filter_map(|entry| T::read_from_bytes(entry).ok()).collect();
    Ok(Entries { argument: head.argument, entries })
}

/// CREATE_KERNEL: a head, a name, a source, and zero to seven bytes that fill the last word.
fn kernel(bytes: &[u8]) -> Result<NewKernel<'_>, Status> {
    let (head, rest) = CreateKernel::read_from_prefix(bytes).map_err(|_| Status::InvalidParameter)?;
    let (name, source) = (head.entry_bytes as usize, head.source_bytes as usize);
    let end = name.checked_add(source).ok_or(Status::InvalidParameter)?;
    let (entry, behind) = rest.split_at_checked(name).ok_or(Status::InvalidParameter)?;
    let source = behind.get(..source).ok_or(Status::InvalidParameter)?;
    if rest.len() - end >= 8 || source.is_empty() {
        return Err(Status::InvalidParameter);
    }
    Ok(NewKernel { head, entry: (name > 0).then_some(entry), source, body: bytes })
}

#[cfg(test)]
mod tests {
    use zerocopy::IntoBytes;

    use super::*;

    /// The code of each message with a body that is right: the shortest of zeroes, of a list or of a kernel.
    fn known() -> Vec<(u32, Vec<u8>)> {
        let bodies = |length: usize| {
            let list = [List { count: 1, argument: 0 }.as_bytes(), &vec![0; length]].concat();
            let head = CreateKernel { language: 1, entry_bytes: 0, source_bytes: 1, reserved: 0 };
            let kernel = [head.as_bytes(), &vec![0; length]].concat();
            [vec![0; length], list, kernel]
        };
        let first = |opcode| {
            let mut bodies = (0..64).flat_map(bodies);
            bodies.find(|bytes| Request::decode(opcode, bytes).is_ok())
        };
        (0..128).filter_map(|opcode| Some((opcode, first(opcode)?))).collect()
    }

    #[test]
    fn a_body_that_is_a_byte_longer_or_shorter_than_its_message_is_refused() {
        for (opcode, bytes) in known().into_iter().filter(|(opcode, _)| *opcode != away::ATTACH_DEVICE) {
            let longer = [bytes.as_slice(), &[0; 8]].concat();
            assert_eq!(Request::decode(opcode, &longer).unwrap_err(), Status::InvalidParameter, "{opcode}");
            if let Some((_, shorter)) = bytes.split_last() {
                assert!(Request::decode(opcode, shorter).is_err(), "{opcode}");
            }
        }
    }

    #[test]
    fn a_code_that_no_message_has_is_unknown() {
        for opcode in [0, 3, 127, u32::MAX] {
            assert_eq!(Request::decode(opcode, &[]).unwrap_err(), Status::UnknownMessage, "{opcode}");
        }
    }

    #[test]
    fn a_list_holds_what_its_head_counts_and_zeroes_behind_it() {
        let message = |count: u32, words: &[u32]| {
            let mut bytes = List { count, argument: 7 }.as_bytes().to_vec();
            words.iter().for_each(|word| bytes.extend(word.to_le_bytes()));
            bytes
        };
        let entries = |bytes: &[u8]| match Request::decode(memory::EVICT, bytes) {
            Ok(Request::Evict(list)) => Ok((list.argument, list.entries)),
            Ok(other) => panic!("{other:?}"),
            Err(status) => Err(status),
        };
        assert_eq!(entries(&message(2, &[5, 6])), Ok((7, vec![5, 6])));
        assert_eq!(entries(&message(1, &[5, 0])), Ok((7, vec![5])));
        let most = vec![3; MAX_LIST as usize + 2];
        assert!(entries(&message(MAX_LIST, &most[2..])).is_ok());
        for wrong in [
            message(0, &[]),
            message(1, &[5]),
            message(1, &[5, 1]),
            message(1, &[5, 0, 0, 0]),
            message(MAX_LIST + 2, &most),
            vec![0; 7],
        ] {
            assert_eq!(entries(&wrong), Err(Status::InvalidParameter), "{} bytes", wrong.len());
        }
    }

    #[test]
    fn a_kernel_is_cut_into_name_and_source_and_fills_its_last_word() {
        let message = |entry_bytes: u32, source_bytes: u32, rest: &[u8]| {
            let head = CreateKernel { language: 1, entry_bytes, source_bytes, reserved: 0 };
            [head.as_bytes(), rest].concat()
        };
        let parts = |bytes: &[u8]| match Request::decode(message::CREATE_KERNEL, bytes) {
            Ok(Request::CreateKernel(kernel)) => {
                Some((kernel.entry.map(<[u8]>::to_vec), kernel.source.to_vec(), kernel.body == bytes))
            }
            _ => None,
        };
        assert_eq!(parts(&message(2, 3, b"abcde")), Some((Some(b"ab".to_vec()), b"cde".to_vec(), true)));
        assert_eq!(parts(&message(0, 1, b"c\0\0\0\0\0\0\0")), Some((None, b"c".to_vec(), true)));
        for wrong in [
            message(2, 0, b"ab"),
            message(2, 3, b"abcd"),
            message(0, 1, b"c\0\0\0\0\0\0\0\0"),
            message(u32::MAX, u32::MAX, b"abcdefgh"),
            message(9, 1, b"abcdefgh"),
        ] {
            assert_eq!(parts(&wrong), None);
        }
    }

    #[test]
    fn what_needs_an_engine_is_nothing_that_a_lost_device_takes() {
        let mut counts = (0, 0, 0);
        for (opcode, bytes) in known() {
            let request = Request::decode(opcode, &bytes).unwrap();
            assert!(!(request.wakes() && request.suits_lost_device()), "{opcode}");
            counts.0 += 1;
            counts.1 += u32::from(request.wakes());
            counts.2 += u32::from(request.suits_lost_device());
        }
        assert_eq!(counts, (36, 9, 12));
    }
}
