//! The policy between vGPUs: state and time in, operations out. No clock, no I/O.

use std::collections::BTreeMap;
use std::time::Duration;

use campanile_host_gpu::engine::address::EngineAddress;
use campanile_protocol::handshake::grant::Phase;

/// Number of an engine with the supervisor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EngineId(pub u64);

/// What the supervisor should do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Raise to GRANTED.
    Give(EngineId),
    /// Raise to REVOKING.
    Revoke(EngineId),
    /// Take the node from an engine that sleeps; then decide again.
    Reclaim(EngineId),
    /// It did not yield in time.
    Hung(EngineId),
}

#[derive(Debug, Clone, Copy)]
struct Holding {
    engine: EngineId,
    revoked: Option<Duration>,
    reported: bool,
}

#[derive(Debug, Default)]
struct NodeTurns {
    holding: Option<Holding>,
    last: Option<EngineId>,
}

#[derive(Debug, Clone, Copy)]
struct Member {
    node: EngineAddress,
    /// How long it may go on after it was asked to yield (TDR-11, TDR-13); for ever without.
    timeout: Option<Duration>,
}

/// Turns on all nodes: round robin among the engines that want, one holder a node.
#[derive(Debug, Default)]
pub struct Turns {
    engines: BTreeMap<EngineId, Member>,
    nodes: BTreeMap<EngineAddress, NodeTurns>,
}

impl Turns {
    /// An engine takes part. It may go on for `timeout` after it was asked to yield; for ever without one.
    pub fn add(&mut self, engine: EngineId, node: EngineAddress, timeout: Option<Duration>) {
        self.engines.insert(engine, Member { node, timeout });
        self.nodes.entry(node).or_default();
    }

    /// Asks an engine to yield though nobody waits for its node: whether it still can is the question (TDR-12). False
    /// when it does not hold the node, or has been asked.
    pub fn ask(&mut self, engine: EngineId, now: Duration) -> bool {
        let holding = self.nodes.values_mut().filter_map(|node| node.holding.as_mut());
        let mut held = holding.filter(|holding| holding.engine == engine && holding.revoked.is_none());
        let Some(holding) = held.next() else { return false };
        holding.revoked = Some(now);
        true
    }

    /// An engine is gone: its process is reaped.
    pub fn remove(&mut self, engine: EngineId) {
        self.engines.remove(&engine);
        for node in self.nodes.values_mut() {
            if node.holding.is_some_and(|holding| holding.engine == engine) {
                node.holding = None;
            }
        }
    }

    /// Decides at time `now`, given each engine's phase. Returns what to do, and when to decide again at the
    /// latest.
    pub fn decide(
        &mut self,
        phase: impl Fn(EngineId) -> Phase,
        now: Duration,
    ) -> (Vec<Operation>, Option<Duration>) {
        let mut operations = Vec::new();
        let mut again: Option<Duration> = None;
        for (&node, turns) in &mut self.nodes {
            let wants: Vec<EngineId> = self
                .engines
                .iter()
                .filter(|&(&engine, member)| member.node == node && phase(engine) == Phase::Want)
                .map(|(&engine, _)| engine)
                .collect();
            if let Some(holding) = &mut turns.holding {
                let timeout = self.engines.get(&holding.engine).and_then(|member| member.timeout);
                match phase(holding.engine) {
                    Phase::Idle | Phase::Want | Phase::Yielded => turns.holding = None,
                    Phase::Parked => {
                        if !wants.is_empty() {
                            operations.push(Operation::Reclaim(holding.engine));
                            again = earlier(again, now);
                        }
                    }
                    Phase::Granted => {
                        if !wants.is_empty() {
                            operations.push(Operation::Revoke(holding.engine));
                            holding.revoked = Some(now);
                            again = timeout.map_or(again, |timeout| earlier(again, now + timeout));
                        }
                    }
                    Phase::Revoking => {
                        let Some(timeout) = timeout else { continue };
                        let due = holding.revoked.unwrap_or(now) + timeout;
                        if now >= due && !holding.reported {
                            holding.reported = true;
                            operations.push(Operation::Hung(holding.engine));
                        } else if now < due {
                            again = earlier(again, due);
                        }
                    }
                }
            }
            if turns.holding.is_none() {
                let last = turns.last;
                let next = wants.iter().find(|engine| Some(**engine) > last).or(wants.first());
                if let Some(&engine) = next {
                    operations.push(Operation::Give(engine));
                    turns.holding = Some(Holding { engine, revoked: None, reported: false });
                    turns.last = Some(engine);
                    if wants.len() > 1 {
                        again = earlier(again, now);
                    }
                }
            }
        }
        (operations, again)
    }
}

fn earlier(known: Option<Duration>, new: Duration) -> Option<Duration> {
    Some(known.map_or(new, |known| known.min(new)))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use campanile_host_gpu::engine::address::EngineAddress;
    use campanile_host_gpu::engine::message::NodeKind;
    use campanile_protocol::handshake::grant::Phase;

    use super::EngineId;
    use super::Operation;
    use super::Turns;

    const TIMEOUT: Duration = Duration::from_secs(2);
    const A: EngineId = EngineId(1);
    const B: EngineId = EngineId(2);
    const C: EngineId = EngineId(3);

    struct World {
        turns: Turns,
        phases: BTreeMap<EngineId, Phase>,
    }

    impl World {
        fn new(engines: &[(EngineId, NodeKind)]) -> Self {
            let mut turns = Turns::default();
            for &(engine, node) in engines {
                turns.add(engine, EngineAddress::new(0, node), Some(TIMEOUT));
            }
            Self { turns, phases: engines.iter().map(|&(engine, _)| (engine, Phase::Idle)).collect() }
        }

        fn set(&mut self, engine: EngineId, phase: Phase) {
            self.phases.insert(engine, phase);
        }

        fn decide(&mut self, now: u64) -> Vec<Operation> {
            let phases = self.phases.clone();
            let (operations, _) = self.turns.decide(|engine| phases[&engine], Duration::from_millis(now));
            for operation in &operations {
                match *operation {
                    Operation::Give(engine) => self.set(engine, Phase::Granted),
                    Operation::Revoke(engine) => self.set(engine, Phase::Revoking),
                    Operation::Reclaim(engine) => self.set(engine, Phase::Idle),
                    Operation::Hung(_) => {}
                }
            }
            operations
        }
    }

    #[test]
    fn a_sole_runner_keeps_the_grant() {
        let mut world = World::new(&[(A, NodeKind::Compute), (B, NodeKind::Compute)]);
        world.set(A, Phase::Want);
        assert_eq!(world.decide(0), [Operation::Give(A)]);
        assert_eq!(world.decide(10_000), []);
    }

    #[test]
    fn the_next_is_granted_only_after_the_last_has_yielded() {
        let mut world = World::new(&[(A, NodeKind::Compute), (B, NodeKind::Compute), (C, NodeKind::Compute)]);
        for engine in [A, B, C] {
            world.set(engine, Phase::Want);
        }
        assert_eq!(world.decide(0), [Operation::Give(A)]);
        assert_eq!(world.decide(1), [Operation::Revoke(A)]);
        assert_eq!(world.decide(2), []);
        world.set(A, Phase::Want);
        assert_eq!(world.decide(3), [Operation::Give(B)], "round robin, although A wants again");
        assert_eq!(world.decide(4), [Operation::Revoke(B)]);
        world.set(B, Phase::Yielded);
        assert_eq!(world.decide(5), [Operation::Give(C)]);
    }

    #[test]
    fn an_engine_that_sleeps_keeps_its_node_until_somebody_wants_it() {
        let mut world = World::new(&[(A, NodeKind::Compute), (B, NodeKind::Compute)]);
        world.set(A, Phase::Want);
        assert_eq!(world.decide(0), [Operation::Give(A)]);
        world.set(A, Phase::Parked);
        assert_eq!(world.decide(10_000), []);
        world.set(A, Phase::Granted);
        assert_eq!(world.decide(10_001), [], "awake again");
        world.set(A, Phase::Parked);
        world.set(B, Phase::Want);
        assert_eq!(world.decide(10_002), [Operation::Reclaim(A)]);
        assert_eq!(world.decide(10_002), [Operation::Give(B)]);
        world.set(A, Phase::Want);
        assert_eq!(world.decide(10_003), [Operation::Revoke(B)]);
    }

    #[test]
    fn mcdm_19_nodes_do_not_wait_for_each_other() {
        let mut world = World::new(&[(A, NodeKind::Compute), (B, NodeKind::Copy)]);
        world.set(A, Phase::Want);
        world.set(B, Phase::Want);
        assert_eq!(world.decide(0), [Operation::Give(A), Operation::Give(B)]);
        assert_eq!(world.decide(1), []);
    }

    #[test]
    fn an_engine_that_never_yields_is_reported_once_and_the_next_waits_for_its_end() {
        let mut world = World::new(&[(A, NodeKind::Compute), (B, NodeKind::Compute)]);
        world.set(A, Phase::Want);
        let _given = world.decide(0);
        world.set(B, Phase::Want);
        assert_eq!(world.decide(1), [Operation::Revoke(A)]);
        let limit = u64::try_from(TIMEOUT.as_millis()).unwrap();
        assert_eq!(world.decide(limit), []);
        assert_eq!(world.decide(limit + 1), [Operation::Hung(A)]);
        assert_eq!(world.decide(limit + 2), []);
        world.turns.remove(A);
        assert_eq!(world.decide(limit + 3), [Operation::Give(B)]);
    }
}
