//! What the operator decided for a vGPU.

use campanile_protocol::named_profile::GpuProfile;
use campanile_protocol::named_profile::lacks;
use campanile_protocol::profile::Profile;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::Duration;

use campanile_host_gpu::adapter::copy_process::CopyOptions;
use campanile_host_gpu::adapter::launcher::Launcher;
use campanile_host_gpu::dirty::method::Method;
use campanile_host_gpu::engine::address::EngineAddress;
use campanile_host_gpu::engine::address::node_index;
use campanile_host_gpu::engine::message::Local;
use campanile_host_gpu::engine::message::NodeKind;
use campanile_host_gpu::engine::message::Start;
use campanile_host_gpu::log_limit::LogLimit;
use campanile_host_gpu::sched::choice::Choice;
use campanile_host_gpu::sched::parameters::Settings;

use super::control::orders::Orders;
use super::control::tuning::Tuning;
use super::doorbells::modes::DoorbellModes;
use super::doorbells::switch::NotifySwitch;
use super::memory::dirty::TrackerBoard;
use super::memory::vidmm::device_local::DeviceLocal;
use super::memory::vidmm::device_memory::described;
use super::memory::vidmm::local_port::LocalPort;
use super::memory::vidmm::quota::Account;
use super::memory::vidmm::vram::VideoMemory;
use super::objects::budget::Budget;
use super::tdr::policy::Level;
use super::tdr::policy::Policy;
use super::tdr::reports::Clerk;
use super::tdr::reports::Reports;
use super::tdr::standing::Standing;
use super::vulkan_devices::VulkanDevices;
use crate::ledger::keeping::Ledger;
use crate::sched::meter::Meters;
use crate::sched::schedule::Schedule;
use crate::sched::share::Share;

/// Whether the machine can compute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Compute {
    /// On this device.
    Available(ComputeDevice),
    /// Not, and why, with the remedy.
    Refused(String),
}

/// What runs kernels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ComputeDevice {
    /// The device and its driver, in words: where a state may move to depends on it.
    pub name: String,
    /// What guests are told of it; none where nothing was asked, as in tests.
    pub profile: Option<Box<Profile>>,
}

impl Compute {
    /// The same for a vGPU with this profile.
    ///
    /// # Errors
    /// The profile is a named one, and the machine does not compute, or its device has less; in words.
    pub fn under(&self, profile: GpuProfile) -> Result<Self, String> {
        let Some(fixed) = profile.fixed() else { return Ok(self.clone()) };
        match self {
            Self::Refused(reason) => Err(format!("there is no device for it: {reason}")),
            Self::Available(device) => {
                let of_host = device.profile.as_deref();
                let lacks = of_host.map(|of_host| lacks(&fixed, of_host).map(|lack| lack.to_string()));
                let lacks: Vec<String> = lacks.into_iter().flatten().collect();
                if !lacks.is_empty() {
                    return Err(format!("{} cannot serve it: {}", device.name, lacks.join("; ")));
                }
                let (name, profile) = (device.name.clone(), Some(Box::new(fixed)));
                Ok(Self::Available(ComputeDevice { name, profile }))
            }
        }
    }

    /// On a device of which no more is known.
    pub fn on(name: &str) -> Self {
        Self::Available(ComputeDevice { name: name.to_owned(), profile: None })
    }
}

/// A vGPU as configured.
#[derive(Debug, Clone)]
pub struct Config {
    /// Its name in log and metrics.
    pub name: String,
    /// Bytes of video memory.
    pub vram_bytes: u64,
    /// What its guests may allocate, and have.
    pub account: Arc<Account>,
    /// Its local memory, where that is a device's own.
    pub local: Option<Arc<DeviceLocal>>,
    /// Whether one guest process has it at a time (MCDM-41).
    pub single_use: bool,
    /// Physical adapters that are linked (TDR-07), each with every node; 1 where none are.
    pub engines: u8,
    /// Physical doorbells of each engine.
    pub doorbells: u32,
    /// How each node's doorbells work.
    pub doorbell_modes: DoorbellModes,
    /// Nodes whose engines do not poll, as the operator has it now.
    pub notify: Arc<NotifySwitch>,
    /// How long an engine spins without work before F1.
    pub spin: Duration,
    /// How long a slice of a dispatch is to take; zero where dispatches run in one piece.
    pub slice: Duration,
    /// How long all engines sleep before the device goes to D3; never for none.
    pub d3_after: Option<Duration>,
    /// How it is found out what engines write.
    pub tracking: Method,
    /// Where others find what its memory's writes are known by.
    pub trackers: Arc<TrackerBoard>,
    /// What a daemon after this one is to know of it, if this one is killed.
    pub ledger: Arc<Ledger>,
    /// Whether engines drop their privileges.
    pub sandbox: bool,
    /// Whether the front-end is offered a window onto video memory.
    pub window: bool,
    /// The Vulkan devices of its adapters.
    pub vulkan_devices: VulkanDevices,
    /// What of those devices its guests see, and may use.
    pub profile: GpuProfile,
    /// What starts engines: their program, or what stands in for it in tests.
    pub launcher: Arc<dyn Launcher>,
    /// What the probe at start found.
    pub compute: Compute,
    /// What it had of each node.
    pub meters: Arc<Meters>,
    /// Who gives turns.
    pub schedule: Arc<dyn Schedule>,
    /// What the operator asks of it.
    pub orders: Arc<Orders>,
    /// The policy of its engines.
    pub scheduler: Choice,
    /// The bands of its engines.
    pub bands: Settings,
    /// What it gets of each node.
    pub share: Share,
    /// What hangs lead to.
    pub policy: Policy,
    /// How long work of each node, by ordinal, may stand still, or keep a node that another vGPU wants.
    pub timeouts: [Duration; 2],
    /// Whether it may work.
    pub standing: Arc<Standing>,
    /// Numbers and folder of reports.
    pub reports: Arc<Reports>,
    /// Whether the next process of each engine is started ahead.
    pub spares: bool,
    /// MiB of what each compute engine's processes keep of compiled code for the next; 0 for nothing.
    pub code_mib: u32,
    /// How long engines may take to stand still for a migration; then they are ended.
    pub freeze_limit: Duration,
    /// What the daemon holds for its VM at the most.
    pub budget: Arc<Budget>,
    /// How many reports it may file.
    pub clerk: Arc<Clerk>,
    /// How much may be logged for its VM.
    pub log: Arc<LogLimit>,
}

/// The configuration with which the next session begins.
#[derive(Debug)]
pub struct Current(Mutex<Arc<Config>>);

impl Current {
    /// This one, until it is tuned.
    pub fn new(config: Arc<Config>) -> Self {
        Self(Mutex::new(config))
    }

    /// As it is now.
    pub fn get(&self) -> Arc<Config> {
        Arc::clone(&self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// From now on with this tuning.
    pub fn tune(&self, tuning: Tuning) {
        let mut config = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *config = Arc::new(config.tuned(tuning));
    }
}

impl Config {
    /// How long work of `node` may stand still; for ever at level 0 (TDR-16).
    pub fn watched_timeout(&self, node: NodeKind) -> Option<Duration> {
        (self.policy.level != Level::Off).then(|| self.timeouts[node_index(node)])
    }

    /// The same with another tuning.
    pub fn tuned(&self, tuning: Tuning) -> Self {
        let Tuning { share, timeouts, policy, d3_after, freeze_limit } = tuning;
        Self { share, timeouts, policy, d3_after, freeze_limit, ..self.clone() }
    }

    /// How the daemon itself has local memory copied, where that is a device's own.
    pub fn local_port(&self) -> Option<LocalPort> {
        let device = Arc::clone(self.local.as_ref()?);
        let options = CopyOptions {
            local: described(&device, self.vram_bytes, self.account.quota().max),
            vulkan_device: self.vulkan_devices.of(0).map(str::to_owned),
            sandbox: self.sandbox,
            policy: self.scheduler.to_string(),
        };
        Some(LocalPort { device, launcher: Arc::clone(&self.launcher), options })
    }

    /// The first message to an engine.
    pub fn start_message(&self, at: EngineAddress, table_bytes: u64) -> Start {
        Start {
            node: at.node,
            vram_bytes: VideoMemory::file_bytes_of(self.vram_bytes),
            table_bytes,
            spin_microseconds: u64::try_from(self.spin.as_micros()).unwrap_or(u64::MAX),
            slice_microseconds: u64::try_from(self.slice.as_micros()).unwrap_or(u64::MAX),
            sandbox: self.sandbox,
            policy: self.scheduler.to_string(),
            vulkan_device: self.vulkan_devices.of(at.engine).map(str::to_owned),
            profile: self.profile,
            tracking: self.tracking,
            // As much as comes along.
            code_mib: 0,
            is_realtime: self.share.has_realtime(),
            is_ahead: false,
            local: self.local.as_ref().map_or(Local::Host, |device| {
                Local::Device(described(device, self.vram_bytes, self.account.quota().max))
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use campanile_host_gpu::dirty::method::Method;
    use campanile_host_gpu::engine::address::EngineAddress;
    use campanile_host_gpu::engine::message::NodeKind;
    use campanile_host_gpu::sched::choice::Choice;
    use campanile_host_gpu::sched::parameters::Band;
    use campanile_protocol::named_profile::GpuProfile;
    use campanile_protocol::named_profile::campanile_1;
    use campanile_protocol::profile::Profile;

    use super::Compute;
    use super::ComputeDevice;
    use super::Config;
    use crate::sched::share::Share;
    use crate::vgpu::tdr::policy::Level;
    use crate::vgpu::tdr::policy::Policy;
    use crate::vgpu::testing::config;

    #[test]
    fn every_setting_of_an_engine_is_in_the_first_message_to_it() {
        let policy: Choice = "strict-priority".parse().unwrap();
        assert_ne!(policy, Choice::default());
        let config = Config {
            spin: Duration::from_micros(1234),
            slice: Duration::from_micros(4321),
            sandbox: false,
            scheduler: policy,
            vulkan_devices: "a card,another".parse().unwrap(),
            profile: GpuProfile::Campanile1,
            tracking: Method::BoundRanges,
            ..config()
        };
        for at in EngineAddress::all(2) {
            let start = config.start_message(at, 8192);
            assert_eq!((start.node, start.table_bytes), (at.node, 8192));
            assert!(start.vram_bytes > config.vram_bytes, "save areas lie behind it");
            assert_eq!((start.spin_microseconds, start.slice_microseconds), (1234, 4321));
            assert_eq!((start.policy.as_str(), start.sandbox), ("strict-priority", false));
            let device = ["a card", "another"][usize::from(at.engine)];
            assert_eq!(start.vulkan_device.as_deref(), Some(device));
            assert_eq!(start.profile, GpuProfile::Campanile1);
            assert_eq!(start.tracking, Method::BoundRanges);
        }
        for highest_band in [Band::Realtime, Band::Focus, Band::Normal, Band::Idle] {
            let tuned = Config { share: Share { highest_band, ..config.share }, ..config.clone() };
            for at in EngineAddress::all(2) {
                let start = tuned.start_message(at, 0);
                assert_eq!(start.is_realtime, highest_band == Band::Realtime, "{at}: {highest_band:?}");
            }
        }
        assert!(
            super::Config { sandbox: true, ..config }
                .start_message(EngineAddress::new(0, NodeKind::Copy), 0)
                .sandbox
        );
    }

    #[test]
    fn a_named_profile_is_what_guests_are_told_and_a_device_that_lacks_some_of_it_serves_none() {
        let fixed = campanile_1();
        let of = |profile: Profile| {
            Compute::Available(ComputeDevice { name: "a card".to_owned(), profile: Some(Box::new(profile)) })
        };
        let device = Profile { vendor: 7, constants: 4096, ..fixed };
        assert_eq!(of(device).under(GpuProfile::Host), Ok(of(device)), "as it is");
        assert_eq!(of(device).under(GpuProfile::Campanile1), Ok(of(fixed)));
        let weak = Profile { constants: 128, sets: 4, ..device };
        assert_eq!(of(weak).under(GpuProfile::Host), Ok(of(weak)));
        assert_eq!(
            of(weak).under(GpuProfile::Campanile1).unwrap_err(),
            "a card cannot serve it: sets: the profile has 8, the device 4; constants: the profile has 256, the device 128"
        );
        let none = Compute::Refused("no driver".to_owned());
        assert_eq!(none.under(GpuProfile::Host), Ok(none.clone()));
        assert_eq!(none.under(GpuProfile::Campanile1).unwrap_err(), "there is no device for it: no driver");
    }

    #[test]
    fn tdr_13_tdr_16_each_node_has_its_own_timeout_and_none_at_level_0() {
        let timeouts = [Duration::from_millis(3), Duration::from_millis(5)];
        let config = Config { timeouts, ..config() };
        assert_eq!(config.watched_timeout(NodeKind::Compute), Some(timeouts[0]));
        assert_eq!(config.watched_timeout(NodeKind::Copy), Some(timeouts[1]));
        let policy = Policy { level: Level::Off, ..Policy::default() };
        let config = Config { policy, ..config };
        assert_eq!(config.watched_timeout(NodeKind::Compute), None);
        assert_eq!(config.watched_timeout(NodeKind::Copy), None);
    }
}
