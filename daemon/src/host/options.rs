//! What the operator asks for.

use std::path::PathBuf;
use std::time::Duration;

use campanile_host_gpu::adapter::program::Program;
use campanile_host_gpu::dirty::method::Method;
use campanile_host_gpu::sched::choice::Choice;
use campanile_host_gpu::sched::parameters::Settings;
use campanile_protocol::PAGE_SIZE;
use campanile_protocol::capset::MAX_ENGINES;

use super::engines::EngineOptions;
use super::error::HostError;
use super::holding::Holding;
use super::tracking::TrackingChoice;
use crate::confine::Confinement;
use crate::frontend::fs::state::FsOptions;
use crate::migration::channel::address::Peer;
use crate::migration::channel::peer_name::PeerName;
use crate::migration::settings::Settings as MigrationSettings;
use crate::sched::awake::CpuLatency;
use crate::sched::share::Share;
use crate::vgpu::memory::vidmm::quota::Quota;
use crate::vgpu::objects::budget::BUDGET_BYTES;
use crate::vgpu::objects::budget::MAX_BUDGET_BYTES;
use crate::vgpu::objects::budget::MIN_BUDGET_BYTES;
use crate::vgpu::power::quiesce::FREEZE_LIMIT;
use crate::vgpu::tdr::policy::Policy;

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
    /// Peers that may bring it; where there are none, all that can connect.
    pub migrate_from: Vec<PeerName>,
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
            migrate_from: Vec::new(),
        }
    }

    /// What its guests may have.
    pub fn quota(&self) -> Quota {
        Quota { min: self.vram_min, max: self.vram_max.unwrap_or(self.vram_bytes) }
    }
}

/// What runs next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scheduling {
    /// The policy, between vGPUs and inside of each.
    pub policy: Choice,
    /// Percent that NORMAL gets while FOCUS has work (PRE-68).
    pub normal_share: u32,
    /// How long CPUs may take to wake up while realtime work comes.
    pub cpu_latency: CpuLatency,
}

impl Default for Scheduling {
    /// Nothing is asked of the machine's CPUs: a caller that starts a host by itself says so, as `campanile serve`
    /// does.
    fn default() -> Self {
        Self {
            policy: Choice::default(),
            normal_share: Settings::DEFAULT_NORMAL_SHARE,
            cpu_latency: CpuLatency::Off,
        }
    }
}

/// A daemon as the operator asks for it.
#[derive(Debug, Clone)]
pub struct HostOptions {
    /// Its vGPUs.
    pub vgpus: Vec<VgpuOptions>,
    /// Bytes that all of them may have together, if there is a limit.
    pub vram_total: Option<u64>,
    /// Bytes that the daemon itself may hold for each VM.
    pub vm_budget: u64,
    /// The engines of each vGPU.
    pub engines: EngineOptions,
    /// How long work of each node, by ordinal, may stand still, or keep a node that another vGPU wants.
    pub timeouts: [Duration; 2],
    /// What hangs lead to.
    pub policy: Policy,
    /// What runs next.
    pub scheduling: Scheduling,
    /// How it is found out what engines write.
    pub tracking: TrackingChoice,
    /// How long the engines of a vGPU may take to stand still for a migration; then they are ended.
    pub freeze_limit: Duration,
    /// Where reports on hangs go, if anywhere.
    pub state_dir: Option<PathBuf>,
    /// Whether guests are offered a window onto video memory, where the VMM can show one.
    pub window: bool,
    /// Where the operator's socket is, if there is one.
    pub control: Option<PathBuf>,
    /// How vGPUs go elsewhere.
    pub migration: MigrationSettings,
    /// Where others bring theirs.
    pub migrate_listen: Option<Peer>,
    /// Whether the daemon's own threads are confined.
    pub confinement: Confinement,
    /// What holds engines from outside.
    pub holding: Holding,
}

impl HostOptions {
    /// These vGPUs, and everything else as it is where the operator says nothing, but that no vGPU goes to D3.
    pub fn new(vgpus: Vec<VgpuOptions>, program: Program) -> Self {
        Self {
            vgpus,
            vram_total: None,
            vm_budget: BUDGET_BYTES,
            engines: EngineOptions::new(program),
            timeouts: [Duration::from_secs(2); 2],
            policy: Policy::default(),
            scheduling: Scheduling::default(),
            tracking: TrackingChoice::Auto,
            freeze_limit: FREEZE_LIMIT,
            state_dir: None,
            window: true,
            control: None,
            migration: MigrationSettings::default(),
            migrate_listen: None,
            confinement: Confinement::Off,
            holding: Holding::default(),
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

/// Whether a daemon can be like that.
///
/// # Errors
/// What is wrong, in the operator's words.
pub fn check(options: &HostOptions) -> Result<(), HostError> {
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
        let provable = |peer: &PeerName| {
            matches!(
                (&options.migrate_listen, peer),
                (Some(Peer::Unix(_)), PeerName::User(_)) | (Some(Peer::Tls(_)), PeerName::Host(_))
            )
        };
        if let Some(peer) = vgpu.migrate_from.iter().find(|peer| !provable(peer)) {
            return wrong(format!(
                "vGPU {name}: migrate-from={peer}: only --migrate-listen tls:… proves names, and unix:… users"
            ));
        }
        for other in &options.vgpus[..index] {
            if other.name == vgpu.name || other.socket == vgpu.socket {
                return wrong(format!("vGPUs {} and {name} share a name or a socket", other.name));
            }
        }
    }
    if options.engines.doorbells == 0
        || options.engines.doorbells > campanile_protocol::engine::block::MAX_DOORBELLS
    {
        return wrong(format!("{} doorbells; 1 to 1024 are possible", options.engines.doorbells));
    }
    if !(MIN_BUDGET_BYTES..=MAX_BUDGET_BYTES).contains(&options.vm_budget) {
        return wrong(format!(
            "a budget of {} bytes for each VM; 16M to 64G are possible",
            options.vm_budget
        ));
    }
    if let Some(why) = options.holding.objection() {
        return wrong(why);
    }
    if options.engines.count == 0 || usize::from(options.engines.count) > MAX_ENGINES {
        return wrong(format!("{} engines; 1 to {MAX_ENGINES} are possible", options.engines.count));
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
        options.engines.spin,
        options.engines.slice,
        options.freeze_limit,
    ];
    for time in times.chain(others).chain(options.engines.d3_after) {
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

/// LM-02, DIRTY-10: live migration must know what is written. Side files need no tracking (DIRTY-60).
pub(super) fn check_live_migration(options: &HostOptions, tracking: Method) -> Result<(), HostError> {
    let live = options.migration.peer.is_some() || options.migrate_listen.is_some();
    if live && tracking == Method::Off {
        let text = "--migrate-to and --migrate-listen need dirty tracking, and --dirty-tracking says off";
        return Err(HostError::Options(text.to_owned()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::time::Duration;

    use campanile_host_gpu::adapter::program::Program;
    use campanile_host_gpu::dirty::method::Method;

    use super::EngineOptions;
    use super::HostOptions;
    use super::VgpuOptions;
    use super::check;

    #[test]
    fn lm_02_live_migration_without_tracking_is_no_configuration() {
        let program = Program::new(PathBuf::new(), Vec::new());
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
    fn peers_by_name_need_a_door_that_proves_names() {
        let vgpu = VgpuOptions::new("a".to_owned(), PathBuf::from("a.sock"), 64 << 20);
        let program = Program::new(PathBuf::new(), Vec::new());
        let outcome = |name: &str, listen: Option<&str>| {
            let vgpu = VgpuOptions { migrate_from: vec![name.parse().unwrap()], ..vgpu.clone() };
            let options = HostOptions::new(vec![vgpu], program.clone());
            check(&HostOptions { migrate_listen: listen.map(|at| at.parse().unwrap()), ..options })
        };
        assert!(outcome("host-b.example", Some("tls:0.0.0.0:1")).is_ok());
        assert!(outcome("uid:7", Some("unix:/run/door")).is_ok());
        for (name, listen) in [
            ("host-b.example", Some("tcp:0.0.0.0:1")),
            ("host-b.example", Some("unix:/run/door")),
            ("uid:7", Some("tls:0.0.0.0:1")),
            ("uid:7", None),
        ] {
            let refused = outcome(name, listen).unwrap_err().to_string();
            assert!(refused.contains(&format!("migrate-from={name}")), "{refused}");
        }
    }

    #[test]
    fn a_time_that_cannot_be_counted_is_refused() {
        let socket = PathBuf::from("a.sock");
        let vgpu = VgpuOptions::new("a".to_owned(), socket, 64 << 20);
        let program = Program::new(PathBuf::from("campanile"), Vec::new());
        let good = HostOptions::new(vec![vgpu], program);
        check(&good).unwrap();
        let engines = |engines| HostOptions { engines, ..good.clone() };
        for wrong in [
            HostOptions { timeouts: [Duration::MAX; 2], ..good.clone() },
            engines(EngineOptions { d3_after: Some(Duration::MAX), ..good.engines.clone() }),
            engines(EngineOptions { spin: Duration::MAX, ..good.engines.clone() }),
            engines(EngineOptions { slice: Duration::MAX, ..good.engines.clone() }),
        ] {
            assert!(check(&wrong).unwrap_err().to_string().contains("a week"));
        }
    }

    #[test]
    fn a_budget_with_which_a_guest_could_do_nothing_is_refused() {
        let vgpu = VgpuOptions::new("a".to_owned(), PathBuf::from("a.sock"), 64 << 20);
        let program = Program::new(PathBuf::from("campanile"), Vec::new());
        let good = HostOptions::new(vec![vgpu], program);
        for vm_budget in [16 << 20, 64 << 30] {
            check(&HostOptions { vm_budget, ..good.clone() }).unwrap();
        }
        for vm_budget in [0, (16 << 20) - 1, (64 << 30) + 1, u64::MAX] {
            let wrong = check(&HostOptions { vm_budget, ..good.clone() });
            assert!(wrong.unwrap_err().to_string().contains("16M to 64G"), "{vm_budget}");
        }
    }
}
