//! The driver's side of a split virtqueue (virtio 1.3, 2.7).
//!
//! What the driver needs again (links of a chain, free descriptors, its own indices) it keeps in private memory:
//! the device may have changed what is in the ring.

use std::sync::Arc;
use std::sync::atomic::AtomicU16;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering;
use std::sync::atomic::fence;

use vm_memory::VolatileMemory;
use zerocopy::Immutable;
use zerocopy::IntoBytes;

use super::guest_ram::GuestRam;
use super::guest_ram::RamBlock;
use super::options::PageLayout;
use campanile_guest_driver::transport::error::TransportError;

/// Descriptor flag NEXT (2.7.5).
pub(crate) const NEXT: u16 = 1;
/// Descriptor flag WRITE (2.7.5): the device writes the buffer.
pub(crate) const WRITE: u16 = 2;
/// Descriptor flag INDIRECT (2.7.5.3).
pub(crate) const INDIRECT: u16 = 4;
/// Used ring flag NO_NOTIFY (2.7.8).
const NO_NOTIFY: u16 = 1;
/// Bytes of a descriptor.
pub(crate) const DESCRIPTOR_BYTES: usize = 16;

/// `struct virtq_desc` (2.7.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct Descriptor {
    pub(crate) address: u64,
    pub(crate) length: u32,
    pub(crate) flags: u16,
    pub(crate) next: u16,
}

/// Where the three parts of a ring are, in bytes from the start of guest RAM.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RingPlaces {
    pub(crate) descriptors: usize,
    pub(crate) available: usize,
    pub(crate) used: usize,
}

/// A used entry (2.7.8).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Used {
    /// Head of the chain, not checked.
    pub(crate) head: u32,
    /// Bytes that the device says it wrote.
    pub(crate) length: u32,
}

/// Whether the device wants a notification.
#[must_use]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Notify {
    Wanted,
    Unwanted,
}

/// One ring, seen by its driver.
#[derive(Debug)]
pub(crate) struct SplitRing {
    block: RamBlock,
    size: u16,
    available: usize,
    used: usize,
    event_idx: bool,
    free: Vec<u16>,
    /// Descriptors of the chain that starts at a head.
    chains: Vec<Vec<u16>>,
    next_available: u16,
    last_used: u16,
}

impl SplitRing {
    /// A ring of `size` descriptors, a power of two, all free and zeroed.
    pub(crate) fn new(ram: &Arc<GuestRam>, size: u16, event_idx: bool) -> Result<Self, TransportError> {
        if !size.is_power_of_two() || size > 1 << 15 {
            let limit = 1 << 15;
            return Err(TransportError::Size {
                what: "a ring (a power of two)",
                bytes: u64::from(size),
                limit,
            });
        }
        let entries = usize::from(size);
        let available = entries * DESCRIPTOR_BYTES;
        let used = (available + 6 + 2 * entries).next_multiple_of(64);
        let bytes = used + 6 + 8 * entries;
        let block = ram.allocate(bytes as u64, PageLayout::Contiguous)?;
        block.zero();
        Ok(Self {
            block,
            size,
            available,
            used,
            event_idx,
            free: (0..size).rev().collect(),
            chains: vec![Vec::new(); entries],
            next_available: 0,
            last_used: 0,
        })
    }

    pub(crate) fn size(&self) -> u16 {
        self.size
    }

    pub(crate) fn places(&self) -> RingPlaces {
        let place = |offset| self.block.place(offset);
        RingPlaces { descriptors: place(0), available: place(self.available), used: place(self.used) }
    }

    /// Descriptors that a new chain can have.
    pub(crate) fn free(&self) -> usize {
        self.free.len()
    }

    fn word(&self, offset: usize) -> &AtomicU16 {
        self.block
            .region()
            .get_atomic_ref(self.block.place(offset))
            .expect("a ring's words lie inside its block")
    }

    fn long(&self, offset: usize) -> &AtomicU32 {
        self.block
            .region()
            .get_atomic_ref(self.block.place(offset))
            .expect("a ring's words lie inside its block")
    }

    /// Puts a chain on the ring and shows it to the device. `next` and NEXT are set here, except of what a hostile
    /// test says itself. `None` where too few descriptors are free.
    pub(crate) fn push(&mut self, chain: &[Descriptor], links: Links) -> Option<(u16, Notify)> {
        if chain.is_empty() || chain.len() > self.free.len() {
            return None;
        }
        let taken = self.free.split_off(self.free.len() - chain.len());
        let head = taken[0];
        for (place, descriptor) in chain.iter().enumerate() {
            let mut written = *descriptor;
            match (links, taken.get(place + 1)) {
                (Links::InOrder, Some(&next)) => {
                    written.flags |= NEXT;
                    written.next = next;
                }
                (Links::InOrder, None) => {}
                (Links::AsSaid, _) => {
                    written.next =
                        taken.get(usize::from(descriptor.next)).copied().unwrap_or(descriptor.next);
                }
            }
            let bytes = self.block.slice(usize::from(taken[place]) * DESCRIPTOR_BYTES, DESCRIPTOR_BYTES);
            bytes.copy_from(written.as_bytes());
        }
        self.chains[usize::from(head)] = taken;
        Some((head, self.publish(head)))
    }

    /// Shows a head to the device, whatever it is the head of.
    pub(crate) fn publish(&mut self, head: u16) -> Notify {
        let slot = usize::from(self.next_available & (self.size - 1));
        self.word(self.available + 4 + 2 * slot).store(head, Ordering::Relaxed);
        self.advance(1)
    }

    /// Moves the available index on, whatever lies in the entries.
    pub(crate) fn advance(&mut self, entries: u16) -> Notify {
        let old = self.next_available;
        let new = old.wrapping_add(entries);
        self.next_available = new;
        // PAIRS WITH the device's load of the available index: the descriptors are there before it.
        self.word(self.available + 2).store(new, Ordering::Release);
        // PAIRS WITH the device's fence between writing avail_event and looking at the index again (2.7.7.2).
        fence(Ordering::SeqCst);
        let wanted = if self.event_idx {
            let event = self.word(self.used + 4 + 8 * usize::from(self.size)).load(Ordering::Relaxed);
            new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
        } else {
            self.word(self.used).load(Ordering::Relaxed) & NO_NOTIFY == 0
        };
        if wanted { Notify::Wanted } else { Notify::Unwanted }
    }

    fn used_index(&self) -> u16 {
        // PAIRS WITH the device's store of the used index: entry and response are there before it.
        self.word(self.used + 2).load(Ordering::Acquire)
    }

    /// The next entry that the device has used, or `None` where there is none. More than a ring's worth of entries
    /// is no ring.
    pub(crate) fn pop(&mut self) -> Result<Option<Used>, TransportError> {
        let ahead = self.used_index().wrapping_sub(self.last_used);
        if ahead == 0 {
            return Ok(None);
        }
        if ahead > self.size {
            return Err(TransportError::BrokenRing);
        }
        let entry = self.used + 4 + 8 * usize::from(self.last_used & (self.size - 1));
        let head = self.long(entry).load(Ordering::Relaxed);
        let length = self.long(entry + 4).load(Ordering::Relaxed);
        self.last_used = self.last_used.wrapping_add(1);
        Ok(Some(Used { head, length }))
    }

    /// Frees the chain that starts at `head`.
    pub(crate) fn release(&mut self, head: u16) {
        if let Some(chain) = self.chains.get_mut(usize::from(head)) {
            self.free.append(chain);
        }
    }

    /// Asks for an interrupt at the next used entry. `false` where one is there already: reap it first.
    pub(crate) fn arm(&mut self) -> bool {
        if self.event_idx {
            self.word(self.available + 4 + 2 * usize::from(self.size))
                .store(self.last_used, Ordering::Relaxed);
            // PAIRS WITH the device's fence between writing the used index and looking at used_event (2.7.10.2).
            fence(Ordering::SeqCst);
        }
        self.used_index() == self.last_used
    }
}

/// Who says how the descriptors of a chain are linked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Links {
    /// The ring: each leads to the next.
    InOrder,
    /// The caller, flags and all. `next` is a place in the chain; what is no place in it is written as it is.
    AsSaid,
}
