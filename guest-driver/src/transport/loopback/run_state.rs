//! Starting and stopping the device: what the VMM does when the guest's driver sets and clears DRIVER_OK.

use std::sync::Arc;

use campanile_protocol::virtio_gpu::F_CONTEXT_INIT;
use campanile_protocol::virtio_gpu::F_RESOURCE_BLOB;
use campanile_protocol::virtio_gpu::F_VIRGL;
use vhost::VhostBackend;
use vhost::VringConfigData;
use vhost::vhost_user::VhostUserFrontend;
use vhost::vhost_user::VhostUserProtocolFeatures as Protocol;

use super::front_end::FrontEnd;
use super::options::VmOptions;
use super::virt_queue::VirtQueue;
use super::window::Window;
use crate::transport::error::TransportError;

/// `VIRTIO_F_INDIRECT_DESC` (virtio 1.3, 6).
const F_INDIRECT_DESC: u64 = 1 << 28;
/// `VIRTIO_F_EVENT_IDX`.
const F_EVENT_IDX: u64 = 1 << 29;
/// `VHOST_USER_F_PROTOCOL_FEATURES`.
const F_PROTOCOL_FEATURES: u64 = 1 << 30;
/// `VIRTIO_F_VERSION_1`.
const F_VERSION_1: u64 = 1 << 32;

/// What the guest's driver accepted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Accepted {
    features: u64,
}

impl Accepted {
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
        let needed = [
            (F_VIRGL, "the feature VIRGL"),
            (F_RESOURCE_BLOB, "the feature RESOURCE_BLOB"),
            (F_CONTEXT_INIT, "the feature CONTEXT_INIT"),
            (F_VERSION_1, "the feature VERSION_1"),
            (F_PROTOCOL_FEATURES, "the feature PROTOCOL_FEATURES"),
        ];
        let offered = self.main().offered;
        let mut features = 0;
        for (bit, feature) in needed {
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

    /// DRIVER_OK: features, memory, rings.
    pub(crate) fn start(&self, queues: &[Arc<VirtQueue>], accepted: Accepted) -> Result<(), TransportError> {
        let main = &mut *self.main();
        for (index, queue) in queues.iter().enumerate() {
            self.exchange("SET_VRING_CALL", || main.frontend.set_vring_call(index, queue.call_event()))?;
        }
        self.exchange("SET_FEATURES", || main.frontend.set_features(accepted.features))?;
        self.send_memory(main)?;
        main.table.live = true;
        let base = main.table.ram_user_address();
        let frontend = &mut main.frontend;
        for (index, queue) in queues.iter().enumerate() {
            let size = queue.ring_size();
            let places = queue.places();
            let address = |offset: usize| base + offset as u64;
            let data = VringConfigData {
                queue_max_size: size,
                queue_size: size,
                flags: 0,
                desc_table_addr: address(places.descriptors),
                used_ring_addr: address(places.used),
                avail_ring_addr: address(places.available),
                log_addr: None,
            };
            self.exchange("SET_VRING_NUM", || frontend.set_vring_num(index, size))?;
            self.exchange("SET_VRING_BASE", || frontend.set_vring_base(index, 0))?;
            self.exchange("SET_VRING_ADDR", || frontend.set_vring_addr(index, &data))?;
            self.exchange("SET_VRING_KICK", || frontend.set_vring_kick(index, queue.kick_event()))?;
        }
        for index in 0..queues.len() {
            self.exchange("SET_VRING_ENABLE", || frontend.set_vring_enable(index, true))?;
        }
        for (index, queue) in queues.iter().enumerate() {
            self.exchange("SET_VRING_CALL", || frontend.set_vring_call(index, queue.call_event()))?;
        }
        Ok(())
    }

    /// The rings stop; when this returns the device has let go of them.
    pub(crate) fn stop(&self, queue_count: usize) -> Result<(), TransportError> {
        let main = &mut *self.main();
        main.table.live = false;
        for index in 0..queue_count {
            self.exchange("SET_VRING_ENABLE", || main.frontend.set_vring_enable(index, false))?;
        }
        for index in 0..queue_count {
            self.exchange("GET_VRING_BASE", || main.frontend.get_vring_base(index))?;
        }
        Ok(())
    }

    /// What follows the stop when the driver resets the device. As in QEMU the window loses its maps, and the
    /// device learns of that at the next start: it must map again what it wants the guest to see.
    pub(crate) fn reset(&self, window: &Window) -> Result<(), TransportError> {
        let main = &mut *self.main();
        window.unmap_all();
        if main.protocol.contains(Protocol::RESET_DEVICE) {
            self.exchange("RESET_DEVICE", || main.frontend.reset_device())?;
        }
        Ok(())
    }

    /// Maps of the window enter the memory table from now on.
    pub(crate) fn add_window(&self, window: Arc<Window>) {
        self.main().table.add_window(window);
    }
}
