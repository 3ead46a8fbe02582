//! What has work, by context, and whose turn it is: the engine's side of the policy.
//!
//! ```text
//!   rung queue ──▶ queue_ready ─┐                              ┌─▶ the kernel-mode buffer at the head
//!   HW queue's head ─▶ set_kernel ┴─▶ contexts ──policy──▶ turn ┴─▶ one of its user-mode queues, in turn
//! ```
//!
//! A context alone has nobody to be fair to: then the policy is not asked, and hears of no work. That keeps it off
//! the way from ring to fence.

use std::collections::BTreeMap;
use std::collections::VecDeque;
use std::collections::btree_map::Entry;
use std::time::Duration;

use campanile_protocol::engine::block::MAX_CONTEXTS;
use campanile_protocol::engine::block::MAX_QUEUES;
use campanile_protocol::engine::scheduling;
use campanile_protocol::engine::scheduling::Bands;
use campanile_protocol::engine::scheduling::ContextProperties;
use campanile_protocol::engine::scheduling::Urgency;

use super::properties;
use super::watch::read;
use crate::memory::bits;
use crate::memory::mapping::Mapping;
use crate::scheduling::parameters::MAX_LEVEL;
use crate::scheduling::policy::Current;
use crate::scheduling::policy::EntityId;
use crate::scheduling::policy::Policy;

/// What to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// The hardware queue's oldest buffer.
    Kernel,
    /// A user-mode queue.
    Queue(u16),
}

/// A turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Turn {
    /// The context that has it.
    pub context: u32,
    /// What to run of it.
    pub next: Next,
    /// When to ask again at the latest; never, without.
    pub until: Option<Duration>,
}

/// A context with work.
#[derive(Debug, Default)]
struct Ready {
    queues: VecDeque<u16>,
    has_kernel: bool,
    /// Whether a queue had its last turn: kernel-mode and user-mode work take turns.
    was_queue: bool,
    /// Whether the policy has heard of its work.
    is_told: bool,
    urgency: Urgency,
}

const URGENCIES: usize = 4 * (MAX_LEVEL as usize + 1);

/// The contexts of an engine that have work.
#[derive(Debug)]
pub struct RunList {
    policy: Box<dyn Policy>,
    contexts: BTreeMap<u32, Ready>,
    /// Those of them that the policy has not heard of.
    untold: Vec<u32>,
    known: BTreeMap<u32, ContextProperties>,
    bands: Bands,
    kernel: Option<u32>,
    /// Who ran last, since when.
    current: Option<(u32, Duration)>,
    /// Contexts with work, by urgency.
    urgencies: [u32; URGENCIES],
    /// Whether a queue is in the list, by its number.
    listed: Vec<bool>,
}

const fn place(urgency: Urgency) -> usize {
    urgency.band as usize * (MAX_LEVEL as usize + 1) + urgency.level as usize
}

impl RunList {
    /// Nothing to run.
    pub fn new(policy: Box<dyn Policy>) -> Self {
        Self {
            policy,
            contexts: BTreeMap::new(),
            untold: Vec::new(),
            known: BTreeMap::new(),
            bands: Bands::default(),
            kernel: None,
            current: None,
            urgencies: [0; URGENCIES],
            listed: vec![false; MAX_QUEUES as usize],
        }
    }

    /// Takes up all that the daemon has said so far, of contexts that an earlier process of this engine knew as well.
    pub fn begin(&mut self, shared: &Mapping, now: Duration) {
        for context in 0..MAX_CONTEXTS {
            let properties = read::<ContextProperties>(shared, scheduling::properties(context));
            if let Some(properties) = properties.filter(|properties| properties.generation != 0) {
                self.know(context, properties, now);
            }
        }
        self.refresh(shared, now);
    }

    /// Takes up what the daemon has changed of contexts and bands; in force with the next turn (PRE-69).
    pub fn refresh(&mut self, shared: &Mapping, now: Duration) {
        if let Some(bands) = read::<Bands>(shared, scheduling::BANDS).filter(|bands| *bands != self.bands) {
            self.bands = bands;
            self.policy.set_bands(&properties::settings(&bands));
        }
        // PAIRS WITH adapter/scheduling.rs `set_properties`.
        for context in bits::take(shared, scheduling::RESCHEDULED, scheduling::RESCHEDULED_WORDS) {
            let Some(new) = read::<ContextProperties>(shared, scheduling::properties(context)) else {
                continue;
            };
            self.know(context, new, now);
        }
    }

    fn know(&mut self, context: u32, new: ContextProperties, now: Duration) {
        let entity = EntityId(u64::from(context));
        let parameters = properties::parameters(&new);
        match self.known.insert(context, new) {
            Some(old) if old.generation == new.generation => self.policy.change(entity, parameters, now),
            old => {
                if old.is_some() {
                    self.policy.remove(entity);
                }
                self.policy.add(entity, parameters, now);
            }
        }
        let Some(ready) = self.contexts.get_mut(&context) else { return };
        let before = std::mem::replace(&mut ready.urgency, properties::urgency(&new));
        self.urgencies[place(before)] -= 1;
        self.urgencies[place(ready.urgency)] += 1;
        if ready.is_told {
            self.policy.wake(entity, now);
        }
    }

    fn ready(&mut self, context: u32) -> &mut Ready {
        let Self { contexts, untold, known, urgencies, .. } = self;
        contexts.entry(context).or_insert_with(|| {
            let urgency = properties::urgency(known.get(&context).unwrap_or(&properties::UNKNOWN));
            urgencies[place(urgency)] += 1;
            untold.push(context);
            Ready { urgency, ..Ready::default() }
        })
    }

    /// A user-mode queue of a context has work.
    pub fn queue_ready(&mut self, context: u32, queue: u16) {
        let Some(listed) = self.listed.get_mut(usize::from(queue)) else { return };
        if !std::mem::replace(listed, true) {
            self.ready(context).queues.push_back(queue);
        }
    }

    /// The context whose buffer the hardware queue would run; none where it has nothing, or waits. The one before is
    /// dropped by [`Self::settle`], or here where it has not run.
    pub fn set_kernel(&mut self, context: Option<u32>, now: Duration) {
        if self.kernel == context {
            return;
        }
        if let Some(before) = std::mem::replace(&mut self.kernel, context) {
            if let Some(ready) = self.contexts.get_mut(&before) {
                ready.has_kernel = false;
            }
            self.settle(before, now);
        }
        if let Some(context) = context {
            self.ready(context).has_kernel = true;
        }
    }

    /// Whether the hardware queue has something to run.
    pub fn has_kernel(&self) -> bool {
        self.kernel.is_some()
    }

    /// Whether nothing has work.
    pub fn is_empty(&self) -> bool {
        self.contexts.is_empty()
    }

    /// The most urgent of what has work; the least there is, where nothing has.
    pub fn urgency(&self) -> Urgency {
        let highest = self.urgencies.iter().rposition(|&count| count > 0).unwrap_or(0);
        let levels = usize::from(MAX_LEVEL) + 1;
        let number = |value: usize| u8::try_from(value).unwrap_or(0);
        Urgency { band: number(highest / levels), level: number(highest % levels) }
    }

    /// Whose turn it is at `now`. A queue is taken off the list: whoever runs it puts it back.
    pub fn next(&mut self, now: Duration) -> Option<Turn> {
        let (context, until) = match self.contexts.len() {
            0 => return None,
            1 => (*self.contexts.keys().next()?, None),
            _ => self.decide(now)?,
        };
        if self.current.is_none_or(|(current, _)| current != context) {
            self.current = Some((context, now));
        }
        let ready = self.contexts.get_mut(&context)?;
        let is_kernels_turn = ready.queues.is_empty() || (ready.has_kernel && ready.was_queue);
        ready.was_queue = !is_kernels_turn;
        let queue = if is_kernels_turn { None } else { ready.queues.pop_front() };
        let next = match queue {
            Some(queue) => {
                if let Some(listed) = self.listed.get_mut(usize::from(queue)) {
                    *listed = false;
                }
                Next::Queue(queue)
            }
            None => Next::Kernel,
        };
        Some(Turn { context, next, until })
    }

    /// Asks the policy, among several.
    fn decide(&mut self, now: Duration) -> Option<(u32, Option<Duration>)> {
        for context in std::mem::take(&mut self.untold) {
            let Some(ready) = self.contexts.get_mut(&context) else { continue };
            let entity = EntityId(u64::from(context));
            if let Entry::Vacant(vacant) = self.known.entry(context) {
                // The daemon says how a context is scheduled before it has work (PRE-70). One of which nothing was said
                // is like any other.
                vacant.insert(properties::UNKNOWN);
                self.policy.add(entity, properties::parameters(&properties::UNKNOWN), now);
            }
            ready.is_told = true;
            self.policy.wake(entity, now);
        }
        let current = self.current.filter(|(context, _)| self.contexts.contains_key(context));
        let current = current.map(|(context, since)| Current { entity: EntityId(u64::from(context)), since });
        let decision = self.policy.decide(current, now);
        // A policy that lets nobody run, which caps alone could make it do, has no say inside a vGPU.
        let chosen = decision.next.and_then(|entity| u32::try_from(entity.0).ok());
        let chosen = chosen.filter(|context| self.contexts.contains_key(context));
        Some((chosen.or_else(|| self.contexts.keys().next().copied())?, decision.until))
    }

    /// A context has had the engine from `begin` to `end`.
    pub fn ran(&mut self, context: u32, begin: Duration, end: Duration) {
        if self.contexts.get(&context).is_some_and(|ready| ready.is_told) {
            self.policy.charge(EntityId(u64::from(context)), end.saturating_sub(begin), end);
        }
    }

    /// A turn is over, and what is left of its work is in the list again. True where nothing is left.
    pub fn settle(&mut self, context: u32, now: Duration) -> bool {
        match self.contexts.get(&context) {
            None => return true,
            Some(ready) if !ready.queues.is_empty() || ready.has_kernel => return false,
            Some(_) => {}
        }
        if self.current.is_some_and(|(current, _)| current == context) {
            self.current = None;
        }
        if let Some(ready) = self.contexts.remove(&context) {
            self.urgencies[place(ready.urgency)] -= 1;
            if ready.is_told {
                self.policy.sleep(EntityId(u64::from(context)), now);
            } else {
                self.untold.retain(|&untold| untold != context);
            }
        }
        true
    }

    /// What is known of a context.
    pub fn properties(&self, context: u32) -> ContextProperties {
        self.known.get(&context).copied().unwrap_or(properties::UNKNOWN)
    }
}
