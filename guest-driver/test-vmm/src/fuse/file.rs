//! The one file of the device, as a process of a loopback VM has it open.

use std::sync::Arc;

use campanile_protocol::PAGE_SIZE;
use campanile_protocol::fs::call;
use campanile_protocol::fs::call::Call;
use campanile_protocol::fs::call::MAX_CALL_BYTES;
use campanile_protocol::fs::call::ReplyHeader;
use campanile_protocol::fs::call::RequestHeader;
use campanile_protocol::fs::fuse::file::IoctlIn;
use campanile_protocol::fs::fuse::file::IoctlOut;
use campanile_protocol::fs::fuse::file::OpenIn;
use campanile_protocol::fs::fuse::file::OpenOut;
use campanile_protocol::fs::fuse::file::ReadIn;
use campanile_protocol::fs::fuse::file::ReleaseIn;
use campanile_protocol::fs::fuse::file::WriteIn;
use campanile_protocol::fs::fuse::opcode;
use rustix::io::Errno;
use zerocopy::FromBytes;
use zerocopy::Immutable;
use zerocopy::IntoBytes;
use zerocopy::KnownLayout;

use super::request::FuseError;
use super::request::FuseReply;
use super::request::FuseRequest;
use crate::guest_ram::RamBlock;
use crate::vm::LoopbackVm;
use campanile_guest_driver::transport::error::Refusal;
use campanile_guest_driver::transport::error::TransportError;

/// The file `gpu`, opened. Dropping it closes it.
#[derive(Debug)]
pub struct FuseFile {
    pub(super) vm: Arc<LoopbackVm>,
    generation: u64,
    /// What the device calls it.
    pub handle: u64,
}

impl FuseFile {
    /// Opens it.
    ///
    /// # Errors
    /// What the device said.
    pub fn open(vm: &Arc<LoopbackVm>) -> Result<Self, TransportError> {
        let generation = vm.numbers.generation();
        let open = OpenIn { flags: 2, open_flags: 0 };
        let request = FuseRequest::new(opcode::OPEN, open.as_bytes(), size_of::<OpenOut>());
        let opened = vm.fuse(&request)?.wait().map_err(|error| of("OPEN", error))?;
        let opened: OpenOut = read("OPEN", &opened)?;
        Ok(Self { vm: Arc::clone(vm), generation, handle: opened.handle })
    }

    pub(super) fn check(&self) -> Result<(), TransportError> {
        if self.generation == self.vm.numbers.generation() {
            Ok(())
        } else {
            Err(TransportError::DeviceReset)
        }
    }

    /// An ioctl under way, with a buffer of `room` bytes.
    ///
    /// # Errors
    /// The device is gone.
    pub fn begin(
        &self,
        call: Call,
        body: &[u8],
        room: usize,
        user: u32,
    ) -> Result<FuseReply, TransportError> {
        self.check()?;
        let size = size_of::<RequestHeader>() + body.len();
        let room = size.max(size_of::<ReplyHeader>() + room);
        let limit = MAX_CALL_BYTES as u64;
        let bytes = room as u64;
        let number = call.number(room).ok_or(TransportError::Size { what: "a call", bytes, limit })?;
        let small = |size: usize| u32::try_from(size).unwrap_or(u32::MAX);
        let ioctl = IoctlIn {
            handle: self.handle,
            number,
            in_size: small(room),
            out_size: small(room),
            ..IoctlIn::default()
        };
        let header = RequestHeader { size: small(size), reserved: 0 };
        let mut arguments = [ioctl.as_bytes(), header.as_bytes(), body].concat();
        arguments.resize(size_of::<IoctlIn>() + room, 0);
        let room = size_of::<IoctlOut>() + room;
        self.vm.fuse(&FuseRequest { user, ..FuseRequest::new(opcode::IOCTL, &arguments, room) })
    }

    /// The body of a call's reply.
    ///
    /// # Errors
    /// What the device said.
    pub fn call(
        &self,
        name: &'static str,
        call: Call,
        body: &[u8],
        room: usize,
    ) -> Result<Vec<u8>, TransportError> {
        let results = self.begin(call, body, room, 1000)?.wait().map_err(|error| of(name, error))?;
        let why = "it is no reply";
        let bad = TransportError::BadAnswer { command: name, why };
        let Some((header, body)) =
            results.get(size_of::<IoctlOut>()..).and_then(|reply| ReplyHeader::read_from_prefix(reply).ok())
        else {
            return Err(bad);
        };
        if let Some(refusal) = Refusal::from_code(header.status) {
            return Err(TransportError::Refused { command: name, refusal });
        }
        let size = usize::try_from(header.size).unwrap_or(usize::MAX);
        match size.checked_sub(size_of::<ReplyHeader>()).and_then(|size| body.get(..size)) {
            Some(body) if header.status == call::OK => Ok(body.to_vec()),
            _ => Err(bad),
        }
    }

    /// A call whose reply is a `T`.
    ///
    /// # Errors
    /// What the device said.
    pub fn ask<T: FromBytes + KnownLayout + Immutable, B: IntoBytes + Immutable>(
        &self,
        name: &'static str,
        call: Call,
        body: &B,
    ) -> Result<T, TransportError> {
        read(name, &self.call(name, call, body.as_bytes(), size_of::<T>())?)
    }

    /// A write.
    ///
    /// # Errors
    /// What the device said.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), TransportError> {
        self.check()?;
        let size = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let write = WriteIn { handle: self.handle, offset, size, ..WriteIn::default() };
        let arguments = [write.as_bytes(), bytes].concat();
        let request = FuseRequest::new(opcode::WRITE, &arguments, 8);
        self.vm.fuse(&request)?.wait().map(drop).map_err(|error| of("WRITE", error))
    }

    /// A direct read into pages of a block, from byte `at` of it on.
    pub(super) fn read(
        &self,
        offset: u64,
        block: &Arc<RamBlock>,
        first: u64,
        pages: u64,
    ) -> Result<FuseReply, TransportError> {
        self.check()?;
        let size = u32::try_from(pages * PAGE_SIZE).unwrap_or(u32::MAX);
        let read = ReadIn { handle: self.handle, offset, size, ..ReadIn::default() };
        self.vm.fuse_read(&FuseRequest::new(opcode::READ, read.as_bytes(), 0), block, first, pages)
    }
}

impl Drop for FuseFile {
    fn drop(&mut self) {
        if self.check().is_err() || !self.vm.is_connected() {
            return;
        }
        let release = ReleaseIn { handle: self.handle, ..ReleaseIn::default() };
        let released = self.vm.fuse(&FuseRequest::new(opcode::RELEASE, release.as_bytes(), 0));
        let released = released.map_err(FuseError::from).and_then(|reply| reply.wait());
        if let Err(error) = released {
            log::debug!("closing a file: {error}");
        }
    }
}

/// What an error of the device means.
pub(super) fn of(command: &'static str, error: FuseError) -> TransportError {
    match error {
        FuseError::Errno(Errno::NODEV) => TransportError::DeviceReset,
        FuseError::Errno(errno) => {
            TransportError::System { what: command, source: std::io::Error::from(errno).into() }
        }
        FuseError::Transport(error) => error,
    }
}

/// An answer, as what it should be.
pub(super) fn read<T: FromBytes + KnownLayout + Immutable>(
    command: &'static str,
    bytes: &[u8],
) -> Result<T, TransportError> {
    let why = "it has another length";
    T::read_from_bytes(bytes).map_err(|_| TransportError::BadAnswer { command, why })
}
