//! Finding the device: PCI configuration by ports 0xcf8 and 0xcfc, bus 0, where every VMM puts it.

use crate::ports;

const ADDRESS: u16 = 0xcf8;
const DATA: u16 = 0xcfc;
/// Vendor of virtio devices.
const VIRTIO: u32 = 0x1af4;
/// The device number of virtio device 0; those before are of the transport's first version.
const FIRST_MODERN: u32 = 0x1040;

const COMMAND: u8 = 0x04;
/// In [`COMMAND`]: decode memory, and let it reach memory by itself.
const MEMORY_AND_MASTER: u32 = 0x6;
const BARS: u8 = 0x10;
const CAPABILITIES: u8 = 0x34;
/// A vendor's own capability: virtio's.
const VENDOR: u8 = 0x09;
/// Capabilities of one device at the most.
const MOST_CAPABILITIES: usize = 48;

/// One device of bus 0.
#[derive(Clone, Copy)]
pub(crate) struct Function {
    slot: u8,
}

/// Where a virtio capability says that something is.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    /// What it is, `cfg_type`.
    pub(crate) kind: u8,
    /// Physical address.
    pub(crate) address: u64,
    /// Bytes.
    pub(crate) length: u64,
    /// Bytes between two queues' places; of the notify capability only.
    pub(crate) multiplier: u32,
}

impl Function {
    /// The virtio device of this number.
    pub(crate) fn find(device: u32) -> Option<Self> {
        (0..32)
            .map(|slot| Self { slot })
            .find(|function| function.read(0) == (FIRST_MODERN + device) << 16 | VIRTIO)
    }

    /// Its place on the bus.
    pub(crate) fn slot(self) -> u8 {
        self.slot
    }

    fn select(self, offset: u8) {
        ports::write32(ADDRESS, 1 << 31 | u32::from(self.slot) << 11 | u32::from(offset & !3));
    }

    fn read(self, offset: u8) -> u32 {
        self.select(offset);
        ports::read32(DATA)
    }

    fn read8(self, offset: u8) -> u8 {
        let [a, b, c, d] = self.read(offset).to_le_bytes();
        [a, b, c, d][usize::from(offset & 3)]
    }

    /// Lets it answer, and reach memory.
    pub(crate) fn enable(self) {
        let command = self.read(COMMAND);
        self.select(COMMAND);
        ports::write32(DATA, command & 0xffff | MEMORY_AND_MASTER);
    }

    fn bar(self, index: u8) -> u64 {
        let at = BARS + 4 * index;
        let low = self.read(at);
        let high = if low & 0x6 == 0x4 { self.read(at + 4) } else { 0 };
        u64::from(high) << 32 | u64::from(low & !0xf)
    }

    /// All places that its virtio capabilities name.
    pub(crate) fn places(self) -> impl Iterator<Item = Place> {
        let mut next = self.read8(CAPABILITIES);
        let offsets = core::iter::from_fn(move || {
            let at = next & !3;
            if at == 0 {
                return None;
            }
            next = self.read8(at + 1);
            Some(at)
        });
        let own = offsets.take(MOST_CAPABILITIES).filter(move |at| self.read8(*at) == VENDOR);
        own.map(move |at| Place {
            kind: self.read8(at + 3),
            address: self.bar(self.read8(at + 4)) + u64::from(self.read(at + 8)),
            length: u64::from(self.read(at + 12)),
            multiplier: if self.read8(at + 2) >= 20 { self.read(at + 16) } else { 0 },
        })
    }
}
