//! A small virtio-gpu device over vhost-user: answers commands, keeps video memory, parks what it is told to park.
//!
//! A SUBMIT_3D is steered by its first four bytes: `HOLD` is answered at the next `FREE`, last come first; `MUTE`
//! at the next reset at best; `FAIL` with an error; `DIE!` by hanging up; anything else at once.

use std::collections::HashMap;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::sync::Condvar;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering;

use campanile_protocol::virtio_gpu as gpu;
use gpu::blob::CreateBlob;
use gpu::blob::MemEntry;
use gpu::command::Header;
use vhost::vhost_user::Backend;
use vhost::vhost_user::VhostUserFrontendReqHandler;
use vhost::vhost_user::VhostUserProtocolFeatures as Protocol;
use vhost::vhost_user::message::VhostTransferStateDirection;
use vhost::vhost_user::message::VhostTransferStatePhase;
use vhost::vhost_user::message::VhostUserMMap;
use vhost::vhost_user::message::VhostUserMMapFlags;
use vhost::vhost_user::message::VhostUserShMemConfig;
use vhost_user_backend::VhostUserBackend;
use vhost_user_backend::VringT;
use vhost_user_backend::bitmap::BitmapMmapRegion;
use virtio_queue::DescriptorChain;
use virtio_queue::QueueT;
use vm_memory::Bytes;
use vm_memory::GuestAddress;
use vm_memory::GuestAddressSpace;
use vm_memory::GuestMemoryAtomic;
use vm_memory::GuestMemoryLoadGuard;
use vm_memory::GuestMemoryMmap;
use vm_memory::MmapRegion;
use vm_memory::VolatileMemory;
use vmm_sys_util::epoll::EventSet;
use vmm_sys_util::event::EventConsumer;
use vmm_sys_util::event::EventFlag;
use vmm_sys_util::event::EventNotifier;
use zerocopy::IntoBytes;

use crate::fake_state::Transfer;
use crate::vring::Vring;

/// Bytes of the window, and of video memory.
pub(crate) const WINDOW: u64 = 1 << 24;

type Bitmapped = GuestMemoryMmap<BitmapMmapRegion>;
pub(crate) type Memory = GuestMemoryAtomic<Bitmapped>;
pub(crate) type Chain = DescriptorChain<GuestMemoryLoadGuard<Bitmapped>>;

/// Everything that a test can ask the device.
pub(crate) struct FakeDevice {
    pub(crate) offer: u64,
    pub(crate) protocol: Protocol,
    pub(crate) vram: MmapRegion,
    vram_file: File,
    memory: Mutex<Option<Memory>>,
    pub(crate) backend: Arc<Mutex<Option<Backend>>>,
    pub(crate) transfer: Transfer,
    pub(crate) arriving: Mutex<Option<std::sync::mpsc::Receiver<Vec<u8>>>>,
    pub(crate) mapped: Arc<(Mutex<bool>, Condvar)>,
    pub(crate) map_results: Arc<Mutex<Vec<bool>>>,
    event_idx: AtomicBool,
    /// Held while a chain is taken and answered: a ring that was stopped is not touched any more.
    works: Mutex<()>,
    pub(crate) state: Mutex<State>,
    /// What cuts the connection.
    pub(crate) cut: Mutex<Option<vhost_user_backend::ShutdownHandle>>,
    pub(crate) regions: AtomicUsize,
}

#[derive(Default)]
pub(crate) struct State {
    pub(crate) contexts: Vec<u32>,
    pub(crate) blobs: HashMap<u32, (CreateBlob, Vec<MemEntry>)>,
    pub(crate) held: Vec<(Chain, Header)>,
}

impl FakeDevice {
    pub(crate) fn new() -> Self {
        let memfd = rustix::fs::memfd_create("fake-vram", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&memfd, WINDOW).unwrap();
        let vram_file = File::from(memfd);
        let offset = vm_memory::FileOffset::new(vram_file.try_clone().unwrap(), 0);
        let ring = 1 << 26 | 1 << 28 | 1 << 29 | 1 << 30 | 1 << 32;
        Self {
            offer: gpu::F_VIRGL | gpu::F_RESOURCE_BLOB | gpu::F_CONTEXT_INIT | ring,
            protocol: Protocol::MQ
                | Protocol::REPLY_ACK
                | Protocol::BACKEND_REQ
                | Protocol::BACKEND_SEND_FD
                | Protocol::CONFIG
                | Protocol::CONFIGURE_MEM_SLOTS
                | Protocol::RESET_DEVICE
                | Protocol::DEVICE_STATE
                | Protocol::LOG_SHMFD
                | Protocol::SHMEM,
            vram: MmapRegion::from_file(offset, usize::try_from(WINDOW).unwrap()).unwrap(),
            vram_file,
            memory: Mutex::default(),
            backend: Arc::default(),
            transfer: Transfer::default(),
            arriving: Mutex::default(),
            mapped: Arc::default(),
            map_results: Arc::default(),
            event_idx: AtomicBool::new(false),
            works: Mutex::default(),
            state: Mutex::default(),
            cut: Mutex::default(),
            regions: AtomicUsize::new(0),
        }
    }

    /// The bytes of a GUEST blob, gathered as its page list says.
    pub(crate) fn read_guest_blob(&self, resource: u32) -> Vec<u8> {
        let memory = self.memory.lock().unwrap().as_ref().unwrap().memory();
        let mut bytes = Vec::new();
        for entry in &self.state.lock().unwrap().blobs[&resource].1 {
            let mut run = vec![0; entry.length as usize];
            memory.read_slice(&mut run, GuestAddress(entry.address)).unwrap();
            bytes.extend(run);
        }
        bytes
    }

    /// Writes the first word of a GUEST blob, and marks it in the log.
    pub(crate) fn write_guest_blob(&self, resource: u32, word: u64) {
        let memory = self.memory.lock().unwrap().as_ref().unwrap().memory();
        let address = self.state.lock().unwrap().blobs[&resource].1[0].address;
        memory.write_obj(word, GuestAddress(address)).unwrap();
    }

    /// Runs of a GUEST blob's page list.
    pub(crate) fn guest_blob_runs(&self, resource: u32) -> usize {
        self.state.lock().unwrap().blobs[&resource].1.len()
    }

    /// (contexts, blobs) that exist.
    pub(crate) fn objects(&self) -> (usize, usize) {
        let state = self.state.lock().unwrap();
        (state.contexts.len(), state.blobs.len())
    }

    /// SHMEM_MAP of the whole window, from a thread of its own.
    fn map_window(&self) {
        let backend = self.backend.lock().unwrap().clone();
        let file = self.vram_file.try_clone().unwrap();
        let (mapped, results) = (Arc::clone(&self.mapped), Arc::clone(&self.map_results));
        *mapped.0.lock().unwrap() = false;
        std::thread::spawn(move || {
            let flags = VhostUserMMapFlags::WRITABLE.bits();
            let request =
                VhostUserMMap { shmid: gpu::SHM_HOST_VISIBLE, len: WINDOW, flags, ..Default::default() };
            let ok = backend.unwrap().shmem_map(&request, &file).is_ok();
            results.lock().unwrap().push(ok);
            *mapped.0.lock().unwrap() = true;
            mapped.1.notify_all();
        });
    }

    fn backend_is_late(&self) -> bool {
        self.backend.lock().unwrap().is_none()
    }

    fn drain(&self, vring: &Vring) {
        let Some(memory) = self.memory.lock().unwrap().clone() else { return };
        loop {
            let _works = self.works.lock().unwrap();
            if !vring.get_ref().get_queue().ready() {
                return;
            }
            let memory = memory.memory();
            let chain = vring.get_mut().get_queue_mut().pop_descriptor_chain(memory);
            let Some(chain) = chain else { return };
            for (head, length) in self.execute(chain) {
                // Refused of a head that is none.
                let _added = vring.add_used(head, length);
            }
            if vring.needs_notification().unwrap() {
                vring.signal_used_queue().unwrap();
            }
        }
    }
}

impl VhostUserBackend for FakeDevice {
    type Bitmap = BitmapMmapRegion;
    type Vring = Vring;

    fn num_queues(&self) -> usize {
        2
    }

    fn max_queue_size(&self) -> usize {
        1024
    }

    fn features(&self) -> u64 {
        self.offer
    }

    fn acked_features(&self, _features: u64) {
        self.adopt();
        if self.protocol.contains(Protocol::SHMEM) && !self.backend_is_late() {
            self.map_window();
        }
    }

    fn protocol_features(&self) -> Protocol {
        self.protocol
    }

    fn reset_device(&self) {
        *self.state.lock().unwrap() = State::default();
    }

    fn stop_vring(&self, _queue: u32) -> std::io::Result<()> {
        // It is said to be stopped already: what was taken from it is answered before its place is told.
        drop(self.works.lock().unwrap());
        Ok(())
    }

    fn set_event_idx(&self, enabled: bool) {
        self.event_idx.store(enabled, Ordering::Relaxed);
    }

    fn get_config(&self, offset: u32, size: u32) -> Vec<u8> {
        gpu::config::Config::COMPUTE_ONLY.as_bytes()[offset as usize..][..size as usize].to_vec()
    }

    fn update_memory(&self, memory: Memory) -> std::io::Result<()> {
        let count = vm_memory::GuestMemoryBackend::num_regions(&*memory.memory());
        self.regions.store(count, Ordering::Relaxed);
        *self.memory.lock().unwrap() = Some(memory);
        Ok(())
    }

    fn set_backend_req_fd(&self, backend: Backend) {
        *self.backend.lock().unwrap() = Some(backend);
        // cloud-hypervisor gives the channel last, to a device that has taken a state.
        if *self.transfer.loads.lock().unwrap() > 0 {
            self.map_window();
        }
    }

    fn exit_event(&self, _thread: usize) -> Option<(EventConsumer, EventNotifier)> {
        vmm_sys_util::event::new_event_consumer_and_notifier(EventFlag::CLOEXEC).ok()
    }

    fn handle_event(&self, event: u16, _: EventSet, vrings: &[Vring], _: usize) -> std::io::Result<()> {
        let vring = &vrings[usize::from(event)];
        if !self.event_idx.load(Ordering::Relaxed) {
            self.drain(vring);
            return Ok(());
        }
        loop {
            vring.disable_notification().unwrap();
            self.drain(vring);
            if !vring.enable_notification().unwrap() {
                return Ok(());
            }
        }
    }

    fn set_device_state_fd(
        &self,
        direction: VhostTransferStateDirection,
        _phase: VhostTransferStatePhase,
        file: File,
    ) -> std::io::Result<Option<File>> {
        if direction == VhostTransferStateDirection::SAVE {
            self.save(file);
        } else {
            self.load(file)?;
        }
        Ok(None)
    }

    fn check_device_state(&self) -> std::io::Result<()> {
        self.transfer.outcome()
    }

    fn get_shmem_config(&self) -> std::io::Result<VhostUserShMemConfig> {
        Ok(VhostUserShMemConfig::new(1, &[0, WINDOW]))
    }
}

/// The first word of video memory at `offset`.
pub(crate) fn vram_word(device: &FakeDevice, offset: usize) -> u64 {
    let mut bytes = [0; 8];
    device.vram.get_slice(offset, 8).unwrap().copy_to(&mut bytes);
    u64::from_le_bytes(bytes)
}

/// Serves one connection on `path`.
pub(crate) fn serve(device: Arc<FakeDevice>, path: &Path) -> std::thread::JoinHandle<()> {
    let mut listener = vhost::vhost_user::Listener::new(path, true).unwrap();
    std::thread::spawn(move || {
        let memory = GuestMemoryAtomic::new(Bitmapped::new());
        let mut daemon =
            vhost_user_backend::VhostUserDaemon::new("fake".to_owned(), Arc::clone(&device), memory).unwrap();
        daemon.start(&mut listener).unwrap();
        drop(listener);
        let handle = daemon.shutdown_handle();
        *device.cut.lock().unwrap() = handle;
        let _ended = daemon.wait();
    })
}
