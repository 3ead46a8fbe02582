//! Bringing a daemon up.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use campanile_host_gpu::adapter::program::Program;
use campanile_host_gpu::dirty::method::Method;
use campanile_host_gpu::engine::message::SLICE_MICROSECONDS;
use campanile_host_gpu::scheduling::choice::Choice;
use campanile_host_gpu::scheduling::parameters::Settings;
use campanile_protocol::PAGE_SIZE;
use campanile_protocol::capset::MAX_ENGINES;

use super::probe::probe_compute;
use super::tracking::TrackingChoice;
use crate::doorbell::modes::DoorbellModes;
use crate::doorbell::switch::NotifySwitch;
use crate::front::fs::state::FsDevice;
use crate::front::fs::state::FsOptions;
use crate::front::gpu::device::GpuDevice;
use crate::migration::bundle::stage::Shape;
use crate::migration::channel::address::Peer;
use crate::migration::channel::connect::Door;
use crate::migration::error::MigrationError;
use crate::migration::file::side::SideFiles;
use crate::migration::passage::Passage;
use crate::migration::settings::Settings as MigrationSettings;
use crate::migration::source::departure::Departure;
use crate::migration::target::arrivals::Arrivals;
use crate::migration::target::arriving::Arriving;
use crate::operator::desk;
use crate::operator::desk::Desk;
use crate::operator::socket::ControlSocket;
use crate::orders::Orders;
use crate::recovery::policy::Policy;
use crate::recovery::reports::Clerk;
use crate::recovery::reports::ReportFolder;
use crate::recovery::reports::Reports;
use crate::recovery::standing::Standing;
use crate::session::config::Compute;
use crate::session::config::Config;
use crate::session::counters::Counters;
use crate::session::dirty::TrackerBoard;
use crate::session::freeze::FREEZE_LIMIT;
use crate::session::save::snapshot::immutable_of;
use crate::session::saved::immutable::Immutable;
use crate::supervisor::share::Share;
use crate::supervisor::thread::Supervisor;
use crate::vhost::counters::Counters as ShellCounters;
use crate::vhost::device::Device;
use crate::vhost::socket::VgpuSocket;
use crate::vidmm::quota::Account;
use crate::vidmm::quota::Pool;
use crate::vidmm::quota::Quota;
use crate::vidmm::vram::VideoMemory;

/// What a guest sees of a vGPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FrontOptions {
    /// A virtio-gpu device.
    Gpu,
    /// A virtio-fs device with one file.
    Fs(FsOptions),
}

/// A vGPU as the operator asks for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VgpuOptions {
    /// Its name.
    pub name: String,
    /// Its socket.
    pub socket: PathBuf,
    /// Bytes of video memory.
    pub vram_bytes: u64,
    /// Bytes that its guests can always have.
    pub vram_min: u64,
    /// Bytes that they may have at the most, where that is not the video memory's: what exceeds it is evicted.
    pub vram_max: Option<u64>,
    /// Whether one guest process has it at a time.
    pub single_use: bool,
    /// TDR timeouts of its nodes, by ordinal, where they are its own.
    pub timeouts: [Option<Duration>; 2],
    /// What it gets of each node.
    pub share: Share,
    /// What its guest sees.
    pub front: FrontOptions,
    /// The snapshot that its first session begins as.
    pub restore: Option<PathBuf>,
}

impl VgpuOptions {
    /// A vGPU like any other.
    pub fn new(name: String, socket: PathBuf, vram_bytes: u64) -> Self {
        Self {
            name,
            socket,
            vram_bytes,
            vram_min: 0,
            vram_max: None,
            single_use: false,
            timeouts: [None; 2],
            share: Share::default(),
            front: FrontOptions::Gpu,
            restore: None,
        }
    }

    /// What its guests may have.
    pub fn quota(&self) -> Quota {
        Quota { min: self.vram_min, max: self.vram_max.unwrap_or(self.vram_bytes) }
    }
}

/// Who runs next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scheduling {
    /// The policy, between vGPUs and inside of each.
    pub policy: Choice,
    /// Percent that NORMAL gets while FOCUS has work (PRE-68).
    pub normal_share: u32,
}

impl Default for Scheduling {
    fn default() -> Self {
        Self { policy: Choice::default(), normal_share: Settings::DEFAULT_NORMAL_SHARE }
    }
}

/// A daemon as the operator asks for it.
#[derive(Debug, Clone)]
pub struct HostOptions {
    /// Its vGPUs.
    pub vgpus: Vec<VgpuOptions>,
    /// Bytes that all of them may have together, if there is a limit.
    pub vram_total: Option<u64>,
    /// Physical adapters of each vGPU, linked; each has every node.
    pub engines: u8,
    /// Physical doorbells of each engine of each vGPU.
    pub doorbells: u32,
    /// How each node's doorbells work.
    pub doorbell_modes: DoorbellModes,
    /// How long an engine spins without work.
    pub spin: Duration,
    /// How long a slice of a dispatch is to take, which is how long a kernel may hold up what is more urgent; zero where
    /// dispatches run in one piece.
    pub slice: Duration,
    /// How long all engines of a vGPU sleep before it goes to D3; never for none.
    pub d3_after: Option<Duration>,
    /// How long work of each node, by ordinal, may stand still, or keep a node that another vGPU wants.
    pub timeouts: [Duration; 2],
    /// What hangs lead to.
    pub policy: Policy,
    /// Who runs next.
    pub scheduling: Scheduling,
    /// Whether the next process of each engine is started ahead.
    pub spares: bool,
    /// How it is found out what engines write.
    pub tracking: TrackingChoice,
    /// How long the engines of a vGPU may take to stand still for a migration; then they are ended.
    pub freeze_limit: Duration,
    /// Where reports on hangs go, if anywhere.
    pub state_dir: Option<PathBuf>,
    /// Whether engines drop their privileges.
    pub sandbox: bool,
    /// Whether guests are offered a window onto video memory, where the VMM can show one.
    pub window: bool,
    /// Part of the name of the Vulkan device.
    pub vulkan_device: Option<String>,
    /// What engines are started from.
    pub program: Program,
    /// Where the operator's socket is, if there is one.
    pub control: Option<PathBuf>,
    /// How vGPUs go elsewhere.
    pub migration: MigrationSettings,
    /// Where others bring theirs.
    pub migrate_listen: Option<Peer>,
}

impl HostOptions {
    /// These vGPUs, and everything else as it is where the operator says nothing, but that no vGPU goes to D3.
    pub fn new(vgpus: Vec<VgpuOptions>, program: Program) -> Self {
        Self {
            vgpus,
            vram_total: None,
            engines: 1,
            doorbells: 64,
            doorbell_modes: DoorbellModes::default(),
            spin: Duration::from_millis(2),
            slice: Duration::from_micros(SLICE_MICROSECONDS),
            d3_after: None,
            timeouts: [Duration::from_secs(2); 2],
            policy: Policy::default(),
            scheduling: Scheduling::default(),
            spares: false,
            tracking: TrackingChoice::Auto,
            freeze_limit: FREEZE_LIMIT,
            state_dir: None,
            sandbox: true,
            window: true,
            vulkan_device: None,
            program,
            control: None,
            migration: MigrationSettings::default(),
            migrate_listen: None,
        }
    }
}

/// Smallest video memory: aperture and local memory of a few MiB.
pub const MIN_VRAM: u64 = 16 << 20;
/// Largest video memory of one vGPU: what page tables can map.
pub const MAX_VRAM: u64 = 32 << 30;

/// Shortest TDR timeout: scheduling on a busy host must not look like a hang.
pub const MIN_TIMEOUT: Duration = Duration::from_millis(10);
/// Longest of all times that the operator can set: moments that far off can be counted.
pub const MAX_TIME: Duration = Duration::from_secs(7 * 24 * 3600);

/// Why a daemon did not come up.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// Two vGPUs with one name or socket, or none at all.
    #[error("{0}")]
    Options(String),
    /// A vGPU could not be set up.
    #[error("vGPU {name}")]
    Vgpu {
        /// Which.
        name: String,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The operator's socket could not be set up.
    #[error("control socket")]
    Control(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The state directory cannot be used.
    #[error("state directory {}", path.display())]
    StateDirectory {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Nothing can come here from other daemons, or go there.
    #[error("migration")]
    Migration(#[from] MigrationError),
    /// The daemon itself could not be set up.
    #[error("starting the daemon")]
    System(#[from] io::Error),
}

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
    /// Where its memory's writes are known.
    pub trackers: Arc<TrackerBoard>,
    socket: VgpuSocket,
}

/// A daemon that serves. Dropping it ends every session.
#[derive(Debug)]
pub struct Host {
    /// Where the operator asks; the first to go, while there still is somebody to answer for.
    pub control: Option<ControlSocket>,
    /// Its vGPUs.
    pub vgpus: Vec<Vgpu>,
    /// Where other daemons bring theirs.
    pub arrivals: Option<Arc<Arrivals>>,
    /// Whether it computes.
    pub compute: Compute,
}

fn check(options: &HostOptions) -> Result<(), HostError> {
    let wrong = |text: String| Err(HostError::Options(text));
    if options.vgpus.is_empty() {
        return wrong("no vGPU: give --socket and --vram, or --vgpu name=…,socket=…,vram=…".to_owned());
    }
    for (index, vgpu) in options.vgpus.iter().enumerate() {
        let (name, bytes) = (&vgpu.name, vgpu.vram_bytes);
        if !(MIN_VRAM..=MAX_VRAM).contains(&bytes) || !bytes.is_multiple_of(2 * PAGE_SIZE) {
            return wrong(format!(
                "vGPU {name}: vram of {bytes} bytes; between 16M and 32G in whole pages is possible"
            ));
        }
        let Quota { min, max } = vgpu.quota();
        if !(bytes..=MAX_VRAM).contains(&max) || !max.is_multiple_of(PAGE_SIZE) || min > max {
            return wrong(format!(
                "vGPU {name}: vram-max of {max} bytes and vram-min of {min}; vram-max from vram to 32G in whole pages, and \
                 vram-min up to that, are possible"
            ));
        }
        if let FrontOptions::Fs(FsOptions { aperture, .. }) = &vgpu.front
            && !aperture.is_multiple_of(PAGE_SIZE)
        {
            return wrong(format!("vGPU {name}: aperture of {aperture} bytes; whole pages are possible"));
        }
        for other in &options.vgpus[..index] {
            if other.name == vgpu.name || other.socket == vgpu.socket {
                return wrong(format!("vGPUs {} and {name} share a name or a socket", other.name));
            }
        }
    }
    if options.doorbells == 0 || options.doorbells > campanile_protocol::engine::block::MAX_DOORBELLS {
        return wrong(format!("{} doorbells; 1 to 1024 are possible", options.doorbells));
    }
    if options.engines == 0 || usize::from(options.engines) > MAX_ENGINES {
        return wrong(format!("{} engines; 1 to {MAX_ENGINES} are possible", options.engines));
    }
    let timeouts = options.vgpus.iter().flat_map(|vgpu| vgpu.timeouts).flatten().chain(options.timeouts);
    for timeout in timeouts.chain([options.policy.compile_timeout]) {
        if timeout < MIN_TIMEOUT {
            return wrong(format!("a timeout of {} ms; 10 or more are possible", timeout.as_millis()));
        }
    }
    let times = options.vgpus.iter().flat_map(|vgpu| vgpu.timeouts).flatten().chain(options.timeouts);
    let others = [
        options.policy.compile_timeout,
        options.policy.limit_time,
        options.spin,
        options.slice,
        options.freeze_limit,
    ];
    for time in times.chain(others).chain(options.d3_after) {
        if time > MAX_TIME {
            return wrong(format!(
                "a time of {} s; a week, {} s, is possible",
                time.as_secs(),
                MAX_TIME.as_secs()
            ));
        }
    }
    if options.policy.limit_count == 0 || options.policy.limit_time.is_zero() {
        return wrong("a TDR limit of nothing; 1 or more in 1 s or more are possible".to_owned());
    }
    Ok(())
}

impl Host {
    /// Starts serving every vGPU.
    pub fn start(options: HostOptions) -> Result<Self, HostError> {
        check(&options)?;
        let Scheduling { policy, normal_share } = options.scheduling;
        let supervisor = Arc::new(Supervisor::start(policy, normal_share)?);
        let (compute, computes_on_gpu) =
            probe_compute(&options.program, options.vulkan_device.clone(), options.sandbox)?;
        match &compute {
            Compute::Available(device) => log::info!("compute node: {device}"),
            Compute::Refused(reason) => log::warn!("no compute node, only copies: {reason}"),
        }
        let tracking = options.tracking.decide(&options.program, options.sandbox, computes_on_gpu)?;
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
        let mut passages = Vec::with_capacity(options.vgpus.len());
        for vgpu in &options.vgpus {
            let orders = Arc::new(Orders::new()?);
            let notify = Arc::new(NotifySwitch::new(&options.doorbell_modes)?);
            let standing = Arc::new(Standing::default());
            let trackers = Arc::new(TrackerBoard::default());
            let [compute_timeout, copy_timeout] = options.timeouts;
            let nudged = Arc::clone(&orders);
            pool.watch(Box::new(move || nudged.nudge()));
            let account = Arc::new(Account::new(vgpu.quota(), Arc::clone(&pool)));
            let config = Arc::new(Config {
                name: vgpu.name.clone(),
                vram_bytes: vgpu.vram_bytes,
                account: Arc::clone(&account),
                single_use: vgpu.single_use,
                engines: options.engines,
                doorbells: options.doorbells,
                doorbell_modes: options.doorbell_modes,
                notify: Arc::clone(&notify),
                spin: options.spin,
                slice: options.slice,
                d3_after: options.d3_after,
                tracking,
                trackers: Arc::clone(&trackers),
                sandbox: options.sandbox,
                window: options.window && vgpu.front == FrontOptions::Gpu,
                vulkan_device: options.vulkan_device.clone(),
                program: options.program.clone(),
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
                spares: options.spares,
                freeze_limit: options.freeze_limit,
                clerk: Arc::new(Clerk::default()),
            });
            let passage = Arc::new(make_passage(&options, vgpu, &config)?);
            let counters = Arc::new(Counters::default());
            let shell_counters = Arc::new(ShellCounters::default());
            let session_counters = Arc::clone(&counters);
            let its_passage = Arc::clone(&passage);
            let front = vgpu.front.clone();
            let factory = move || {
                let (config, counters) = (Arc::clone(&config), Arc::clone(&session_counters));
                let passage = Arc::clone(&its_passage);
                Ok(match &front {
                    FrontOptions::Gpu => {
                        Box::new(GpuDevice::moving((), config, counters, passage)?) as Box<dyn Device>
                    }
                    FrontOptions::Fs(options) => {
                        Box::new(FsDevice::moving(options.clone(), config, counters, passage)?)
                    }
                })
            };
            let socket = VgpuSocket::spawn(&vgpu.socket, factory, Arc::clone(&shell_counters))
                .map_err(|error| HostError::Vgpu { name: vgpu.name.clone(), source: error.into() })?;
            log::info!(
                "vGPU {}: {} MiB, serving {}",
                vgpu.name,
                vgpu.vram_bytes >> 20,
                vgpu.socket.display()
            );
            known.push(desk::Vgpu {
                name: vgpu.name.clone(),
                socket: vgpu.socket.clone(),
                vram_bytes: vgpu.vram_bytes,
                account,
                notify: Arc::clone(&notify),
                orders,
                standing,
                counters: Arc::clone(&counters),
                shell_counters: Arc::clone(&shell_counters),
                passage: Arc::clone(&passage),
            });
            passages.push(passage);
            let name = vgpu.name.clone();
            vgpus.push(Vgpu { name, counters, shell_counters, notify, trackers, socket });
        }
        let arrivals = open_door(&options, &passages)?;
        let desk = Desk::new(known, arrivals.clone());
        let control = options.control.as_deref().map(|path| ControlSocket::spawn(path, desk));
        let control = control.transpose().map_err(|error| HostError::Control(error.into()))?;
        if let Some(control) = &control {
            log::info!("control socket: {}", control.path().display());
        }
        Ok(Self { control, vgpus, arrivals, compute })
    }
}

/// LM-02, DIRTY-10: who migrates live must know what is written. Side files need no tracking (DIRTY-60).
fn check_live_migration(options: &HostOptions, tracking: Method) -> Result<(), HostError> {
    let live = options.migration.peer.is_some() || options.migrate_listen.is_some();
    if live && tracking == Method::Off {
        let text = "--migrate-to and --migrate-listen need dirty tracking, and --dirty-tracking says off";
        return Err(HostError::Options(text.to_owned()));
    }
    Ok(())
}

/// One vGPU's ways in and out.
fn make_passage(
    options: &HostOptions,
    vgpu: &VgpuOptions,
    config: &Arc<Config>,
) -> Result<Passage, MigrationError> {
    let quota = vgpu.quota().max;
    let evicted = VideoMemory::store_bytes(vgpu.vram_bytes, quota);
    // What was evicted once may still lie where it lay, at the head of it.
    let most = quota.saturating_add(256 << 20).min(evicted);
    let here = immutable_of(config);
    let arriving = Arriving {
        name: vgpu.name.clone(),
        shape: Shape { lengths: [vgpu.vram_bytes, evicted], limits: [vgpu.vram_bytes, most] },
        check: Box::new(move |bytes| {
            let saved: Immutable = ciborium::from_reader(bytes)
                .map_err(|error| format!("its immutable data cannot be read: {error}"))?;
            here.check(&saved).map_err(|mismatch| mismatch.to_string())
        }),
    };
    let settings = &options.migration;
    let folder = settings.side_files.as_deref();
    let side_files = folder.map(|folder| SideFiles::open(folder, settings.keep_side_files)).transpose()?;
    let departure = Arc::new(Departure::new(vgpu.name.clone(), settings.clone())?);
    let listens = options.migrate_listen.is_some();
    Ok(Passage::new(departure, Arc::new(arriving), side_files, vgpu.restore.clone(), listens))
}

/// Lets others bring their vGPUs, where the operator says so.
fn open_door(options: &HostOptions, passages: &[Arc<Passage>]) -> Result<Option<Arc<Arrivals>>, HostError> {
    let Some(at) = &options.migrate_listen else { return Ok(None) };
    let door = Door::open(at, options.migration.identity.as_ref())?;
    let vgpus = passages.iter().map(|passage| Arc::clone(&passage.arriving)).collect();
    let arrivals = Arc::new(Arrivals::serve(door, vgpus, options.migration.patience)?);
    if let Some(address) = arrivals.address() {
        log::info!("migrations to here: {address}");
    }
    for passage in passages {
        passage.open(Arc::clone(&arrivals));
    }
    Ok(Some(arrivals))
}

impl Vgpu {
    /// The path of its socket.
    pub fn socket(&self) -> &std::path::Path {
        self.socket.path()
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::time::Duration;

    use campanile_host_gpu::adapter::program::Program;
    use campanile_host_gpu::dirty::method::Method;

    use super::HostOptions;
    use super::VgpuOptions;
    use super::check;

    #[test]
    fn lm_02_live_migration_without_tracking_is_no_configuration() {
        let program = Program { path: PathBuf::new(), environment: Vec::new() };
        let options = super::HostOptions::new(Vec::new(), program);
        assert!(super::check_live_migration(&options, Method::Off).is_ok());
        let to = |peer: Option<super::Peer>, listen: Option<super::Peer>| {
            let migration = super::MigrationSettings { peer, ..super::MigrationSettings::default() };
            super::HostOptions { migration, migrate_listen: listen, ..options.clone() }
        };
        let peer: Option<super::Peer> = "unix:/run/a".parse().ok();
        for live in [to(peer.clone(), None), to(None, peer.clone())] {
            assert!(super::check_live_migration(&live, Method::Off).is_err());
            assert!(super::check_live_migration(&live, Method::WriteProtect).is_ok());
        }
    }

    #[test]
    fn a_time_that_cannot_be_counted_is_refused() {
        let socket = PathBuf::from("a.sock");
        let vgpu = VgpuOptions::new("a".to_owned(), socket, 64 << 20);
        let program = Program { path: PathBuf::from("campanile"), environment: Vec::new() };
        let good = HostOptions::new(vec![vgpu], program);
        check(&good).unwrap();
        for wrong in [
            HostOptions { timeouts: [Duration::MAX; 2], ..good.clone() },
            HostOptions { d3_after: Some(Duration::MAX), ..good.clone() },
            HostOptions { spin: Duration::MAX, ..good.clone() },
            HostOptions { slice: Duration::MAX, ..good.clone() },
        ] {
            assert!(check(&wrong).unwrap_err().to_string().contains("a week"));
        }
    }
}
