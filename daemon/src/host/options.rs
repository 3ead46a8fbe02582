//! What the operator asks for.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use campanile_host_gpu::adapter::program::Program;
use campanile_host_gpu::sched::choice::Choice;
use campanile_host_gpu::sched::parameters::Band;
use campanile_host_gpu::sched::parameters::Settings;
use campanile_protocol::named_profile::GpuProfile;

use super::engines::EngineOptions;
use super::holding::Holding;
use super::tracking::TrackingChoice;
use crate::confine::Confinement;
use crate::frontend::fs::state::FsOptions;
use crate::migration::channel::address::Peer;
use crate::migration::channel::peer_name::PeerName;
use crate::migration::settings::Settings as MigrationSettings;
use crate::operator::http::address::Address;
use crate::operator::socket::Answered;
use crate::sched::awake::CpuLatency;
use crate::sched::share::Share;
use crate::vgpu::memory::vidmm::quota::Quota;
use crate::vgpu::memory::vidmm::vram::VideoMemory;
use crate::vgpu::objects::budget::BUDGET_BYTES;
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
    /// What of the device its guests see, and may use, where that is not what the daemon's option says.
    pub profile: Option<GpuProfile>,
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
    /// Where others bring it, where its process is of it alone.
    pub migrate_listen: Option<Peer>,
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
            profile: None,
            timeouts: [None; 2],
            share: Share::default(),
            front: FrontOptions::Gpu,
            restore: None,
            migrate_from: Vec::new(),
            migrate_listen: None,
        }
    }

    /// Bytes of its video memory that no guest's CPU sees.
    pub fn local_bytes(&self) -> u64 {
        self.vram_bytes - VideoMemory::aperture_of(self.vram_bytes)
    }

    /// What its guests may have.
    pub fn quota(&self) -> Quota {
        Quota { min: self.vram_min, max: self.vram_max.unwrap_or(self.vram_bytes) }
    }
}

/// What runs next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scheduling {
    /// The socket of the broker that gives turns to all daemons of this host, if one does.
    pub broker: Option<PathBuf>,
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
            broker: None,
            policy: Choice::default(),
            normal_share: Settings::DEFAULT_NORMAL_SHARE,
            cpu_latency: CpuLatency::Off,
        }
    }
}

/// Where other daemons bring vGPUs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Listening {
    /// Nowhere.
    #[default]
    Nowhere,
    /// All of them here.
    All(Peer),
    /// Each where it says itself: processes are of one vGPU each.
    Each,
}

impl Listening {
    /// Where others bring this vGPU.
    pub fn of<'a>(&'a self, vgpu: &'a VgpuOptions) -> Option<&'a Peer> {
        match self {
            Self::Nowhere => None,
            Self::All(at) => Some(at),
            Self::Each => vgpu.migrate_listen.as_ref(),
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
    /// The processes whose connections that socket answers.
    pub control_users: Answered,
    /// Where the socket for looking only is, if there is one.
    pub status: Option<PathBuf>,
    /// Where metrics are served, if they are.
    pub metrics: Option<Address>,
    /// Where browsers see the vGPUs, if they do.
    pub web: Option<SocketAddr>,
    /// How vGPUs go elsewhere.
    pub migration: MigrationSettings,
    /// Where others bring theirs.
    pub listening: Listening,
    /// Whether the daemon's own threads are confined.
    pub confinement: Confinement,
    /// What holds engines from outside.
    pub holding: Holding,
}

impl HostOptions {
    /// The GPU profile of one of its vGPUs.
    pub fn profile_of(&self, vgpu: &VgpuOptions) -> GpuProfile {
        vgpu.profile.unwrap_or(self.engines.profile)
    }

    /// Where this process listens for vGPUs that others bring.
    pub fn listens(&self) -> Option<&Peer> {
        match &self.listening {
            Listening::All(at) => Some(at),
            listening => self.vgpus.iter().find_map(|vgpu| listening.of(vgpu)),
        }
    }

    /// Whether a vGPU may have realtime work.
    pub fn has_realtime(&self) -> bool {
        self.vgpus.iter().any(|vgpu| vgpu.share.highest_band == Band::Realtime)
    }

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
            control_users: Answered::default(),
            status: None,
            metrics: None,
            web: None,
            migration: MigrationSettings::default(),
            listening: Listening::Nowhere,
            confinement: Confinement::Off,
            holding: Holding::default(),
        }
    }
}
