//! Starting and stopping the device: what the VMM does when the guest's driver sets and clears DRIVER_OK.

use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use campanile_protocol::virtio_gpu::F_CONTEXT_INIT;
use campanile_protocol::virtio_gpu::F_RESOURCE_BLOB;
use campanile_protocol::virtio_gpu::F_VIRGL;
use vhost::VhostBackend;
use vhost::VhostUserDirtyLogRegion;
use vhost::VringConfigData;
use vhost::vhost_user::VhostUserFrontend;
use vhost::vhost_user::VhostUserProtocolFeatures as Protocol;

use super::dirty_log::DirtyLog;
use super::front_end::FrontEnd;
use super::front_end::Main;
use super::options::DeviceKind;
use super::options::VmOptions;
use super::order::Order;
use super::virt_queue::Wiring;
use super::window::Maps;
use campanile_guest_driver::transport::error::TransportError;

/// `VIRTIO_F_INDIRECT_DESC` (virtio 1.3, 6).
const F_INDIRECT_DESC: u64 = 1 << 28;
/// `VIRTIO_F_EVENT_IDX`.
const F_EVENT_IDX: u64 = 1 << 29;
/// `VHOST_F_LOG_ALL`.
pub(super) const F_LOG_ALL: u64 = 1 << 26;
/// Flag of SET_VRING_ADDR: writes to the used ring are logged.
const VRING_LOG: u32 = 1;
/// `VHOST_USER_F_PROTOCOL_FEATURES`.
const F_PROTOCOL_FEATURES: u64 = 1 << 30;
/// `VIRTIO_F_VERSION_1`.
const F_VERSION_1: u64 = 1 << 32;

/// What the guest's driver accepted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Accepted {
    features: u64,
}

/// How the rings of a device start.
#[derive(Debug)]
pub(crate) struct Start<'a> {
    pub(crate) wirings: &'a [Wiring],
    pub(crate) accepted: Accepted,
    /// Where each ring goes on: 0, or what GET_VRING_BASE said.
    pub(crate) bases: &'a [u16],
    pub(crate) order: Order,
    /// The log, where it is on.
    pub(crate) log: Option<&'a DirtyLog>,
}

impl Accepted {
    /// What SET_FEATURES says.
    pub(super) fn features(self, log: bool) -> u64 {
        if log { self.features | F_LOG_ALL } else { self.features }
    }

    /// Fails where `other`, what a guest uses already, has more.
    pub(super) fn covers(self, other: Self) -> Result<(), TransportError> {
        if other.features & !self.features == 0 {
            Ok(())
        } else {
            Err(TransportError::Missing { feature: "a feature that the guest uses" })
        }
    }

    pub(crate) fn event_idx(self) -> bool {
        self.features & F_EVENT_IDX != 0
    }

    pub(crate) fn indirect(self) -> bool {
        self.features & F_INDIRECT_DESC != 0
    }
}

impl FrontEnd {
    /// What a driver with these options accepts of the offer, or what it cannot do without.
    pub(crate) fn accept(&self, options: &VmOptions) -> Result<Accepted, TransportError> {
        let common =
            [(F_VERSION_1, "the feature VERSION_1"), (F_PROTOCOL_FEATURES, "the feature PROTOCOL_FEATURES")];
        let gpu = [
            (F_VIRGL, "the feature VIRGL"),
            (F_RESOURCE_BLOB, "the feature RESOURCE_BLOB"),
            (F_CONTEXT_INIT, "the feature CONTEXT_INIT"),
        ];
        let gpu: &[_] = if options.device == DeviceKind::Gpu { &gpu } else { &[] };
        let needed = common.iter().chain(gpu);
        let offered = self.main().offered;
        let mut features = 0;
        for &(bit, feature) in needed {
            if offered & bit == 0 {
                return Err(TransportError::Missing { feature });
            }
            features |= bit;
        }
        if options.event_idx {
            features |= offered & F_EVENT_IDX;
        }
        if options.indirect {
            features |= offered & F_INDIRECT_DESC;
        }
        Ok(Accepted { features })
    }

    /// DRIVER_OK, or the start of a device that was stopped or has taken a state: features, memory, rings.
    pub(crate) fn start(&self, start: &Start<'_>) -> Result<(), TransportError> {
        let main = &mut *self.main();
        let qemu = start.order == Order::Qemu;
        if qemu {
            self.set_calls(main, start.wirings)?;
        }
        let features = start.accepted.features(start.log.is_some());
        self.exchange("SET_FEATURES", || main.frontend.set_features(features))?;
        self.send_memory(main)?;
        main.table.live = true;
        for (index, wiring) in start.wirings.iter().enumerate() {
            let base = start.bases.get(index).copied().unwrap_or_default();
            let num = || main.frontend.set_vring_num(index, wiring.size);
            self.exchange("SET_VRING_NUM", num)?;
            if qemu {
                self.exchange("SET_VRING_BASE", || main.frontend.set_vring_base(index, base))?;
                self.set_address(main, index, wiring, start.log.is_some())?;
            } else {
                self.set_address(main, index, wiring, start.log.is_some())?;
                self.exchange("SET_VRING_BASE", || main.frontend.set_vring_base(index, base))?;
                let call = || main.frontend.set_vring_call(index, wiring.events.call());
                self.exchange("SET_VRING_CALL", call)?;
            }
            let kick = || main.frontend.set_vring_kick(index, wiring.events.kick());
            self.exchange("SET_VRING_KICK", kick)?;
        }
        if let Some(log) = start.log {
            self.set_log(main, log)?;
        }
        self.enable(main, start.wirings.len(), true)?;
        if qemu { self.set_calls(main, start.wirings) } else { Ok(()) }
    }

    fn set_calls(&self, main: &Main, wirings: &[Wiring]) -> Result<(), TransportError> {
        for (index, wiring) in wirings.iter().enumerate() {
            let call = || main.frontend.set_vring_call(index, wiring.events.call());
            self.exchange("SET_VRING_CALL", call)?;
        }
        Ok(())
    }

    fn set_address(
        &self,
        main: &Main,
        index: usize,
        wiring: &Wiring,
        log: bool,
    ) -> Result<(), TransportError> {
        let address = |offset: usize| main.table.ram_user_address() + offset as u64;
        let data = VringConfigData {
            queue_max_size: wiring.size,
            queue_size: wiring.size,
            flags: if log { VRING_LOG } else { 0 },
            desc_table_addr: address(wiring.places.descriptors),
            used_ring_addr: address(wiring.places.used),
            avail_ring_addr: address(wiring.places.available),
            log_addr: log.then(|| main.table.ram_address() + wiring.places.used as u64),
        };
        self.exchange("SET_VRING_ADDR", || main.frontend.set_vring_addr(index, &data))
    }

    fn enable(&self, main: &mut Main, queues: usize, enabled: bool) -> Result<(), TransportError> {
        for index in 0..queues {
            self.exchange("SET_VRING_ENABLE", || main.frontend.set_vring_enable(index, enabled))?;
        }
        Ok(())
    }

    fn set_log(&self, main: &Main, log: &DirtyLog) -> Result<(), TransportError> {
        let region = VhostUserDirtyLogRegion {
            mmap_size: log.bytes(),
            mmap_offset: 0,
            mmap_handle: log.file().as_raw_fd(),
        };
        self.exchange("SET_LOG_BASE", || main.frontend.set_log_base(0, Some(region)))
    }

    /// Fails where the device does not log: QEMU refuses to migrate then.
    pub(crate) fn can_log(&self) -> Result<(), TransportError> {
        let main = self.main();
        if main.offered & F_LOG_ALL == 0 {
            return Err(TransportError::Missing { feature: "the feature LOG_ALL" });
        }
        if !main.protocol.contains(Protocol::LOG_SHMFD) {
            return Err(TransportError::Missing { feature: "the protocol feature LOG_SHMFD" });
        }
        Ok(())
    }

    /// Logs what the device writes, while its rings run or not.
    pub(crate) fn start_log(
        &self,
        wirings: &[Wiring],
        accepted: Accepted,
        log: &DirtyLog,
    ) -> Result<(), TransportError> {
        let main = &mut *self.main();
        self.set_log(main, log)?;
        self.switch_log(main, wirings, accepted, true)
    }

    /// Another log from here on; the device has let go of the one before when this returns.
    pub(crate) fn swap_log(&self, log: &DirtyLog) -> Result<(), TransportError> {
        self.set_log(&self.main(), log)
    }

    /// Logs no more.
    pub(crate) fn stop_log(&self, wirings: &[Wiring], accepted: Accepted) -> Result<(), TransportError> {
        self.switch_log(&mut self.main(), wirings, accepted, false)
    }

    fn switch_log(
        &self,
        main: &mut Main,
        wirings: &[Wiring],
        accepted: Accepted,
        log: bool,
    ) -> Result<(), TransportError> {
        self.exchange("SET_FEATURES", || main.frontend.set_features(accepted.features(log)))?;
        for (index, wiring) in wirings.iter().enumerate() {
            self.set_address(main, index, wiring, log)?;
        }
        Ok(())
    }

    /// First guest-physical address above all memory that the device knows, or may get.
    pub(crate) fn log_end(&self) -> u64 {
        self.main().table.end()
    }

    /// ENABLE 1 for rings that are enabled: what cloud-hypervisor says when a restored VM goes on.
    pub(crate) fn enable_again(&self, queues: usize) -> Result<(), TransportError> {
        self.enable(&mut self.main(), queues, true)
    }

    /// The device's channel, where it comes last.
    pub(crate) fn set_back_channel(&self, back_channel: &UnixStream) -> Result<(), TransportError> {
        let main = &mut *self.main();
        let set = || main.frontend.set_backend_request_fd(&back_channel.as_raw_fd());
        self.exchange("SET_BACKEND_REQ_FD", set)
    }

    /// The rings stop; when this returns the device has let go of them. The place of each is where it goes on.
    pub(crate) fn stop(&self, queue_count: usize) -> Result<Vec<u16>, TransportError> {
        let main = &mut *self.main();
        main.table.live = false;
        self.enable(main, queue_count, false)?;
        (0..queue_count)
            .map(|index| {
                let base = self.exchange("GET_VRING_BASE", || main.frontend.get_vring_base(index))?;
                u16::try_from(base).map_err(|_| TransportError::BadAnswer {
                    command: "GET_VRING_BASE",
                    why: "it is no place in a ring",
                })
            })
            .collect()
    }

    /// What follows the stop when the driver resets the device. As in QEMU the window loses its maps, and the
    /// device learns of that at the next start: it must map again what it wants the guest to see.
    pub(crate) fn reset(&self, window: &Maps) -> Result<(), TransportError> {
        let main = &mut *self.main();
        window.unmap_all();
        if main.protocol.contains(Protocol::RESET_DEVICE) {
            self.exchange("RESET_DEVICE", || main.frontend.reset_device())?;
        }
        Ok(())
    }

    /// Maps of the window enter the memory table from now on.
    pub(crate) fn add_window(&self, window: Arc<Maps>) {
        self.main().table.add_window(window);
    }
}
