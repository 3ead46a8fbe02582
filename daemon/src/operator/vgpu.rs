//! One vGPU, and what there is to tell of it.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use std::time::UNIX_EPOCH;

use campanile_host_gpu::engine::address::EngineAddress;
use campanile_host_gpu::engine::address::node_name;
use campanile_host_gpu::log_limit::LogLimit;
use serde_json::Map;
use serde_json::Value;
use serde_json::json;

use super::held::Held;
use crate::frontend::vhost::counters::Counters as ShellCounters;
use crate::latencies::Distribution;
use crate::migration::endpoint::Endpoint;
use crate::sched::meter::Meters;
use crate::sched::meter::Preemption;
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
const LOOK_TIMEOUT: Duration = Duration::from_secs(1);

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

impl Vgpu {
    /// Buffers of user-mode queues that its engines have retired.
    pub fn user_submissions(&self) -> u64 {
        let each = EngineAddress::all(self.engines).map(|at| self.meters.user_submissions(at));
        each.fold(0, u64::saturating_add)
    }
}

/// All that is known of it now.
pub fn describe(vgpu: &Vgpu) -> Value {
    let mut fields = Map::new();
    fields.insert("name".to_owned(), json!(vgpu.name));
    fields.insert("socket".to_owned(), json!(vgpu.socket));
    fields.insert("vram_bytes".to_owned(), json!(vgpu.vram_bytes));
    let (quota, budget) = (vgpu.account.quota(), vgpu.account.budget());
    fields.insert("vram_min_bytes".to_owned(), json!(quota.min));
    fields.insert("vram_max_bytes".to_owned(), json!(quota.max));
    fields.insert("vram_committed_bytes".to_owned(), json!(budget.committed));
    fields.insert("vram_available_bytes".to_owned(), json!(budget.available));
    fields.insert("gpu_profile".to_owned(), json!(vgpu.current.get().profile.name()));
    fields.insert("tuning".to_owned(), show_tuning(&vgpu.current.get()));
    fields.insert("nodes".to_owned(), show_nodes(vgpu));
    fields.insert("submissions".to_owned(), show_submissions(vgpu));
    let to_fence = vgpu.counters.measures.submit_to_fence.distribution();
    fields.insert("submit_to_fence".to_owned(), show_latency(&to_fence));
    fields.insert("budget".to_owned(), show_budget(&vgpu.budget));
    fields.insert("engine_processes".to_owned(), vgpu.held.describe());
    fields.insert("log_lines_left_out".to_owned(), json!(vgpu.log.left_out()));
    fields.insert("quarantined".to_owned(), json!(vgpu.standing.quarantined().as_ref().map(show)));
    fields.insert("vm_connected".to_owned(), json!(vgpu.commands.has_session()));
    // First: what is asked of the session below makes another one due.
    fields.insert("checkpoint_holds".to_owned(), json!(vgpu.shell_counters.checkpoint_holds()));
    match vgpu.commands.ask(Order::Describe, LOOK_TIMEOUT) {
        Ok(session) => fields.insert("session".to_owned(), session),
        Err(OrderError::NoSession) => None,
        Err(error) => fields.insert("error".to_owned(), json!(error.to_string())),
    };
    Value::Object(fields)
}

/// What its engines ran, all that they remember or the last of it.
pub fn recall(vgpu: &Vgpu, last: Option<Duration>) -> Value {
    match vgpu.commands.ask(Order::History(last), LOOK_TIMEOUT) {
        Ok(Value::Object(mut history)) => {
            history.insert("name".to_owned(), json!(vgpu.name));
            Value::Object(history)
        }
        Ok(_) | Err(OrderError::NoSession) => json!({ "name": vgpu.name, "engines": [] }),
        Err(error) => json!({ "name": vgpu.name, "engines": [], "error": error.to_string() }),
    }
}

/// What has happened to it: what engines ran in the `last` time, and the events from this sequence number on.
pub fn trace(vgpu: &Vgpu, last: Duration, from: Option<u64>) -> Value {
    let recorded = vgpu.counters.measures.recorder.read(from);
    let mut answer = recall(vgpu, Some(last));
    if let (Value::Object(answer), Ok(Value::Object(recorded))) =
        (&mut answer, serde_json::to_value(recorded))
    {
        answer.extend(recorded);
        answer.insert("user_submissions".to_owned(), json!(vgpu.user_submissions()));
        let mut departure = vgpu.endpoint.departure.describe();
        answer.insert("passes".to_owned(), departure["progress"]["passes"].take());
    }
    answer
}

/// What it had of each node, and what was due to it.
fn show_nodes(vgpu: &Vgpu) -> Value {
    let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let node = |at: EngineAddress| {
        let times = vgpu.meters.times(at);
        let [yields, preempts] = Preemption::ALL.map(|what| show_latency(&vgpu.meters.preemptions(at, what)));
        json!({ "engine": at.engine, "node": node_name(at.node), "held_ns": nanoseconds(times.held),
                "due_ns": nanoseconds(times.due), "wanted_ns": nanoseconds(times.wanted), "yields": yields,
                "preempts": preempts })
    };
    EngineAddress::all(vgpu.engines).map(node).collect()
}

/// Buffers of its kernel-mode queues that came, and of its user-mode queues that engines have retired.
fn show_submissions(vgpu: &Vgpu) -> Value {
    json!({ "kernel": vgpu.counters.submissions.load(Ordering::Relaxed), "user": vgpu.user_submissions() })
}

/// How many, and how long all of them together.
fn show_latency(seen: &Distribution) -> Value {
    let sum = u64::try_from(seen.sum.as_nanos()).unwrap_or(u64::MAX);
    json!({ "count": seen.buckets.iter().sum::<u64>(), "sum_ns": sum })
}

/// What a reload changes.
pub fn show_tuning(config: &Config) -> Value {
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

/// Why it may not work.
pub fn show(quarantine: &Quarantine) -> Value {
    let since = quarantine.since.duration_since(UNIX_EPOCH).unwrap_or_default();
    json!({ "why": quarantine.why, "since_unix": since.as_secs() })
}

/// What was counted of it.
pub fn measure(vgpu: &Vgpu) -> Value {
    let counts = vgpu.counters.all().into_iter().chain(vgpu.shell_counters.all());
    let mut counts: Map<String, Value> =
        counts.map(|(name, count)| (name.to_owned(), json!(count))).collect();
    counts.insert("user_submissions".to_owned(), json!(vgpu.user_submissions()));
    counts.insert("refused_by_budget".to_owned(), json!(vgpu.budget.standing().refused));
    counts.insert("quarantined".to_owned(), json!(u64::from(vgpu.standing.quarantined().is_some())));
    json!({ "name": vgpu.name, "counters": counts })
}
