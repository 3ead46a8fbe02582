//! The handler of the operator's control commands.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use campanile_host_gpu::engine::address::node_index;
use campanile_host_gpu::engine::message::NodeKind;
use campanile_host_gpu::node::clock;
use serde_json::Value;
use serde_json::json;

use super::console::API;
use super::console::Console;
use super::console::HandlerError;
use super::estate::Estate;
use super::estate::Removal;
use super::roster::Roster;
use super::verb::NotifyMode;
use super::verb::PowerName;
use super::verb::Verb;
use super::verb::VgpuVerb;
use super::vgpu::Vgpu;
use super::vgpu::describe;
use super::vgpu::measure;
use super::vgpu::recall;
use super::vgpu::show;
use super::vgpu::trace;
use crate::confine::confiner::Confiner;
use crate::confine::status;
use crate::migration::error::MigrationError;
use crate::migration::target::arrivals::Arrivals;
use crate::vgpu::control::orders::Order;
use crate::vgpu::control::orders::OrderError;

/// How long it may take to carry out a control command.
const TIMEOUT: Duration = Duration::from_secs(20);

/// The most that guest processes get to let go.
const LONGEST_LEAVE: Duration = Duration::from_secs(120);

/// Every vGPU, for the operator.
#[derive(Debug)]
pub struct Handler {
    roster: Arc<Roster>,
    arrivals: Option<Arc<Arrivals>>,
    confiner: Arc<Confiner>,
    estate: Option<Arc<dyn Estate>>,
}

impl Handler {
    /// Over these vGPUs, and what other daemons bring, of a daemon that is confined so.
    pub fn new(roster: Arc<Roster>, arrivals: Option<Arc<Arrivals>>, confiner: Arc<Confiner>) -> Self {
        Self { roster, arrivals, confiner, estate: None }
    }

    /// The same, which makes, changes and removes vGPUs so.
    pub fn changing(self, estate: Arc<dyn Estate>) -> Self {
        Self { estate: Some(estate), ..self }
    }

    /// Carries a command out.
    fn carry_out(&self, verb: &Verb) -> Result<Value, HandlerError> {
        match verb {
            Verb::Status => {
                let daemon = status::describe(&self.confiner).map_err(HandlerError::Status)?;
                let vgpus: Vec<_> = self.roster.all().iter().map(describe).collect();
                let is_drained = self.estate.as_ref().is_some_and(|estate| estate.is_drained());
                Ok(json!({ "api": API, "daemon": daemon, "drained": is_drained, "vgpus": vgpus }))
            }
            Verb::Vram => Ok(json!({ "vgpus": self.roster.all().iter().map(describe).collect::<Vec<_>>() })),
            Verb::Metrics => {
                Ok(json!({ "vgpus": self.roster.all().iter().map(measure).collect::<Vec<_>>() }))
            }
            Verb::Timeline { vgpu, last, svg: _ } => {
                let wanted = match vgpu {
                    Some(name) => Arc::new(vec![self.vgpu(name)?]),
                    None => self.roster.all(),
                };
                let last = last.map(Duration::from_millis);
                Ok(json!({ "vgpus": wanted.iter().map(|vgpu| recall(vgpu, last)).collect::<Vec<_>>() }))
            }
            Verb::Trace { vgpu, since_ns, from, .. } => {
                let now = clock::monotonic();
                let since = since_ns.map_or(now, Duration::from_nanos);
                let wanted = match vgpu {
                    Some(name) => Arc::new(vec![self.vgpu(name)?]),
                    None => self.roster.all(),
                };
                let each =
                    wanted.iter().map(|of| trace(of, now.saturating_sub(since), from.get(&of.name).copied()));
                Ok(json!({ "now_ns": clock::nanoseconds(now), "vgpus": each.collect::<Vec<_>>() }))
            }
            #[cfg(debug_assertions)]
            Verb::Fault { vgpu, fault } => self.command(vgpu, Order::Fault((*fault).into())),
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
                let save = || quiesce.save(|| commands.nudge(), TIMEOUT);
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
            Verb::Reports => {
                Ok(json!({ "vgpus": self.roster.all().iter().map(reports).collect::<Vec<_>>() }))
            }
            Verb::Migration => Ok(json!({
                "departures": self.roster.all().iter().map(|vgpu| vgpu.endpoint.departure.describe()).collect::<Vec<_>>(),
                "arrivals": self.arrivals.as_ref().map(|arrivals| arrivals.describe()),
            })),
            Verb::Power { vgpu, state: PowerName::D0 } => self.command(vgpu, Order::EnterD0),
            Verb::Power { vgpu, state: PowerName::D3 } => self.command(vgpu, Order::EnterD3),
            Verb::Reload => Ok(self.estate()?.reload()?),
            Verb::Upgrade { binary } => Ok(self.estate()?.upgrade(binary.as_deref())?),
            Verb::Drain { off, .. } => Ok(self.estate()?.drain(!off)?),
            Verb::Vgpu(VgpuVerb::Add { spec }) => Ok(self.estate()?.add(spec)?),
            Verb::Vgpu(VgpuVerb::Remove { vgpu, force }) => {
                let removal = if *force { Removal::Forced } else { Removal::Unused };
                Ok(self.estate()?.remove(&self.vgpu(vgpu)?.name, removal)?)
            }
            Verb::Vgpu(VgpuVerb::Set { vgpu, values }) => {
                Ok(self.estate()?.set(&self.vgpu(vgpu)?.name, values)?)
            }
            Verb::Allow { vgpu } => {
                let lifted = self.vgpu(vgpu)?.standing.allow();
                if lifted.is_some() {
                    log::warn!("{vgpu}: the operator has lifted its quarantine");
                }
                Ok(json!({ "was_quarantined": lifted.as_ref().map(show) }))
            }
            Verb::ResetAdapter { vgpu: Some(vgpu) } => self.command(vgpu, Order::ResetAdapter),
            Verb::ResetAdapter { vgpu: None } => {
                let all = self.roster.all();
                let each = all.iter().map(|vgpu| {
                    let outcome = vgpu.commands.ask(Order::ResetAdapter, TIMEOUT);
                    let outcome = outcome.unwrap_or_else(|error| json!({ "error": error.to_string() }));
                    (vgpu.name.clone(), outcome)
                });
                Ok(Value::Object(each.collect()))
            }
        }
    }

    fn estate(&self) -> Result<&dyn Estate, HandlerError> {
        self.estate.as_deref().ok_or(HandlerError::NoEstate)
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
            of.commands.ask(Order::Leave(limit.min(LONGEST_LEAVE)), limit.min(LONGEST_LEAVE) + TIMEOUT);
        let gone = asked.map_err(|source| HandlerError::Command { name: vgpu.to_owned(), source })?;
        let (quiesce, commands) = (&of.endpoint.quiesce, &of.commands);
        let save = || quiesce.save(|| commands.nudge(), TIMEOUT);
        let go_on = || quiesce.go_on(|| commands.nudge());
        let taken = of.endpoint.departure.snapshot(file, save, go_on).map_err(|source| {
            // No guest process is to wait for what does not come.
            let _stays = commands.ask(Order::Stay, TIMEOUT);
            migration(vgpu, &source)
        })?;
        Ok(json!({ "parked": gone["parked"], "lost": gone["lost"], "file": file, "bytes": taken["bytes"] }))
    }

    fn vgpu(&self, name: &str) -> Result<Vgpu, HandlerError> {
        self.roster.find(name).ok_or_else(|| {
            let all = self.roster.all();
            let known: Vec<&str> = all.iter().map(|vgpu| vgpu.name.as_str()).collect();
            HandlerError::NoSuchVgpu { name: name.to_owned(), known: known.join(", ") }
        })
    }

    fn command(&self, name: &str, command: Order) -> Result<Value, HandlerError> {
        let outcome = self.vgpu(name)?.commands.ask(command, TIMEOUT);
        outcome.map_err(|source| HandlerError::Command { name: name.to_owned(), source })
    }
}

impl Console for Handler {
    fn serve(&self, verb: &Verb) -> Result<Value, HandlerError> {
        self.carry_out(verb)
    }

    fn answered(&self) {
        if let Some(estate) = &self.estate {
            estate.answered();
        }
    }
}

/// The newest reports on hangs of a vGPU, the newest last.
fn reports(vgpu: &Vgpu) -> Value {
    let reports = vgpu.current.get().clerk.recent();
    let reports: Vec<Value> = reports.iter().filter_map(|text| serde_json::from_str(text).ok()).collect();
    json!({ "name": vgpu.name, "reports": reports })
}

fn migration(vgpu: &str, error: &MigrationError) -> HandlerError {
    let source = OrderError::Refused(error.to_string());
    HandlerError::Command { name: vgpu.to_owned(), source }
}
