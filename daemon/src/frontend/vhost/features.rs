//! Feature bits of transport and rings; the device's own come from its offer.

use vhost::vhost_user::message::VhostUserProtocolFeatures;
use vhost::vhost_user::message::VhostUserVirtioFeatures;

/// `VIRTIO_F_INDIRECT_DESC` (virtio 1.3, 6).
pub(super) const INDIRECT_DESC: u64 = 1 << 28;
/// `VIRTIO_F_EVENT_IDX`.
pub(super) const EVENT_IDX: u64 = 1 << 29;
/// `VIRTIO_F_VERSION_1`.
pub(super) const VERSION_1: u64 = 1 << 32;
/// `VHOST_USER_F_PROTOCOL_FEATURES`.
pub(super) const PROTOCOL_FEATURES: u64 = VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits();
/// `VHOST_F_LOG_ALL`. A guest of cloud-hypervisor may acknowledge it by itself, offered or not: it says nothing until
/// the front-end brings a log.
pub(super) const LOG_ALL: u64 = 1 << 26;

/// Bits that the shell offers for every device.
const TRANSPORT: u64 = VERSION_1 | INDIRECT_DESC | EVENT_IDX | PROTOCOL_FEATURES;

/// Memory slots that a front-end may fill (as libvhost-user has).
pub(super) const MEMORY_SLOTS: usize = 509;

/// Feature bits that a device offers, its own aside. LOG_ALL makes front-ends migrate, so only a device that can has it.
pub(super) const fn transport(migrates: bool) -> u64 {
    if migrates { TRANSPORT | LOG_ALL } else { TRANSPORT }
}

/// What decides the protocol features of a device.
#[derive(Debug, Clone, Copy)]
pub(super) struct Kind {
    /// It has an aperture.
    pub(super) aperture: bool,
    /// It migrates.
    pub(super) migrates: bool,
    /// Its configuration is its own: QEMU fills in that of its `vhost-user-fs-pci` itself, and warns of a device that would.
    pub(super) configured: bool,
}

/// Protocol features of a device. Never STATUS (the crate drops the
/// connection), nor INFLIGHT_SHMFD.
///
/// CONFIGURE_MEM_SLOTS never together with SHMEM: QEMU 11.1 then dies when the guest resets (decision 21).
pub(super) fn protocol(kind: Kind) -> VhostUserProtocolFeatures {
    let Kind { aperture, migrates, configured } = kind;
    let common = VhostUserProtocolFeatures::MQ
        | VhostUserProtocolFeatures::REPLY_ACK
        | VhostUserProtocolFeatures::RESET_DEVICE;
    let window = VhostUserProtocolFeatures::BACKEND_REQ
        | VhostUserProtocolFeatures::BACKEND_SEND_FD
        | VhostUserProtocolFeatures::SHMEM;
    let migration = VhostUserProtocolFeatures::LOG_SHMFD | VhostUserProtocolFeatures::DEVICE_STATE;
    let shown = if aperture { window } else { VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS };
    let when = |holds, feature| if holds { feature } else { VhostUserProtocolFeatures::empty() };
    common | shown | when(migrates, migration) | when(configured, VhostUserProtocolFeatures::CONFIG)
}
