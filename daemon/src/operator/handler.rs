//! The handler of the operator's control commands.

use std::io;
use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use std::time::UNIX_EPOCH;

use campanile_host_gpu::engine::address::EngineAddress;
use campanile_host_gpu::engine::address::node_index;
use campanile_host_gpu::engine::address::node_name;
use campanile_host_gpu::engine::message::NodeKind;
use campanile_host_gpu::log_limit::LogLimit;
use serde_json::Map;
use serde_json::Value;
use serde_json::json;

use super::held::Held;
use super::reload::Reload;
use super::reload::VgpuChange;
use super::verb::NotifyMode;
use super::verb::PowerName;
use super::verb::Verb;
use crate::confine::confiner::Confiner;
use crate::confine::status;
use crate::frontend::vhost::counters::Counters as ShellCounters;
use crate::migration::endpoint::Endpoint;
use crate::migration::error::MigrationError;
use crate::migration::target::arrivals::Arrivals;
use crate::sched::meter::Meters;
use crate::vgpu::config::Config;
use crate::vgpu::config::Current;
use crate::vgpu::control::history::BandName;
use crate::vgpu::control::orders::Order;
use crate::vgpu::control::orders::OrderError;
use crate::vgpu::control::orders::Orders;
use crate::vgpu::counters::Counters;
use crate::vgpu::doorbells::switch::NotifySwitch;
use crate::vgpu::memory::vidmm::quota::Account;
use crate::vgpu::objects::budget::Budget;
use crate::vgpu::objects::budget::Statement;
use crate::vgpu::tdr::standing::Quarantine;
use crate::vgpu::tdr::standing::Standing;

/// How long one vGPU's thread may take for its part of an overview.
const GLANCE: Duration = Duration::from_secs(1);
/// How long it may take to carry out a control command.
const PATIENCE: Duration = Duration::from_secs(20);

/// The version of what is asked and answered here. Fields may be added to answers; what is there keeps its name and its meaning
/// within a version.
pub const API: u32 = 1;

/// The most that guest processes get to let go.
const LONGEST_LEAVE: Duration = Duration::from_secs(120);

/// What the operator can reach of one vGPU.
#[derive(Debug, Clone)]
pub struct Vgpu {
    /// Its name.
    pub name: String,
    /// Its socket.
    pub socket: PathBuf,
    /// Whether it is unplugged to move: the VMM moves no device with its front.
    pub detaches: bool,
    /// Bytes of video memory.
    pub vram_bytes: u64,
    /// What its guests may have, and have.
    pub account: Arc<Account>,
    /// What the daemon holds for its VM.
    pub budget: Arc<Budget>,
    /// Which nodes do not poll.
    pub notify: Arc<NotifySwitch>,
    /// Where control commands to its thread go.
    pub commands: Arc<Orders>,
    /// Whether it may work.
    pub standing: Arc<Standing>,
    /// What its sessions count.
    pub counters: Arc<Counters>,
    /// With which its next session begins.
    pub current: Arc<Current>,
    /// Its physical adapters.
    pub engines: u8,
    /// What it had of their nodes.
    pub meters: Arc<Meters>,
    /// What its rings count.
    pub shell_counters: Arc<ShellCounters>,
    /// Its ways to other daemons, and into files.
    pub endpoint: Arc<Endpoint>,
    /// What holds its engines.
    pub held: Held,
    /// How much may be logged for its VM.
    pub log: Arc<LogLimit>,
}

/// Why a command was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum HandlerError {
    /// No such vGPU.
    #[error("there is no vGPU {name}; there are: {known}")]
    NoSuchVgpu {
        /// What was asked for.
        name: String,
        /// What there is.
        known: String,
    },
    /// The vGPU did not do it.
    #[error("vGPU {name}: {source}")]
    Command {
        /// Which.
        name: String,
        /// Why.
        source: OrderError,
    },
    /// The daemon was started by a program that reads no configuration.
    #[error("this daemon cannot read its configuration again")]
    NoReload,
    /// The configuration is wrong. Nothing was changed.
    #[error("nothing was changed:\n{0}")]
    Configuration(String),
    /// The daemon cannot tell how it is confined.
    #[error("reading what confines the daemon from /proc: {0}")]
    Status(#[source] io::Error),
}

/// Every vGPU, for the operator.
#[derive(Debug)]
pub struct Handler {
    vgpus: Vec<Vgpu>,
    arrivals: Option<Arc<Arrivals>>,
    confiner: Arc<Confiner>,
    reload: Option<Reload>,
}

impl Handler {
    /// Over these vGPUs, and what other daemons bring, of a daemon that is confined so.
    pub fn new(vgpus: Vec<Vgpu>, arrivals: Option<Arc<Arrivals>>, confiner: Arc<Confiner>) -> Self {
        Self { vgpus, arrivals, confiner, reload: None }
    }

    /// The same, which reads its configuration again so.
    pub fn reloading(self, reload: Option<Reload>) -> Self {
        Self { reload, ..self }
    }

    /// Carries a command out.
    ///
    /// # Errors
    /// There is no such vGPU, or it refuses.
    pub fn serve(&self, verb: &Verb) -> Result<Value, HandlerError> {
        match verb {
            Verb::Status => {
                let daemon = status::describe(&self.confiner).map_err(HandlerError::Status)?;
                let vgpus: Vec<_> = self.vgpus.iter().map(describe).collect();
                Ok(json!({ "api": API, "daemon": daemon, "vgpus": vgpus }))
            }
            Verb::Vram => Ok(json!({ "vgpus": self.vgpus.iter().map(describe).collect::<Vec<_>>() })),
            Verb::Metrics => Ok(json!({ "vgpus": self.vgpus.iter().map(measure).collect::<Vec<_>>() })),
            Verb::Timeline { vgpu, last, svg: _ } => {
                let wanted = match vgpu {
                    Some(name) => std::slice::from_ref(self.vgpu(name)?),
                    None => &self.vgpus,
                };
                let last = last.map(Duration::from_millis);
                Ok(json!({ "vgpus": wanted.iter().map(|vgpu| recall(vgpu, last)).collect::<Vec<_>>() }))
            }
            Verb::Reset { vgpu, node } => self.command(vgpu, Order::ResetEngine(node.map(|name| name.0))),
            Verb::Notify { vgpu, node, mode } => {
                let switch = &self.vgpu(vgpu)?.notify;
                switch.set(node_index(NodeKind::from(*node)), *mode == NotifyMode::On);
                Ok(json!({ "notify": mode }))
            }
            Verb::Migrate { vgpu, to, rename } => {
                let to = to.clone().map(|peer| (peer, rename.clone().unwrap_or_else(|| vgpu.clone())));
                let of = self.vgpu(vgpu)?;
                let departure = &of.endpoint.departure;
                of.log.within(|| departure.start(to)).map_err(|source| migration(vgpu, &source))?;
                Ok(departure.describe())
            }
            Verb::CallOff { vgpu } => {
                let departure = &self.vgpu(vgpu)?.endpoint.departure;
                departure
                    .cancel("the operator has called it off")
                    .map_err(|source| migration(vgpu, &source))?;
                Ok(departure.describe())
            }
            Verb::Snapshot { vgpu, file } => {
                let of = self.vgpu(vgpu)?;
                let (quiesce, commands) = (&of.endpoint.quiesce, &of.commands);
                let save = || quiesce.save(|| commands.nudge(), PATIENCE);
                let go_on = || quiesce.go_on(|| commands.nudge());
                let taken = of.endpoint.departure.snapshot(file, save, go_on);
                taken.map_err(|source| migration(vgpu, &source))
            }
            Verb::Detach { vgpu, file, limit } => self.detach(vgpu, file, Duration::from_millis(*limit)),
            Verb::Attach { vgpu, file: None } => {
                if self.vgpu(vgpu)?.endpoint.forget_beginning() {
                    return Ok(json!({ "file": null }));
                }
                self.command(vgpu, Order::Stay)
            }
            Verb::Attach { vgpu, file: Some(file) } => {
                let of = self.vgpu(vgpu)?;
                if of.commands.has_session() {
                    let source = OrderError::Refused("a VM is connected".to_owned());
                    return Err(HandlerError::Command { name: vgpu.clone(), source });
                }
                of.endpoint.begin_as(file).map_err(|source| migration(vgpu, &source))?;
                Ok(json!({ "file": file }))
            }
            Verb::Migration => Ok(json!({
                "departures": self.vgpus.iter().map(|vgpu| vgpu.endpoint.departure.describe()).collect::<Vec<_>>(),
                "arrivals": self.arrivals.as_ref().map(|arrivals| arrivals.describe()),
            })),
            Verb::Power { vgpu, state: PowerName::D0 } => self.command(vgpu, Order::EnterD0),
            Verb::Power { vgpu, state: PowerName::D3 } => self.command(vgpu, Order::EnterD3),
            Verb::Reload => self.reload(),
            Verb::Allow { vgpu } => {
                let lifted = self.vgpu(vgpu)?.standing.allow();
                if lifted.is_some() {
                    log::warn!("{vgpu}: the operator has lifted its quarantine");
                }
                Ok(json!({ "was_quarantined": lifted.as_ref().map(show) }))
            }
            Verb::ResetAdapter { vgpu: Some(vgpu) } => self.command(vgpu, Order::ResetAdapter),
            Verb::ResetAdapter { vgpu: None } => {
                let each = self.vgpus.iter().map(|vgpu| {
                    let outcome = vgpu.commands.ask(Order::ResetAdapter, PATIENCE);
                    let outcome = outcome.unwrap_or_else(|error| json!({ "error": error.to_string() }));
                    (vgpu.name.clone(), outcome)
                });
                Ok(Value::Object(each.collect()))
            }
        }
    }

    /// The newest reports on hangs of each vGPU, the newest last.
    pub fn reports(&self) -> Value {
        let of = |vgpu: &Vgpu| {
            let reports = vgpu.current.get().clerk.recent();
            let reports: Vec<Value> =
                reports.iter().filter_map(|text| serde_json::from_str(text).ok()).collect();
            json!({ "name": vgpu.name, "reports": reports })
        };
        json!({ "vgpus": self.vgpus.iter().map(of).collect::<Vec<_>>() })
    }

    /// Changes what can be changed.
    fn reload(&self) -> Result<Value, HandlerError> {
        let reload = self.reload.as_ref().ok_or(HandlerError::NoReload)?;
        let changes = reload.read().map_err(HandlerError::Configuration)?;
        let mut failed = Vec::new();
        for VgpuChange { name, tuning, vram_min } in changes.vgpus {
            let vgpu = self.vgpu(&name)?;
            vgpu.current.tune(tuning);
            if let Err(error) = vgpu.account.set_min(vram_min) {
                failed.push(format!("vGPU {name}: vram-min: {error}"));
            }
            match vgpu.commands.ask(Order::Tune(tuning), PATIENCE) {
                Ok(_) | Err(OrderError::NoSession) => {}
                Err(error) => failed.push(format!("vGPU {name}: {error}")),
            }
        }
        log::info!("the operator had the configuration read again: {} changes", changes.changed.len());
        Ok(json!({ "changed": changes.changed, "needs_restart": changes.restart, "failed": failed }))
    }

    /// All guest processes let go of it, and all of it lies in a file.
    fn detach(&self, vgpu: &str, file: &Path, limit: Duration) -> Result<Value, HandlerError> {
        let of = self.vgpu(vgpu)?;
        if !of.detaches {
            let why = "its front is fs, which the VMM migrates; guests do not let go of it";
            let source = OrderError::Refused(why.to_owned());
            return Err(HandlerError::Command { name: vgpu.to_owned(), source });
        }
        let asked =
            of.commands.ask(Order::Leave(limit.min(LONGEST_LEAVE)), limit.min(LONGEST_LEAVE) + PATIENCE);
        let gone = asked.map_err(|source| HandlerError::Command { name: vgpu.to_owned(), source })?;
        let (quiesce, commands) = (&of.endpoint.quiesce, &of.commands);
        let save = || quiesce.save(|| commands.nudge(), PATIENCE);
        let go_on = || quiesce.go_on(|| commands.nudge());
        let taken = of.endpoint.departure.snapshot(file, save, go_on).map_err(|source| {
            // No guest process is to wait for what does not come.
            let _stays = commands.ask(Order::Stay, PATIENCE);
            migration(vgpu, &source)
        })?;
        Ok(json!({ "parked": gone["parked"], "lost": gone["lost"], "file": file, "bytes": taken["bytes"] }))
    }

    fn vgpu(&self, name: &str) -> Result<&Vgpu, HandlerError> {
        self.vgpus.iter().find(|vgpu| vgpu.name == name).ok_or_else(|| {
            let known: Vec<&str> = self.vgpus.iter().map(|vgpu| vgpu.name.as_str()).collect();
            HandlerError::NoSuchVgpu { name: name.to_owned(), known: known.join(", ") }
        })
    }

    fn command(&self, name: &str, command: Order) -> Result<Value, HandlerError> {
        let outcome = self.vgpu(name)?.commands.ask(command, PATIENCE);
        outcome.map_err(|source| HandlerError::Command { name: name.to_owned(), source })
    }
}

fn migration(vgpu: &str, error: &MigrationError) -> HandlerError {
    let source = OrderError::Refused(error.to_string());
    HandlerError::Command { name: vgpu.to_owned(), source }
}

fn describe(vgpu: &Vgpu) -> Value {
    let mut fields = Map::new();
    fields.insert("name".to_owned(), json!(vgpu.name));
    fields.insert("socket".to_owned(), json!(vgpu.socket));
    fields.insert("vram_bytes".to_owned(), json!(vgpu.vram_bytes));
    let (quota, budget) = (vgpu.account.quota(), vgpu.account.budget());
    fields.insert("vram_min_bytes".to_owned(), json!(quota.min));
    fields.insert("vram_max_bytes".to_owned(), json!(quota.max));
    fields.insert("vram_committed_bytes".to_owned(), json!(budget.committed));
    fields.insert("vram_available_bytes".to_owned(), json!(budget.available));
    fields.insert("tuning".to_owned(), show_tuning(&vgpu.current.get()));
    fields.insert("nodes".to_owned(), show_nodes(vgpu));
    fields.insert("submit_to_fence".to_owned(), show_latency(vgpu));
    fields.insert("budget".to_owned(), show_budget(&vgpu.budget));
    fields.insert("engine_processes".to_owned(), vgpu.held.describe());
    fields.insert("log_lines_left_out".to_owned(), json!(vgpu.log.left_out()));
    fields.insert("quarantined".to_owned(), json!(vgpu.standing.quarantined().as_ref().map(show)));
    fields.insert("vm_connected".to_owned(), json!(vgpu.commands.has_session()));
    match vgpu.commands.ask(Order::Describe, GLANCE) {
        Ok(session) => fields.insert("session".to_owned(), session),
        Err(OrderError::NoSession) => None,
        Err(error) => fields.insert("error".to_owned(), json!(error.to_string())),
    };
    Value::Object(fields)
}

fn recall(vgpu: &Vgpu, last: Option<Duration>) -> Value {
    match vgpu.commands.ask(Order::History(last), GLANCE) {
        Ok(Value::Object(mut history)) => {
            history.insert("name".to_owned(), json!(vgpu.name));
            Value::Object(history)
        }
        Ok(_) | Err(OrderError::NoSession) => json!({ "name": vgpu.name, "engines": [] }),
        Err(error) => json!({ "name": vgpu.name, "engines": [], "error": error.to_string() }),
    }
}

/// What it had of each node, and what was due to it.
fn show_nodes(vgpu: &Vgpu) -> Value {
    let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let node = |at: EngineAddress| {
        let times = vgpu.meters.times(at);
        json!({ "engine": at.engine, "node": node_name(at.node), "held_ns": nanoseconds(times.held),
                "due_ns": nanoseconds(times.due), "wanted_ns": nanoseconds(times.wanted) })
    };
    EngineAddress::all(vgpu.engines).map(node).collect()
}

/// From SUBMIT to the fence: how many, and how long all of them together.
fn show_latency(vgpu: &Vgpu) -> Value {
    let seen = vgpu.counters.measures.submit_to_fence.distribution();
    let sum = u64::try_from(seen.sum.as_nanos()).unwrap_or(u64::MAX);
    json!({ "count": seen.buckets.iter().sum::<u64>(), "sum_ns": sum })
}

/// What a reload changes.
fn show_tuning(config: &Config) -> Value {
    let milliseconds = config.timeouts.map(|timeout| u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX));
    json!({
        "weight": config.share.weight,
        "cap_percent": config.share.cap / 10,
        "highest_band": BandName::from(config.share.highest_band),
        "tdr_timeout_ms": milliseconds,
    })
}

/// What the daemon holds for a VM, and may hold.
fn show_budget(budget: &Budget) -> Value {
    let Statement { held, limit, refused, kinds } = budget.standing();
    let kinds: Map<String, Value> =
        kinds.map(|(name, held)| (name.to_owned(), json!(held))).into_iter().collect();
    json!({ "held": held, "limit": limit, "refused": refused, "kinds": kinds })
}

fn show(quarantine: &Quarantine) -> Value {
    let since = quarantine.since.duration_since(UNIX_EPOCH).unwrap_or_default();
    json!({ "why": quarantine.why, "since_unix": since.as_secs() })
}

fn measure(vgpu: &Vgpu) -> Value {
    let counts = vgpu.counters.all().into_iter().chain(vgpu.shell_counters.all());
    let mut counts: Map<String, Value> =
        counts.map(|(name, count)| (name.to_owned(), json!(count))).collect();
    counts.insert("refused_by_budget".to_owned(), json!(vgpu.budget.standing().refused));
    counts.insert("quarantined".to_owned(), json!(u64::from(vgpu.standing.quarantined().is_some())));
    json!({ "name": vgpu.name, "counters": counts })
}
