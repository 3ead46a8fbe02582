//! The VM: what its context, its tests and its threads share.

use std::fmt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;

use campanile_protocol::virtio_gpu::CONTROL_QUEUE;
use campanile_protocol::virtio_gpu::QUEUE_COUNT;
use campanile_protocol::virtio_gpu::config::Config;

use super::back_channel;
use super::command::Command;
use super::command::Layout;
use super::context::LoopbackContext;
use super::front_end::FrontEnd;
use super::guest_ram::GuestRam;
use super::memory_table::MemoryTable;
use super::options::VmOptions;
use super::request::Loss;
use super::request::Request;
use super::run_state::Accepted;
use super::split_ring::SplitRing;
use super::threads::Threads;
use super::virt_queue::VirtQueue;
use super::watch;
use super::watch::Alarm;
use super::window::Window;
use crate::transport::error::TransportError;

/// A running loopback VM. When the last holder (contexts hold it, too) lets go it stops its rings and disconnects,
/// as a VM that is powered off.
pub struct LoopbackVm {
    pub(super) options: VmOptions,
    pub(super) ram: Arc<GuestRam>,
    pub(super) window: Arc<Window>,
    pub(super) queues: Vec<Arc<VirtQueue>>,
    front_end: Arc<FrontEnd>,
    accepted: Accepted,
    config: Config,
    /// Boots of the device; a context of an earlier one is gone.
    generation: AtomicU64,
    next_id: AtomicU32,
    next_fence: AtomicU64,
    /// Held over a reset.
    life_cycle: Mutex<()>,
    /// Dropped last: ends the threads.
    _threads: Threads,
}

impl LoopbackVm {
    /// Connects to the daemon's socket, negotiates as QEMU does and starts the device as the stock driver does.
    /// Blocks until the rings run.
    pub fn connect(path: impl AsRef<Path>, options: &VmOptions) -> Result<Arc<Self>, TransportError> {
        let ram = GuestRam::new(options.ram, options.ram_base)?;
        let alarm = Alarm::new()?;
        let table = MemoryTable::new(Arc::clone(&ram));
        let front_end =
            Arc::new(FrontEnd::connect(path.as_ref(), table, Arc::clone(&alarm), options.message_timeout)?);
        let queues = (0..QUEUE_COUNT)
            .map(|_| VirtQueue::new(SplitRing::new(&ram, options.queue_size, false)?))
            .collect::<Result<Vec<_>, _>>()?;
        let refused =
            |source: std::io::Error| TransportError::System { what: "a socket pair", source: source.into() };
        let (theirs, ours) = UnixStream::pair().map_err(refused)?;
        let back_channel = ours.try_clone().map_err(refused)?;
        let handles = Vec::new();
        let mut threads =
            Threads { alarm: Arc::clone(&alarm), front_end: Arc::clone(&front_end), back_channel, handles };
        {
            let (front_end, queues) = (Arc::clone(&front_end), queues.clone());
            threads.start("loopback-watch", move || watch::watch(&front_end, &alarm, &queues))?;
        }
        let facts = front_end.negotiate(&queues, &theirs)?;
        drop(theirs);
        let window = Arc::new(Window::new(facts.window_bytes));
        if options.window_in_memory_table {
            front_end.add_window(Arc::clone(&window));
        }
        {
            let (front_end, window, when) =
                (Arc::clone(&front_end), Arc::clone(&window), options.back_channel);
            threads.start("loopback-back", move || back_channel::serve(&ours, &front_end, &window, when))?;
        }
        let accepted = front_end.accept(options)?;
        let vm = Self {
            options: options.clone(),
            ram,
            window,
            queues,
            front_end,
            accepted,
            config: facts.config,
            generation: AtomicU64::new(0),
            next_id: AtomicU32::new(1),
            next_fence: AtomicU64::new(1),
            life_cycle: Mutex::default(),
            _threads: threads,
        };
        vm.boot()?;
        Ok(Arc::new(vm))
    }

    /// Opens a context: one guest process, by a name that the daemon may log.
    pub fn open(self: &Arc<Self>, name: &str) -> Result<LoopbackContext, TransportError> {
        LoopbackContext::create(Arc::clone(self), name)
    }

    /// The device's configuration space, as it was at boot.
    pub fn config(&self) -> Config {
        self.config
    }

    /// Bytes of the host-visible window; 0 where the device has none.
    pub fn window_bytes(&self) -> u64 {
        self.window.size()
    }

    /// Commands put on the control queue so far, raw ones too, over all boots.
    pub fn commands_sent(&self) -> u64 {
        self.control().sent()
    }

    /// Whether the device is neither gone nor being reset.
    pub fn is_connected(&self) -> bool {
        self.control().loss().is_none()
    }

    /// Descriptors of the control queue that no command has.
    pub fn free_descriptors(&self) -> usize {
        self.control().free_descriptors()
    }

    /// Pages of guest RAM that nothing has.
    pub fn free_ram_pages(&self) -> u64 {
        self.ram.free_pages()
    }

    /// Closes the connection at once, as a VMM that dies. Every wait ends.
    pub fn hang_up(&self) {
        self.front_end.hang_up();
        for queue in &self.queues {
            queue.lose(Loss::Disconnected);
        }
    }

    /// Resets the device as the guest's driver does: stops the rings, resets, unmaps the window (as QEMU does) and
    /// boots again. Contexts of before are gone; commands under way end with
    /// [`TransportError::DeviceReset`].
    pub fn reset_device(&self) -> Result<(), TransportError> {
        let _one_at_a_time = self.life_cycle.lock().unwrap_or_else(PoisonError::into_inner);
        for queue in &self.queues {
            queue.lose(Loss::Reset);
        }
        self.front_end.stop(self.queues.len())?;
        self.front_end.reset(&self.window)?;
        self.generation.fetch_add(1, Ordering::Relaxed);
        self.boot()
    }

    fn boot(&self) -> Result<(), TransportError> {
        for queue in &self.queues {
            let ring = SplitRing::new(&self.ram, self.options.queue_size, self.accepted.event_idx())?;
            queue.restart(ring);
        }
        let started = self.front_end.start(&self.queues, self.accepted);
        if started.is_err() {
            self.hang_up();
        }
        started
    }

    pub(super) fn control(&self) -> &Arc<VirtQueue> {
        &self.queues[usize::from(CONTROL_QUEUE)]
    }

    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }

    /// A number that no other context or resource of this VM has had.
    pub(super) fn fresh_id(&self) -> u32 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn fresh_fence(&self) -> u64 {
        self.next_fence.fetch_add(1, Ordering::Relaxed)
    }

    /// Puts a command on the control queue.
    pub(super) fn start(&self, command: &Command<'_>) -> Result<Arc<Request>, TransportError> {
        let layout = Layout { pages: self.options.pages, indirect: self.accepted.indirect() };
        self.control().submit(command.lay_out(&self.ram, layout)?, self.options.command_timeout)
    }

    /// Puts a command on the control queue, and waits for its response.
    pub(super) fn command(&self, command: &Command<'_>) -> Result<Vec<u8>, TransportError> {
        let request = self.start(command)?;
        self.control().wait(&request, Some(self.options.command_timeout))?;
        Ok(request.answer()?.1.to_vec())
    }
}

impl fmt::Debug for LoopbackVm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoopbackVm")
            .field("config", &self.config)
            .field("accepted", &self.accepted)
            .finish_non_exhaustive()
    }
}

impl Drop for LoopbackVm {
    fn drop(&mut self) {
        if self.is_connected()
            && let Err(error) = self.front_end.stop(self.queues.len())
        {
            log::debug!("the device did not stop: {error}");
        }
    }
}
