//! Bringing a daemon up.

use std::io;
use std::sync::Arc;

use campanile_host_gpu::adapter::program::Program;
use campanile_host_gpu::cpu_slice;
use campanile_host_gpu::log_limit::LogLimit;
use campanile_host_gpu::outside;
use campanile_host_gpu::sched::parameters::Band;
use campanile_host_gpu::sched::parameters::Settings;
use rustix::process::geteuid;

use super::accounts::Accounts;
use super::accounts::settle;
use super::check::check;
use super::check::check_live_migration;
use super::endpoints::make_endpoint;
use super::endpoints::open_door;
use super::error::HostError;
use super::holding::Holding;
use super::options::FrontOptions;
use super::options::HostOptions;
use super::options::Scheduling;
use super::probe::probe_compute;
use crate::confine::Confinement;
use crate::confine::confiner::Confiner;
use crate::confine::roles::Peering;
use crate::confine::roles::Reach;
use crate::confine::roles::Role;
use crate::confine::roles::Setting;
use crate::frontend::fs::front::FsDevice;
use crate::frontend::gpu::device::GpuDevice;
use crate::frontend::vhost::counters::Counters as ShellCounters;
use crate::frontend::vhost::device::Device;
use crate::frontend::vhost::socket::VgpuSocket;
use crate::listener::Listener;
use crate::listener::SocketError;
use crate::migration::channel::address::Peer;
use crate::migration::target::arrivals::Arrivals;
use crate::operator::handler;
use crate::operator::handler::Handler;
use crate::operator::http::address::Address;
use crate::operator::http::server::Door;
use crate::operator::http::server::Server;
use crate::operator::metrics::gather::Source;
use crate::operator::metrics::scrapes::Scrapes;
use crate::operator::socket::Access;
use crate::operator::socket::ControlSocket;
use crate::operator::web::site::Site;
use crate::sched::awake::Awake;
use crate::sched::awake::CpuLatency;
use crate::sched::meter::Meters;
use crate::sched::thread::Supervisor;
use crate::vgpu::config::Compute;
use crate::vgpu::config::Config;
use crate::vgpu::config::Current;
use crate::vgpu::control::orders::Orders;
use crate::vgpu::counters::Counters;
use crate::vgpu::doorbells::switch::NotifySwitch;
use crate::vgpu::memory::dirty::TrackerBoard;
use crate::vgpu::memory::vidmm::quota::Account;
use crate::vgpu::memory::vidmm::quota::Pool;
use crate::vgpu::objects::budget::Budget;
use crate::vgpu::tdr::reports::Clerk;
use crate::vgpu::tdr::reports::ReportFolder;
use crate::vgpu::tdr::reports::Reports;
use crate::vgpu::tdr::standing::Standing;

/// One vGPU being served.
#[derive(Debug)]
pub struct Vgpu {
    /// Its name.
    pub name: String,
    /// What its sessions count.
    pub counters: Arc<Counters>,
    /// What its rings count.
    pub shell_counters: Arc<ShellCounters>,
    /// Switches nodes to notify mode and back.
    pub notify: Arc<NotifySwitch>,
    /// Where orders to its thread go.
    pub orders: Arc<Orders>,
    /// Where its memory's writes are known.
    pub trackers: Arc<TrackerBoard>,
    socket: VgpuSocket,
}

/// A daemon that serves. Dropping it ends every session.
#[derive(Debug)]
pub struct Host {
    /// Where the operator asks; the first to go, while there still is a vGPU to answer for.
    pub control: Option<ControlSocket>,
    /// The read-only operator socket.
    pub status: Option<ControlSocket>,
    /// Its vGPUs.
    pub vgpus: Vec<Vgpu>,
    /// Where scrapers read.
    pub metrics: Option<Server>,
    /// Where browsers look.
    pub web: Option<Server>,
    /// Where other daemons bring theirs.
    pub arrivals: Option<Arc<Arrivals>>,
    /// Whether it computes.
    pub compute: Compute,
    // The cgroups of engines, after the engines: they go with this.
    _holding: Holding,
}

/// What keeps CPUs awake for vGPUs with realtime work, if there are any.
///
/// # Errors
/// The operator has named a limit, and the kernel's file cannot be had.
pub fn open_awake(options: &HostOptions) -> Result<Awake, HostError> {
    let has_realtime = options.vgpus.iter().any(|vgpu| vgpu.share.highest_band == Band::Realtime);
    let cpu_latency = options.scheduling.cpu_latency;
    if !has_realtime && matches!(cpu_latency, CpuLatency::Micros(_)) {
        log::warn!("--cpu-latency: no vGPU has bands=realtime, so nothing is asked of the CPUs");
    }
    Ok(if has_realtime { Awake::open(cpu_latency)? } else { Awake::off() })
}

impl Host {
    /// Starts serving every vGPU.
    pub fn start(options: HostOptions) -> Result<Self, HostError> {
        let awake = open_awake(&options)?;
        Self::start_with(options, awake)
    }

    /// As [`Self::start`], with the file that keeps CPUs awake, which a process that gives up root's rights opens before.
    pub fn start_with(options: HostOptions, awake: Awake) -> Result<Self, HostError> {
        check(&options)?;
        let Scheduling { policy, normal_share, cpu_latency: _ } = options.scheduling;
        let confiner = Arc::new(Confiner::new(options.confinement));
        if options.confinement == Confinement::On {
            outside::start()?;
        }
        let setting = Setting {
            state_dir: options.state_dir.as_ref(),
            peering: peering(options.migration.peer.as_ref()),
        };
        let reach = |role| Reach::of(role, setting);
        let schedule = move || Supervisor::start(policy, normal_share, awake);
        let supervisor = Arc::new(confiner.within(Role::Schedule, &reach(Role::Schedule), schedule)??);
        let (probed, holding) = settle_accounts(&options);
        let (compute, computes_on_gpu) = probed?;
        let probe = probe_program(&options, &holding);
        match &compute {
            Compute::Available(device) => log::info!("compute node: {}", device.name),
            Compute::Refused(reason) => log::warn!("no compute node, only copies: {reason}"),
        }
        let tracking = options.tracking.decide(&probe, options.engines.sandbox, computes_on_gpu)?;
        log::info!("writes to video memory: tracking is {tracking}");
        check_live_migration(&options, tracking)?;
        let folder = options.state_dir.as_deref().map(|path| {
            ReportFolder::open(path).map_err(|source| HostError::StateDirectory { path: path.into(), source })
        });
        let reports = Arc::new(Reports::new(folder.transpose()?));
        let minima = options.vgpus.iter().map(|vgpu| vgpu.vram_min);
        let pool =
            Pool::new(options.vram_total, minima).map_err(|error| HostError::Options(error.to_string()))?;
        let mut vgpus = Vec::with_capacity(options.vgpus.len());
        let mut known = Vec::with_capacity(options.vgpus.len());
        let mut endpoints = Vec::with_capacity(options.vgpus.len());
        for (index, vgpu) in options.vgpus.iter().enumerate() {
            let orders = Arc::new(Orders::new()?);
            let notify = Arc::new(NotifySwitch::new(&options.engines.doorbell_modes)?);
            let standing = Arc::new(Standing::default());
            let log = LogLimit::new(&vgpu.name);
            let trackers = Arc::new(TrackerBoard::default());
            let meters = Arc::new(Meters::default());
            let [compute_timeout, copy_timeout] = options.timeouts;
            let nudged = Arc::clone(&orders);
            pool.watch(Box::new(move || nudged.nudge()));
            let held = holding.of_vgpu(index, &vgpu.name, options.engines.sandbox);
            let account = Arc::new(Account::new(vgpu.quota(), Arc::clone(&pool)));
            let budget = Arc::new(Budget::new(options.vm_budget));
            let config = Arc::new(Config {
                name: vgpu.name.clone(),
                vram_bytes: vgpu.vram_bytes,
                account: Arc::clone(&account),
                single_use: vgpu.single_use,
                engines: options.engines.count,
                doorbells: options.engines.doorbells,
                doorbell_modes: options.engines.doorbell_modes,
                notify: Arc::clone(&notify),
                spin: options.engines.spin,
                slice: options.engines.slice,
                d3_after: options.engines.d3_after,
                tracking,
                trackers: Arc::clone(&trackers),
                meters: Arc::clone(&meters),
                sandbox: options.engines.sandbox,
                window: options.window && vgpu.front == FrontOptions::Gpu,
                vulkan_device: options.engines.vulkan_device.clone(),
                launcher: Arc::new(options.engines.program.of(&vgpu.name, held.containment.clone())),
                compute: compute.clone(),
                supervisor: Arc::clone(&supervisor),
                orders: Arc::clone(&orders),
                policy: options.policy,
                scheduler: policy,
                bands: Settings { normal_share, ..Settings::default() },
                share: vgpu.share,
                timeouts: [
                    vgpu.timeouts[0].unwrap_or(compute_timeout),
                    vgpu.timeouts[1].unwrap_or(copy_timeout),
                ],
                standing: Arc::clone(&standing),
                reports: Arc::clone(&reports),
                spares: options.engines.spares,
                freeze_limit: options.freeze_limit,
                budget: Arc::clone(&budget),
                clerk: Arc::new(Clerk::default()),
                log: Arc::clone(&log),
            });
            let endpoint = Arc::new(make_endpoint(&options, vgpu, &config)?);
            let current = Arc::new(Current::new(config));
            let its_config = Arc::clone(&current);
            let counters = Arc::new(Counters::default());
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
            let failed =
                |error: SocketError| HostError::Vgpu { name: vgpu.name.clone(), source: error.into() };
            let listener = Listener::bind(&vgpu.socket).map_err(failed)?;
            let its_counters = Arc::clone(&shell_counters);
            let its_log = Arc::clone(&log);
            let serve = move || its_log.within(|| VgpuSocket::serve(listener, factory, its_counters));
            let socket = confiner.within(Role::Front, &reach(Role::Front), serve)?.map_err(failed)?;
            log::info!(
                "vGPU {}: {} MiB, serving {}",
                vgpu.name,
                vgpu.vram_bytes >> 20,
                vgpu.socket.display()
            );
            known.push(handler::Vgpu {
                name: vgpu.name.clone(),
                socket: vgpu.socket.clone(),
                detaches: vgpu.front == FrontOptions::Gpu,
                vram_bytes: vgpu.vram_bytes,
                account,
                budget,
                notify: Arc::clone(&notify),
                commands: Arc::clone(&orders),
                standing,
                counters: Arc::clone(&counters),
                current,
                engines: options.engines.count,
                meters,
                shell_counters: Arc::clone(&shell_counters),
                endpoint: Arc::clone(&endpoint),
                held,
                log,
            });
            endpoints.push(endpoint);
            let name = vgpu.name.clone();
            vgpus.push(Vgpu { name, counters, shell_counters, notify, orders, trackers, socket });
        }
        let arrivals = open_door(&options, &endpoints, &confiner, &reach(Role::Arrivals))?;
        let metrics = open_metrics(&options, &known, &confiner, &reach(Role::Metrics))?;
        let handler =
            Handler::new(known, arrivals.clone(), Arc::clone(&confiner)).reloading(options.reload.clone());
        let handler = Arc::new(handler);
        let web = open_web(&options, &handler, &confiner, &reach(Role::Metrics))?;
        let serve = |listener: Result<Listener, SocketError>, access| {
            let failed = |error: SocketError| HostError::Control(error.into());
            let (listener, handler) = (listener.map_err(failed)?, Arc::clone(&handler));
            let serve = move || ControlSocket::serve(listener, handler, access);
            let socket = confiner.within(Role::Operator, &reach(Role::Operator), serve)?.map_err(failed)?;
            log::info!("{} socket: {}", access.name(), socket.path().display());
            Ok::<_, HostError>(socket)
        };
        let status =
            options.status.as_deref().map(|path| serve(Listener::bind_for_group(path), Access::Status));
        let status = status.transpose()?;
        let control =
            options.control.as_deref().map(|path| serve(Listener::bind_private(path), Access::Control));
        let control = control.transpose()?;
        Ok(Self { control, status, metrics, web, vgpus, arrivals, compute, _holding: holding })
    }
}

/// Serves metrics, where the operator wants them.
fn open_metrics(
    options: &HostOptions,
    vgpus: &[handler::Vgpu],
    confiner: &Confiner,
    reach: &Reach,
) -> Result<Option<Server>, HostError> {
    let Some(address) = &options.metrics else { return Ok(None) };
    let door = Door::open(address).map_err(|error| HostError::Metrics(error.into()))?;
    let source = Source::new(vgpus.to_vec());
    let pages = Box::new(Scrapes::new(source));
    let server = confiner.within(Role::Metrics, reach, move || Server::start("metrics", door, pages))?;
    log::info!("metrics: {address}");
    Ok(Some(server?))
}

/// Serves the web page, where the operator wants it.
fn open_web(
    options: &HostOptions,
    handler: &Arc<Handler>,
    confiner: &Confiner,
    reach: &Reach,
) -> Result<Option<Server>, HostError> {
    let Some(address) = options.web else { return Ok(None) };
    let door = Door::open(&Address::Tcp(address)).map_err(|error| HostError::Web(error.into()))?;
    let pages = Box::new(Site::new(Arc::clone(handler), address));
    let server = confiner.within(Role::Metrics, reach, move || Server::start("web", door, pages))?;
    log::info!("web page: http://{address}");
    Ok(Some(server?))
}

/// How an engine is started that is only asked, as those of the first vGPU but for the cgroup.
fn probe_program(options: &HostOptions, holding: &Holding) -> Program {
    options.engines.program.of("probe", holding.of_vgpu(0, "", options.engines.sandbox).containment)
}

/// What this machine computes, and whether on a GPU; and how engines are held for that.
fn settle_accounts(options: &HostOptions) -> (io::Result<(Compute, bool)>, Holding) {
    let with = |accounts: &Accounts| Holding { accounts: accounts.clone(), ..options.holding.clone() };
    let start = |accounts: &Accounts| {
        let program = probe_program(options, &with(accounts));
        probe_compute(&program, options.engines.vulkan_device.clone(), options.engines.sandbox)
    };
    let reason = |probed: &io::Result<(Compute, bool)>| match probed {
        Ok((Compute::Available(_), _)) => None,
        Ok((Compute::Refused(reason), _)) => Some(reason.clone()),
        Err(error) => Some(error.to_string()),
    };
    let (probed, accounts) = settle(options.holding.accounts.clone(), start, reason);
    if accounts.of_vgpu(0).is_none() && geteuid().is_root() {
        log::warn!("engines run as root, confined: {}", accounts.why());
    } else {
        log::info!("engines run as {accounts}");
    }
    (probed, with(&accounts))
}

/// Where vGPUs go, in the words of confinement.
fn peering(peer: Option<&Peer>) -> Peering {
    peer.map_or(Peering::None, |peer| peer.port().map_or(Peering::Local, Peering::Port))
}

impl Vgpu {
    /// The path of its socket.
    pub fn socket(&self) -> &std::path::Path {
        self.socket.path()
    }
}
