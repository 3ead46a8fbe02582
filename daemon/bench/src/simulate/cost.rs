//! What a policy's decisions cost, by the real clock.

use std::time::Duration;
use std::time::Instant;

use campanile_host_gpu::sched::choice::Choice;
use campanile_host_gpu::sched::parameters::Band;
use campanile_host_gpu::sched::parameters::Parameters;
use campanile_host_gpu::sched::policy::Current;
use campanile_host_gpu::sched::policy::EntityId;
use campanile_host_gpu::sched::policy::Policy;
use serde::Serialize;

use super::random::Random;
use super::spread::Spread;

/// Events measured.
const EVENTS: usize = 200_000;
/// Members of a group.
const GROUP: u64 = 8;

/// What one event costs: a report and the decision after it.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Cost {
    /// Entities in the policy.
    pub entities: u64,
    /// The middle one, nanoseconds.
    pub median_ns: f64,
    /// 99 of 100 are at most this.
    pub p99_ns: f64,
}

/// Measures a policy with that many entities: most have work, of all bands and priorities.
pub fn measure(choice: Choice, entities: u64, seed: u64) -> Cost {
    let mut random = Random::new(seed);
    let mut policy = choice.make();
    let mut now = Duration::ZERO;
    for entity in 0..entities {
        policy.add(EntityId(entity), parameters(entity, &mut random), now);
        policy.wake(EntityId(entity), now);
    }
    let mut current = None;
    let mut times: Vec<Duration> = Vec::with_capacity(EVENTS);
    for _ in 0..EVENTS {
        let entity = EntityId(random.between(0, entities - 1));
        let what = random.between(0, 9);
        let time = random.time(Duration::from_micros(10), Duration::from_millis(2));
        now += time;
        let begun = Instant::now();
        let next = event(&mut *policy, current, entity, what, time, now);
        times.push(begun.elapsed());
        current = match (next, current) {
            (Some(next), Some(before)) if next == before.entity => Some(before),
            (next, _) => next.map(|entity| Current { entity, since: now }),
        };
    }
    let spread = Spread::of(&mut times);
    let nanoseconds = |of: fn(&Spread) -> f64| spread.as_ref().map_or(0.0, of) * 1e3;
    Cost {
        entities,
        median_ns: nanoseconds(|spread| spread.p50_us).round(),
        p99_ns: nanoseconds(|spread| spread.p99_us).round(),
    }
}

fn parameters(entity: u64, random: &mut Random) -> Parameters {
    let band = random.pick(&[Band::Normal, Band::Normal, Band::Normal, Band::Idle, Band::Focus]);
    let weight = random.pick(&[100, 200, 400]);
    let priority = random.pick(&[0, 0, 0, 1, -1]);
    Parameters { group: entity / GROUP, band, weight, priority, ..Parameters::default() }
}

/// The running entity is charged; three of ten times another sleeps or wakes too.
fn event(
    policy: &mut dyn Policy,
    current: Option<Current>,
    entity: EntityId,
    what: u64,
    time: Duration,
    now: Duration,
) -> Option<EntityId> {
    if let Some(current) = current {
        policy.charge(current.entity, time, now);
    }
    match what {
        0 => policy.sleep(entity, now),
        1 | 2 => policy.wake(entity, now),
        _ => {}
    }
    policy.decide(current, now).next
}
