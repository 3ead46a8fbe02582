//! What the operator can say.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::str::FromStr;

use campanile_host_gpu::engine::address::EngineAddress;
use campanile_host_gpu::engine::address::NODES;
use campanile_host_gpu::engine::address::node_name;
use campanile_host_gpu::engine::message::NodeKind;
use campanile_protocol::capset::MAX_ENGINES;
use clap::Subcommand;
use clap::ValueEnum;
use serde::Deserialize;
use serde::Serialize;

use crate::migration::channel::address::Peer;
#[cfg(debug_assertions)]
use crate::vgpu::control::orders::Fault;

/// A node by the name that people use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum NodeName {
    /// Kernels, copies, fills.
    Compute,
    /// Copies and fills.
    Copy,
}

impl From<NodeName> for NodeKind {
    fn from(name: NodeName) -> Self {
        match name {
            NodeName::Compute => Self::Compute,
            NodeName::Copy => Self::Copy,
        }
    }
}

/// An engine by the name that people use: `compute`, or `compute@1` on the second physical adapter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct EngineName(pub EngineAddress);

impl From<EngineName> for String {
    fn from(name: EngineName) -> Self {
        name.0.to_string()
    }
}

impl TryFrom<String> for EngineName {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl FromStr for EngineName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, engine) = text.split_once('@').unwrap_or((text, "0"));
        let node = NODES.into_iter().find(|node| node_name(*node) == name);
        let engine = engine.parse().ok().filter(|engine| usize::from(*engine) < MAX_ENGINES);
        let address = node.zip(engine).map(|(node, engine): (_, u8)| EngineAddress::new(engine, node));
        address.map(Self).ok_or_else(|| format!("{text:?} is no engine; compute, copy, compute@1, ... are"))
    }
}

/// A device power state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum PowerName {
    /// On.
    D0,
    /// Off, with all that its guests have kept.
    D3,
}

/// Whether guests send a message after each ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum NotifyMode {
    /// They do.
    On,
    /// They need not, but for doorbells that were made so.
    Off,
}

/// What a daemon is to suffer, so that tests see what follows.
#[cfg(debug_assertions)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum FaultName {
    /// A panic of the thread that serves the vGPU.
    Panic,
    /// No memory is left to the process; it is to have a limit.
    Memory,
}

#[cfg(debug_assertions)]
impl From<FaultName> for Fault {
    fn from(name: FaultName) -> Self {
        match name {
            FaultName::Panic => Self::Panic,
            FaultName::Memory => Self::Memory,
        }
    }
}

/// Milliseconds that guest processes have for their part of a detach.
const fn default_limit() -> u64 {
    5000
}

/// The commands: on the command line of `campanile ctl`, and on the socket as `{"verb": NAME, …}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Subcommand)]
#[serde(tag = "verb", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Verb {
    /// Show the vGPUs: which guests use them, their engines, which are not allowed.
    Status,
    /// Reset one engine, or all: the work that it runs is lost, all other work goes on.
    Reset {
        /// The vGPU.
        #[arg(long, value_name = "NAME")]
        vgpu: String,
        /// The node, compute or copy, of the first physical adapter, or as compute@1 of the second; all without it.
        #[arg(long, value_name = "NODE")]
        #[serde(default, skip_serializing_if = "Option::is_none")]
        node: Option<EngineName>,
    },
    /// Have what serves a vGPU fail. Not in a release build.
    #[cfg(debug_assertions)]
    #[command(hide = true)]
    Fault {
        /// The vGPU.
        #[arg(long, value_name = "NAME")]
        vgpu: String,
        /// How.
        #[arg(value_name = "FAULT")]
        fault: FaultName,
    },
    /// Reset everything of a vGPU, or of all: every device is lost.
    ResetAdapter {
        /// The vGPU; all without it.
        #[arg(long, value_name = "NAME")]
        #[serde(default, skip_serializing_if = "Option::is_none")]
        vgpu: Option<String>,
    },
    /// Put a vGPU to sleep, so that its engine processes end, or wake it. A guest that has work wakes it too.
    Power {
        /// The vGPU.
        #[arg(long, value_name = "NAME")]
        vgpu: String,
        /// The state.
        #[arg(value_name = "STATE")]
        state: PowerName,
    },
    /// Let a vGPU work again that is quarantined, and forget its past.
    Allow {
        /// The vGPU.
        #[arg(long, value_name = "NAME")]
        vgpu: String,
    },
    /// Have the guests of a vGPU send a message after each ring on a node, so that its engine need not poll, or not.
    Notify {
        /// The vGPU.
        #[arg(long, value_name = "NAME")]
        vgpu: String,
        /// The node.
        #[arg(long, value_name = "NODE")]
        node: NodeName,
        /// The mode.
        #[arg(value_name = "MODE")]
        mode: NotifyMode,
    },
    /// Begin to move a vGPU to another daemon while its guest runs; its VMM then moves the rest.
    Migrate {
        /// The vGPU.
        #[arg(long, value_name = "NAME")]
        vgpu: String,
        /// Where the other daemon listens: unix:/PATH, tcp:HOST:PORT or tls:HOST:PORT; else where --migrate-to says.
        #[arg(long, value_name = "PEER")]
        #[serde(default, skip_serializing_if = "Option::is_none")]
        to: Option<Peer>,
        /// What the vGPU is called there, if not the same.
        #[arg(long = "as", value_name = "NAME", requires = "to")]
        #[serde(default, skip_serializing_if = "Option::is_none")]
        rename: Option<String>,
    },
    /// Call that off; the guest goes on.
    CallOff {
        /// The vGPU.
        #[arg(long, value_name = "NAME")]
        vgpu: String,
    },
    /// Write all of a vGPU into a file, which `serve --vgpu ...,restore=FILE` begins with; its guest goes on.
    Snapshot {
        /// The vGPU.
        #[arg(long, value_name = "NAME")]
        vgpu: String,
        /// The file, as the daemon sees it.
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    /// Have the guest processes of a vGPU let go of it, and write all of it into a file: then its VMM can unplug it.
    Detach {
        /// The vGPU.
        #[arg(long, value_name = "NAME")]
        vgpu: String,
        /// The file, as the daemon sees it.
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Milliseconds that guest processes may take; one that takes longer loses its device.
        #[arg(long, value_name = "MILLISECONDS", default_value_t = default_limit())]
        #[serde(default = "default_limit")]
        limit: u64,
    },
    /// Begin as what a detach has written, when a VM connects next; or, without a file, call off such a beginning, or else the
    /// detach of a vGPU that was not unplugged.
    Attach {
        /// The vGPU.
        #[arg(long, value_name = "NAME")]
        vgpu: String,
        /// The file, as the daemon sees it. It is removed when it was read.
        #[arg(value_name = "FILE")]
        #[serde(default, skip_serializing_if = "Option::is_none")]
        file: Option<PathBuf>,
    },
    /// Read the configuration again, and change what can be changed while guests run; tell what needs a restart.
    Reload,
    /// Have another daemon go on with all vGPUs, under running VMs: one of a new version, or of a configuration that needs a restart.
    Upgrade {
        /// Its program, as the daemon sees it; without it the file that this daemon was started from, as it is now.
        #[arg(long, value_name = "PATH")]
        #[serde(default, skip_serializing_if = "Option::is_none")]
        binary: Option<PathBuf>,
    },
    /// Take no further VMs, for maintenance: none connects, none is brought by another daemon, no vGPU is made; VMs that the daemon has go
    /// where --migrate-to says, as far as a daemon can move them.
    Drain {
        /// Take VMs again. Those that are on their way go on.
        #[arg(long, conflicts_with = "wait")]
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        off: bool,
        /// Wait until no VM is left, and say meanwhile which are.
        #[arg(long)]
        #[serde(skip)]
        wait: bool,
    },
    /// Make, change or remove a vGPU while the daemon serves.
    #[command(subcommand)]
    Vgpu(VgpuVerb),
    /// Show what is on its way to other daemons and from them, and how far.
    Migration,
    /// Show the last 8 reports on hangs of each vGPU.
    Reports,
    /// Show the memory of each vGPU: its quota, a picture of what lies where, and what is evicted.
    Vram,
    /// Show what was counted of each vGPU.
    Metrics,
    /// Show which contexts had the engines of late, and when.
    Timeline {
        /// The vGPU; all without it.
        #[arg(long, value_name = "NAME")]
        #[serde(default, skip_serializing_if = "Option::is_none")]
        vgpu: Option<String>,
        /// Only what ended in the last so many milliseconds; without it all that engines remember.
        #[arg(long, value_name = "MILLISECONDS")]
        #[serde(default, skip_serializing_if = "Option::is_none")]
        last: Option<u64>,
        /// Draw it into this file.
        #[arg(long, value_name = "FILE")]
        #[serde(skip)]
        svg: Option<PathBuf>,
    },
    /// Write what happens from now on into a file that ui.perfetto.dev and chrome://tracing open.
    Trace {
        /// The vGPU; all without it.
        #[arg(long, value_name = "NAME")]
        #[serde(default, skip_serializing_if = "Option::is_none")]
        vgpu: Option<String>,
        /// Nanoseconds of the host's monotonic clock: what engines ran since then. On the socket only, as all that follows is not.
        #[arg(skip)]
        #[serde(default, skip_serializing_if = "Option::is_none")]
        since_ns: Option<u64>,
        /// The sequence number of the first event that is wanted, by vGPU; of others events are kept from now on.
        #[arg(skip)]
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        from: BTreeMap<String, u64>,
        /// The file.
        #[arg(long, value_name = "FILE")]
        #[serde(skip)]
        perfetto: PathBuf,
        /// For how long; an interrupt ends it before.
        #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=3600))]
        #[serde(skip)]
        seconds: u64,
    },
}

/// What can be done with one vGPU: on the socket `{"verb": "vgpu", "action": NAME, …}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Subcommand)]
#[serde(tag = "action", rename_all = "kebab-case", deny_unknown_fields)]
pub enum VgpuVerb {
    /// Make one. It is there until it is removed or the daemon ends; files of the configuration keep it for longer.
    Add {
        /// As `campanile serve --vgpu` takes it: name=NAME,socket=PATH,vram=SIZE,...
        #[arg(value_name = "SPEC")]
        spec: String,
    },
    /// Remove one, with its socket, its engines and all that its guests have.
    Remove {
        /// The vGPU.
        #[arg(value_name = "NAME")]
        vgpu: String,
        /// Also while a VM has it, or a migration brings it: the VMM sees its connection end, and the guest a lost device.
        #[arg(long)]
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        force: bool,
    },
    /// Set keys of one while its guests run: weight, cap, bands, vram-min, tdr-timeout and those of its nodes.
    Set {
        /// The vGPU.
        #[arg(value_name = "NAME")]
        vgpu: String,
        /// The keys, as `campanile serve --vgpu` takes them: weight=300.
        #[arg(value_name = "KEY=VALUE", required = true)]
        values: Vec<String>,
    },
}

impl Verb {
    /// Whether it has the daemon execute a program that it names.
    pub const fn names_a_program(&self) -> bool {
        matches!(self, Self::Upgrade { binary: Some(_) })
    }

    /// The vGPU that it is about, where it is about one.
    pub fn vgpu(&self) -> Option<&str> {
        match self {
            #[cfg(debug_assertions)]
            Self::Fault { vgpu, .. } => Some(vgpu),
            Self::Reset { vgpu, .. }
            | Self::Allow { vgpu }
            | Self::Power { vgpu, .. }
            | Self::Notify { vgpu, .. }
            | Self::Migrate { vgpu, .. }
            | Self::CallOff { vgpu }
            | Self::Snapshot { vgpu, .. }
            | Self::Detach { vgpu, .. }
            | Self::Attach { vgpu, .. }
            | Self::Vgpu(VgpuVerb::Remove { vgpu, .. } | VgpuVerb::Set { vgpu, .. }) => Some(vgpu),
            Self::ResetAdapter { vgpu } | Self::Timeline { vgpu, .. } | Self::Trace { vgpu, .. } => {
                vgpu.as_deref()
            }
            Self::Status
            | Self::Reload
            | Self::Upgrade { .. }
            | Self::Drain { .. }
            | Self::Migration
            | Self::Reports
            | Self::Vram
            | Self::Metrics
            | Self::Vgpu(VgpuVerb::Add { .. }) => None,
        }
    }

    /// Whether it changes nothing, so that a socket for looking takes it.
    pub const fn only_looks(&self) -> bool {
        matches!(
            self,
            Self::Status
                | Self::Vram
                | Self::Metrics
                | Self::Migration
                | Self::Reports
                | Self::Timeline { .. }
        )
    }

    /// Whether it changes something, so that the log says what asked for it. A trace is asked for several times a second.
    pub const fn changes(&self) -> bool {
        !self.only_looks() && !matches!(self, Self::Trace { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::EngineName;
    use super::Verb;
    use super::VgpuVerb;

    #[test]
    fn an_engine_is_named_by_node_and_physical_adapter() {
        for name in ["compute", "copy", "compute@1", "copy@3"] {
            assert_eq!(name.parse::<EngineName>().map(String::from).as_deref(), Ok(name));
        }
        for wrong in ["", "gpu", "copy@", "copy@4", "copy@-1", "@1", "copy@1@1"] {
            assert!(wrong.parse::<EngineName>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_verb_is_read_from_the_line_that_it_is_written_as() {
        let reset = Verb::Reset { vgpu: "a".to_owned(), node: "copy".parse().ok() };
        let line = serde_json::to_string(&reset).unwrap();
        assert_eq!(line, r#"{"verb":"reset","vgpu":"a","node":"copy"}"#);
        assert_eq!(serde_json::from_str::<Verb>(&line).unwrap(), reset);
        assert_eq!(
            serde_json::from_str::<Verb>(r#"{"verb":"reset-adapter"}"#).unwrap(),
            Verb::ResetAdapter { vgpu: None }
        );
        let remove = Verb::Vgpu(VgpuVerb::Remove { vgpu: "a".to_owned(), force: false });
        let line = serde_json::to_string(&remove).unwrap();
        assert_eq!(line, r#"{"verb":"vgpu","action":"remove","vgpu":"a"}"#);
        assert_eq!(serde_json::from_str::<Verb>(&line).unwrap(), remove);
        assert!(!remove.only_looks());
        for wrong in [
            r#"{"verb":"vgpu"}"#,
            r#"{"verb":"vgpu","action":"grow"}"#,
            r#"{"verb":"vgpu","action":"remove","vgpu":"a","hard":true}"#,
        ] {
            assert!(serde_json::from_str::<Verb>(wrong).is_err(), "{wrong}");
        }
        for wrong in
            [r#"{"verb":"reset"}"#, r#"{"verb":"reset","vgpu":"a","force":1}"#, r#"{"verb":"x"}"#, "{}", "1"]
        {
            assert!(serde_json::from_str::<Verb>(wrong).is_err(), "{wrong}");
        }
    }
}
