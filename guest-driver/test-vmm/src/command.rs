//! Commands of the control queue: laid out in guest RAM as the stock driver does, and their answers read.

use std::sync::Arc;

use campanile_protocol::PAGE_SIZE;
use campanile_protocol::virtio_gpu::blob::MemEntry;
use campanile_protocol::virtio_gpu::command::Header;
use campanile_protocol::virtio_gpu::response;
use zerocopy::FromBytes;
use zerocopy::IntoBytes;

use super::guest_ram::GuestRam;
use super::guest_ram::RamBlock;
use super::options::PageLayout;
use super::request::Chain;
use super::split_ring::DESCRIPTOR_BYTES;
use super::split_ring::Descriptor;
use super::split_ring::INDIRECT;
use super::split_ring::Links;
use super::split_ring::NEXT;
use super::split_ring::WRITE;
use campanile_guest_driver::transport::error::Refusal;
use campanile_guest_driver::transport::error::TransportError;

/// Most bytes of a command, a response or a payload; far above what any real one has.
pub(crate) const MAX_BYTES: usize = 1 << 24;

/// One command, before it is in guest RAM.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Command<'a> {
    /// Its name, for errors.
    pub(crate) name: &'static str,
    /// Header and body.
    pub(crate) body: &'a [u8],
    /// What follows the body, in pages of its own; empty for most.
    pub(crate) payload: &'a [u8],
    /// Room for the response.
    pub(crate) response_bytes: usize,
}

/// How commands are laid out.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Layout {
    /// Pages of payloads.
    pub(crate) pages: PageLayout,
    /// Whether chains of several descriptors become one indirect descriptor.
    pub(crate) indirect: bool,
}

impl Command<'_> {
    /// Puts the command into guest RAM.
    pub(crate) fn lay_out(&self, ram: &Arc<GuestRam>, layout: Layout) -> Result<Chain, TransportError> {
        for (what, bytes) in [("command", self.body.len()), ("response", self.response_bytes)] {
            if bytes == 0 || bytes > MAX_BYTES {
                return Err(TransportError::Size { what, bytes: bytes as u64, limit: MAX_BYTES as u64 });
            }
        }
        let payload = self.payload_block(ram, layout.pages)?;
        let runs = payload.as_ref().map_or_else(Vec::new, |payload| payload.runs());
        let response = self.body.len().next_multiple_of(16);
        let table = (response + self.response_bytes).next_multiple_of(16);
        let count = runs.len() + 2;
        let block = ram.allocate((table + count * DESCRIPTOR_BYTES) as u64, PageLayout::Contiguous)?;
        block.slice(0, self.body.len()).copy_from(self.body);

        let mut descriptors = Vec::with_capacity(count);
        descriptors.push(descriptor(block.address(), self.body.len(), 0));
        let mut left = self.payload.len();
        if let Some(payload) = &payload {
            for run in runs {
                let length = left.min(usize::try_from(run.length).unwrap_or(usize::MAX));
                descriptors.push(descriptor(payload.run_address(run), length, 0));
                left -= length;
            }
        }
        descriptors.push(descriptor(block.address() + response as u64, self.response_bytes, WRITE));
        if layout.indirect {
            descriptors = vec![indirect(&block, table, descriptors)];
        }
        let response = (response, self.response_bytes);
        Ok(Chain {
            name: self.name,
            descriptors,
            links: Links::InOrder,
            block: Some(block),
            _payload: payload,
            response,
        })
    }

    fn payload_block(
        &self,
        ram: &Arc<GuestRam>,
        pages: PageLayout,
    ) -> Result<Option<Arc<RamBlock>>, TransportError> {
        if self.payload.is_empty() {
            return Ok(None);
        }
        let bytes = self.payload.len();
        if bytes > MAX_BYTES {
            return Err(TransportError::Size {
                what: "payload",
                bytes: bytes as u64,
                limit: MAX_BYTES as u64,
            });
        }
        let block = Arc::new(ram.allocate(bytes as u64, pages)?);
        block.shared().write(0, self.payload).expect("the block was allocated for these bytes");
        Ok(Some(block))
    }
}

pub(super) fn descriptor(address: u64, bytes: usize, flags: u16) -> Descriptor {
    Descriptor { address, length: u32::try_from(bytes).expect("MAX_BYTES was checked"), flags, next: 0 }
}

/// Writes the chain into the table at `offset` of `block`, and returns the descriptor that stands for it.
pub(super) fn indirect(block: &RamBlock, offset: usize, mut chain: Vec<Descriptor>) -> Descriptor {
    let last = chain.len() - 1;
    for (next, descriptor) in (1_u16..).zip(&mut chain[..last]) {
        descriptor.flags |= NEXT;
        descriptor.next = next;
    }
    let bytes = chain.as_bytes();
    block.slice(offset, bytes.len()).copy_from(bytes);
    descriptor(block.address() + offset as u64, bytes.len(), INDIRECT)
}

/// The pages of `block` as the entries of a RESOURCE_CREATE_BLOB, each of less than 4 GiB.
pub(crate) fn entries(block: &RamBlock) -> Vec<MemEntry> {
    const LONGEST: u64 = (1 << 32) - PAGE_SIZE;
    let mut entries = Vec::new();
    for run in block.runs() {
        let mut done = 0;
        while done < run.length {
            let length = (run.length - done).min(LONGEST);
            entries.push(MemEntry {
                address: block.run_address(run) + done,
                length: u32::try_from(length).expect("LONGEST is below 4 GiB"),
                padding: 0,
            });
            done += length;
        }
    }
    entries
}

/// The header of a response that is no error.
pub(crate) fn check(name: &'static str, answer: &[u8]) -> Result<Header, TransportError> {
    let Ok((header, _)) = Header::read_from_prefix(answer) else {
        return Err(TransportError::BadAnswer { command: name, why: "it is shorter than its header" });
    };
    if let Some(refusal) = Refusal::from_code(header.kind) {
        return Err(TransportError::Refused { command: name, refusal });
    }
    match header.kind {
        response::OK_NODATA..=response::OK_MAP_INFO => Ok(header),
        _ => Err(TransportError::BadAnswer { command: name, why: "its code is no response" }),
    }
}

/// A response of one certain kind.
pub(crate) fn decode<T: FromBytes>(
    name: &'static str,
    kind: u32,
    answer: &[u8],
) -> Result<T, TransportError> {
    if check(name, answer)?.kind != kind {
        return Err(TransportError::BadAnswer { command: name, why: "it answers another command" });
    }
    let why = "it is too short";
    T::read_from_prefix(answer)
        .map(|(value, _)| value)
        .map_err(|_| TransportError::BadAnswer { command: name, why })
}
