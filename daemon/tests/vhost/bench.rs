//! A vGPU socket with a scripted device, and front-ends for it.

use std::os::fd::AsRawFd;
use std::os::fd::RawFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use std::time::Instant;

use campanile_daemon::frontend::vhost::counters::Count;
use campanile_daemon::frontend::vhost::counters::Counters;
use campanile_daemon::frontend::vhost::device::Factory;
use campanile_daemon::frontend::vhost::socket::Keeping;
use campanile_daemon::frontend::vhost::socket::VgpuSocket;
use campanile_daemon::listener::Listener;
use tempfile::TempDir;
use vhost::VhostBackend;
use vhost::VhostUserMemoryRegionInfo;
use vhost::VringConfigData;
use vhost::vhost_user::Frontend;
use vhost::vhost_user::VhostUserFrontend;
use vhost::vhost_user::message::VhostUserHeaderFlag;
use vhost::vhost_user::message::VhostUserProtocolFeatures;

use crate::device::Script;
use crate::guest::Guest;
use crate::guest::Queue;
use crate::guest::RAM;
use crate::guest::USER;

pub(crate) const EVENT_IDX: u64 = 1 << 29;

/// Waits for a condition.
pub(crate) fn eventually(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !condition() {
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A memory region: guest address, length, front-end's address, place in the file.
pub(crate) fn region(
    guest: u64,
    length: u64,
    user: u64,
    offset: u64,
    file: RawFd,
) -> VhostUserMemoryRegionInfo {
    VhostUserMemoryRegionInfo {
        guest_phys_addr: guest,
        memory_size: length,
        userspace_addr: user,
        mmap_offset: offset,
        mmap_handle: file,
    }
}

/// A socket that is served, and what stands behind it.
pub(crate) struct Bench {
    pub(crate) script: Arc<Script>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) socket: VgpuSocket,
    pub(crate) path: PathBuf,
    _directory: TempDir,
}

impl Bench {
    pub(crate) fn new() -> Self {
        Self::with(Script::new(true, false))
    }

    pub(crate) fn with(script: Arc<Script>) -> Self {
        let made = script.clone();
        Self::serving(script, move || made.device())
    }

    /// With devices of another kind.
    pub(crate) fn serving<F: Factory + 'static>(script: Arc<Script>, factory: F) -> Self {
        Self::keeping(script, factory, Keeping::default())
    }

    /// And what the socket has of its daemon.
    pub(crate) fn keeping<F: Factory + 'static>(script: Arc<Script>, factory: F, keeping: Keeping) -> Self {
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("gpu0.sock");
        let counters = Arc::new(Counters::default());
        let listener = Listener::bind(&path).unwrap();
        let socket = VgpuSocket::serve(listener, factory, counters.clone(), keeping, None).unwrap();
        Self { script, counters, socket, path, _directory: directory }
    }

    pub(crate) fn count(&self, count: Count) -> u64 {
        self.counters.get(count)
    }

    /// Connects, and negotiates all that is offered but `without`.
    pub(crate) fn front_end(&self, without: VhostUserProtocolFeatures, drop_features: u64) -> Frontend {
        let mut front = Frontend::connect(&self.path, 2).unwrap();
        front.set_owner().unwrap();
        let features = front.get_features().unwrap();
        let protocol = front.get_protocol_features().unwrap();
        front.set_protocol_features(protocol - without).unwrap();
        front.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
        front.set_features(features & !drop_features).unwrap();
        front
    }
}

/// A front-end, its guest, and two rings.
pub(crate) struct Vm {
    pub(crate) front: Frontend,
    pub(crate) guest: Guest,
    pub(crate) control: Queue,
    pub(crate) cursor: Queue,
}

impl Vm {
    /// As cloud-hypervisor is: no window, and no RESET_DEVICE.
    pub(crate) fn plain(bench: &Bench) -> Self {
        let absent = VhostUserProtocolFeatures::SHMEM | VhostUserProtocolFeatures::RESET_DEVICE;
        Self::with(bench.front_end(absent, 0), 256, true)
    }

    pub(crate) fn with(front: Frontend, size: u16, event_idx: bool) -> Self {
        let guest = Guest::new();
        let control = Queue::new(&guest, 0, size, event_idx);
        let cursor = Queue::new(&guest, 1, size, event_idx);
        Self { front, guest, control, cursor }
    }

    pub(crate) fn started(bench: &Bench) -> Self {
        let vm = Self::plain(bench);
        vm.start([0, 0]);
        vm
    }

    pub(crate) fn region(&self) -> VhostUserMemoryRegionInfo {
        region(0, RAM, USER, 0, self.guest.file.as_raw_fd())
    }

    pub(crate) fn set_memory(&self) {
        self.front.set_mem_table(&[self.region()]).unwrap();
    }

    pub(crate) fn addresses(queue: &Queue) -> VringConfigData {
        VringConfigData {
            queue_max_size: queue.size,
            queue_size: queue.size,
            flags: 0,
            desc_table_addr: USER + queue.table(),
            used_ring_addr: USER + queue.used_ring(),
            avail_ring_addr: USER + queue.avail_ring(),
            log_addr: None,
        }
    }

    pub(crate) fn set_addresses(&self, queue: &Queue) {
        self.front.set_vring_addr(queue.index, &Self::addresses(queue)).unwrap();
    }

    /// Everything up to the kick descriptors, as cloud-hypervisor orders it.
    pub(crate) fn prepare(&self, bases: [u16; 2]) {
        self.set_memory();
        self.front.set_vring_num(0, self.control.size).unwrap();
        self.front.set_vring_num(1, self.cursor.size).unwrap();
        for (queue, base) in [&self.control, &self.cursor].into_iter().zip(bases) {
            self.set_addresses(queue);
            self.front.set_vring_base(queue.index, base).unwrap();
            self.front.set_vring_call(queue.index, &queue.call).unwrap();
            self.front.set_vring_kick(queue.index, &queue.kick).unwrap();
        }
    }

    pub(crate) fn enable(&self, enable: bool) {
        let mut front = self.front.clone();
        front.set_vring_enable(0, enable).unwrap();
        front.set_vring_enable(1, enable).unwrap();
    }

    pub(crate) fn start(&self, bases: [u16; 2]) {
        self.prepare(bases);
        self.enable(true);
    }

    /// Disables and stops both rings; gives back the positions.
    pub(crate) fn stop(&self) -> [u16; 2] {
        self.enable(false);
        [0, 1].map(|queue| u16::try_from(self.front.get_vring_base(queue).unwrap()).unwrap())
    }
}
