//! The VM: what its context, its tests and its threads share.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;

use campanile_protocol::virtio_gpu::config::Config;

use super::command::Command;
use super::command::Layout;
use super::connection::Connection;
use super::connection::Machine;
use super::connection::Opening;
use super::dirty_log::DirtyLog;
use super::front_end::DeviceFacts;
use super::guest_ram::GuestRam;
use super::numbers::Numbers;
use super::options::DeviceKind;
use super::options::VmOptions;
use super::order::Order;
use super::pause::gate::Gate;
use super::pause::lock::Lock;
use super::pause::slot;
use super::pause::virtual_cpu::VirtualCpu;
use super::request::Loss;
use super::request::Request;
use super::rings::Rings;
use super::run_state::Accepted;
use super::run_state::Start;
use super::virt_queue::Wiring;
use super::window::Window;
use campanile_guest_driver::transport::error::TransportError;

/// A running loopback VM. When the last holder (contexts hold it, too) lets go it stops its rings and disconnects,
/// as a VM that is powered off.
pub struct LoopbackVm {
    pub(super) options: VmOptions,
    pub(super) ram: Arc<GuestRam>,
    /// Memory of an ivshmem device.
    pub(super) aperture: Option<Arc<GuestRam>>,
    window: Lock<Arc<Window>>,
    pub(super) rings: Rings,
    pub(super) accepted: Accepted,
    pub(super) facts: DeviceFacts,
    /// To the daemon that has the device now.
    connection: Lock<Arc<Connection>>,
    gate: Arc<Gate>,
    pub(super) numbers: Numbers,
    is_unplugged: AtomicBool,
    /// Held over a reset and over a migration.
    life_cycle: Mutex<Power>,
}

/// Where the rings of a VM that was stopped go on.
#[derive(Debug)]
pub struct Stopped(Vec<u16>);

/// Whether a VM runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Power {
    /// Virtual CPUs and rings run.
    Running,
    /// The virtual CPUs stand still.
    Paused,
    /// The rings are stopped, too, and the device's state was read.
    Stopped,
}

impl LoopbackVm {
    /// Connects to the daemon's socket, negotiates as QEMU does and starts the device as the stock driver does.
    /// Blocks until the rings run.
    pub fn connect(path: impl AsRef<Path>, options: &VmOptions) -> Result<Arc<Self>, TransportError> {
        let ram = GuestRam::new(options.ram, options.ram_base)?;
        let rings = Rings::new(&ram, options)?;
        let wirings = rings.wirings();
        let ram_file = ram.file();
        let after = (options.ram_base + options.ram).next_multiple_of(1 << 30);
        let aperture = (options.aperture > 0).then(|| GuestRam::new(options.aperture, after)).transpose()?;
        let (queues, wirings) = (rings.all(), &wirings[..]);
        let aperture_of = aperture.as_ref();
        let machine = Machine { options, ram: &ram, ram_file, aperture: aperture_of, queues, wirings };
        let connection = Connection::open(path.as_ref(), &machine, Opening::Negotiated)?;
        connection.alarm.release(queues);
        let accepted = connection.front_end.accept(options)?;
        let vm = Self {
            options: options.clone(),
            ram,
            aperture,
            window: Lock::new(Window::new(Arc::clone(&connection.maps))),
            rings,
            accepted,
            facts: connection.facts,
            connection: Lock::new(Arc::new(connection)),
            gate: Arc::default(),
            numbers: Numbers::new(),
            is_unplugged: AtomicBool::new(false),
            life_cycle: Mutex::new(Power::Running),
        };
        vm.boot()?;
        Ok(Arc::new(vm))
    }

    /// Makes the calling thread a virtual CPU until the guard is dropped: it stands still, wherever it is, while the VM
    /// is paused or moves. Blocks while it is.
    pub fn virtual_cpu(&self) -> Result<VirtualCpu, TransportError> {
        VirtualCpu::register(&self.gate).ok_or(TransportError::VirtualCpu)
    }

    /// Stops the virtual CPUs. When this returns none of them does anything, and commands of other threads wait. The
    /// device is told nothing.
    pub fn pause(&self) -> Result<(), TransportError> {
        let mut power = self.power();
        if *power == Power::Running {
            self.stop_virtual_cpus()?;
            *power = Power::Paused;
        }
        Ok(())
    }

    /// Lets the virtual CPUs of a paused VM go on.
    pub fn resume(&self) -> Result<(), TransportError> {
        let mut power = self.power();
        match *power {
            Power::Running => Ok(()),
            Power::Stopped => Err(TransportError::Paused),
            Power::Paused => {
                self.let_virtual_cpus_go();
                *power = Power::Running;
                Ok(())
            }
        }
    }

    /// Pauses the VM as QEMU's `stop` does: its virtual CPUs stand still, and then the rings of its device stop, too. Call it from a thread that is
    /// no virtual CPU.
    pub fn stop(&self) -> Result<Stopped, TransportError> {
        self.pause()?;
        Ok(Stopped(self.connection().front_end.stop(self.rings.count())?))
    }

    /// Lets a VM go on that was stopped, as QEMU's `cont` does: its device first.
    pub fn cont(&self, stopped: &Stopped) -> Result<(), TransportError> {
        self.start_device(&self.connection(), &self.rings.wirings(), &stopped.0, Order::Qemu, None)?;
        self.resume()
    }

    pub(super) fn stop_virtual_cpus(&self) -> Result<(), TransportError> {
        if slot::is_one() {
            return Err(TransportError::VirtualCpu);
        }
        let limit = self.options.message_timeout;
        self.gate
            .close(limit)
            .map_err(|_| TransportError::Timeout { what: "the virtual CPUs to stand still", after: limit })?;
        self.rings.set_paused(true);
        Ok(())
    }

    pub(super) fn let_virtual_cpus_go(&self) {
        self.rings.set_paused(false);
        self.gate.open();
    }

    pub(super) fn power(&self) -> MutexGuard<'_, Power> {
        self.life_cycle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn connection(&self) -> Arc<Connection> {
        Arc::clone(&self.connection.lock())
    }

    /// Another daemon has the device now; its end is the guest's loss.
    pub(super) fn set_connection(&self, connection: Connection) {
        let connection = Arc::new(connection);
        *self.connection.lock() = Arc::clone(&connection);
        connection.alarm.release(self.rings.all());
    }

    pub(super) fn start_device(
        &self,
        connection: &Connection,
        wirings: &[Wiring],
        bases: &[u16],
        order: Order,
        log: Option<&DirtyLog>,
    ) -> Result<(), TransportError> {
        let start = Start { wirings, accepted: self.accepted, bases, order, log };
        connection.front_end.start(&start)
    }

    /// The device's configuration space, as it was at boot.
    pub fn config(&self) -> Config {
        self.facts.config
    }

    /// Bytes of the host-visible window; 0 where the device has none.
    pub fn window_bytes(&self) -> u64 {
        self.window().size()
    }

    /// Commands put on the control queue so far, raw ones too, over all boots.
    pub fn commands_sent(&self) -> u64 {
        self.rings.control().sent()
    }

    /// Whether the device is neither gone nor being reset.
    pub fn is_connected(&self) -> bool {
        self.rings.control().loss().is_none()
    }

    /// Descriptors of the control queue that no command has.
    pub fn free_descriptors(&self) -> usize {
        self.rings.control().free_descriptors()
    }

    /// Pages of guest RAM that nothing has.
    pub fn free_ram_pages(&self) -> u64 {
        self.ram.free_pages()
    }

    /// Closes the connection at once, as a VMM that dies. Every wait ends.
    pub fn hang_up(&self) {
        self.connection().front_end.hang_up();
        self.rings.lose(Loss::Disconnected);
    }

    /// Resets the device as the guest's driver does: stops the rings, resets, unmaps the window (as QEMU does) and
    /// boots again. Contexts of before are gone; commands under way end with
    /// [`TransportError::DeviceReset`].
    pub fn reset_device(&self) -> Result<(), TransportError> {
        let power = self.power();
        if *power != Power::Running {
            return Err(TransportError::Paused);
        }
        self.rings.lose(Loss::Reset);
        let connection = self.connection();
        connection.front_end.stop(self.rings.count())?;
        connection.front_end.reset(&connection.maps)?;
        self.numbers.begin_generation();
        self.boot()
    }

    fn boot(&self) -> Result<(), TransportError> {
        self.rings.restart(&self.ram, self.options.queue_size, self.accepted.event_idx())?;
        let connection = self.connection();
        let started = self.start_device(&connection, &self.rings.wirings(), &[], Order::Qemu, None);
        let started = started.and_then(|()| match self.options.device {
            DeviceKind::Gpu => Ok(()),
            DeviceKind::Fs => self.mount(),
        });
        if started.is_err() {
            self.hang_up();
        }
        started
    }

    /// The window of the device that it has now.
    pub(super) fn window(&self) -> Arc<Window> {
        Arc::clone(&self.window.lock())
    }

    /// Takes the device away from the VM, as QEMU's device_del and chardev-remove do together: the guest's driver lets go of
    /// it, and the connection is closed. Contexts that have not closed it are gone.
    pub fn unplug(&self) -> Result<(), TransportError> {
        let power = self.power();
        if *power != Power::Running {
            return Err(TransportError::Paused);
        }
        let connection = self.connection();
        let stopped = connection.front_end.stop(self.rings.count());
        let reset = connection.front_end.reset(&connection.maps);
        self.numbers.begin_generation();
        self.is_unplugged.store(true, Ordering::Release);
        self.hang_up();
        self.numbers.restart_ids();
        stopped.and(reset)
    }

    /// Gives it another device, or the same again, of the daemon that serves `path`.
    pub fn plug(&self, path: impl AsRef<Path>) -> Result<(), TransportError> {
        let power = self.power();
        if *power != Power::Running {
            return Err(TransportError::Paused);
        }
        let (ram_file, wirings) = (self.ram.file(), self.rings.wirings());
        let machine = Machine {
            options: &self.options,
            ram: &self.ram,
            ram_file,
            aperture: self.aperture.as_ref(),
            queues: self.rings.all(),
            wirings: &wirings,
        };
        let connection = Connection::open(path.as_ref(), &machine, Opening::Negotiated)?;
        *self.window.lock() = Window::new(Arc::clone(&connection.maps));
        self.set_connection(connection);
        self.boot()?;
        self.is_unplugged.store(false, Ordering::Release);
        Ok(())
    }

    /// Whether it has no device.
    pub fn is_unplugged(&self) -> bool {
        self.is_unplugged.load(Ordering::Acquire)
    }

    /// Puts a command on the control queue.
    pub(super) fn start(&self, command: &Command<'_>) -> Result<Arc<Request>, TransportError> {
        let layout = Layout { pages: self.options.pages, indirect: self.accepted.indirect() };
        self.rings.control().submit(command.lay_out(&self.ram, layout)?, self.options.command_timeout)
    }

    /// Puts a command on the control queue, and waits for its response.
    pub(super) fn command(&self, command: &Command<'_>) -> Result<Vec<u8>, TransportError> {
        let request = self.start(command)?;
        self.rings.control().wait(&request, Some(self.options.command_timeout))?;
        Ok(request.answer()?.1.to_vec())
    }
}

impl fmt::Debug for LoopbackVm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoopbackVm")
            .field("config", &self.facts.config)
            .field("accepted", &self.accepted)
            .finish_non_exhaustive()
    }
}

impl Drop for LoopbackVm {
    fn drop(&mut self) {
        if self.is_connected()
            && let Err(error) = self.connection().front_end.stop(self.rings.count())
        {
            log::debug!("the device did not stop: {error}");
        }
    }
}
