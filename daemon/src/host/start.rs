//! Bringing a daemon up.

use std::io;
use std::sync::Arc;
use std::sync::OnceLock;

use campanile_host_gpu::adapter::program::Program;
use campanile_host_gpu::outside;
use rustix::process::geteuid;

use super::accounts::Accounts;
use super::accounts::settle;
use super::ahead::Opening;
use super::builder::Builder;
use super::check::check;
use super::check::check_live_migration;
use super::doors::Doors;
use super::endpoints::open_door;
use super::error::HostError;
use super::findings::Findings;
use super::ground::Ground;
use super::heartbeat::Heartbeat;
use super::holding::Holding;
use super::linked::Machine;
use super::local_choice::LocalPlace;
use super::local_memory::decide;
use super::options::HostOptions;
use super::premises::Premises;
use super::recovery;
use super::schedule::start_heartbeat;
use super::schedule::start_schedule;
use super::source::Source as Configuration;
use super::upgrade::successor::Succession;
use super::vgpu::Vgpu;
use crate::confine::Confinement;
use crate::confine::confiner::Confiner;
use crate::confine::roles::Peering;
use crate::confine::roles::Reach;
use crate::confine::roles::Role;
use crate::confine::roles::Setting;
use crate::confine::starter::Starter;
use crate::fd_store;
use crate::intake::Intake;
use crate::ledger::read::CONNECTION;
use crate::migration::channel::address::Peer;
use crate::migration::target::arrivals::Arrivals;
use crate::open_sockets;
use crate::operator::console::Console;
use crate::operator::estate::Estate;
use crate::operator::handler::Handler;
use crate::operator::http::server::Server;
use crate::operator::metrics::gather::Source;
use crate::operator::metrics::scrapes::Scrapes;
use crate::operator::socket::ControlSocket;
use crate::sched::awake::Awake;
use crate::sched::awake::CpuLatency;
use crate::vgpu::config::Compute;
use crate::vgpu::memory::vidmm::quota::Pool;
use crate::vgpu::tdr::reports::ReportFolder;
use crate::vgpu::tdr::reports::Reports;

/// A daemon that serves. Dropping it ends every session.
#[derive(Debug)]
pub struct Host {
    /// Where the operator asks; the first to go, while there still is a vGPU to answer for.
    pub control: Option<ControlSocket>,
    /// The read-only operator socket.
    pub status: Option<ControlSocket>,
    /// The vGPUs with which it began.
    pub vgpus: Vec<Vgpu>,
    _premises: Open,
    _heartbeat: Option<Heartbeat>,
    /// Where scrapers read.
    pub metrics: Option<Server>,
    /// Where browsers look.
    pub web: Option<Server>,
    /// Where other daemons bring theirs.
    pub arrivals: Option<Arc<Arrivals>>,
    /// Whether it computes.
    pub compute: Compute,
}

/// What keeps CPUs awake for vGPUs with realtime work, if there are any.
///
/// # Errors
/// The operator has named a limit, and the kernel's file cannot be had.
pub fn open_awake(options: &HostOptions) -> Result<Awake, HostError> {
    // A broker keeps them awake for all.
    let has_realtime = options.has_realtime() && options.scheduling.broker.is_none();
    let cpu_latency = options.scheduling.cpu_latency;
    if options.scheduling.broker.is_none() && !has_realtime && matches!(cpu_latency, CpuLatency::Micros(_)) {
        log::warn!("--cpu-latency: no vGPU has bands=realtime, so nothing is asked of the CPUs");
    }
    Ok(if has_realtime { Awake::open(cpu_latency)? } else { Awake::off() })
}

impl Host {
    /// Starts serving every vGPU.
    pub fn start(options: HostOptions) -> Result<Self, HostError> {
        let awake = open_awake(&options)?;
        Self::start_with(options, awake, None, None)
    }

    /// As [`Self::start`], with the file that keeps CPUs awake, which a process that gives up root's rights opens before, and with
    /// what reads the operator's changes, where some may be made. Where there is a daemon before this one, it goes on with all that
    /// that one has.
    pub fn start_with(
        options: HostOptions,
        awake: Awake,
        changes: Option<Arc<dyn Configuration>>,
        succession: Option<Arc<Succession>>,
    ) -> Result<Self, HostError> {
        check(&options)?;
        // Before anything is confined, which its threads would inherit.
        let builder = Builder::start(options.confinement)?;
        let keeps_awake = options.has_realtime();
        let confiner = Arc::new(Confiner::new(options.confinement));
        if options.confinement == Confinement::On {
            outside::start()?;
        }
        let setting = Setting {
            state_dir: options.state_dir.as_ref(),
            peering: peering(options.migration.peer.as_ref()),
        };
        let reach = |role| Reach::of(role, setting);
        let findings = Findings::open(options.engines.findings.as_deref());
        let (probed, holding) = settle_accounts(&options, &findings);
        let probe = probe_program(&options, &holding);
        let devices = &options.engines.vulkan_devices;
        let (machine, computes_on_gpu) =
            Machine::find(probed?, devices, (&probe, &findings), options.engines.sandbox)?;
        let follows = fd_store::has(CONNECTION);
        let reach_of_turns = reach(Role::Turns);
        let schedule = start_schedule((&options, follows), &machine, &confiner, &reach_of_turns, awake)?;
        let heartbeat = start_heartbeat(&confiner, &schedule)?;
        machine.devices().for_each(|device| log::info!("compute node: {}", device.name));
        if let Compute::Refused(reason) = machine.first() {
            log::warn!("no compute node, only copies: {reason}");
        }
        let local = decide(options.engines.local, machine.first(), &options).map_err(HostError::Options)?;
        if local == LocalPlace::Device {
            log::info!("local memory is the device's own");
        }
        let is_by_device = computes_on_gpu || local == LocalPlace::Device;
        let tracking = options.tracking.decide((&probe, &findings), options.engines.sandbox, is_by_device)?;
        log::info!("writes to video memory: tracking is {tracking}");
        check_live_migration(&options, tracking)?;
        let folder = options.state_dir.as_deref().map(|path| {
            ReportFolder::open(path).map_err(|source| HostError::StateDirectory { path: path.into(), source })
        });
        let reports = Arc::new(Reports::new(folder.transpose()?));
        let minima = options.vgpus.iter().map(|vgpu| vgpu.vram_min);
        let pool =
            Pool::new(options.vram_total, minima).map_err(|error| HostError::Options(error.to_string()))?;
        let mut kept = options.clone();
        kept.holding = holding;
        let inheritance = match &succession {
            Some(succession) => {
                let opening = Opening { options: &kept, source: changes.as_deref(), tracking, local };
                succession.receive(|engines, inheritance| opening.open(engines, inheritance))?;
                Arc::clone(succession.inheritance())
            }
            None => Arc::default(),
        };
        let changes_before = match &succession {
            Some(succession) => succession.changed(),
            None => recovery::changes(),
        };
        let intake = Arc::new(Intake::default());
        intake.set_closed(changes_before.is_drained);
        let starter = options.listens();
        let starter = starter.map(|_| confiner.within(Role::Front, &Reach::default(), Starter::begin));
        let ground = Ground {
            starter: starter.transpose()?.transpose()?,
            reach: reach(Role::Front),
            confiner: Arc::clone(&confiner),
            schedule,
            machine: machine.clone(),
            tracking,
            local,
            reports,
            pool,
            keeps_awake,
            arrivals: OnceLock::new(),
            intake: Arc::clone(&intake),
            inheritance: Arc::clone(&inheritance),
        };
        let premises = Premises::begin(ground, kept, builder, changes)?;
        match &succession {
            Some(succession) => {
                let failed = |why| Err(HostError::Upgrade(why));
                premises.succeed(changes_before, failed, || succession.complete())?;
            }
            None => {
                let failed = |why| {
                    log::error!("{why}");
                    Ok(())
                };
                let complete = || {
                    recovery::go_on(&inheritance);
                    Ok(())
                };
                premises.succeed(changes_before, failed, complete)?;
            }
        }
        let arriving = premises.arriving();
        let arrivals = open_door(&options, arriving, &intake, &confiner, &reach(Role::Arrivals))?;
        if let Some(arrivals) = &arrivals {
            premises.open(arrivals);
        }
        let handler = Handler::new(Arc::clone(premises.roster()), arrivals.clone(), Arc::clone(&confiner));
        let estate: Arc<dyn Estate> = Arc::clone(&premises) as _;
        let console: Arc<dyn Console> = Arc::new(handler.changing(estate));
        let scrapes = Scrapes::new(Source::new(Arc::clone(premises.roster())));
        let Doors { control, status, metrics, web } =
            Doors::open(&options, &console, scrapes, &confiner, reach)?;
        open_sockets::close_others();
        let vgpus = premises.handles();
        let (_premises, _heartbeat) = (Open(premises), heartbeat);
        let compute = machine.first().clone();
        Ok(Self { control, status, vgpus, _premises, _heartbeat, metrics, web, arrivals, compute })
    }
}

/// Ends all sessions when it is dropped, although other threads may still ask about them.
#[derive(Debug)]
struct Open(Arc<Premises>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// How an engine is started that is only asked, as those of the first vGPU but for the cgroup.
fn probe_program(options: &HostOptions, holding: &Holding) -> Program {
    options.engines.program.of("probe", holding.of_vgpu(0, "", options.engines.sandbox).containment)
}

/// What this machine computes, and whether on a GPU; and how engines are held for that.
fn settle_accounts(options: &HostOptions, findings: &Findings) -> (io::Result<(Compute, bool)>, Holding) {
    let with = |accounts: &Accounts| Holding { accounts: accounts.clone(), ..options.holding.clone() };
    let start = |accounts: &Accounts| {
        let program = probe_program(options, &with(accounts));
        findings.compute(
            &program,
            options.engines.vulkan_devices.of(0).map(str::to_owned),
            options.engines.sandbox,
        )
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
