//! One descriptor chain: walked once, judged, and copied. The guest may change it meanwhile; only what was read
//! here counts.

use virtio_queue::desc::split::Descriptor;
use vm_memory::Bytes;
use vm_memory::GuestAddress;
use vm_memory::GuestMemory;
use vm_memory::Permissions;

use super::super::MAX_REQUEST;
use super::super::malformed::MalformedChain;
use super::super::writable::Segment;
use super::super::writable::Writable;
use super::super::writable::bytes;
use crate::guest_ram::memory::GuestRam;

/// Bytes of a descriptor (virtio 1.3, 2.7.5).
const DESCRIPTOR_BYTES: u32 = 16;
/// Entries of an indirect table. Linux exceeds the queue size there: the page list of [`MAX_REQUEST`] alone takes
/// 2096.
const MAX_INDIRECT: u32 = 4096;

/// Where a chain lies, and what its queue has negotiated.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct Origin {
    pub(in super::super) table: u64,
    pub(in super::super) queue_size: u16,
    pub(in super::super) indirect: bool,
    pub(in super::super) smallest_answer: usize,
}

/// Reads the chain at `head`: what it says goes to `request`, where the answer goes to `writable`, which on an
/// error holds what was found before (and, where the chain could be followed further, after) it.
pub(in super::super) fn read(
    ram: &GuestRam,
    origin: Origin,
    head: u16,
    request: &mut Vec<u8>,
    writable: &mut Writable,
) -> Result<(), MalformedChain> {
    request.clear();
    let mut walk = Walk { ram, request, writable, fault: None };
    let end = walk.follow(origin, head);
    if let Some(fault) = walk.fault {
        return Err(fault);
    }
    end?;
    if request.is_empty() {
        return Err(MalformedChain::NoRequest);
    }
    if writable.bytes() < origin.smallest_answer {
        return Err(MalformedChain::NoRoom);
    }
    Ok(())
}

struct Walk<'a> {
    ram: &'a GuestRam,
    request: &'a mut Vec<u8>,
    writable: &'a mut Writable,
    /// The first fault that does not stop the walk.
    fault: Option<MalformedChain>,
}

impl Walk<'_> {
    fn follow(&mut self, origin: Origin, head: u16) -> Result<(), MalformedChain> {
        let mut table = origin.table;
        let mut size = u32::from(origin.queue_size);
        let mut index = head;
        let mut left = size;
        let mut nested = false;
        loop {
            if u32::from(index) >= size {
                return Err(MalformedChain::NextOutOfRange(index));
            }
            left = left.checked_sub(1).ok_or(MalformedChain::Endless)?;
            let descriptor = self.descriptor(table, index)?;
            if !nested {
                self.writable.count_descriptor();
            }
            if descriptor.refers_to_indirect_table() {
                let length = descriptor.len();
                let entries = length / DESCRIPTOR_BYTES;
                let whole = length.is_multiple_of(DESCRIPTOR_BYTES) && (1..=MAX_INDIRECT).contains(&entries);
                if nested || !origin.indirect || descriptor.has_next() || !whole {
                    return Err(MalformedChain::IndirectTable);
                }
                (table, size, left, index, nested) = (descriptor.addr().0, entries, entries, 0, true);
                continue;
            }
            self.buffer(&descriptor)?;
            if !descriptor.has_next() {
                return Ok(());
            }
            index = descriptor.next();
        }
    }

    fn descriptor(&self, table: u64, index: u16) -> Result<Descriptor, MalformedChain> {
        let place = table.checked_add(u64::from(index) * u64::from(DESCRIPTOR_BYTES));
        let place = place.ok_or(MalformedChain::BadAddress(table))?;
        self.ram.read_obj(GuestAddress(place)).map_err(|_| MalformedChain::BadAddress(place))
    }

    /// One buffer. Faults are noted and the walk goes on, so that the place for the answer is found.
    fn buffer(&mut self, descriptor: &Descriptor) -> Result<(), MalformedChain> {
        let segment = Segment { address: descriptor.addr().0, length: descriptor.len() };
        let length = bytes(segment.length);
        let permission = if descriptor.is_write_only() { Permissions::Write } else { Permissions::Read };
        let fault = if length == 0 {
            MalformedChain::ZeroLength
        } else if !self.ram.check_range(descriptor.addr(), length, permission) {
            MalformedChain::BadAddress(segment.address)
        } else if descriptor.is_write_only() {
            if self.writable.is_full() {
                return Err(self.fault.unwrap_or(MalformedChain::TooManyBuffers));
            }
            self.writable.push(segment);
            return Ok(());
        } else if self.writable.bytes() > 0 {
            MalformedChain::ReadableAfterWritable
        } else if self.request.len() + length > MAX_REQUEST {
            MalformedChain::TooLong
        } else if self.fault.is_none() {
            let start = self.request.len();
            self.request.resize(start + length, 0);
            let target = &mut self.request[start..];
            match self.ram.read_slice(target, GuestAddress(segment.address)) {
                Ok(()) => return Ok(()),
                Err(_) => MalformedChain::BadAddress(segment.address),
            }
        } else {
            return Ok(());
        };
        self.fault.get_or_insert(fault);
        Ok(())
    }
}
