//! The writable buffers of a descriptor chain: where its answer goes.

use vm_memory::Bytes;
use vm_memory::GuestAddress;

use crate::guest_ram::memory::GuestRam;

/// Writable buffers kept for one answer.
const MAX_WRITABLE: usize = 1024;

/// One buffer in guest memory, seen to be there.
#[derive(Debug, Clone, Copy)]
pub(super) struct Segment {
    pub(super) address: u64,
    pub(super) length: u32,
}

/// Where the answer goes. Most chains have one writable buffer, so that the rest costs nothing.
#[derive(Debug, Default)]
pub(super) struct Writable {
    first: Option<Segment>,
    rest: Vec<Segment>,
    bytes: usize,
    /// Descriptors of the ring that the chain takes, readable ones too.
    descriptors: u16,
}

impl Writable {
    /// These buffers, of a chain that has no other.
    pub(super) fn of(segments: &[Segment]) -> Self {
        let mut room =
            Self { descriptors: u16::try_from(segments.len()).unwrap_or(u16::MAX), ..Self::default() };
        segments.iter().for_each(|segment| room.push(*segment));
        room
    }

    pub(super) fn push(&mut self, segment: Segment) {
        self.bytes += bytes(segment.length);
        match self.first {
            None => self.first = Some(segment),
            Some(_) => self.rest.push(segment),
        }
    }

    /// Notes a descriptor of the ring that the chain takes.
    pub(super) fn count_descriptor(&mut self) {
        self.descriptors += 1;
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn descriptors(&self) -> u16 {
        self.descriptors
    }

    pub(super) fn segments(&self) -> impl Iterator<Item = &Segment> {
        self.first.iter().chain(&self.rest)
    }

    /// A number that another chain has with other buffers: so that a restored request is seen to be the one that was
    /// saved. It is no protection from a guest, which may change its chains as it likes and harms itself only. Part of
    /// the saved state (FNV-1a, over addresses and lengths).
    pub(super) fn shape(&self) -> u64 {
        let words = |segment: &Segment| [segment.address, u64::from(segment.length)];
        let mix = |hash: u64, word: u64| (hash ^ word).wrapping_mul(0x0100_0000_01b3);
        self.first.iter().chain(&self.rest).flat_map(words).fold(0xcbf2_9ce4_8422_2325, mix)
    }

    /// Whether no other buffer is taken.
    pub(super) fn is_full(&self) -> bool {
        self.rest.len() + 1 >= MAX_WRITABLE
    }

    /// Copies a response out; what has no room is cut off. Returns the bytes written.
    pub(super) fn fill(&self, ram: &GuestRam, response: &[u8]) -> u32 {
        let mut left = response;
        let mut written = 0;
        for segment in self.first.iter().chain(&self.rest) {
            let (now, later) = left.split_at(left.len().min(bytes(segment.length)));
            // Memory may have gone since the chain was read: then the rest is not written.
            if now.is_empty() || ram.write_slice(now, GuestAddress(segment.address)).is_err() {
                break;
            }
            written += u32::try_from(now.len()).unwrap_or(0);
            left = later;
        }
        written
    }
}

/// A length of a descriptor, as the host counts.
pub(super) fn bytes(length: u32) -> usize {
    usize::try_from(length).unwrap_or(usize::MAX)
}
