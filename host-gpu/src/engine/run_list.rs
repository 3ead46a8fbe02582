//! What has work, by context, and whose turn it is: the engine's side of the policy.
//!
//! ```text
//!   rung queue ──▶ queue_ready ─┐                              ┌─▶ the kernel-mode buffer at the head
//!   HW queue's head ─▶ set_kernel ┴─▶ contexts ──policy──▶ turn ┴─▶ one of its user-mode queues, in turn
//! ```
//!
//! A context alone has nobody to be fair to: then the policy is not asked, and hears of no work. That keeps it off
//! the way from ring to fence.

use std::collections::VecDeque;
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
use crate::scheduling::parameters::Band;
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

/// A context, as far as it was ever heard of.
#[derive(Debug)]
struct Member {
    properties: ContextProperties,
    /// Whether the policy knows it at all.
    is_known: bool,
    /// Whether the policy has heard that it has work.
    is_told: bool,
    queues: VecDeque<u16>,
    has_kernel: bool,
    /// Whether a queue had its last turn: kernel-mode and user-mode work take turns.
    was_queue: bool,
    /// Where it stands among those that have work, if it has.
    place: Option<usize>,
}

impl Default for Member {
    fn default() -> Self {
        Self {
            properties: properties::UNKNOWN,
            is_known: false,
            is_told: false,
            queues: VecDeque::new(),
            has_kernel: false,
            was_queue: false,
            place: None,
        }
    }
}

/// The contexts of an engine, and which of them have work.
#[derive(Debug)]
pub struct RunList {
    policy: Box<dyn Policy>,
    /// By entry; as many as were heard of.
    members: Vec<Member>,
    /// The entries of those that have work.
    ready: Vec<u32>,
    /// Those of them that the policy has not heard of.
    untold: Vec<u32>,
    bands: Bands,
    kernel: Option<u32>,
    /// Who ran last, since when.
    current: Option<(u32, Duration)>,
    urgencies: Urgencies,
    /// Whether a queue is in the list, by its number.
    listed: Vec<bool>,
}

const fn entity(context: u32) -> EntityId {
    EntityId(context as u64)
}

impl RunList {
    /// Nothing to run.
    pub fn new(policy: Box<dyn Policy>) -> Self {
        Self {
            policy,
            members: Vec::new(),
            ready: Vec::new(),
            untold: Vec::new(),
            bands: Bands::default(),
            kernel: None,
            current: None,
            urgencies: Urgencies::default(),
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
        // PAIRS WITH adapter/scheduling.rs `write_properties`.
        for context in bits::take(shared, scheduling::RESCHEDULED, scheduling::RESCHEDULED_WORDS) {
            if let Some(new) = read::<ContextProperties>(shared, scheduling::properties(context)) {
                self.know(context, new, now);
            }
        }
    }

    /// The member of an entry, which is one; none where a guest could have made the number up.
    fn member(&mut self, context: u32) -> Option<&mut Member> {
        if context >= MAX_CONTEXTS {
            return None;
        }
        let place = context as usize;
        if self.members.len() <= place {
            self.members.resize_with(place + 1, Member::default);
        }
        self.members.get_mut(place)
    }

    fn know(&mut self, context: u32, new: ContextProperties, now: Duration) {
        let Some(member) = self.member(context) else { return };
        let old = std::mem::replace(&mut member.properties, new);
        let was_known = std::mem::replace(&mut member.is_known, true);
        let (is_told, is_ready) = (member.is_told, member.place.is_some());
        let parameters = properties::parameters(&new);
        if was_known && old.generation == new.generation {
            self.policy.change(entity(context), parameters, now);
        } else {
            if was_known {
                self.policy.remove(entity(context));
            }
            self.policy.add(entity(context), parameters, now);
            if is_told {
                self.policy.wake(entity(context), now);
            }
        }
        if is_ready {
            self.urgencies.remove(properties::urgency(&old));
            self.urgencies.add(properties::urgency(&new));
        }
    }

    /// It has work.
    fn make_ready(&mut self, context: u32) {
        let place = self.ready.len();
        let Some(member) = self.member(context) else { return };
        if member.place.is_some() {
            return;
        }
        member.place = Some(place);
        let urgency = properties::urgency(&member.properties);
        self.urgencies.add(urgency);
        self.ready.push(context);
        self.untold.push(context);
    }

    /// A user-mode queue of a context has work.
    pub fn queue_ready(&mut self, context: u32, queue: u16) {
        let Some(listed) = self.listed.get_mut(usize::from(queue)).filter(|_| context < MAX_CONTEXTS) else {
            return;
        };
        if std::mem::replace(listed, true) {
            return;
        }
        self.make_ready(context);
        if let Some(member) = self.member(context) {
            member.queues.push_back(queue);
        }
    }

    /// A user-mode queue of a context is gone.
    pub fn forget_queue(&mut self, context: u32, queue: u16, now: Duration) {
        if self.listed.get_mut(usize::from(queue)).is_some_and(std::mem::take) {
            if let Some(member) = self.member(context) {
                member.queues.retain(|&listed| listed != queue);
            }
            self.settle(context, now);
        }
    }

    /// The context whose buffer the hardware queue would run; none where it has nothing, or waits.
    pub fn set_kernel(&mut self, context: Option<u32>, now: Duration) {
        if self.kernel == context {
            return;
        }
        if let Some(before) = std::mem::replace(&mut self.kernel, context) {
            if let Some(member) = self.member(before) {
                member.has_kernel = false;
            }
            self.settle(before, now);
        }
        if let Some(context) = context {
            self.make_ready(context);
            if let Some(member) = self.member(context) {
                member.has_kernel = true;
            }
        }
    }

    /// Whether the hardware queue has something to run.
    pub fn has_kernel(&self) -> bool {
        self.kernel.is_some()
    }

    /// Whether nothing has work.
    pub fn is_empty(&self) -> bool {
        self.ready.is_empty()
    }

    /// The most urgent of what has work.
    pub fn urgency(&self) -> Urgency {
        self.urgencies.highest()
    }

    /// Whether realtime work is there beside other work.
    pub fn is_hurried(&self) -> bool {
        (1..self.ready.len()).contains(&self.urgencies.realtime())
    }

    /// How urgent work of a context would be.
    pub fn urgency_of(&self, context: u32) -> Urgency {
        properties::urgency(&self.properties(context))
    }

    /// Whose turn it is at `now`. A queue is taken off the list: whoever runs it puts it back.
    pub fn next(&mut self, now: Duration) -> Option<Turn> {
        let (context, until) = match self.ready[..] {
            [] => return None,
            [alone] => (alone, None),
            _ => self.decide(now)?,
        };
        if self.current.is_none_or(|(current, _)| current != context) {
            self.current = Some((context, now));
        }
        let member = self.member(context)?;
        let is_kernels_turn = member.queues.is_empty() || (member.has_kernel && member.was_queue);
        member.was_queue = !is_kernels_turn;
        let queue = if is_kernels_turn { None } else { member.queues.pop_front() };
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
        while let Some(context) = self.untold.pop() {
            let Some(member) = self.members.get_mut(context as usize) else { continue };
            if !std::mem::replace(&mut member.is_known, true) {
                // The daemon says how a context is scheduled before it has work (PRE-70). One of which nothing was said
                // is like any other.
                self.policy.add(entity(context), properties::parameters(&member.properties), now);
            }
            member.is_told = true;
            self.policy.wake(entity(context), now);
        }
        let is_ready =
            |context: u32| self.members.get(context as usize).is_some_and(|member| member.place.is_some());
        let current = self.current.filter(|&(context, _)| is_ready(context));
        let current = current.map(|(context, since)| Current { entity: entity(context), since });
        let decision = self.policy.decide(current, now);
        // A policy that lets nobody run, which caps alone could make it do, has no say inside a vGPU.
        let chosen = decision.next.and_then(|entity| u32::try_from(entity.0).ok());
        let chosen = chosen.filter(|&context| is_ready(context));
        Some((chosen.or_else(|| self.ready.first().copied())?, decision.until))
    }

    /// A context has had the engine from `begin` to `end`.
    pub fn ran(&mut self, context: u32, begin: Duration, end: Duration) {
        if self.members.get(context as usize).is_some_and(|member| member.is_told) {
            self.policy.charge(entity(context), end.saturating_sub(begin), end);
        }
    }

    /// A turn is over, and what is left of its work is in the list again. True where nothing is left.
    pub fn settle(&mut self, context: u32, now: Duration) -> bool {
        let Some(member) = self.members.get_mut(context as usize) else { return true };
        if !member.queues.is_empty() || member.has_kernel {
            return false;
        }
        let Some(place) = member.place.take() else { return true };
        self.urgencies.remove(properties::urgency(&member.properties));
        if std::mem::take(&mut member.is_told) {
            self.policy.sleep(entity(context), now);
        } else {
            self.untold.retain(|&untold| untold != context);
        }
        self.ready.swap_remove(place);
        if let Some(moved) = self.ready.get(place).copied()
            && let Some(member) = self.member(moved)
        {
            member.place = Some(place);
        }
        if self.current.is_some_and(|(current, _)| current == context) {
            self.current = None;
        }
        true
    }

    /// What is known of a context.
    pub fn properties(&self, context: u32) -> ContextProperties {
        self.members.get(context as usize).map_or(properties::UNKNOWN, |member| member.properties)
    }
}

const LEVELS: usize = MAX_LEVEL as usize + 1;

/// How many contexts with work there are of each urgency.
#[derive(Debug)]
struct Urgencies {
    counts: [u32; 4 * LEVELS],
    highest: usize,
}

impl Default for Urgencies {
    fn default() -> Self {
        Self { counts: [0; 4 * LEVELS], highest: 0 }
    }
}

impl Urgencies {
    fn place(urgency: Urgency) -> usize {
        usize::from(urgency.band) * LEVELS + usize::from(urgency.level)
    }

    fn add(&mut self, urgency: Urgency) {
        let place = Self::place(urgency);
        self.counts[place] += 1;
        self.highest = self.highest.max(place);
    }

    fn remove(&mut self, urgency: Urgency) {
        self.counts[Self::place(urgency)] -= 1;
        while self.highest > 0 && self.counts[self.highest] == 0 {
            self.highest -= 1;
        }
    }

    /// How many are realtime, of any level.
    fn realtime(&self) -> usize {
        let first = Band::Realtime as usize * LEVELS;
        if self.highest < first { 0 } else { self.counts[first..].iter().map(|count| *count as usize).sum() }
    }

    fn highest(&self) -> Urgency {
        let number = |value: usize| u8::try_from(value).unwrap_or(0);
        Urgency { band: number(self.highest / LEVELS), level: number(self.highest % LEVELS) }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use campanile_protocol::engine::scheduling::ContextProperties;

    use super::RunList;
    use crate::engine::properties;
    use crate::scheduling::choice::Choice;
    use crate::scheduling::parameters::Band;

    const NORMAL: u32 = 0;
    const URGENT: u32 = 1;

    #[test]
    fn realtime_work_beside_other_work_is_in_a_hurry_and_alone_it_is_not() {
        let mut list = RunList::new(Choice::default().make());
        for (context, band) in [(NORMAL, Band::Normal), (URGENT, Band::Realtime)] {
            let known = ContextProperties { generation: 1, band: band as u8, ..properties::UNKNOWN };
            list.know(context, known, Duration::ZERO);
        }
        assert!(!list.is_hurried(), "no work");
        list.queue_ready(URGENT, 1);
        assert!(!list.is_hurried(), "nothing is in its way");
        list.queue_ready(NORMAL, 0);
        assert!(list.is_hurried());
        assert_eq!(list.next(Duration::ZERO).unwrap().context, URGENT);
        list.settle(URGENT, Duration::ZERO);
        assert!(!list.is_hurried(), "it is done");
    }
}
