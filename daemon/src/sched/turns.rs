//! Which engine has each node of the physical GPU: state and time in, operations out. No clock, no I/O.
//!
//! ```text
//!   grant words, urgencies ──▶ Turns ──▶ Policy of the node ──▶ which engine should have it, until when
//!                                │                                       │
//!                                └── time held is charged                └──▶ Give · Revoke · Boost · Reclaim · Hung · Contend
//! ```
//!
//! The policy decides which engine should have a node. This turns the decision into operations on grant words, charges the
//! holder for its time, and reports a holder that does not yield in time.

use std::collections::BTreeMap;
use std::time::Duration;

use campanile_host_gpu::engine::address::EngineAddress;
use campanile_host_gpu::sched::choice::Choice;
use campanile_host_gpu::sched::parameters::Band;
use campanile_host_gpu::sched::parameters::Parameters;
use campanile_host_gpu::sched::parameters::Settings;
use campanile_host_gpu::sched::parameters::WHOLE_ENGINE;
use campanile_host_gpu::sched::policy::Current;
use campanile_host_gpu::sched::policy::EntityId;
use campanile_host_gpu::sched::policy::Policy;
use campanile_protocol::engine::scheduling::Urgency;
use campanile_protocol::handshake::grant::Phase;

use super::share::Share;

/// The number that the supervisor gives an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EngineId(pub u64);

/// What the supervisor should do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Grant it the node: WANT to GRANTED.
    Give(EngineId),
    /// Ask it to yield: GRANTED to REVOKING.
    Revoke(EngineId),
    /// Have it run shorter slices for a while: realtime work preempts it.
    Boost(EngineId),
    /// Take the node from an engine that sleeps; then decide again.
    Reclaim(EngineId),
    /// Raise its alarm: it did not yield in time.
    Hung(EngineId),
    /// Tell it whether other engines want its node.
    Contend(EngineId, bool),
}

/// How long a vGPU keeps a node while others of the same band wait. Longer than an engine's own quantum: a change costs
/// two wake-ups.
pub const QUANTUM: Duration = Duration::from_millis(4);

/// A policy for the vGPUs of one node.
pub fn policy_between_vgpus(choice: Choice, normal_share: u32) -> Box<dyn Policy> {
    let mut settings = Settings { normal_share, ..Settings::default() };
    for band in &mut settings.bands {
        band.process_quantum = QUANTUM;
    }
    let mut policy = choice.make();
    policy.set_bands(&settings);
    policy
}

#[derive(Debug, Clone, Copy)]
struct Holding {
    engine: EngineId,
    since: Duration,
    /// Up to when its time was charged.
    charged: Duration,
    revoked: Option<Duration>,
    reported: bool,
}

#[derive(Debug)]
struct NodeTurns {
    policy: Box<dyn Policy>,
    holding: Option<Holding>,
    /// The time for which each engine has held it.
    held: BTreeMap<EngineId, Duration>,
    /// Engines that want or have the node.
    awake: usize,
}

#[derive(Debug, Clone, Copy)]
struct Entity {
    node: EngineAddress,
    /// How long it may go on after it was asked to yield (TDR-11, TDR-13); for ever without.
    timeout: Option<Duration>,
    share: Share,
    is_awake: bool,
    urgency: Urgency,
    is_contended: bool,
}

impl Entity {
    /// Its parameters for the policy: the band of its most urgent work, up to the highest that the operator grants (PRE-65).
    fn parameters(&self, engine: EngineId) -> Parameters {
        let wanted = Band::from_number(u32::from(self.urgency.band)).unwrap_or(Band::Normal);
        Parameters {
            group: engine.0,
            band: wanted.min(self.share.highest_band),
            level: self.urgency.level,
            weight: self.share.weight,
            cap: self.share.cap,
            quantum: QUANTUM,
            ..Parameters::default()
        }
    }
}

/// Turns on all nodes: one holder a node.
#[derive(Debug)]
pub struct Turns {
    policy: Choice,
    normal_share: u32,
    engines: BTreeMap<EngineId, Entity>,
    nodes: BTreeMap<EngineAddress, NodeTurns>,
}

impl Turns {
    /// Without engines. `normal_share` is what PRE-68 says.
    pub fn new(policy: Choice, normal_share: u32) -> Self {
        Self { policy, normal_share, engines: BTreeMap::new(), nodes: BTreeMap::new() }
    }

    /// An engine takes part. It may go on for `timeout` after it was asked to yield; for ever without one.
    pub fn add(
        &mut self,
        engine: EngineId,
        node: EngineAddress,
        timeout: Option<Duration>,
        share: Share,
        now: Duration,
    ) {
        let (policy, normal_share) = (self.policy, self.normal_share);
        let turns = self.nodes.entry(node).or_insert_with(|| {
            let policy = policy_between_vgpus(policy, normal_share);
            NodeTurns { policy, holding: None, held: BTreeMap::new(), awake: 0 }
        });
        let urgency = Urgency::default();
        let entity = Entity { node, timeout, share, is_awake: false, urgency, is_contended: false };
        turns.policy.add(EntityId(engine.0), entity.parameters(engine), now);
        self.engines.insert(engine, entity);
    }

    /// An engine that takes part has its node from before. False where another one has it.
    pub fn adopt(&mut self, engine: EngineId, now: Duration) -> bool {
        let node = self.engines.get(&engine).and_then(|entity| self.nodes.get_mut(&entity.node));
        let Some(turns) = node.filter(|turns| turns.holding.is_none()) else { return false };
        turns.holding = Some(Holding { engine, since: now, charged: now, revoked: None, reported: false });
        true
    }

    /// An engine has another timeout and another share from the next decision on.
    pub fn change(&mut self, engine: EngineId, timeout: Option<Duration>, share: Share, now: Duration) {
        let Some(entity) = self.engines.get_mut(&engine) else { return };
        (entity.timeout, entity.share) = (timeout, share);
        if let Some(turns) = self.nodes.get_mut(&entity.node) {
            turns.policy.change(EntityId(engine.0), entity.parameters(engine), now);
        }
    }

    /// Asks an engine to yield though no other waits for its node: whether it still can is the question (TDR-12). False
    /// when it does not hold the node, or has been asked.
    pub fn ask(&mut self, engine: EngineId, now: Duration) -> bool {
        let holding = self.nodes.values_mut().filter_map(|node| node.holding.as_mut());
        let mut held = holding.filter(|holding| holding.engine == engine && holding.revoked.is_none());
        let Some(holding) = held.next() else { return false };
        holding.revoked = Some(now);
        true
    }

    /// An engine is gone: its process does nothing any more.
    pub fn remove(&mut self, engine: EngineId) {
        let Some(entity) = self.engines.remove(&engine) else { return };
        let Some(turns) = self.nodes.get_mut(&entity.node) else { return };
        turns.policy.remove(EntityId(engine.0));
        turns.held.remove(&engine);
        turns.awake -= usize::from(entity.is_awake);
        if turns.holding.is_some_and(|holding| holding.engine == engine) {
            turns.holding = None;
        }
    }

    /// How long each engine has had its node, up to its last charge; those that never had one are left out.
    pub fn held(&self) -> impl Iterator<Item = (EngineId, Duration)> {
        self.nodes.values().flat_map(|turns| turns.held.iter().map(|(&engine, &time)| (engine, time)))
    }

    /// Decides at time `now`, given each engine's phase and urgency. Returns what to do, and when to decide again at
    /// the latest.
    pub fn decide(
        &mut self,
        phase: impl Fn(EngineId) -> Phase,
        urgency: impl Fn(EngineId) -> Urgency,
        now: Duration,
    ) -> (Vec<Operation>, Option<Duration>) {
        self.look(&phase, &urgency, now);
        let mut operations = Vec::new();
        let mut again: Option<Duration> = None;
        for turns in self.nodes.values_mut() {
            let next = turns.decide(&self.engines, &phase, now, &mut operations);
            again = again.into_iter().chain(next).min();
        }
        for (&engine, entity) in &mut self.engines {
            let others =
                self.nodes.get(&entity.node).map_or(0, |turns| turns.awake - usize::from(entity.is_awake));
            // What a capped vGPU holds, it is charged for: it must not hold what it does not use.
            let is_contended = others > 0 || entity.share.cap < WHOLE_ENGINE;
            if std::mem::replace(&mut entity.is_contended, is_contended) != is_contended {
                operations.push(Operation::Contend(engine, is_contended));
            }
        }
        (operations, again)
    }

    /// Tells the policies which engines have work, and how urgent it is.
    fn look(
        &mut self,
        phase: impl Fn(EngineId) -> Phase,
        urgency: impl Fn(EngineId) -> Urgency,
        now: Duration,
    ) {
        for (&engine, entity) in &mut self.engines {
            let Some(turns) = self.nodes.get_mut(&entity.node) else { continue };
            let id = EntityId(engine.0);
            let is_awake = !matches!(phase(engine), Phase::Idle | Phase::Parked);
            let urgency = if is_awake { urgency(engine) } else { entity.urgency };
            if urgency != entity.urgency {
                entity.urgency = urgency;
                turns.policy.change(id, entity.parameters(engine), now);
            }
            if is_awake == entity.is_awake {
                continue;
            }
            entity.is_awake = is_awake;
            if is_awake {
                turns.awake += 1;
                turns.policy.wake(id, now);
                if let Some(holding) = turns.holding.as_mut().filter(|holding| holding.engine == engine) {
                    // It slept with the node, which no other wanted: that costs nothing.
                    holding.charged = now;
                }
            } else {
                turns.awake -= 1;
                turns.charge(engine, now);
                turns.policy.sleep(id, now);
            }
        }
    }
}

impl NodeTurns {
    /// Charges the holder of the node for its time up to `now`.
    fn charge(&mut self, engine: EngineId, now: Duration) {
        let Some(holding) = self.holding.as_mut().filter(|holding| holding.engine == engine) else { return };
        let time = now.saturating_sub(holding.charged);
        holding.charged = now;
        *self.held.entry(engine).or_default() += time;
        self.policy.charge(EntityId(engine.0), time, now);
    }

    fn decide(
        &mut self,
        engines: &BTreeMap<EngineId, Entity>,
        phase: impl Fn(EngineId) -> Phase,
        now: Duration,
        operations: &mut Vec<Operation>,
    ) -> Option<Duration> {
        if let Some(holding) = self.holding {
            let engine = holding.engine;
            match phase(engine) {
                Phase::Idle | Phase::Want | Phase::Yielded => {
                    self.charge(engine, now);
                    self.holding = None;
                }
                Phase::Parked if self.awake > 0 => {
                    operations.push(Operation::Reclaim(engine));
                    return Some(now);
                }
                Phase::Parked => return None,
                Phase::Granted => return self.go_on(engines, holding, now, operations),
                Phase::Revoking => return self.must_yield(engines, now, operations),
            }
        }
        let decision = self.policy.decide(None, now);
        let Some(id) = decision.next else { return decision.until };
        let engine = EngineId(id.0);
        operations.push(Operation::Give(engine));
        self.holding = Some(Holding { engine, since: now, charged: now, revoked: None, reported: false });
        self.policy.decide(Some(Current { entity: id, since: now }), now).until
    }

    /// Whether the holder keeps the node.
    fn go_on(
        &mut self,
        engines: &BTreeMap<EngineId, Entity>,
        holding: Holding,
        now: Duration,
        operations: &mut Vec<Operation>,
    ) -> Option<Duration> {
        self.charge(holding.engine, now);
        if let Some(holding) = &mut self.holding {
            // It slept when it was last asked to yield, and so was not.
            holding.revoked = None;
        }
        let id = EntityId(holding.engine.0);
        let decision = self.policy.decide(Some(Current { entity: id, since: holding.since }), now);
        if decision.next == Some(id) {
            return decision.until;
        }
        let is_realtime = |id: EntityId| {
            let engine = EngineId(id.0);
            engines.get(&engine).is_some_and(|entity| entity.parameters(engine).band == Band::Realtime)
        };
        if decision.next.is_some_and(is_realtime) && !is_realtime(id) {
            operations.push(Operation::Boost(holding.engine));
        }
        operations.push(Operation::Revoke(holding.engine));
        if let Some(holding) = &mut self.holding {
            holding.revoked = Some(now);
        }
        let timeout = engines.get(&holding.engine).and_then(|entity| entity.timeout);
        timeout.map(|timeout| now + timeout)
    }

    /// Whether the holder, which was asked to yield, is late.
    fn must_yield(
        &mut self,
        engines: &BTreeMap<EngineId, Entity>,
        now: Duration,
        operations: &mut Vec<Operation>,
    ) -> Option<Duration> {
        let holding = self.holding.as_mut()?;
        let timeout = engines.get(&holding.engine).and_then(|entity| entity.timeout)?;
        let due = *holding.revoked.get_or_insert(now) + timeout;
        if now < due {
            return Some(due);
        }
        if !std::mem::replace(&mut holding.reported, true) {
            operations.push(Operation::Hung(holding.engine));
        }
        None
    }
}

#[cfg(test)]
mod tests;
