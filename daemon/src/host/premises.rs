//! The vGPUs of a daemon, as they come, change and go.
//!
//! ```text
//!   start, ctl vgpu add, reload ──▶ checked ──▶ begun ──▶ in the roster ──▶ out of it ──▶ session ended, all given back
//!                                      │                    ▲    │                ▲
//!                                      └─ refused           └────┘ set, reload    └── ctl vgpu remove, reload
//! ```
//!
//! One change at a time. A vGPU that files name is as they say after each reload; one that `ctl vgpu add` has made stays until it is
//! removed. What the daemon's own options say holds for all, but those that a reload changes as they were at the start.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::time::Duration;

use campanile_host_gpu::sched::parameters::Band;
use serde_json::Value;
use serde_json::json;

use super::builder::Builder;
use super::changes::Differences;
use super::changes::take_live;
use super::changes::take_live_options;
use super::changes::tuning;
use super::drain::drain;
use super::error::HostError;
use super::ground::Ground;
use super::ground::whole;
use super::options::HostOptions;
use super::options::VgpuOptions;
use super::predecessor::upgrade;
use super::source::Source;
use super::source::Wanted;
use super::tenants::Origin;
use super::tenants::Remembered;
use super::tenants::State;
use super::tenants::Tenant;
use super::upgrade::message::Changes;
use super::vgpu::Vgpu;
use crate::intake::DRAINED;
use crate::migration::target::arrivals::Arrivals;
use crate::migration::target::arriving::Arriving;
use crate::open_sockets;
use crate::operator::estate::Estate;
use crate::operator::estate::Objected;
use crate::operator::estate::Removal;
use crate::operator::roster::Roster;
use crate::operator::vgpu::show_tuning;
use crate::sched::awake::CpuLatency;
use crate::vgpu::control::orders::Order;
use crate::vgpu::control::orders::OrderError;
use crate::vgpu::memory::vidmm::quota::Account;

/// How long a vGPU's thread may take to be tuned.
const TIMEOUT: Duration = Duration::from_secs(20);

/// All of it.
#[derive(Debug)]
pub struct Premises {
    ground: Arc<Ground>,
    builder: Builder,
    roster: Arc<Roster>,
    /// What reads the operator's changes, where some may be made.
    source: Option<Arc<dyn Source>>,
    state: Mutex<State>,
}

impl Premises {
    /// Serves the vGPUs of these options.
    ///
    /// # Errors
    /// One cannot be served; then none is.
    pub(super) fn begin(
        ground: Ground,
        mut options: HostOptions,
        builder: Builder,
        source: Option<Arc<dyn Source>>,
    ) -> Result<Arc<Self>, HostError> {
        let vgpus = std::mem::take(&mut options.vgpus);
        let mut tenants = Vec::with_capacity(vgpus.len());
        for (index, vgpu) in vgpus.into_iter().enumerate() {
            // What holds the engines that are open already.
            let opened = ground.inheritance.opened(&vgpu.name).map(|(held, _)| held);
            let new = || options.holding.of_vgpu(index, &vgpu.name, options.engines.sandbox);
            let held = opened.unwrap_or_else(new);
            let account = Account::new(vgpu.quota(), Arc::clone(&ground.pool));
            let served = ground.begin(&options, &vgpu, account, held)?;
            tenants.push(Tenant::new(vgpu, Origin::Configured, served));
        }
        let roster = tenants.iter().map(|tenant| tenant.served.known.clone()).collect();
        let (roster, state) = (
            Arc::new(Roster::new(roster)),
            Mutex::new(State {
                options,
                tenants,
                remembered: Remembered::default(),
                intake: Arc::clone(&ground.intake),
            }),
        );
        Ok(Arc::new(Self { ground: Arc::new(ground), builder, roster, source, state }))
    }

    /// Goes on with what a daemon before this one had: vGPUs that the operator has made there, all guests, which `complete` sees to,
    /// and values that the operator has set, which the guests' threads take. What cannot be made is for `failed`.
    ///
    /// # Errors
    /// Those of `complete` and `failed`.
    pub(super) fn succeed(
        &self,
        changes: Changes,
        failed: impl Fn(String) -> Result<(), HostError>,
        complete: impl FnOnce() -> Result<(), HostError>,
    ) -> Result<(), HostError> {
        for spec in changes.made {
            let made = self.make(&mut self.state(), &spec).map(drop);
            made.or_else(|why| failed(format!("a vGPU that was made at run time: {why}")))?;
        }
        complete()?;
        for (name, values) in changes.set {
            if let Err(why) = self.set(&name, &values) {
                log::error!("what was set at run time is as in the configuration again: {why}");
            }
        }
        if changes.is_drained {
            self.state().remember();
        }
        Ok(())
    }

    /// The vGPUs, for those that ask about them.
    pub(super) fn roster(&self) -> &Arc<Roster> {
        &self.roster
    }

    /// What each can take of what others bring.
    pub(super) fn arriving(&self) -> Vec<Arc<Arriving>> {
        self.roster.all().iter().map(|vgpu| Arc::clone(&vgpu.endpoint.arriving)).collect()
    }

    /// Others can bring theirs.
    pub(super) fn open(&self, arrivals: &Arc<Arrivals>) {
        let _twice = self.ground.arrivals.set(Arc::clone(arrivals));
        for vgpu in self.roster.all().iter() {
            vgpu.endpoint.open(Arc::clone(arrivals));
        }
    }

    /// What a program that serves within itself has of each.
    pub(super) fn handles(&self) -> Vec<Vgpu> {
        let state = self.state();
        state.tenants.iter().map(|tenant| Vgpu::from(&tenant.served)).collect()
    }

    /// Ends all sessions.
    pub(super) fn end(&self) {
        let tenants = std::mem::take(&mut self.state().tenants);
        drop(tenants);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn admit(&self, state: &mut State, vgpu: VgpuOptions, origin: Origin) -> Result<(), String> {
        state.check(None, &vgpu)?;
        let refused = |why: &str| format!("vGPU {}: {why}", vgpu.name);
        let account = Account::open(vgpu.quota(), &self.ground.pool);
        let account = account.map_err(|error| refused(&format!("vram-min: {error}")))?;
        let others = state.tenants.iter().filter_map(|tenant| tenant.served.known.held.uid());
        let others: BTreeSet<u32> = others.chain(self.ground.inheritance.opened_users()).collect();
        let (ground, options, its) = (Arc::clone(&self.ground), state.options.clone(), vgpu.clone());
        let begin = move || {
            let size = (its.name.as_str(), its.vram_bytes);
            let new = || options.holding.begin_vgpu(size, &its.socket, &others, options.engines.sandbox);
            let opened = ground.inheritance.opened(&its.name);
            let held = opened.map_or_else(new, |(held, _)| Ok(held))?;
            let begun = ground.begin(&options, &its, account, held);
            begun.map_err(|error| {
                options.holding.end_vgpu(&its.name);
                let hint = error.hint(&its.socket);
                format!("{}{hint}", whole(&error))
            })
        };
        let begun = self.builder.run(begin).map_err(|error| refused(&error.to_string()))?;
        let served = begun.map_err(|why| if why.starts_with("vGPU ") { why } else { refused(&why) })?;
        if let Some(arrivals) = self.ground.arrivals.get() {
            served.known.endpoint.open(Arc::clone(arrivals));
            arrivals.add(Arc::clone(&served.known.endpoint.arriving));
        }
        self.roster.add(served.known.clone());
        state.tenants.push(Tenant::new(vgpu, origin, served));
        Ok(())
    }

    /// Makes a vGPU in the operator's words.
    fn make(&self, state: &mut State, spec: &str) -> Result<Value, Objected> {
        let vgpu = self.source()?.parse(spec).map_err(Objected)?;
        let restart: Vec<String> = self.restart_of(state, &vgpu).into_iter().collect();
        let added = json!({ "vgpu": vgpu.name, "socket": vgpu.socket, "vram_bytes": vgpu.vram_bytes, "needs_restart": restart });
        self.admit(state, vgpu, Origin::Made(spec.to_owned())).map_err(Objected)?;
        state.remember();
        Ok(added)
    }

    fn dismiss(&self, state: &mut State, name: &str, removal: Removal) -> Result<bool, String> {
        let at = state.tenants.iter().position(|tenant| tenant.options.name == name);
        let at = at.ok_or_else(|| format!("there is no vGPU {name}"))?;
        let served = &state.tenants[at].served;
        let is_connected = served.has_vm();
        let arrivals = self.ground.arrivals.get();
        if removal == Removal::Unused {
            let force = format!("`campanile ctl vgpu remove {name} --force` removes it all the same");
            if is_connected {
                return Err(format!("vGPU {name}: a VM has it; {force}, and its guest loses the device"));
            }
            if arrivals.is_some_and(|arrivals| arrivals.awaits(name)) {
                return Err(format!("vGPU {name}: a migration is on its way to it; {force}"));
            }
        }
        // Nothing asks for it from here on, and its name and its socket are free when this returns.
        self.roster.remove(name);
        if let Some(arrivals) = arrivals {
            arrivals.forget(name);
        }
        let Tenant { served, .. } = state.tenants.remove(at);
        let _none_under_way = served.known.endpoint.departure.cancel("the vGPU is removed");
        let (account, holding) = (Arc::clone(&served.known.account), state.options.holding.clone());
        let its_name = name.to_owned();
        let end = move || {
            drop(served);
            holding.end_vgpu(&its_name);
        };
        let ended = self.builder.run(end);
        account.close();
        ended.map_err(|error| format!("vGPU {name}: {error}"))?;
        log::info!("vGPU {name}: the operator has removed it");
        Ok(is_connected)
    }

    /// Tunes a vGPU as its options say, its session too; what of it failed.
    fn tune(state: &State, at: usize) -> Option<String> {
        let Tenant { options, served, .. } = &state.tenants[at];
        let tuning = tuning(options, &state.options);
        served.known.current.tune(tuning);
        match served.known.commands.ask(Order::Tune(tuning), TIMEOUT) {
            Ok(_) | Err(OrderError::NoSession) => None,
            Err(error) => Some(format!("vGPU {}: {error}", options.name)),
        }
    }

    /// Has a vGPU be as `wanted` as far as it can; the live keys that are another.
    fn change(state: &mut State, at: usize, wanted: &VgpuOptions) -> Result<Vec<&'static str>, String> {
        let Tenant { options, served, .. } = &mut state.tenants[at];
        let found = Differences::of(options, wanted);
        let least = served.known.account.set_min(wanted.vram_min);
        least.map_err(|error| format!("vGPU {}: vram-min: {error}", wanted.name))?;
        take_live(options, wanted);
        Ok(found.live)
    }

    /// What a vGPU gets only after a restart.
    fn restart_of(&self, state: &State, vgpu: &VgpuOptions) -> Option<String> {
        let is_slept = !self.ground.keeps_awake && state.options.scheduling.cpu_latency != CpuLatency::Off;
        (is_slept && vgpu.share.highest_band == Band::Realtime).then(|| {
            let name = &vgpu.name;
            format!("vGPU {name}: CPUs are kept awake for its realtime work (--cpu-latency)")
        })
    }

    fn source(&self) -> Result<&dyn Source, Objected> {
        let none = || Objected("this daemon is part of another program, which says what there is".to_owned());
        self.source.as_deref().ok_or_else(none)
    }
}

impl Estate for Premises {
    fn add(&self, spec: &str) -> Result<Value, Objected> {
        let mut state = self.state();
        if state.intake.is_closed() {
            return Err(Objected(DRAINED.to_owned()));
        }
        self.make(&mut state, spec)
    }

    fn remove(&self, name: &str, removal: Removal) -> Result<Value, Objected> {
        let mut state = self.state();
        let was_connected = self.dismiss(&mut state, name, removal).map_err(Objected)?;
        state.remember();
        Ok(json!({ "vgpu": name, "vm_was_connected": was_connected }))
    }

    fn set(&self, name: &str, values: &[String]) -> Result<Value, Objected> {
        let mut state = self.state();
        let source = self.source()?;
        let at = state.tenants.iter().position(|tenant| tenant.options.name == name);
        let at = at.ok_or_else(|| Objected(format!("there is no vGPU {name}")))?;
        let wanted = source.change(&state.tenants[at].options, values).map_err(Objected)?;
        let fixed = Differences::of(&state.tenants[at].options, &wanted).fixed;
        if !fixed.is_empty() {
            let fixed = fixed.join(", ");
            return Err(Objected(format!(
                "vGPU {name}: {fixed} cannot change while it is there; remove it and add it anew"
            )));
        }
        state.check(Some(at), &wanted).map_err(Objected)?;
        let changed = Self::change(&mut state, at, &wanted).map_err(Objected)?;
        state.tenants[at].set.extend(values.iter().filter_map(|value| {
            let (key, _) = value.split_once('=')?;
            Some((key.to_owned(), value.clone()))
        }));
        state.remember();
        let failed: Vec<String> = Self::tune(&state, at).into_iter().collect();
        let restart: Vec<String> = self.restart_of(&state, &wanted).into_iter().collect();
        let known = &state.tenants[at].served.known;
        log::info!("vGPU {name}: the operator has set {}", values.join(" "));
        Ok(json!({
            "vgpu": name,
            "changed": changed,
            "failed": failed,
            "needs_restart": restart,
            "tuning": show_tuning(&known.current.get()),
            "vram_min_bytes": known.account.quota().min,
        }))
    }

    fn reload(&self) -> Result<Value, Objected> {
        let mut state = self.state();
        let read = self.source()?.read();
        let Wanted { options: wanted, mut changed, mut restart } =
            read.map_err(|why| Objected(format!("nothing was changed:\n{why}")))?;
        take_live_options(&mut state.options, &wanted);
        let mut failed = Vec::new();
        let is_wanted = |name: &str| wanted.vgpus.iter().any(|vgpu| vgpu.name == name);
        let gone: Vec<String> = state
            .tenants
            .iter()
            .filter(|tenant| tenant.origin == Origin::Configured && !is_wanted(&tenant.options.name))
            .map(|tenant| tenant.options.name.clone())
            .collect();
        for name in gone {
            match self.dismiss(&mut state, &name, Removal::Unused) {
                Ok(_) => changed.push(format!("vGPU {name}: it is gone")),
                Err(why) => failed.push(why),
            }
        }
        for vgpu in wanted.vgpus {
            let name = vgpu.name.clone();
            let Some(at) = state.tenants.iter().position(|tenant| tenant.options.name == name) else {
                if state.intake.is_closed() {
                    failed.push(format!("vGPU {name}: {DRAINED}"));
                    continue;
                }
                let more = self.restart_of(&state, &vgpu);
                match self.admit(&mut state, vgpu, Origin::Configured) {
                    Ok(()) => {
                        changed.push(format!("vGPU {name}: it is new"));
                        restart.extend(more);
                    }
                    Err(why) => failed.push(why),
                }
                continue;
            };
            state.tenants[at].origin = Origin::Configured;
            state.tenants[at].set.clear();
            let fixed = Differences::of(&state.tenants[at].options, &vgpu).fixed;
            restart.extend(fixed.iter().map(|key| format!("vGPU {name}: {key}")));
            match Self::change(&mut state, at, &vgpu) {
                Ok(keys) => changed.extend(keys.iter().map(|key| format!("vGPU {name}: {key}"))),
                Err(why) => failed.push(why),
            }
            restart.extend(self.restart_of(&state, &state.tenants[at].options));
        }
        // Also those that files do not name: what the daemon's options say may be another.
        failed.extend((0..state.tenants.len()).filter_map(|at| Self::tune(&state, at)));
        state.remember();
        log::info!("the operator had the configuration read again: {} changes", changed.len());
        Ok(json!({ "changed": changed, "needs_restart": restart, "failed": failed }))
    }

    fn upgrade(&self, binary: Option<&Path>) -> Result<Value, Objected> {
        let state = self.state();
        let line = self.source()?.command_line();
        let served = state.tenants.iter().map(|tenant| (&tenant.served, tenant.origin.made()));
        upgrade(&self.builder, binary, line, served, state.changes()).map_err(|why| {
            log::error!("upgrade: {why}; this daemon goes on");
            Objected(format!("{why}; the daemon goes on as it was"))
        })
    }

    fn drain(&self, is_drained: bool) -> Result<Value, Objected> {
        Ok(drain(&mut self.state(), is_drained))
    }

    fn is_drained(&self) -> bool {
        self.ground.intake.is_closed()
    }

    fn answered(&self) {
        if open_sockets::are_left()
            && let Ok(source) = self.source()
        {
            source.end();
        }
    }
}
