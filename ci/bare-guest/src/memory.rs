//! Memory by its physical address, mapped one to one: the machine's own, and that of devices.

#![allow(unsafe_code)]

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering;

use campanile_protocol::PAGE_SIZE;
use campanile_protocol::handshake::word::Word;
use zerocopy::FromBytes;
use zerocopy::IntoBytes;

use crate::ports;

/// Up to here everything is mapped from the start.
const MAPPED_AT_BOOT: u64 = 1 << 32;
/// What one entry of a page directory maps.
const LARGE_PAGE: u64 = 2 << 20;
/// In an entry of a table: present, and writable.
const TABLE: u64 = 0x3;
/// In an entry of a directory: present, writable, not cached, a large page.
const DEVICE_PAGE: u64 = 0x93;
/// The address in an entry.
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

unsafe extern "C" {
    static boot_root: u8;
    static guest_end: u8;
}

/// Where what is free of the machine's memory begins.
pub(crate) fn free_from() -> u64 {
    (&raw const guest_end).addr() as u64
}

/// An address as the processor has it.
#[expect(clippy::cast_possible_truncation, reason = "this machine's pointers have 64 bits")]
const fn pointer_bits(address: u64) -> usize {
    address as usize
}

/// A run of physical memory. Whoever else reaches it (the device, its engines) writes to it at any time, so it is read and
/// written a word at a time, and nothing refers to it.
#[derive(Clone, Copy)]
pub(crate) struct Memory {
    address: u64,
    length: u64,
}

impl Memory {
    /// Memory that is mapped, and of which the caller knows that it is no part of this program.
    pub(crate) fn at(address: u64, length: u64) -> Self {
        Self { address, length }
    }

    /// Its physical address.
    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    /// Bytes.
    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// A part of it.
    pub(crate) fn part(&self, offset: u64, length: u64) -> Self {
        self.check(offset, length, 1);
        Self { address: self.address + offset, length }
    }

    fn check(&self, offset: u64, bytes: u64, alignment: u64) -> u64 {
        let inside = offset.checked_add(bytes).is_some_and(|end| end <= self.length);
        let address = self.address + offset;
        assert!(inside && address.is_multiple_of(alignment), "{offset:#x} of {:#x}", self.length);
        address
    }

    /// A 64-bit word that others load and store too.
    pub(crate) fn word(&self, offset: u64) -> SharedWord {
        SharedWord(self.check(offset, 8, 8))
    }
}

macro_rules! accessors {
    ($read:ident, $write:ident, $integer:ty) => {
        impl Memory {
            /// Loads.
            pub(crate) fn $read(&self, offset: u64) -> $integer {
                const BYTES: u64 = size_of::<$integer>() as u64;
                let place = core::ptr::with_exposed_provenance::<$integer>(pointer_bits(
                    self.check(offset, BYTES, BYTES),
                ));
                // SAFETY: inside, aligned, mapped one to one, and no memory of this program.
                unsafe { place.read_volatile() }
            }

            /// Stores.
            pub(crate) fn $write(&self, offset: u64, value: $integer) {
                const BYTES: u64 = size_of::<$integer>() as u64;
                let place = core::ptr::with_exposed_provenance_mut::<$integer>(pointer_bits(
                    self.check(offset, BYTES, BYTES),
                ));
                // SAFETY: inside, aligned, mapped one to one, and no memory of this program.
                unsafe { place.write_volatile(value) };
            }
        }
    };
}

accessors!(read8, write8, u8);
accessors!(read16, write16, u16);
accessors!(read32, write32, u32);
accessors!(read64, write64, u64);

impl Memory {
    /// Copies bytes in.
    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) {
        for (at, byte) in (offset..).zip(bytes) {
            self.write8(at, *byte);
        }
    }

    /// Copies bytes out.
    pub(crate) fn read(&self, offset: u64, bytes: &mut [u8]) {
        for (at, byte) in (offset..).zip(bytes) {
            *byte = self.read8(at);
        }
    }

    /// Copies a structure out.
    pub(crate) fn read_as<T: FromBytes + IntoBytes>(&self, offset: u64) -> T {
        let mut value = T::new_zeroed();
        self.read(offset, value.as_mut_bytes());
        value
    }

    /// Zeroes it.
    pub(crate) fn zero(&self) {
        for offset in (0..self.length).step_by(8) {
            self.write64(offset, 0);
        }
    }
}

/// A word of shared memory, as the handshakes want it.
pub(crate) struct SharedWord(u64);

impl SharedWord {
    fn atomic(&self) -> &AtomicU64 {
        let place = core::ptr::with_exposed_provenance_mut::<u64>(pointer_bits(self.0));
        // SAFETY: `Memory::word` has checked place and alignment; the memory is mapped for good, and reached by atomics alone as
        // long as there are words of it.
        unsafe { AtomicU64::from_ptr(place) }
    }

    /// Loads what another side has released.
    pub(crate) fn acquire(&self) -> u64 {
        self.atomic().load(Ordering::Acquire)
    }

    /// Stores for another side to acquire.
    pub(crate) fn release(&self, value: u64) {
        self.atomic().store(value, Ordering::Release);
    }
}

impl Word for SharedWord {
    fn load(&self, order: Ordering) -> u64 {
        self.atomic().load(order)
    }

    fn store(&self, value: u64, order: Ordering) {
        self.atomic().store(value, order);
    }

    fn swap(&self, value: u64, order: Ordering) -> u64 {
        self.atomic().swap(value, order)
    }

    fn fetch_or(&self, bits: u64, order: Ordering) -> u64 {
        self.atomic().fetch_or(bits, order)
    }

    fn compare_exchange(&self, current: u64, new: u64, success: Ordering) -> Result<u64, u64> {
        self.atomic().compare_exchange(current, new, success, Ordering::Acquire)
    }

    fn full_fence() {
        ports::full_fence();
    }
}

/// Maps the registers of a device one to one, where they are not; `table` makes zeroed pages for tables.
pub(crate) fn map_device(address: u64, length: u64, mut table: impl FnMut() -> Memory) {
    if address + length <= MAPPED_AT_BOOT {
        return;
    }
    let mut page = address & !(LARGE_PAGE - 1);
    while page < address + length {
        let mut entries = Memory::at((&raw const boot_root).addr() as u64, PAGE_SIZE);
        for shift in [39, 30] {
            let place = (page >> shift & 0x1ff) * 8;
            if entries.read64(place) & 1 == 0 {
                entries.write64(place, table().address() | TABLE);
            }
            entries = Memory::at(entries.read64(place) & ADDRESS, PAGE_SIZE);
        }
        entries.write64((page >> 21 & 0x1ff) * 8, page | DEVICE_PAGE);
        page += LARGE_PAGE;
    }
    ports::flush_translations();
}
