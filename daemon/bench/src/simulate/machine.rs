//! One engine, two policies, and a clock that goes from event to event.

use std::collections::BTreeSet;
use std::time::Duration;

use campanile_host_gpu::sched::parameters::Band;
use campanile_host_gpu::sched::parameters::Parameters;
use campanile_host_gpu::sched::parameters::Settings;
use campanile_host_gpu::sched::policy::Current;
use campanile_host_gpu::sched::policy::EntityId;
use campanile_host_gpu::sched::policy::Policy;

use super::guest::Guest;
use super::options::Options;
use super::random::Random;
use campanile_daemon::sched::turns::policy_between_vgpus;

/// How long an entity waited from its wake to its start.
#[derive(Debug, Clone, Copy)]
pub struct Start {
    /// Its band.
    pub band: Band,
    /// How long.
    pub waited: Duration,
    /// No other realtime context had work meanwhile: what it waited for could only be what cannot be stopped.
    pub alone: bool,
}

/// What happened.
#[derive(Debug, Default)]
pub struct Record {
    /// All starts after a wake.
    pub starts: Vec<Start>,
    /// Time of each vGPU, second by second.
    pub seconds: Vec<Vec<Duration>>,
    /// How often the engine went from one vGPU to another, and from one context to another.
    pub switches: (u64, u64),
    /// Time that the engine had nothing to do.
    pub idle: Duration,
}

/// Who has the engine.
#[derive(Debug, Clone, Copy)]
struct Running {
    guest: usize,
    context: usize,
    vgpu_since: Duration,
    since: Duration,
}

/// The engine with all its guests.
#[derive(Debug)]
pub struct Machine {
    options: Options,
    policy: Box<dyn Policy>,
    guests: Vec<Guest>,
    random: Random,
    now: Duration,
    running: Option<Running>,
    /// Who kept the engine, for the next context of the same vGPU.
    vgpu: Option<Current>,
    last: Option<(usize, usize)>,
    /// When the running entity will have stopped.
    stops: Option<Duration>,
    wakes: BTreeSet<(Duration, usize, usize)>,
    /// Realtime contexts with work.
    realtime: BTreeSet<(usize, usize)>,
    record: Record,
}

/// Runs it, from the beginning.
pub fn run(options: &Options) -> (Record, Vec<Guest>) {
    let mut machine = Machine::new(*options);
    while machine.now < options.time {
        machine.step();
    }
    (machine.record, machine.guests)
}

impl Machine {
    fn new(options: Options) -> Self {
        let mut random = Random::new(options.seed);
        let mut policy = policy_between_vgpus(options.policy, Settings::DEFAULT_NORMAL_SHARE);
        let guests: Vec<Guest> =
            (0..options.guests).map(|number| Guest::new(number, &options, &mut random)).collect();
        let mut wakes = BTreeSet::new();
        for (number, guest) in guests.iter().enumerate() {
            policy.add(EntityId(number as u64), guest.parameters, Duration::ZERO);
            for (context, load) in guest.contexts.iter().map(|context| context.load).enumerate() {
                let begins = random.time(Duration::ZERO, load.pause.1);
                wakes.insert((begins, number, context));
            }
        }
        let record = Record { seconds: vec![vec![Duration::ZERO; options.guests]], ..Record::default() };
        Self {
            options,
            policy,
            guests,
            random,
            now: Duration::ZERO,
            running: None,
            vgpu: None,
            last: None,
            stops: None,
            wakes,
            realtime: BTreeSet::new(),
            record,
        }
    }

    /// One event, and the time until the next.
    fn step(&mut self) {
        self.wake_all();
        if self.stops.is_some_and(|at| at <= self.now) {
            (self.running, self.stops) = (None, None);
        }
        let decided = if self.stops.is_none() { self.decide() } else { None };
        let second = Duration::from_secs(self.record.seconds.len() as u64);
        let mut until = self.options.time.min(second);
        for time in [decided, self.stops, self.wakes.first().map(|wake| wake.0)].into_iter().flatten() {
            until = until.min(time);
        }
        self.pass(until);
        if self.now == second && self.now < self.options.time {
            self.record.seconds.push(vec![Duration::ZERO; self.options.guests]);
        }
    }

    fn wake_all(&mut self) {
        while let Some(&(at, number, context)) = self.wakes.first() {
            if at > self.now {
                break;
            }
            self.wakes.pop_first();
            let load = self.guests[number].contexts[context].load;
            let work = load.burst.map_or(Duration::MAX, |(least, most)| self.random.time(least, most));
            if load.parameters.band == Band::Realtime {
                self.realtime.insert((number, context));
                if self.realtime.len() > 1 {
                    for &(guest, context) in &self.realtime {
                        if let Some((_, alone)) = &mut self.guests[guest].contexts[context].waits {
                            *alone = false;
                        }
                    }
                }
            }
            let alone = self.realtime.len() == 1;
            self.update(number, |guest, now| {
                guest.wake(context, work, now);
                guest.contexts[context].waits = load.burst.map(|_| (now, alone));
            });
        }
    }

    /// Changes a guest, and tells the policy over vGPUs what follows.
    fn update(&mut self, number: usize, change: impl FnOnce(&mut Guest, Duration)) {
        let guest = &mut self.guests[number];
        let before = guest.urgency();
        change(guest, self.now);
        let after = guest.urgency();
        let entity = EntityId(number as u64);
        if before != after
            && let Some((band, level)) = after
        {
            self.policy.change(entity, Parameters { band, level, ..guest.parameters }, self.now);
        }
        match (before, after) {
            (None, Some(_)) => self.policy.wake(entity, self.now),
            (Some(_), None) => self.policy.sleep(entity, self.now),
            _ => {}
        }
    }

    /// Asks both policies; starts an entity, or begins to stop the running one. Returns when to ask again.
    fn decide(&mut self) -> Option<Duration> {
        let outer = self.policy.decide(self.vgpu, self.now);
        let next = outer.next.and_then(|entity| usize::try_from(entity.0).ok());
        let holder = self.vgpu.and_then(|vgpu| usize::try_from(vgpu.entity.0).ok());
        if let Some(running) = self.running
            && next != Some(running.guest)
        {
            self.vgpu = None;
            self.begin_to_stop(running);
            return None;
        }
        let number = next?;
        let since = if holder == next { self.vgpu.map_or(self.now, |vgpu| vgpu.since) } else { self.now };
        self.vgpu = Some(Current { entity: EntityId(number as u64), since });
        let current = self
            .running
            .map(|running| Current { entity: EntityId(running.context as u64), since: running.since });
        let inner = self.guests[number].policy.decide(current, self.now);
        let chosen = inner.next.and_then(|entity| usize::try_from(entity.0).ok());
        match (self.running, chosen) {
            (Some(running), Some(chosen)) if running.context != chosen => {
                self.begin_to_stop(running);
                return None;
            }
            (None, Some(chosen)) => self.start(number, chosen, since),
            _ => {}
        }
        [outer.until, inner.until].into_iter().flatten().min().or(Some(Duration::MAX))
    }

    fn start(&mut self, guest: usize, context: usize, vgpu_since: Duration) {
        self.running = Some(Running { guest, context, vgpu_since, since: self.now });
        let (was_guest, was) = self.last.map_or((None, None), |last| (Some(last.0), Some(last)));
        self.record.switches.0 += u64::from(was_guest != Some(guest));
        self.record.switches.1 += u64::from(was != Some((guest, context)));
        self.last = Some((guest, context));
        let starter = &mut self.guests[guest].contexts[context];
        if let Some((woke, alone)) = starter.waits.take() {
            let band = starter.load.parameters.band;
            self.record.starts.push(Start { band, waited: self.now - woke, alone });
        }
    }

    /// The slices in flight run to their end: what is left of one, and the others.
    fn begin_to_stop(&mut self, running: Running) {
        let grain =
            self.options.slice.min(self.guests[running.guest].contexts[running.context].load.dispatch);
        let mut rest = self.random.time(Duration::ZERO, grain);
        for _ in 1..self.options.in_flight {
            rest += self.random.time(grain / 2, grain);
        }
        let ran = self.now - running.since;
        // Who only just began has begun its first slice, and nothing before.
        self.stops = Some(if ran.is_zero() { self.now } else { self.now + rest });
    }

    /// Time goes on, at most until then: the running entity may have done its work before.
    fn pass(&mut self, until: Duration) {
        let Some(running) = self.running else {
            self.record.idle += until - self.now;
            self.now = until;
            return;
        };
        let Running { guest: number, context, .. } = running;
        let guest = &mut self.guests[number];
        let runner = &mut guest.contexts[context];
        let time = (until - self.now).min(runner.left);
        self.now += time;
        if runner.load.burst.is_some() {
            runner.left -= time;
        }
        runner.had += time;
        let done = runner.left.is_zero();
        let pause = runner.load.pause;
        guest.policy.charge(EntityId(context as u64), time, self.now);
        self.policy.charge(EntityId(number as u64), time, self.now);
        if let Some(second) = self.record.seconds.last_mut() {
            second[number] += time;
        }
        if done {
            self.realtime.remove(&(number, context));
            self.update(number, |guest, now| guest.sleep(context, now));
            self.wakes.insert((self.now + self.random.time(pause.0, pause.1), number, context));
            let keeps = self.guests[number].urgency().is_some() && self.stops.is_none();
            let entity = EntityId(number as u64);
            self.vgpu = keeps.then_some(Current { entity, since: running.vgpu_since });
            (self.running, self.stops) = (None, None);
        }
    }
}
