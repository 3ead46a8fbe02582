//! A guest of the simulation: its contexts, and the policy over them.

use std::collections::BTreeMap;
use std::time::Duration;

use campanile_host_gpu::sched::parameters::Band;
use campanile_host_gpu::sched::parameters::Parameters;
use campanile_host_gpu::sched::policy::EntityId;
use campanile_host_gpu::sched::policy::Policy;

use super::load;
use super::load::Load;
use super::options::Options;
use super::random::Random;

/// A context.
#[derive(Debug)]
pub struct Context {
    /// What it wants.
    pub load: Load,
    /// Work that is left; for ever for an entity that is always busy. Zero: it sleeps.
    pub left: Duration,
    /// Since when it has waited to start, and whether no other realtime context had work meanwhile.
    pub waits: Option<(Duration, bool)>,
    /// Time that it had.
    pub had: Duration,
}

/// A guest with its vGPU.
#[derive(Debug)]
pub struct Guest {
    /// How its vGPU is scheduled.
    pub parameters: Parameters,
    /// The policy over its contexts.
    pub policy: Box<dyn Policy>,
    /// Its contexts.
    pub contexts: Vec<Context>,
    /// Contexts with work, by band and level.
    awake: BTreeMap<(Band, u8), usize>,
}

impl Guest {
    /// One that sleeps.
    pub fn new(number: usize, options: &Options, random: &mut Random) -> Self {
        let mut policy = options.policy.make();
        let contexts = (0..options.queues).map(|context| {
            let load = load::of_context(number, context, options, random);
            policy.add(EntityId(context as u64), load.parameters, Duration::ZERO);
            Context { load, left: Duration::ZERO, waits: None, had: Duration::ZERO }
        });
        let contexts = contexts.collect();
        Self { parameters: load::of_vgpu(number, options), policy, contexts, awake: BTreeMap::new() }
    }

    /// The most urgent band with work, and the level in it.
    pub fn urgency(&self) -> Option<(Band, u8)> {
        self.awake.last_key_value().map(|(&urgency, _)| urgency)
    }

    /// A context has work.
    pub fn wake(&mut self, context: usize, work: Duration, now: Duration) {
        let sleeper = &mut self.contexts[context];
        sleeper.left = work;
        let Parameters { band, level, .. } = sleeper.load.parameters;
        *self.awake.entry((band, level)).or_default() += 1;
        self.policy.wake(EntityId(context as u64), now);
    }

    /// A context has none.
    pub fn sleep(&mut self, context: usize, now: Duration) {
        let Parameters { band, level, .. } = self.contexts[context].load.parameters;
        if let Some(count) = self.awake.get_mut(&(band, level)) {
            *count -= 1;
            if *count == 0 {
                self.awake.remove(&(band, level));
            }
        }
        self.policy.sleep(EntityId(context as u64), now);
    }
}
