//! An engine with a virtual clock, and loads that want it.

use std::collections::BTreeMap;
use std::time::Duration;

use campanile_host_gpu::sched::choice::ALL;
use campanile_host_gpu::sched::choice::Choice;
use campanile_host_gpu::sched::parameters::Band;
use campanile_host_gpu::sched::parameters::Parameters;
use campanile_host_gpu::sched::policy::Current;
use campanile_host_gpu::sched::policy::EntityId;
use campanile_host_gpu::sched::policy::Policy;

/// `count` milliseconds.
pub(crate) const fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// `count` microseconds.
pub(crate) const fn us(count: u64) -> Duration {
    Duration::from_micros(count)
}

/// Runs a test with each policy.
pub(crate) fn with_each(test: impl Fn(Choice)) {
    for &choice in ALL {
        println!("policy {choice}");
        test(choice);
    }
}

/// What an entity wants of the engine.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Load {
    /// It can be stopped at multiples of this, counted from when it began to run.
    pub(crate) grain: Duration,
    /// How much work comes at a time; None: there is always more.
    pub(crate) burst: Option<Duration>,
    /// How long after the end of a burst the next one comes.
    pub(crate) pause: Duration,
}

impl Load {
    /// Always work, which stops at multiples of `grain`.
    pub(crate) fn busy(grain: Duration) -> Self {
        Self { grain, burst: None, pause: Duration::ZERO }
    }

    /// Bursts with pauses between; the first after one pause.
    pub(crate) fn bursts(burst: Duration, pause: Duration) -> Self {
        Self { grain: us(10), burst: Some(burst), pause }
    }
}

#[derive(Debug)]
struct Actor {
    parameters: Parameters,
    load: Load,
    left: Duration,
    wakes: Option<Duration>,
}

/// A time for which an entity had the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) entity: u64,
    pub(crate) from: Duration,
    pub(crate) to: Duration,
}

/// The engine.
pub(crate) struct Machine {
    pub(crate) policy: Box<dyn Policy>,
    pub(crate) now: Duration,
    actors: BTreeMap<u64, Actor>,
    pub(crate) current: Option<Current>,
    /// Where it stops next: after a decision against the running entity.
    stopping: bool,
    pub(crate) runs: Vec<Run>,
    /// How long each burst waited until it began: entity, wake, start.
    pub(crate) waits: Vec<(u64, Duration)>,
    begun: BTreeMap<u64, Duration>,
}

impl Machine {
    /// Without entities.
    pub(crate) fn new(choice: Choice) -> Self {
        Self {
            policy: choice.make(),
            now: Duration::ZERO,
            actors: BTreeMap::new(),
            current: None,
            stopping: false,
            runs: Vec::new(),
            waits: Vec::new(),
            begun: BTreeMap::new(),
        }
    }

    /// An entity comes.
    pub(crate) fn add(&mut self, entity: u64, parameters: Parameters, load: Load) {
        self.policy.add(EntityId(entity), parameters, self.now);
        let wakes = load.burst.map(|_| self.now + load.pause);
        self.actors
            .insert(entity, Actor { parameters, load, left: load.burst.unwrap_or(Duration::MAX), wakes });
        if load.burst.is_none() {
            self.wake(entity);
        }
    }

    /// The parameters of an entity change.
    pub(crate) fn change(&mut self, entity: u64, change: impl FnOnce(&mut Parameters)) {
        let actor = self.actors.get_mut(&entity).expect("an entity of this machine");
        change(&mut actor.parameters);
        self.policy.change(EntityId(entity), actor.parameters, self.now);
    }

    /// The work of an entity is of another kind from now on.
    pub(crate) fn load(&mut self, entity: u64, load: Load) {
        let actor = self.actors.get_mut(&entity).expect("an entity of this machine");
        (actor.load, actor.left) = (load, load.burst.unwrap_or(Duration::MAX));
    }

    /// An entity is gone.
    pub(crate) fn leave(&mut self, entity: u64) {
        self.policy.remove(EntityId(entity));
        self.actors.remove(&entity);
        if self.current.is_some_and(|current| current.entity.0 == entity) {
            self.stop();
        }
    }

    /// An entity has no work for now.
    pub(crate) fn nap(&mut self, entity: u64) {
        self.policy.sleep(EntityId(entity), self.now);
        if self.current.is_some_and(|current| current.entity.0 == entity) {
            self.stop();
        }
    }

    /// An entity has work.
    pub(crate) fn wake(&mut self, entity: u64) {
        self.policy.wake(EntityId(entity), self.now);
        self.begun.insert(entity, self.now);
    }

    /// Runs for `time`.
    pub(crate) fn run(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.wake_all();
            let mut until = end;
            if self.stopping {
                until = until.min(self.boundary());
                if until == self.now {
                    self.stop();
                    continue;
                }
            } else {
                let decision = self.policy.decide(self.current, self.now);
                assert!(
                    decision.until.is_none_or(|until| until > self.now),
                    "{decision:?} at {:?}",
                    self.now
                );
                let next = decision.next;
                if self.current.is_some() && self.current.map(|current| current.entity) != next {
                    self.stopping = true;
                    continue;
                }
                if let (None, Some(entity)) = (self.current, next) {
                    self.current = Some(Current { entity, since: self.now });
                    if let Some(woke) = self.begun.remove(&entity.0) {
                        self.waits.push((entity.0, self.now - woke));
                    }
                }
                until = decision.until.map_or(until, |at| until.min(at));
            }
            let wakes = self.actors.values().filter_map(|actor| actor.wakes).min();
            until = wakes.map_or(until, |at| until.min(at));
            self.pass(until);
        }
    }

    fn wake_all(&mut self) {
        let due = |actor: &Actor| actor.wakes.is_some_and(|at| at <= self.now);
        let due: Vec<u64> =
            self.actors.iter().filter(|(_, actor)| due(actor)).map(|(&entity, _)| entity).collect();
        for entity in due {
            self.actors.get_mut(&entity).expect("an entity of this machine").wakes = None;
            self.wake(entity);
        }
    }

    /// Where the running entity can stop next.
    fn boundary(&self) -> Duration {
        let current = self.current.expect("only the running entity is stopped");
        let grain = self.actors[&current.entity.0].load.grain.as_nanos();
        let ran = (self.now - current.since).as_nanos().div_ceil(grain) * grain;
        current.since + Duration::from_nanos(u64::try_from(ran).expect("a short run"))
    }

    fn stop(&mut self) {
        self.current = None;
        self.stopping = false;
    }

    /// Time goes on, at most until then: the running entity may end its work before.
    fn pass(&mut self, until: Duration) {
        let Some(current) = self.current else {
            self.now = until;
            return;
        };
        let entity = current.entity.0;
        let actor = self.actors.get_mut(&entity).expect("an entity of this machine");
        let time = (until - self.now).min(actor.left);
        let from = self.now;
        self.now += time;
        actor.left -= time;
        self.policy.charge(current.entity, time, self.now);
        match self.runs.last_mut() {
            Some(last) if last.entity == entity && last.to == from => last.to = self.now,
            _ => self.runs.push(Run { entity, from, to: self.now }),
        }
        if actor.left.is_zero() {
            actor.left = actor.load.burst.expect("only bursts end");
            actor.wakes = Some(self.now + actor.load.pause);
            self.policy.sleep(current.entity, self.now);
            self.stop();
        }
    }

    /// Time that an entity had from `from` to `to`.
    pub(crate) fn had(&self, entity: u64, from: Duration, to: Duration) -> Duration {
        let runs = self.runs.iter().filter(|run| run.entity == entity);
        runs.map(|run| run.to.min(to).saturating_sub(run.from.max(from))).sum()
    }

    /// How long an entity's first run from `from` on takes.
    pub(crate) fn first_run(&self, entity: u64, from: Duration) -> Duration {
        let mut runs = self.runs.iter().filter(|run| run.entity == entity && run.from >= from);
        runs.next().map(|run| run.to - run.from).expect("it ran")
    }

    /// Its share of that time.
    pub(crate) fn share(&self, entity: u64, from: Duration, to: Duration) -> f64 {
        self.had(entity, from, to).as_secs_f64() / (to - from).as_secs_f64()
    }

    /// Share of all that was used of the engine.
    pub(crate) fn used(&self, from: Duration, to: Duration) -> f64 {
        self.actors.keys().map(|&entity| self.share(entity, from, to)).sum()
    }

    /// Longest wait of a burst of an entity.
    pub(crate) fn longest_wait(&self, entity: u64) -> Duration {
        self.waits
            .iter()
            .filter(|(waiter, _)| *waiter == entity)
            .map(|&(_, wait)| wait)
            .max()
            .expect("it had work")
    }
}

/// Parameters of a group, in a band.
pub(crate) fn in_band(group: u64, band: Band) -> Parameters {
    Parameters { group, band, ..Parameters::default() }
}
