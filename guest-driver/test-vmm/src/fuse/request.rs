//! FUSE requests, as the kernel's driver lays them out in guest RAM.

use std::sync::Arc;

use campanile_protocol::fs;
use campanile_protocol::fs::fuse::InHeader;
use campanile_protocol::fs::fuse::OutHeader;
use campanile_protocol::fs::fuse::opcode;
use campanile_protocol::fs::fuse::start;
use campanile_protocol::fs::fuse::start::InitIn;
use campanile_protocol::fs::fuse::start::InitOut;
use campanile_protocol::page_table::PAGE_SIZE;
use rustix::io::Errno;
use zerocopy::FromBytes;
use zerocopy::IntoBytes;

use crate::command::Command;
use crate::command::descriptor;
use crate::command::indirect;
use crate::guest_ram::RamBlock;
use crate::options::PageLayout;
use crate::request::Chain;
use crate::request::Request;
use crate::split_ring::DESCRIPTOR_BYTES;
use crate::split_ring::Links;
use crate::split_ring::WRITE;
use crate::vm::LoopbackVm;
use campanile_guest_driver::transport::error::TransportError;

/// Why a request has no results.
#[derive(Debug, thiserror::Error)]
pub enum FuseError {
    /// The device said so.
    #[error("{0}")]
    Errno(#[from] Errno),
    /// It could not be asked, or its answer is none.
    #[error("{0}")]
    Transport(#[from] TransportError),
}

/// One request.
#[derive(Debug, Clone, Copy)]
pub struct FuseRequest<'a> {
    /// What is asked.
    pub opcode: u32,
    /// Of which node.
    pub node: u64,
    /// By which user of the guest.
    pub user: u32,
    /// The arguments.
    pub arguments: &'a [u8],
    /// Room for results.
    pub room: usize,
}

impl<'a> FuseRequest<'a> {
    /// A request of an ordinary user about the file.
    pub fn new(opcode: u32, arguments: &'a [u8], room: usize) -> Self {
        Self { opcode, node: fs::GPU, user: 1000, arguments, room }
    }

    fn header(&self, unique: u64) -> InHeader {
        let length = size_of::<InHeader>() + self.arguments.len();
        InHeader {
            length: u32::try_from(length).unwrap_or(u32::MAX),
            opcode: self.opcode,
            unique,
            node: self.node,
            user: self.user,
            group: self.user,
            process: 1,
            extensions: 0,
        }
    }
}

/// A request under way.
#[derive(Debug, Clone)]
pub struct FuseReply {
    vm: Arc<LoopbackVm>,
    request: Arc<Request>,
    /// The kernel's number for it.
    pub unique: u64,
}

impl FuseReply {
    /// Whether it is answered.
    pub fn is_done(&self) -> bool {
        self.vm.rings.control().poll(&self.request)
    }

    /// Blocks until it is answered; its results.
    ///
    /// # Errors
    /// What the device said, or that it said nothing.
    pub fn wait(&self) -> Result<Vec<u8>, FuseError> {
        self.vm.rings.control().wait(&self.request, Some(self.vm.options.command_timeout))?;
        let (_, answer) = self.request.answer()?;
        let bad = |why| TransportError::BadAnswer { command: "a FUSE request", why };
        let (header, results) =
            OutHeader::read_from_prefix(answer).map_err(|_| bad("it is shorter than its header"))?;
        if header.unique != self.unique || usize::try_from(header.length).ok() != Some(answer.len()) {
            return Err(bad("it is of another request, or has another length").into());
        }
        match header.error {
            0 => Ok(results.to_vec()),
            error if error < 0 => Err(Errno::from_raw_os_error(-error).into()),
            _ => Err(bad("an error that is none").into()),
        }
    }
}

impl LoopbackVm {
    /// Sends one request.
    ///
    /// # Errors
    /// The device is gone, or there is no memory.
    pub fn fuse(self: &Arc<Self>, request: &FuseRequest<'_>) -> Result<FuseReply, TransportError> {
        let unique = self.numbers.fresh_fence() * 2;
        let body = [request.header(unique).as_bytes(), request.arguments].concat();
        let response_bytes = size_of::<OutHeader>() + request.room;
        let command = Command { name: "a FUSE request", body: &body, payload: &[], response_bytes };
        Ok(FuseReply { vm: Arc::clone(self), request: self.start(&command)?, unique })
    }

    /// Sends one request whose results go to pages of their own, `pages` of them from page `first` of a block on.
    pub(super) fn fuse_read(
        self: &Arc<Self>,
        request: &FuseRequest<'_>,
        block: &Arc<RamBlock>,
        first: u64,
        pages: u64,
    ) -> Result<FuseReply, TransportError> {
        let unique = self.numbers.fresh_fence() * 2;
        let body = [request.header(unique).as_bytes(), request.arguments].concat();
        let (start, end) = (first * PAGE_SIZE, (first + pages) * PAGE_SIZE);
        let mut places = Vec::new();
        let mut at = 0;
        for run in block.runs() {
            let (from, to) = (start.max(at), end.min(at + run.length));
            if from < to {
                places.push((block.run_address(run) + (from - at), to - from));
            }
            at += run.length;
        }
        let response = body.len().next_multiple_of(16);
        let table = (response + size_of::<OutHeader>()).next_multiple_of(16);
        let bytes = table + (places.len() + 2) * DESCRIPTOR_BYTES;
        let own = self.ram.allocate(bytes as u64, PageLayout::Contiguous)?;
        own.slice(0, body.len()).copy_from(&body);
        let mut descriptors = vec![
            descriptor(own.address(), body.len(), 0),
            descriptor(own.address() + response as u64, size_of::<OutHeader>(), WRITE),
        ];
        for (address, length) in places {
            descriptors.push(descriptor(address, usize::try_from(length).unwrap_or(usize::MAX), WRITE));
        }
        if self.accepted.indirect() {
            descriptors = vec![indirect(&own, table, descriptors)];
        }
        let chain = Chain {
            name: "a FUSE read",
            descriptors,
            links: Links::InOrder,
            block: Some(own),
            _payload: Some(Arc::clone(block)),
            response: (response, size_of::<OutHeader>()),
        };
        let request = self.rings.control().submit(chain, self.options.command_timeout)?;
        Ok(FuseReply { vm: Arc::clone(self), request, unique })
    }

    /// What the kernel says first on a new device, with all that it can do.
    pub(crate) fn mount(&self) -> Result<(), TransportError> {
        let init = InitIn { major: start::MAJOR, minor: 39, max_readahead: 1 << 17, flags: u32::MAX >> 1 };
        let request = FuseRequest {
            opcode: opcode::INIT,
            node: 0,
            user: 0,
            arguments: init.as_bytes(),
            room: size_of::<InitOut>(),
        };
        let body = [request.header(2).as_bytes(), request.arguments].concat();
        let response_bytes = size_of::<OutHeader>() + request.room;
        let answer = self.command(&Command { name: "INIT", body: &body, payload: &[], response_bytes })?;
        let agreed = answer.get(size_of::<OutHeader>()..).and_then(|out| InitOut::read_from_bytes(out).ok());
        match agreed {
            Some(agreed) if agreed.major == start::MAJOR && u64::from(agreed.max_write) >= PAGE_SIZE => {
                Ok(())
            }
            _ => Err(TransportError::BadAnswer { command: "INIT", why: "it agrees to nothing" }),
        }
    }
}
