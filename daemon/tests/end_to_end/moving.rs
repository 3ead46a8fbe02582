//! A vGPU whose session stands still, goes, and comes again out of its state, while its guest sees one device.
//!
//! Memory stays where it is: the files of the old session become those of the new one, as if all pages had been sent.

use campanile_protocol::named_profile::GpuProfile;
use std::io;
use std::os::fd::AsFd;
use std::os::fd::BorrowedFd;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::mpsc;
use std::time::Duration;

use campanile_daemon::frontend::gpu::device::GpuDevice;
use campanile_daemon::frontend::vhost::answers::Answers;
use campanile_daemon::frontend::vhost::device::Device;
use campanile_daemon::frontend::vhost::device::Offer;
use campanile_daemon::frontend::vhost::device::WindowError;
use campanile_daemon::frontend::vhost::malformed::MalformedChain;
use campanile_daemon::frontend::vhost::socket::VgpuSocket;
use campanile_daemon::frontend::vhost::ticket::Ticket;
use campanile_daemon::guest_ram::memory::GuestRam;
use campanile_daemon::migration::state;
use campanile_daemon::migration::state::State;
use campanile_daemon::sched::awake::Awake;
use campanile_daemon::sched::share::Share;
use campanile_daemon::sched::thread::Supervisor;
use campanile_daemon::vgpu::config::Compute;
use campanile_daemon::vgpu::config::Config;
use campanile_daemon::vgpu::control::orders::Orders;
use campanile_daemon::vgpu::counters::Counters;
use campanile_daemon::vgpu::doorbells::modes::DoorbellModes;
use campanile_daemon::vgpu::doorbells::switch::NotifySwitch;
use campanile_daemon::vgpu::memory::vidmm::quota::Account;
use campanile_daemon::vgpu::memory::vidmm::quota::Pool;
use campanile_daemon::vgpu::memory::vidmm::quota::Quota;
use campanile_daemon::vgpu::memory::vidmm::vram::VideoMemory;
use campanile_daemon::vgpu::session::Session;
use campanile_daemon::vgpu::state::restore::install::check_immutable;
use campanile_daemon::vgpu::state::saved::SavedSession;
use campanile_daemon::vgpu::tdr::policy::Policy;
use campanile_daemon::vgpu::tdr::reports::Clerk;
use campanile_daemon::vgpu::tdr::reports::Reports;
use campanile_daemon::vgpu::tdr::standing::Standing;
use campanile_daemon::vgpu::vulkan_devices::VulkanDevices;
use campanile_host_gpu::adapter::program::Program;
use campanile_host_gpu::dirty::method::Method;
use campanile_host_gpu::event::Event;
use campanile_host_gpu::log_limit::LogLimit;
use campanile_host_gpu::sched::choice::Choice;
use campanile_host_gpu::sched::parameters::Band;
use campanile_host_gpu::sched::parameters::Settings;
use campanile_test_vmm::options::VmOptions;
use campanile_test_vmm::vm::LoopbackVm;
use rustix::event::epoll;
use tempfile::TempDir;

use crate::processes::engines_of;
use crate::support::NEVER;
use crate::support::until;

pub(crate) const VRAM: u64 = 64 << 20;

type Task = Box<dyn FnOnce(&mut Movable) + Send>;

/// What the test asks of the vGPU's thread.
struct Tasks {
    waiting: Mutex<Vec<Task>>,
    bell: Event,
}

/// The vGPU's device, whose session can be exchanged.
pub(crate) struct Movable {
    config: Arc<Config>,
    counters: Arc<Counters>,
    gpu: GpuDevice,
    events: OwnedFd,
    tasks: Arc<Tasks>,
    memory: Option<Arc<GuestRam>>,
    /// Whether the guest sees the window.
    window: Option<bool>,
    /// Commands that came while everything stood still: rings that are stopped.
    held: Vec<(u16, Vec<u8>, Ticket)>,
}

fn listen(events: &OwnedFd, descriptor: BorrowedFd<'_>) {
    epoll::add(events, descriptor, epoll::EventData::new_u64(0), epoll::EventFlags::IN).unwrap();
}

impl Movable {
    pub(crate) fn session(&mut self) -> &mut Session {
        self.gpu.session()
    }

    /// A session like that one, without anything in it.
    pub(crate) fn fresh(&self) -> Session {
        Session::new(Arc::clone(&self.config), Arc::clone(&self.counters)).unwrap()
    }

    /// A session like it that has its memory.
    pub(crate) fn fresh_with_memory(&mut self) -> Session {
        let memory = self.session().video_memory();
        let files = [memory.file().try_clone().unwrap(), memory.evicted_file().try_clone().unwrap()];
        let [vram, evicted] = files;
        let memory =
            VideoMemory::filled(vram, evicted, VRAM, self.config.account.quota().max, self.config.tracking)
                .unwrap();
        let mut session = self.fresh();
        session.adopt_memory(memory).unwrap();
        session
    }

    /// Bytes promised to its guests, on whatever host it is.
    pub(crate) fn committed(&self) -> u64 {
        self.config.account.budget().committed
    }

    pub(crate) fn save(&mut self) -> SavedSession {
        self.session().save().unwrap()
    }

    /// The session goes, and another comes out of its state. Guest memory is shown to it after that.
    pub(crate) fn exchange(&mut self) -> SavedSession {
        let (immutable, session) = (self.session().immutable(), self.save());
        let bytes = State { immutable, session, ..State::default() }.encode().unwrap();
        let mut next = self.fresh_with_memory();
        let fresh = self.fresh();
        // What it had promised to its guests is free.
        drop(std::mem::replace(self.session(), fresh));
        let State { immutable, session, .. } = state::decode(&bytes).unwrap();
        check_immutable(next.config(), &immutable).unwrap();
        next.restore(&session).unwrap();
        assert!(next.is_frozen());
        self.put(next);
        session
    }

    /// Puts a session into the place of the one that is there; it is shown the guest's memory.
    pub(crate) fn put(&mut self, mut next: Session) {
        if let Some(is_open) = self.window {
            next.set_window(is_open);
        }
        if let Some(memory) = &self.memory {
            next.set_guest_memory(Arc::clone(memory));
        }
        next.quiesce().warm_up();
        *self.session() = next;
        listen(&self.events, self.gpu.session().event_fd());
    }

    fn go_on(&mut self, answers: &mut Answers) {
        self.gpu.event(answers);
        if self.gpu.session().is_stopping() {
            return;
        }
        for (queue, request, ticket) in std::mem::take(&mut self.held) {
            self.gpu.command(queue, &request, ticket, answers);
        }
    }
}

impl Device for Movable {
    fn offer(&self) -> io::Result<Offer> {
        self.gpu.offer()
    }

    fn command(&mut self, queue: u16, request: &[u8], ticket: Ticket, answers: &mut Answers) {
        if self.gpu.session().is_stopping() {
            self.held.push((queue, request.to_vec(), ticket));
        } else {
            self.gpu.command(queue, request, ticket, answers);
        }
    }

    fn malformed(&mut self, queue: u16, reason: MalformedChain, ticket: Ticket, answers: &mut Answers) {
        self.gpu.malformed(queue, reason, ticket, answers);
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.events.as_fd())
    }

    fn event(&mut self, answers: &mut Answers) {
        self.tasks.bell.drain();
        let tasks = std::mem::take(&mut *self.tasks.waiting.lock().unwrap_or_else(PoisonError::into_inner));
        for task in tasks {
            task(self);
        }
        self.go_on(answers);
    }

    fn memory_changed(&mut self, memory: Arc<GuestRam>, answers: &mut Answers) {
        self.memory = Some(Arc::clone(&memory));
        self.gpu.memory_changed(memory, answers);
    }

    fn window(&mut self, state: Result<(), WindowError>, answers: &mut Answers) {
        self.window = Some(state.is_ok());
        self.gpu.window(state, answers);
    }

    fn reset(&mut self) {
        self.held.clear();
        self.gpu.reset();
    }
}

/// Where the Vulkan driver is, as `campanile serve` takes it from its environment.
fn vulkan() -> Vec<(String, String)> {
    let names = [
        ("CAMPANILE_VULKAN_DRIVER", "VK_DRIVER_FILES"),
        ("CAMPANILE_VULKAN_DRIVER", "VK_ICD_FILENAMES"),
        ("CAMPANILE_VULKAN_LIBRARY_PATH", "LD_LIBRARY_PATH"),
    ];
    let set =
        names.into_iter().filter_map(|(ours, theirs)| Some((theirs.to_owned(), std::env::var(ours).ok()?)));
    set.collect()
}

/// How a vGPU differs from most.
pub(crate) struct Shape {
    pub(crate) doorbells: u32,
    pub(crate) spin: Duration,
    /// How long engines may take to stand still. Long, where CPUs are short and nothing hangs.
    pub(crate) freeze_limit: Duration,
    pub(crate) quota: u64,
    /// TDR timeout of both nodes.
    pub(crate) timeout: Duration,
    /// How long all engines sleep before D3.
    pub(crate) d3_after: Option<Duration>,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            doorbells: 64,
            spin: Duration::from_millis(2),
            freeze_limit: NEVER,
            quota: VRAM,
            timeout: NEVER,
            d3_after: None,
        }
    }
}

/// A vGPU, and its socket.
pub(crate) struct Moving {
    // First, so that its session has ended when the rest goes.
    _socket: VgpuSocket,
    tasks: Arc<Tasks>,
    pub(crate) counters: Arc<Counters>,
    folder: TempDir,
}

impl Moving {
    pub(crate) fn start(shape: &Shape) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let quota = Quota { min: 0, max: shape.quota };
        let config = Arc::new(Config {
            name: "moving".to_owned(),
            vram_bytes: VRAM,
            account: Arc::new(Account::new(quota, Pool::new(None, []).unwrap())),
            local: None,
            single_use: false,
            engines: 1,
            doorbells: shape.doorbells,
            doorbell_modes: DoorbellModes::default(),
            notify: Arc::new(NotifySwitch::new(&DoorbellModes::default()).unwrap()),
            spin: shape.spin,
            slice: Duration::from_millis(2),
            tracking: Method::BoundRanges,
            trackers: Arc::default(),
            ledger: Arc::default(),
            meters: Arc::default(),
            d3_after: shape.d3_after,
            sandbox: true,
            window: true,
            vulkan_devices: VulkanDevices::default(),
            profile: GpuProfile::Host,
            launcher: Arc::new(Program::new(PathBuf::from(env!("CARGO_BIN_EXE_campanile")), vulkan())),
            compute: Compute::on("whatever there is"),
            schedule: Arc::new(Supervisor::start(Choice::default(), 10, Awake::off()).unwrap()),
            orders: Arc::new(Orders::new().unwrap()),
            scheduler: Choice::default(),
            bands: Settings::default(),
            share: Share { highest_band: Band::Realtime, ..Share::default() },
            policy: Policy::default(),
            timeouts: [shape.timeout; 2],
            standing: Arc::new(Standing::default()),
            reports: Arc::new(Reports::new(None)),
            spares: false,
            code_mib: 32,
            freeze_limit: shape.freeze_limit,
            budget: Arc::default(),
            clerk: Arc::new(Clerk::default()),
            log: LogLimit::new("tested"),
        });
        let counters = Arc::new(Counters::default());
        let tasks = Arc::new(Tasks { waiting: Mutex::default(), bell: Event::new().unwrap() });
        let (counted, asked) = (Arc::clone(&counters), Arc::clone(&tasks));
        let factory = move || {
            let mut gpu = GpuDevice::new(Arc::clone(&config), Arc::clone(&counted))?;
            let events = epoll::create(epoll::CreateFlags::CLOEXEC)?;
            listen(&events, gpu.session().event_fd());
            listen(&events, asked.bell.as_fd());
            let (config, counters) = (Arc::clone(&config), Arc::clone(&counted));
            let (tasks, memory, window, held) = (Arc::clone(&asked), None, None, Vec::new());
            let device = Movable { config, counters, gpu, events, tasks, memory, window, held };
            Ok(Box::new(device) as Box<dyn Device>)
        };
        let path = folder.path().join("v.sock");
        let socket = VgpuSocket::spawn(&path, factory, Arc::default()).unwrap();
        Self { _socket: socket, tasks, counters, folder }
    }

    pub(crate) fn vm(&self) -> Arc<LoopbackVm> {
        LoopbackVm::connect(self.folder.path().join("v.sock"), &VmOptions::default()).unwrap()
    }

    /// Has the vGPU's thread do something.
    pub(crate) fn ask<R: Send + 'static>(&self, what: impl FnOnce(&mut Movable) -> R + Send + 'static) -> R {
        let (sender, receiver) = mpsc::channel();
        let task = Box::new(move |device: &mut Movable| sender.send(what(device)).unwrap());
        self.tasks.waiting.lock().unwrap_or_else(PoisonError::into_inner).push(task);
        self.tasks.bell.signal();
        receiver.recv_timeout(NEVER).unwrap()
    }

    /// Its engine processes.
    pub(crate) fn engines(&self) -> Vec<u32> {
        engines_of(&self.ask(|device| Arc::clone(&device.config.orders)))
    }

    /// Everything stands still.
    pub(crate) fn freeze(&self) {
        self.ask(|device| assert!(device.session().freeze()));
        until("a standstill", || self.ask(|device| device.session().is_frozen()));
    }

    pub(crate) fn thaw(&self) {
        self.ask(|device| assert!(device.session().thaw()));
    }

    /// Stands still, goes, comes again and goes on; what was taken along.
    pub(crate) fn migrate(&self) -> SavedSession {
        self.freeze();
        let saved = self.ask(Movable::exchange);
        self.thaw();
        saved
    }
}
