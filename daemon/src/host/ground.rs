//! What the vGPUs of a daemon have in common, and how one of them begins.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

use campanile_host_gpu::cpu_slice;
use campanile_host_gpu::dirty::method::Method;
use campanile_host_gpu::log_limit::LogLimit;
use campanile_host_gpu::sched::parameters::Settings;

use super::endpoints::make_endpoint;
use super::error::HostError;
use super::left_local::Wanted;
use super::linked::Machine;
use super::local_choice::LocalPlace;
use super::options::FrontOptions;
use super::options::HostOptions;
use super::options::VgpuOptions;
use super::probe::allocate_local;
use super::recovery;
use super::upgrade::inheritance::Inheritance;
use super::upgrade::inheritance::Resumed;
use super::upgrade::inheritance::Taken;
use crate::confine::confiner::Confiner;
use crate::confine::roles::Reach;
use crate::confine::roles::Role;
use crate::confine::starter::Starter;
use crate::frontend::fs::front::FsDevice;
use crate::frontend::gpu::device::GpuDevice;
use crate::frontend::vhost::counters::Counters as ShellCounters;
use crate::frontend::vhost::device::Device;
use crate::frontend::vhost::socket::Keeping;
use crate::frontend::vhost::socket::VgpuSocket;
use crate::intake::Intake;
use crate::ledger::keeping::Ledger;
use crate::listener::Listener;
use crate::listener::SocketError;
use crate::migration::target::arrivals::Arrivals;
use crate::operator::held::Held;
use crate::operator::vgpu;
use crate::sched::meter::Meters;
use crate::sched::schedule::Schedule;
use crate::vgpu::config::Config;
use crate::vgpu::config::Current;
use crate::vgpu::control::orders::Orders;
use crate::vgpu::counters::Counters;
use crate::vgpu::doorbells::switch::NotifySwitch;
use crate::vgpu::memory::dirty::TrackerBoard;
use crate::vgpu::memory::vidmm::device_local::DeviceLocal;
use crate::vgpu::memory::vidmm::quota::Account;
use crate::vgpu::memory::vidmm::quota::Pool;
use crate::vgpu::memory::vidmm::quota::Watcher;
use crate::vgpu::objects::budget::Budget;
use crate::vgpu::tdr::reports::Clerk;
use crate::vgpu::tdr::reports::Reports;
use crate::vgpu::tdr::standing::Standing;

/// What all vGPUs share, as long as the daemon lives.
#[derive(Debug)]
pub(super) struct Ground {
    pub(super) confiner: Arc<Confiner>,
    /// What the threads of a front may reach.
    pub(super) reach: Reach,
    pub(super) schedule: Arc<dyn Schedule>,
    pub(super) machine: Machine,
    pub(super) tracking: Method,
    /// Where local memory lies.
    pub(super) local: LocalPlace,
    pub(super) reports: Arc<Reports>,
    pub(super) pool: Arc<Pool>,
    /// Whether CPUs are kept awake for realtime work: the file is opened at start or never.
    pub(super) keeps_awake: bool,
    /// Of threads that may have engines, for those that hear peers.
    pub(super) starter: Option<Starter>,
    /// Where others bring theirs, if they may.
    pub(super) arrivals: OnceLock<Arc<Arrivals>>,
    /// Whether VMs are taken that the daemon does not have.
    pub(super) intake: Arc<Intake>,
    /// vGPUs that the daemon before this one has served.
    pub(super) inheritance: Arc<Inheritance>,
}

/// A vGPU that is served. Dropping it ends its session.
pub(super) struct Served {
    /// What the operator reaches of it.
    pub(super) known: vgpu::Vgpu,
    pub(super) trackers: Arc<TrackerBoard>,
    pub(super) socket: VgpuSocket,
    /// Is told of the memory that is left for all.
    _watcher: Arc<Watcher>,
}

impl fmt::Debug for Served {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Served").field("known", &self.known).finish_non_exhaustive()
    }
}

impl Served {
    /// Whether a VM has it.
    pub(super) fn has_vm(&self) -> bool {
        self.socket.has_front_end() || self.known.commands.has_session()
    }
}

impl Ground {
    /// Serves a vGPU of a daemon with these options. What it gets beyond those of the daemon: its account, and what holds its engines.
    ///
    /// # Errors
    /// Its socket cannot be had, or a thread, a descriptor.
    pub(super) fn begin(
        &self,
        options: &HostOptions,
        vgpu: &VgpuOptions,
        account: Account,
        held: Held,
    ) -> Result<Served, HostError> {
        let account = Arc::new(account);
        let log = LogLimit::new(&vgpu.name);
        let trackers = Arc::new(TrackerBoard::default());
        let meters = Arc::new(Meters::default());
        let wanted = Wanted::of(self.local, vgpu.local_bytes(), self.machine.first());
        recovery::collect(vgpu, wanted, &self.inheritance);
        let config = Arc::new(self.config(options, vgpu, &account, &held, (&log, &trackers, &meters))?);
        let endpoint = Arc::new(make_endpoint(options, vgpu, &config, self.starter.as_ref())?);
        let counters = Arc::new(Counters::default());
        let inherited = self.inheritance.take(&vgpu.name).map(|Taken { connection, device, ledger }| {
            endpoint.begin_as_handed(device);
            if let Some(Resumed { log, words, stored, lost }) = ledger {
                config.ledger.resume(log, words, stored);
                counters.devices_lost.fetch_add(lost, Ordering::Relaxed);
            }
            connection
        });
        let keeping = Keeping { ledger: Arc::clone(&config.ledger), intake: Arc::clone(&self.intake) };
        let (orders, notify) = (Arc::clone(&config.orders), Arc::clone(&config.notify));
        let nudged = Arc::clone(&orders);
        let watcher: Arc<Watcher> = Arc::new(move || nudged.nudge());
        self.pool.watch(&watcher);
        let (standing, budget) = (Arc::clone(&config.standing), Arc::clone(&config.budget));
        let current = Arc::new(Current::new(config));
        let its_config = Arc::clone(&current);
        let shell_counters = Arc::new(ShellCounters::default());
        let session_counters = Arc::clone(&counters);
        let its_endpoint = Arc::clone(&endpoint);
        let front = vgpu.front.clone();
        let factory = move || {
            // Each connection is served by the thread that calls this, and by those that it starts.
            cpu_slice::shorten();
            let (config, counters) = (its_config.get(), Arc::clone(&session_counters));
            let endpoint = Arc::clone(&its_endpoint);
            Ok(match &front {
                FrontOptions::Gpu => {
                    Box::new(GpuDevice::moving((), config, counters, endpoint)?) as Box<dyn Device>
                }
                FrontOptions::Fs(options) => {
                    Box::new(FsDevice::moving(options.clone(), config, counters, endpoint)?)
                }
            })
        };
        let failed = |error: SocketError| HostError::Vgpu { name: vgpu.name.clone(), source: error.into() };
        let listener = Listener::bind(&vgpu.socket).map_err(failed)?;
        let its_counters = Arc::clone(&shell_counters);
        let its_log = Arc::clone(&log);
        let serve =
            move || its_log.within(|| VgpuSocket::serve(listener, factory, its_counters, keeping, inherited));
        let socket = self.confiner.within(Role::Front, &self.reach, serve)?.map_err(failed)?;
        let (mib, path) = (vgpu.vram_bytes >> 20, vgpu.socket.display());
        log::info!("vGPU {}: {mib} MiB, serving {path}", vgpu.name);
        let known = vgpu::Vgpu {
            name: vgpu.name.clone(),
            socket: vgpu.socket.clone(),
            detaches: vgpu.front == FrontOptions::Gpu,
            vram_bytes: vgpu.vram_bytes,
            account,
            budget,
            notify,
            commands: orders,
            standing,
            counters,
            current,
            engines: options.engines.count,
            meters,
            shell_counters,
            endpoint,
            held,
            log,
        };
        Ok(Served { known, trackers, socket, _watcher: watcher })
    }

    /// The local memory of a vGPU, where that is the device's own.
    fn allocate_local(
        &self,
        options: &HostOptions,
        vgpu: &VgpuOptions,
        held: &Held,
    ) -> Result<Option<Arc<DeviceLocal>>, HostError> {
        let handed = self.inheritance.take_local(&vgpu.name);
        let bytes = vgpu.local_bytes();
        let fits = handed.as_ref().map(|local| local.passport.length >= bytes);
        match (self.local, fits) {
            (LocalPlace::Device, Some(true)) => return Ok(handed.map(Arc::new)),
            (LocalPlace::Host, None) => return Ok(None),
            // What its guests have in it is where it is.
            _ if self.inheritance.is_whole(&vgpu.name) => {
                return Err(HostError::Upgrade(format!(
                    "vGPU {}: a VM has it, and its local memory cannot lie elsewhere, or be of another size, after an upgrade \
                     (--local-memory, vram)",
                    vgpu.name
                )));
            }
            (LocalPlace::Host, Some(_)) => return Ok(None),
            (LocalPlace::Device, _) => {}
        }
        let program = options.engines.program.of(&vgpu.name, held.containment.clone());
        let device = options.engines.vulkan_devices.of(0).map(str::to_owned);
        let allocated = allocate_local(&program, device, options.engines.sandbox, bytes)?;
        let failed = |reason: String| {
            let mib = bytes.div_ceil(1 << 20);
            let text =
                format!("--local-memory device: the device gives no {mib} MiB of its memory: {reason}");
            HostError::Vgpu { name: vgpu.name.clone(), source: text.into() }
        };
        allocated.map(|local| Some(Arc::new(local))).map_err(failed)
    }

    fn config(
        &self,
        options: &HostOptions,
        vgpu: &VgpuOptions,
        account: &Arc<Account>,
        held: &Held,
        (log, trackers, meters): (&Arc<LogLimit>, &Arc<TrackerBoard>, &Arc<Meters>),
    ) -> Result<Config, HostError> {
        let [compute_timeout, copy_timeout] = options.timeouts;
        let normal_share = options.scheduling.normal_share;
        let profile = options.profile_of(vgpu);
        let compute = self.machine.under(profile).map_err(|why| HostError::Vgpu {
            name: vgpu.name.clone(),
            source: format!("gpu-profile {profile}: {why}").into(),
        })?;
        Ok(Config {
            name: vgpu.name.clone(),
            vram_bytes: vgpu.vram_bytes,
            account: Arc::clone(account),
            local: self.allocate_local(options, vgpu, held)?,
            single_use: vgpu.single_use,
            engines: options.engines.count,
            doorbells: options.engines.doorbells,
            doorbell_modes: options.engines.doorbell_modes,
            notify: Arc::new(NotifySwitch::new(&options.engines.doorbell_modes)?),
            spin: options.engines.spin,
            slice: options.engines.slice,
            d3_after: options.engines.d3_after,
            tracking: self.tracking,
            trackers: Arc::clone(trackers),
            ledger: Arc::new(Ledger::new(&vgpu.name)),
            meters: Arc::clone(meters),
            sandbox: options.engines.sandbox,
            window: options.window && vgpu.front == FrontOptions::Gpu,
            vulkan_devices: options.engines.vulkan_devices.clone(),
            launcher: match self.inheritance.opened(&vgpu.name) {
                Some((_, opened)) => opened,
                None => Arc::new(options.engines.program.of(&vgpu.name, held.containment.clone())),
            },
            compute,
            profile,
            schedule: Arc::clone(&self.schedule),
            orders: Arc::new(Orders::new()?),
            policy: options.policy,
            scheduler: options.scheduling.policy,
            bands: Settings { normal_share, ..Settings::default() },
            share: vgpu.share,
            timeouts: [vgpu.timeouts[0].unwrap_or(compute_timeout), vgpu.timeouts[1].unwrap_or(copy_timeout)],
            standing: Arc::new(Standing::default()),
            reports: Arc::clone(&self.reports),
            spares: options.engines.spares,
            // All logs of a vGPU together take a quarter of its budget at the most.
            code_mib: code_mib(options),
            freeze_limit: options.freeze_limit,
            budget: Arc::new(Budget::new(options.vm_budget)),
            clerk: Arc::new(Clerk::default()),
            log: Arc::clone(log),
        })
    }
}

/// MiB of each compute engine's log.
pub(super) fn code_mib(options: &HostOptions) -> u32 {
    let room = (options.vm_budget >> 20) / 4 / u64::from(options.engines.count.max(1));
    options.engines.code_mib.min(u32::try_from(room).unwrap_or(u32::MAX))
}

/// An error with all that led to it, in one line.
pub(super) fn whole(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}
