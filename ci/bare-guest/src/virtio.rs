//! The virtio device behind its PCI function (virtio 1.3, 4.1): status, features, queues, configuration.

use campanile_protocol::PAGE_SIZE;

use crate::arena::Arena;
use crate::fault::Fault;
use crate::memory;
use crate::memory::Memory;
use crate::pci::Function;
use crate::virtqueue::VirtQueue;

/// Capabilities (4.1.4).
const COMMON: u8 = 1;
const NOTIFY: u8 = 2;
const CONFIG: u8 = 4;

/// The common configuration (4.1.4.3).
const DEVICE_FEATURE_SELECT: u64 = 0;
const DEVICE_FEATURE: u64 = 4;
const DRIVER_FEATURE_SELECT: u64 = 8;
const DRIVER_FEATURE: u64 = 12;
const CONFIG_VECTOR: u64 = 16;
const STATUS: u64 = 20;
const QUEUE_SELECT: u64 = 22;
const QUEUE_SIZE: u64 = 24;
const QUEUE_VECTOR: u64 = 26;
const QUEUE_ENABLE: u64 = 28;
const QUEUE_NOTIFY_OFFSET: u64 = 30;
const QUEUE_TABLE: u64 = 32;
const QUEUE_AVAILABLE: u64 = 40;
const QUEUE_USED: u64 = 48;

/// Device status (2.1).
const ACKNOWLEDGE: u8 = 1;
const DRIVER: u8 = 2;
const DRIVER_OK: u8 = 4;
const FEATURES_OK: u8 = 8;

/// `VIRTIO_F_VERSION_1`.
const VERSION_1: u64 = 1 << 32;
/// `VHOST_F_LOG_ALL`, which no driver should see.
const LOG_ALL: u64 = 1 << 26;
/// No MSI-X vector: this guest looks at its rings.
const NO_VECTOR: u16 = 0xffff;

/// A virtio device.
pub(crate) struct Device {
    /// Its kind, as virtio counts them.
    pub(crate) id: u32,
    common: Memory,
    notify: Memory,
    multiplier: u32,
    config: Memory,
}

impl Device {
    /// Maps its registers.
    pub(crate) fn open(id: u32, function: Function, arena: &mut Arena) -> Result<Self, Fault> {
        function.enable();
        let mut find = |kind| {
            let place = function.places().find(|place| place.kind == kind);
            let place = place.ok_or(Fault::Device("the device lacks a virtio capability"))?;
            memory::map_device(place.address, place.length, || arena.take(PAGE_SIZE));
            Ok((Memory::at(place.address, place.length), place.multiplier))
        };
        let ((common, _), (notify, multiplier), (config, _)) = (find(COMMON)?, find(NOTIFY)?, find(CONFIG)?);
        Ok(Self { id, common, notify, multiplier, config })
    }

    /// All feature bits that it shows.
    fn offered(&self) -> u64 {
        let half = |index| {
            self.common.write32(DEVICE_FEATURE_SELECT, index);
            u64::from(self.common.read32(DEVICE_FEATURE))
        };
        half(0) | half(1) << 32
    }

    /// Resets it, and agrees on features; what it shows, and what was agreed on. `log` acknowledges LOG_ALL where it is shown.
    pub(crate) fn reset(&self, log: bool) -> Result<(u64, u64), Fault> {
        self.common.write8(STATUS, 0);
        while self.common.read8(STATUS) != 0 {}
        self.common.write8(STATUS, ACKNOWLEDGE);
        self.common.write8(STATUS, ACKNOWLEDGE | DRIVER);
        let offered = self.offered();
        let acked = offered & (VERSION_1 | if log { LOG_ALL } else { 0 });
        for index in 0..2 {
            self.common.write32(DRIVER_FEATURE_SELECT, index);
            let half = acked >> (32 * index) & 0xffff_ffff;
            self.common.write32(DRIVER_FEATURE, u32::try_from(half).unwrap_or(0));
        }
        self.common.write8(STATUS, ACKNOWLEDGE | DRIVER | FEATURES_OK);
        if acked & VERSION_1 == 0 || self.common.read8(STATUS) & FEATURES_OK == 0 {
            return Err(Fault::Device("the device does not take VERSION_1"));
        }
        self.common.write16(CONFIG_VECTOR, NO_VECTOR);
        Ok((offered, acked))
    }

    /// Makes a queue; after [`Self::reset`], before [`Self::run`].
    pub(crate) fn queue(&self, index: u16, arena: &mut Arena) -> Result<VirtQueue, Fault> {
        self.common.write16(QUEUE_SELECT, index);
        let size = self.common.read16(QUEUE_SIZE).min(VirtQueue::LARGEST);
        if size < VirtQueue::SMALLEST {
            return Err(Fault::Device("a queue is too small"));
        }
        let offset = u64::from(self.common.read16(QUEUE_NOTIFY_OFFSET)) * u64::from(self.multiplier);
        let queue = VirtQueue::new(index, size, self.notify.part(offset, 2), arena);
        self.common.write16(QUEUE_SIZE, size);
        self.common.write16(QUEUE_VECTOR, NO_VECTOR);
        let [table, available, used] = queue.places();
        for (register, address) in [(QUEUE_TABLE, table), (QUEUE_AVAILABLE, available), (QUEUE_USED, used)] {
            self.common.write32(register, u32::try_from(address & 0xffff_ffff).unwrap_or(0));
            self.common.write32(register + 4, u32::try_from(address >> 32).unwrap_or(0));
        }
        self.common.write16(QUEUE_ENABLE, 1);
        Ok(queue)
    }

    /// Begins to work.
    pub(crate) fn run(&self) {
        self.common.write8(STATUS, ACKNOWLEDGE | DRIVER | FEATURES_OK | DRIVER_OK);
    }

    /// A word of the device's own configuration.
    pub(crate) fn config(&self, offset: u64) -> u32 {
        self.config.read32(offset)
    }
}
