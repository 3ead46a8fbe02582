//! What can be said of engines.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use campanile_host_gpu::engine::message::SLICE_MICROSECONDS;
use campanile_protocol::engine::message::MAX_CODE_MIB;
use campanile_protocol::named_profile::GpuProfile;
use clap::Args;
use clap::ValueEnum;
use clap::value_parser;

use super::doorbells::DoorbellModels;
use super::doorbells::NodeSet;
use super::doorbells::modes;
use super::doorbells::parse_models;
use super::doorbells::parse_nodes;
use super::scheduling::SchedulingArguments;
use super::tdr::TdrArguments;
use crate::host::engines::CODE_MIB;
use crate::host::local_choice::LocalChoice;
use crate::host::tracking::TrackingChoice;
use crate::vgpu::doorbells::modes::DoorbellModes;
use crate::vgpu::vulkan_devices::VulkanDevices;

/// Whether engines have a spare process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Spares {
    /// Started ahead.
    On,
    /// Started when an engine is reset.
    Off,
}

/// What engines are tuned for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Profile {
    /// Throughput: slices of 2 ms, and a CPU driver uses all CPUs.
    Default,
    /// Latency: slices of 0.5 ms, which a CPU driver runs on one CPU, and so at less cost each.
    Latency,
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Default => "default",
            Self::Latency => "latency",
        })
    }
}

/// Settings of engines.
#[derive(Debug, Clone, Args)]
pub struct EngineArguments {
    /// Physical adapters of each vGPU: linked, each with every node, its compute node on the Vulkan device of the machine.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub engines: u8,
    /// Physical doorbells of each engine.
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub doorbells: u32,
    /// How the queues of a node share what its engine watches: dedicated (a physical doorbell for each connected queue)
    /// or global (one cell for each guest process), for all nodes or as NODE=MODEL,…; nodes are compute and copy.
    #[arg(long, value_name = "MODEL", value_parser = parse_models, default_value = "dedicated")]
    pub doorbell_model: DoorbellModels,
    /// Nodes, as NODE,…, whose engine never polls: guests send a message after each ring.
    #[arg(long, value_name = "NODES", value_parser = parse_nodes)]
    pub notify: Option<NodeSet>,
    /// Microseconds that an engine polls without work before it sleeps.
    #[arg(long, value_name = "MICROSECONDS", default_value_t = 2000)]
    pub spin: u64,
    /// What matters more: that kernels get all of a CPU device, cut into slices of 2 ms (default), or that what is urgent
    /// need not wait, with slices of 0.5 ms and one CPU for each kernel (latency).
    #[arg(long, value_name = "PROFILE", value_enum, default_value_t = Profile::Default)]
    pub profile: Profile,
    /// Microseconds that a slice of a dispatch is to take, whatever the profile; 0 for dispatches in one piece.
    #[arg(long, value_name = "MICROSECONDS")]
    pub slice: Option<u64>,
    /// When work hangs, and what follows.
    #[command(flatten)]
    pub tdr: TdrArguments,
    /// Milliseconds that all engines of a vGPU sleep before it goes to D3, and its engine processes end; 0 for never.
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 60_000)]
    pub d3_after: u64,
    /// Milliseconds that engines may take to stand still for a migration; then they are ended, and the device lost whose
    /// work they ran.
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 100)]
    pub freeze_limit: u64,
    /// Whether the next process of each engine is started ahead, so that a reset is over sooner: one more process a vGPU
    /// and node.
    #[arg(long, value_name = "WHETHER", value_enum, default_value = "on")]
    pub spares: Spares,
    /// MiB in which each compute engine keeps what its driver has compiled, for the next process of the same engine, so that it
    /// need not compile that again; 0 for nothing.
    #[arg(long, value_name = "MIB", default_value_t = CODE_MIB, value_parser = value_parser!(u32).range(0..=i64::from(MAX_CODE_MIB)))]
    pub code_cache: u32,
    /// How it is found out what engines write, for migrations: write-protect (exact; Linux 6.7 or newer, and kernels that
    /// run on the CPU), bound-ranges (all that work could write), shadow-compare (contents of that are compared; costly, so only
    /// during a migration, which sends all memory first), off, or auto: the first of the first two that works.
    #[arg(long, value_name = "METHOD", default_value_t)]
    pub dirty_tracking: TrackingChoice,
    /// Where local memory lies, which guests' CPUs do not see: host (a GPU works on it over its bus), device (the GPU's own), or auto: device where that is a card of its own, else host.
    #[arg(long, value_name = "WHERE", default_value_t)]
    pub local_memory: LocalChoice,
    /// Directory for reports on hangs, as JSON; it is made where there is none.
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
    /// Which policy says what runs next.
    #[command(flatten)]
    pub scheduling: SchedulingArguments,
    /// Use the Vulkan device whose name contains this; TEXT#2 is the second of those. TEXT,TEXT… is one for each of the linked adapters
    /// (--engines), of one model and driver unless --gpu-profile is a named one.
    #[arg(long, value_name = "TEXT")]
    pub vulkan_device: Option<VulkanDevices>,
    /// What of that device guests see, and may use: host (all of it; such a vGPU moves to the same device and driver only) or campanile-1
    /// (what drivers have in common, under a name of its own: such a vGPU moves to any device that has it).
    #[arg(long, value_name = "PROFILE", default_value_t)]
    pub gpu_profile: GpuProfile,
    /// Vulkan driver manifest (JSON) to use instead of the system's.
    #[arg(long, value_name = "FILE", env = "CAMPANILE_VULKAN_DRIVER")]
    pub vulkan_driver: Option<PathBuf>,
    /// Let engine processes keep their privileges (for debugging, and for kernels without landlock or seccomp).
    #[arg(long)]
    pub no_sandbox: bool,
    /// Offer no window onto video memory, as with a VMM that can show none: guests' buffers lie in their own memory.
    #[arg(long)]
    pub no_window: bool,
}

impl EngineArguments {
    /// The spin budget.
    pub fn spin(&self) -> Duration {
        Duration::from_micros(self.spin)
    }

    /// How long a slice of a dispatch is to take.
    pub fn slice(&self) -> Duration {
        Duration::from_micros(self.slice.unwrap_or(match self.profile {
            Profile::Default => SLICE_MICROSECONDS,
            Profile::Latency => 500,
        }))
    }

    /// How the doorbells work.
    pub fn doorbell_modes(&self) -> DoorbellModes {
        modes(self.doorbell_model, self.notify)
    }

    /// How long to sleep before D3.
    pub fn d3_after(&self) -> Option<Duration> {
        (self.d3_after != 0).then(|| Duration::from_millis(self.d3_after))
    }

    /// The same settings as arguments of `campanile serve`.
    pub fn to_arguments(&self) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = vec![
            "--engines".into(),
            self.engines.to_string().into(),
            "--doorbells".into(),
            self.doorbells.to_string().into(),
            "--doorbell-model".into(),
            self.doorbell_model.to_string().into(),
            "--spin".into(),
            self.spin.to_string().into(),
            "--profile".into(),
            self.profile.to_string().into(),
            "--d3-after".into(),
            self.d3_after.to_string().into(),
        ];
        arguments.extend(self.tdr.to_arguments());
        if let Some(slice) = self.slice {
            arguments.extend(["--slice".into(), slice.to_string().into()]);
        }
        arguments.extend(["--freeze-limit".into(), self.freeze_limit.to_string().into()]);
        if let Some(folder) = &self.state_dir {
            arguments.extend(["--state-dir".into(), folder.into()]);
        }
        if let Some(nodes) = self.notify {
            arguments.extend(["--notify".into(), nodes.to_string().into()]);
        }
        if let Some(device) = &self.vulkan_device {
            arguments.extend(["--vulkan-device".into(), device.to_string().into()]);
        }
        if self.gpu_profile != GpuProfile::Host {
            arguments.extend(["--gpu-profile".into(), self.gpu_profile.to_string().into()]);
        }
        if let Some(driver) = &self.vulkan_driver {
            arguments.extend(["--vulkan-driver".into(), driver.into()]);
        }
        arguments.extend(self.scheduling.to_arguments());
        if self.dirty_tracking != TrackingChoice::Auto {
            arguments.extend(["--dirty-tracking".into(), self.dirty_tracking.to_string().into()]);
        }
        if self.local_memory != LocalChoice::Auto {
            arguments.extend(["--local-memory".into(), self.local_memory.to_string().into()]);
        }
        if self.spares == Spares::Off {
            arguments.extend(["--spares".into(), "off".into()]);
        }
        if self.code_cache != CODE_MIB {
            arguments.extend(["--code-cache".into(), self.code_cache.to_string().into()]);
        }
        if self.no_sandbox {
            arguments.push("--no-sandbox".into());
        }
        if self.no_window {
            arguments.push("--no-window".into());
        }
        arguments
    }
}
