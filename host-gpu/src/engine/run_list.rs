//! What has work, by context, and whose turn it is: the engine's side of the policy.
//!
//! ```text
//!   rung queue ──▶ queue_ready ─┐                              ┌─▶ the kernel-mode buffer at the head
//!   HW queue's head ─▶ set_kernel ┴─▶ contexts ──policy──▶ turn ┴─▶ one of its user-mode queues, in turn
//! ```
//!
//! A context alone has no other to be fair to: then the policy is not asked, and hears of no work. That keeps it off
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
use super::words::read;
use crate::ids::ContextIndex;
use crate::ids::QueueIndex;
use crate::memory::bits;
use crate::memory::mapping::Mapping;
use crate::sched::parameters::Band;
use crate::sched::parameters::MAX_LEVEL;
use crate::sched::policy::Current;
use crate::sched::policy::EntityId;
use crate::sched::policy::Policy;

/// What to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// The hardware queue's oldest buffer.
    Kernel,
    /// A user-mode queue.
    Queue(QueueIndex),
}

/// What runs next, and until when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Turn {
    /// The context that has it.
    pub context: ContextIndex,
    /// What to run of it.
    pub next: Next,
    /// When to ask again at the latest; never, without.
    pub until: Option<Duration>,
}

/// A context, as far as it was ever heard of.
#[derive(Debug)]
struct Entity {
    properties: ContextProperties,
    /// Whether the policy knows it at all.
    is_known: bool,
    /// Whether the policy has heard that it has work.
    is_told: bool,
    queues: VecDeque<QueueIndex>,
    has_kernel: bool,
    /// Whether a queue had its last turn: kernel-mode and user-mode work take turns.
    was_queue: bool,
    /// Where it stands among those that have work, if it has.
    place: Option<usize>,
}

impl Default for Entity {
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
    entities: Vec<Entity>,
    /// The entries of those that have work.
    ready: Vec<ContextIndex>,
    /// Those of them that the policy has not heard of.
    untold: Vec<ContextIndex>,
    bands: Bands,
    kernel: Option<ContextIndex>,
    /// The entity that ran last, since when.
    current: Option<(ContextIndex, Duration)>,
    urgencies: Urgencies,
    /// Whether a queue is in the list, by its number.
    listed: Vec<bool>,
}

const fn entity_id(context: ContextIndex) -> EntityId {
    EntityId(context.get() as u64)
}

impl RunList {
    /// Nothing to run.
    pub fn new(policy: Box<dyn Policy>) -> Self {
        Self {
            policy,
            entities: Vec::new(),
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
        for context in (0..MAX_CONTEXTS).map(ContextIndex::new) {
            let properties = read::<ContextProperties>(shared, scheduling::properties(context.get()));
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
        // PAIRS WITH adapter/suspends.rs `write_properties`.
        let changed = bits::take(shared, scheduling::RESCHEDULED, scheduling::RESCHEDULED_WORDS);
        for context in changed.into_iter().map(ContextIndex::new) {
            if let Some(new) = read::<ContextProperties>(shared, scheduling::properties(context.get())) {
                self.know(context, new, now);
            }
        }
    }

    /// The entity of a context, which begins with this; none for a number that a guest could have made up.
    fn entity(&mut self, context: ContextIndex) -> Option<&mut Entity> {
        if context.get() >= MAX_CONTEXTS {
            return None;
        }
        let place = context.get() as usize;
        if self.entities.len() <= place {
            self.entities.resize_with(place + 1, Entity::default);
        }
        self.entities.get_mut(place)
    }

    fn know(&mut self, context: ContextIndex, new: ContextProperties, now: Duration) {
        let Some(entity) = self.entity(context) else { return };
        let old = std::mem::replace(&mut entity.properties, new);
        let was_known = std::mem::replace(&mut entity.is_known, true);
        let (is_told, is_ready) = (entity.is_told, entity.place.is_some());
        let parameters = properties::parameters(&new);
        if was_known && old.generation == new.generation {
            self.policy.change(entity_id(context), parameters, now);
        } else {
            if was_known {
                self.policy.remove(entity_id(context));
            }
            self.policy.add(entity_id(context), parameters, now);
            if is_told {
                self.policy.wake(entity_id(context), now);
            }
        }
        if is_ready {
            self.urgencies.remove(properties::urgency(&old));
            self.urgencies.add(properties::urgency(&new));
        }
    }

    /// It has work.
    fn make_ready(&mut self, context: ContextIndex) {
        let place = self.ready.len();
        let Some(entity) = self.entity(context) else { return };
        if entity.place.is_some() {
            return;
        }
        entity.place = Some(place);
        let urgency = properties::urgency(&entity.properties);
        self.urgencies.add(urgency);
        self.ready.push(context);
        self.untold.push(context);
    }

    /// A user-mode queue of a context has work.
    pub fn queue_ready(&mut self, context: ContextIndex, queue: QueueIndex) {
        let Some(listed) =
            self.listed.get_mut(usize::from(queue.get())).filter(|_| context.get() < MAX_CONTEXTS)
        else {
            return;
        };
        if std::mem::replace(listed, true) {
            return;
        }
        self.make_ready(context);
        if let Some(entity) = self.entity(context) {
            entity.queues.push_back(queue);
        }
    }

    /// A user-mode queue of a context is gone.
    pub fn forget_queue(&mut self, context: ContextIndex, queue: QueueIndex, now: Duration) {
        if self.listed.get_mut(usize::from(queue.get())).is_some_and(std::mem::take) {
            if let Some(entity) = self.entity(context) {
                entity.queues.retain(|&listed| listed != queue);
            }
            self.settle(context, now);
        }
    }

    /// The context whose buffer the hardware queue would run; none where it has nothing, or waits.
    pub fn set_kernel(&mut self, context: Option<ContextIndex>, now: Duration) {
        if self.kernel == context {
            return;
        }
        if let Some(before) = std::mem::replace(&mut self.kernel, context) {
            if let Some(entity) = self.entity(before) {
                entity.has_kernel = false;
            }
            self.settle(before, now);
        }
        if let Some(context) = context {
            self.make_ready(context);
            if let Some(entity) = self.entity(context) {
                entity.has_kernel = true;
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
    pub fn wants_latency_boost(&self) -> bool {
        (1..self.ready.len()).contains(&self.urgencies.realtime())
    }

    /// How urgent work of a context would be.
    pub fn urgency_of(&self, context: ContextIndex) -> Urgency {
        properties::urgency(&self.properties(context))
    }

    /// Whose turn it is at `now`. A queue is taken off the list: the thread that runs it puts it back.
    pub fn next(&mut self, now: Duration) -> Option<Turn> {
        let (context, until) = match self.ready[..] {
            [] => return None,
            [alone] => (alone, None),
            _ => self.decide(now)?,
        };
        if self.current.is_none_or(|(current, _)| current != context) {
            self.current = Some((context, now));
        }
        let entity = self.entity(context)?;
        let is_kernels_turn = entity.queues.is_empty() || (entity.has_kernel && entity.was_queue);
        entity.was_queue = !is_kernels_turn;
        let queue = if is_kernels_turn { None } else { entity.queues.pop_front() };
        let next = match queue {
            Some(queue) => {
                if let Some(listed) = self.listed.get_mut(usize::from(queue.get())) {
                    *listed = false;
                }
                Next::Queue(queue)
            }
            None => Next::Kernel,
        };
        Some(Turn { context, next, until })
    }

    /// Asks the policy, among several.
    fn decide(&mut self, now: Duration) -> Option<(ContextIndex, Option<Duration>)> {
        while let Some(context) = self.untold.pop() {
            let Some(entity) = self.entities.get_mut(context.get() as usize) else { continue };
            if !std::mem::replace(&mut entity.is_known, true) {
                // The daemon says how a context is scheduled before it has work (PRE-70). One of which nothing was said
                // is like any other.
                self.policy.add(entity_id(context), properties::parameters(&entity.properties), now);
            }
            entity.is_told = true;
            self.policy.wake(entity_id(context), now);
        }
        let is_ready = |context: ContextIndex| {
            self.entities.get(context.get() as usize).is_some_and(|entity| entity.place.is_some())
        };
        let current = self.current.filter(|&(context, _)| is_ready(context));
        let current = current.map(|(context, since)| Current { entity: entity_id(context), since });
        let decision = self.policy.decide(current, now);
        // A policy that lets no context run, which caps alone could make it do, has no say inside a vGPU.
        let chosen = decision.next.and_then(|entity| u32::try_from(entity.0).ok()).map(ContextIndex::new);
        let chosen = chosen.filter(|&context| is_ready(context));
        Some((chosen.or_else(|| self.ready.first().copied())?, decision.until))
    }

    /// A context has had the engine from `begin` to `end`.
    pub fn ran(&mut self, context: ContextIndex, begin: Duration, end: Duration) {
        if self.entities.get(context.get() as usize).is_some_and(|entity| entity.is_told) {
            self.policy.charge(entity_id(context), end.saturating_sub(begin), end);
        }
    }

    /// A turn is over, and what is left of its work is in the list again. True where nothing is left.
    pub fn settle(&mut self, context: ContextIndex, now: Duration) -> bool {
        let Some(entity) = self.entities.get_mut(context.get() as usize) else { return true };
        if !entity.queues.is_empty() || entity.has_kernel {
            return false;
        }
        let Some(place) = entity.place.take() else { return true };
        self.urgencies.remove(properties::urgency(&entity.properties));
        if std::mem::take(&mut entity.is_told) {
            self.policy.sleep(entity_id(context), now);
        } else {
            self.untold.retain(|&untold| untold != context);
        }
        self.ready.swap_remove(place);
        if let Some(moved) = self.ready.get(place).copied()
            && let Some(entity) = self.entity(moved)
        {
            entity.place = Some(place);
        }
        if self.current.is_some_and(|(current, _)| current == context) {
            self.current = None;
        }
        true
    }

    /// What is known of a context.
    pub fn properties(&self, context: ContextIndex) -> ContextProperties {
        self.entities.get(context.get() as usize).map_or(properties::UNKNOWN, |entity| entity.properties)
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
    use std::sync::Arc;
    use std::sync::Mutex;
    use std::time::Duration;

    use campanile_protocol::engine::block::MAX_CONTEXTS;
    use campanile_protocol::engine::scheduling;
    use campanile_protocol::engine::scheduling::Bands;
    use campanile_protocol::engine::scheduling::ContextProperties;
    use campanile_protocol::engine::scheduling::Urgency;
    use zerocopy::IntoBytes;

    use super::Next;
    use super::RunList;
    use super::Turn;
    use crate::engine::properties;
    use crate::ids::ContextIndex;
    use crate::ids::QueueIndex;
    use crate::memory::bits;
    use crate::memory::mapping::Access;
    use crate::memory::mapping::Mapping;
    use crate::memory::vram::create_memfd;
    use crate::sched::choice::Choice;
    use crate::sched::parameters::Band;
    use crate::sched::parameters::Parameters;
    use crate::sched::parameters::Settings;
    use crate::sched::policy::Current;
    use crate::sched::policy::Decision;
    use crate::sched::policy::EntityId;
    use crate::sched::policy::Policy;

    const NORMAL: ContextIndex = ContextIndex::new(0);
    const URGENT: ContextIndex = ContextIndex::new(1);
    const SOON: Duration = Duration::from_millis(3);

    /// A policy that writes down what it is told, and decides as the test says.
    #[derive(Debug, Default)]
    struct Scripted {
        told: Arc<Mutex<Vec<String>>>,
        next: Arc<Mutex<Option<u64>>>,
    }

    impl Scripted {
        fn note(&self, text: String) {
            self.told.lock().unwrap().push(text);
        }
    }

    impl Policy for Scripted {
        fn name(&self) -> &'static str {
            "scripted"
        }

        fn set_bands(&mut self, settings: &Settings) {
            self.note(format!("bands {}", settings.normal_share));
        }

        fn add(&mut self, entity: EntityId, parameters: Parameters, _now: Duration) {
            self.note(format!("add {} {:?}", entity.0, parameters.band));
        }

        fn change(&mut self, entity: EntityId, parameters: Parameters, _now: Duration) {
            self.note(format!("change {} {:?}", entity.0, parameters.band));
        }

        fn remove(&mut self, entity: EntityId) {
            self.note(format!("remove {}", entity.0));
        }

        fn wake(&mut self, entity: EntityId, _now: Duration) {
            self.note(format!("wake {}", entity.0));
        }

        fn sleep(&mut self, entity: EntityId, _now: Duration) {
            self.note(format!("sleep {}", entity.0));
        }

        fn charge(&mut self, entity: EntityId, time: Duration, now: Duration) {
            self.note(format!("charge {} {} {}", entity.0, time.as_nanos(), now.as_nanos()));
        }

        fn decide(&mut self, current: Option<Current>, _now: Duration) -> Decision {
            self.note(match current {
                Some(current) => format!("decide {} {}", current.entity.0, current.since.as_nanos()),
                None => "decide".to_owned(),
            });
            Decision { next: self.next.lock().unwrap().map(EntityId), until: Some(SOON) }
        }

        fn used(&self, _group: u64, _band: Band) -> Duration {
            Duration::ZERO
        }
    }

    /// A list, what its policy was told since the last look, and what that decides.
    struct Listened {
        list: RunList,
        told: Arc<Mutex<Vec<String>>>,
        next: Arc<Mutex<Option<u64>>>,
    }

    impl Listened {
        fn new() -> Self {
            let policy = Scripted::default();
            let (told, next) = (Arc::clone(&policy.told), Arc::clone(&policy.next));
            Self { list: RunList::new(Box::new(policy)), told, next }
        }

        fn heard(&self) -> Vec<String> {
            std::mem::take(&mut *self.told.lock().unwrap())
        }

        fn choose(&self, context: ContextIndex) {
            *self.next.lock().unwrap() = Some(u64::from(context.get()));
        }
    }

    const fn at(nanoseconds: u64) -> Duration {
        Duration::from_nanos(nanoseconds)
    }

    fn of_band(band: Band, level: u8, generation: u32) -> ContextProperties {
        ContextProperties { generation, band: band as u8, level, ..properties::UNKNOWN }
    }

    fn shared() -> Mapping {
        let file = create_memfd("block", scheduling::END.next_multiple_of(4096)).unwrap();
        Mapping::new(file, 0, scheduling::END.next_multiple_of(4096), Access::ReadWrite).unwrap()
    }

    fn write(shared: &Mapping, offset: u64, bytes: &[u8]) {
        shared.slice(offset, bytes.len() as u64).unwrap().copy_from(bytes);
    }

    fn say(shared: &Mapping, context: ContextIndex, properties: ContextProperties) {
        write(shared, scheduling::properties(context.get()), properties.as_bytes());
    }

    #[test]
    fn realtime_work_beside_other_work_wants_a_latency_boost_and_alone_it_does_not() {
        let mut list = RunList::new(Choice::default().make());
        for (context, band) in [(NORMAL, Band::Normal), (URGENT, Band::Realtime)] {
            list.know(context, of_band(band, 0, 1), Duration::ZERO);
        }
        assert!(!list.wants_latency_boost(), "no work");
        list.queue_ready(URGENT, QueueIndex::new(1));
        assert!(!list.wants_latency_boost(), "nothing is in its way");
        list.queue_ready(NORMAL, QueueIndex::new(0));
        assert!(list.wants_latency_boost());
        assert_eq!(list.next(Duration::ZERO).unwrap().context, URGENT);
        list.settle(URGENT, Duration::ZERO);
        assert!(!list.wants_latency_boost(), "it is done");
        list.queue_ready(ContextIndex::new(2), QueueIndex::new(2));
        assert!(!list.wants_latency_boost(), "none of several is realtime work");
        list.know(ContextIndex::new(3), of_band(Band::Realtime, 31, 1), Duration::ZERO);
        list.queue_ready(ContextIndex::new(3), QueueIndex::new(3));
        assert!(list.wants_latency_boost(), "of any level");
        let mut list = RunList::new(Choice::default().make());
        list.know(URGENT, of_band(Band::Focus, 0, 1), Duration::ZERO);
        list.queue_ready(NORMAL, QueueIndex::new(0));
        list.queue_ready(URGENT, QueueIndex::new(1));
        assert!(!list.wants_latency_boost(), "focus is not realtime");
    }

    #[test]
    fn a_process_takes_up_what_was_said_of_contexts_before_it() {
        let shared = shared();
        say(&shared, ContextIndex::new(3), of_band(Band::Focus, 0, 1));
        say(&shared, ContextIndex::new(4), ContextProperties { generation: 0, ..of_band(Band::Focus, 0, 0) });
        say(&shared, ContextIndex::new(MAX_CONTEXTS - 1), of_band(Band::Idle, 0, 9));
        let mut listened = Listened::new();
        listened.list.begin(&shared, at(0));
        assert_eq!(listened.heard(), ["add 3 Focus".to_owned(), format!("add {} Idle", MAX_CONTEXTS - 1)]);
        assert_eq!(listened.list.properties(ContextIndex::new(3)).band, Band::Focus as u8);
        assert_eq!(listened.list.properties(ContextIndex::new(4)), properties::UNKNOWN);
        assert_eq!(
            listened.list.urgency_of(ContextIndex::new(3)),
            Urgency { band: Band::Focus as u8, level: 0 }
        );
    }

    #[test]
    fn pre_69_a_change_is_told_once_and_another_context_is_another_entity() {
        let shared = shared();
        let mut listened = Listened::new();
        let bands = Bands { normal_share: 20, ..Bands::default() };
        write(&shared, scheduling::BANDS, bands.as_bytes());
        say(&shared, ContextIndex::new(3), of_band(Band::Normal, 0, 1));
        bits::raise(&shared, scheduling::RESCHEDULED, 3);
        listened.list.refresh(&shared, at(0));
        assert_eq!(listened.heard(), ["bands 20", "add 3 Normal"]);
        listened.list.refresh(&shared, at(0));
        assert_eq!(listened.heard(), [""; 0], "nothing is new");
        say(&shared, ContextIndex::new(3), of_band(Band::Focus, 0, 1));
        bits::raise(&shared, scheduling::RESCHEDULED, 3);
        listened.list.refresh(&shared, at(0));
        assert_eq!(listened.heard(), ["change 3 Focus"]);
        // The entry belongs to another context now.
        listened.list.know(ContextIndex::new(3), of_band(Band::Idle, 0, 2), at(0));
        assert_eq!(listened.heard(), ["remove 3", "add 3 Idle"]);
        // One that has work, of which the policy has heard.
        listened.list.queue_ready(ContextIndex::new(3), QueueIndex::new(1));
        listened.list.queue_ready(ContextIndex::new(5), QueueIndex::new(2));
        listened.choose(ContextIndex::new(3));
        listened.list.next(at(1)).unwrap();
        assert_eq!(listened.heard(), ["add 5 Normal", "wake 5", "wake 3", "decide"]);
        listened.list.know(ContextIndex::new(3), of_band(Band::Normal, 0, 3), at(2));
        assert_eq!(listened.heard(), ["remove 3", "add 3 Normal", "wake 3"]);
        // One that has work, of which it has not.
        listened.list.queue_ready(ContextIndex::new(6), QueueIndex::new(3));
        listened.list.know(ContextIndex::new(6), of_band(Band::Normal, 0, 3), at(2));
        assert_eq!(listened.heard(), ["add 6 Normal"]);
        // Of no entry nothing is known.
        listened.list.know(ContextIndex::new(MAX_CONTEXTS), of_band(Band::Normal, 0, 3), at(2));
        assert_eq!(listened.heard(), [""; 0]);
    }

    #[test]
    fn one_context_alone_runs_without_a_decision() {
        let mut listened = Listened::new();
        assert_eq!(listened.list.next(at(0)), None);
        assert!(listened.list.is_empty());
        listened.list.queue_ready(ContextIndex::new(7), QueueIndex::new(40));
        listened.list.queue_ready(ContextIndex::new(7), QueueIndex::new(40));
        assert!(!listened.list.is_empty());
        let turn =
            Turn { context: ContextIndex::new(7), next: Next::Queue(QueueIndex::new(40)), until: None };
        assert_eq!(listened.list.next(at(0)), Some(turn));
        listened.list.ran(ContextIndex::new(7), at(0), at(5));
        assert!(listened.list.settle(ContextIndex::new(7), at(5)));
        assert!(listened.list.is_empty());
        assert_eq!(listened.heard(), [""; 0], "it heard of nothing");
        // Once off the list, a queue may be put back.
        listened.list.queue_ready(ContextIndex::new(7), QueueIndex::new(40));
        assert_eq!(listened.list.next(at(0)), Some(turn));
    }

    #[test]
    fn a_policy_hears_of_work_when_it_has_to_choose_and_of_its_end() {
        let mut listened = Listened::new();
        for (context, queue) in [(1, 10), (2, 20)] {
            listened.list.queue_ready(ContextIndex::new(context), QueueIndex::new(queue));
        }
        listened.choose(ContextIndex::new(2));
        let turn = listened.list.next(at(5)).unwrap();
        assert_eq!(
            turn,
            Turn { context: ContextIndex::new(2), next: Next::Queue(QueueIndex::new(20)), until: Some(SOON) }
        );
        assert_eq!(listened.heard(), ["add 2 Normal", "wake 2", "add 1 Normal", "wake 1", "decide"]);
        listened.list.ran(ContextIndex::new(2), at(5), at(25));
        listened.list.queue_ready(ContextIndex::new(2), QueueIndex::new(20));
        assert!(!listened.list.settle(ContextIndex::new(2), at(25)), "it has more");
        assert_eq!(listened.heard(), ["charge 2 20 25"]);
        listened.list.next(at(25)).unwrap();
        assert_eq!(listened.heard(), ["decide 2 5"], "it runs since it began");
        listened.choose(ContextIndex::new(1));
        listened.list.queue_ready(ContextIndex::new(2), QueueIndex::new(20));
        listened.list.next(at(30)).unwrap();
        listened.heard();
        listened.list.queue_ready(ContextIndex::new(1), QueueIndex::new(10));
        listened.list.next(at(40)).unwrap();
        assert_eq!(listened.heard(), ["decide 1 30"], "since it took over");
        listened.list.queue_ready(ContextIndex::new(7), QueueIndex::new(70));
        listened.list.forget_queue(ContextIndex::new(7), QueueIndex::new(70), at(45));
        listened.list.queue_ready(ContextIndex::new(1), QueueIndex::new(10));
        listened.list.next(at(45)).unwrap();
        assert_eq!(listened.heard(), ["decide 1 30"], "whichever other one leaves");
        assert!(listened.list.settle(ContextIndex::new(1), at(50)));
        assert_eq!(listened.heard(), ["sleep 1"]);
        assert!(listened.list.settle(ContextIndex::new(1), at(50)), "nothing is left");
        assert!(listened.list.settle(ContextIndex::new(99), at(50)), "nor was there ever");
        assert_eq!(listened.heard(), [""; 0]);
        // A context that sleeps does not run on.
        listened.list.queue_ready(ContextIndex::new(3), QueueIndex::new(30));
        listened.list.next(at(60)).unwrap();
        assert_eq!(listened.heard(), ["add 3 Normal", "wake 3", "decide"]);
        // What it never heard of needs no end.
        listened.list.queue_ready(ContextIndex::new(4), QueueIndex::new(41));
        listened.list.forget_queue(ContextIndex::new(4), QueueIndex::new(41), at(70));
        listened.list.queue_ready(ContextIndex::new(2), QueueIndex::new(20));
        listened.list.queue_ready(ContextIndex::new(3), QueueIndex::new(30));
        listened.list.next(at(80)).unwrap();
        assert!(listened.heard().iter().all(|told| !told.ends_with(" 4")));
    }

    #[test]
    fn a_decision_for_what_has_no_work_runs_the_first_that_has() {
        let mut listened = Listened::new();
        for (context, queue) in [(1, 10), (2, 20)] {
            listened.list.queue_ready(ContextIndex::new(context), QueueIndex::new(queue));
        }
        for chosen in [9, u32::MAX] {
            listened.choose(ContextIndex::new(chosen));
            let turn = listened.list.next(at(0)).unwrap();
            assert_eq!(turn.context, ContextIndex::new(1));
            listened.list.queue_ready(ContextIndex::new(1), QueueIndex::new(10));
        }
        *listened.next.lock().unwrap() = None;
        assert_eq!(listened.list.next(at(0)).unwrap().context, ContextIndex::new(1));
    }

    #[test]
    fn kernel_mode_and_user_mode_work_of_a_context_take_turns() {
        let mut listened = Listened::new();
        let list = &mut listened.list;
        assert!(!list.has_kernel());
        list.set_kernel(Some(ContextIndex::new(1)), at(0));
        list.set_kernel(Some(ContextIndex::new(1)), at(0));
        assert!(list.has_kernel());
        list.queue_ready(ContextIndex::new(1), QueueIndex::new(10));
        list.queue_ready(ContextIndex::new(1), QueueIndex::new(11));
        let mut turns = Vec::new();
        for _ in 0..5 {
            let next = list.next(at(0)).unwrap().next;
            if let Next::Queue(queue) = next {
                list.queue_ready(ContextIndex::new(1), queue);
            }
            turns.push(next);
        }
        assert_eq!(
            turns,
            [
                Next::Queue(QueueIndex::new(10)),
                Next::Kernel,
                Next::Queue(QueueIndex::new(11)),
                Next::Kernel,
                Next::Queue(QueueIndex::new(10))
            ]
        );
        list.set_kernel(None, at(0));
        assert!(!list.has_kernel());
        assert_eq!(list.next(at(0)).unwrap().next, Next::Queue(QueueIndex::new(11)));
        assert_eq!(list.next(at(0)).unwrap().next, Next::Queue(QueueIndex::new(10)));
        assert!(list.settle(ContextIndex::new(1), at(0)));
        list.set_kernel(Some(ContextIndex::new(2)), at(0));
        assert!(!list.settle(ContextIndex::new(2), at(0)), "its buffer waits");
        list.set_kernel(Some(ContextIndex::new(3)), at(0));
        assert_eq!(list.next(at(0)).unwrap().context, ContextIndex::new(3));
        list.set_kernel(None, at(0));
        assert!(list.is_empty());
    }

    #[test]
    fn a_queue_that_is_gone_has_no_turn_and_others_have() {
        let mut listened = Listened::new();
        let list = &mut listened.list;
        list.queue_ready(ContextIndex::new(1), QueueIndex::new(10));
        list.queue_ready(ContextIndex::new(1), QueueIndex::new(11));
        list.queue_ready(ContextIndex::new(2), QueueIndex::new(20));
        list.forget_queue(ContextIndex::new(1), QueueIndex::new(10), at(0));
        list.forget_queue(ContextIndex::new(1), QueueIndex::new(10), at(0));
        list.forget_queue(ContextIndex::new(2), QueueIndex::new(20), at(0));
        list.forget_queue(ContextIndex::new(1), QueueIndex::new(u16::MAX), at(0));
        assert_eq!(
            list.next(at(0)),
            Some(Turn { context: ContextIndex::new(1), next: Next::Queue(QueueIndex::new(11)), until: None })
        );
        assert!(list.settle(ContextIndex::new(1), at(0)));
        // Numbers that no context and no queue has.
        list.queue_ready(ContextIndex::new(MAX_CONTEXTS), QueueIndex::new(12));
        list.queue_ready(ContextIndex::new(1), QueueIndex::new(u16::MAX));
        assert!(list.is_empty());
        list.queue_ready(ContextIndex::new(1), QueueIndex::new(12));
        assert_eq!(
            list.next(at(0)).unwrap().next,
            Next::Queue(QueueIndex::new(12)),
            "nothing was noted of it"
        );
    }

    #[test]
    fn those_with_work_stay_in_line_when_one_of_them_leaves() {
        let mut listened = Listened::new();
        for context in 1..=4 {
            listened
                .list
                .queue_ready(ContextIndex::new(context), QueueIndex::new(u16::try_from(context).unwrap()));
        }
        listened.choose(ContextIndex::new(1));
        for (leaves, left) in [(1, 3), (4, 2), (2, 1), (3, 0)] {
            listened.list.forget_queue(
                ContextIndex::new(leaves),
                QueueIndex::new(u16::try_from(leaves).unwrap()),
                at(0),
            );
            assert_eq!(listened.list.ready.len(), left);
            for (place, context) in listened.list.ready.iter().enumerate() {
                assert_eq!(listened.list.entities[context.get() as usize].place, Some(place));
            }
        }
        assert!(listened.list.is_empty());
    }

    #[test]
    fn pre_62_pre_63_the_most_urgent_work_is_known_whatever_comes_goes_and_changes() {
        let mut listened = Listened::new();
        let list = &mut listened.list;
        let lowest = Urgency { band: 0, level: 0 };
        assert_eq!(list.urgency(), lowest);
        let bands =
            [(Band::Idle, 0), (Band::Normal, 0), (Band::Focus, 0), (Band::Realtime, 0), (Band::Realtime, 31)];
        for (context, (band, level)) in (0..).zip(bands) {
            list.know(ContextIndex::new(context), of_band(band, level, 1), at(0));
            list.queue_ready(ContextIndex::new(context), QueueIndex::new(u16::try_from(context).unwrap()));
            assert_eq!(list.urgency(), Urgency { band: band as u8, level });
        }
        list.queue_ready(ContextIndex::new(5), QueueIndex::new(5));
        assert_eq!(list.urgency(), Urgency { band: 3, level: 31 }, "one more of another");
        for (context, (band, level)) in (0..5_u32).zip(bands).rev() {
            assert_eq!(list.urgency(), Urgency { band: band as u8, level });
            list.forget_queue(
                ContextIndex::new(context),
                QueueIndex::new(u16::try_from(context).unwrap()),
                at(0),
            );
            if band == Band::Focus {
                // Two of one urgency are two.
                assert_eq!(list.urgency(), Urgency { band: 1, level: 0 });
                list.forget_queue(ContextIndex::new(5), QueueIndex::new(5), at(0));
            }
        }
        assert_eq!(list.urgency(), lowest);
        list.queue_ready(ContextIndex::new(1), QueueIndex::new(1));
        list.know(ContextIndex::new(1), of_band(Band::Realtime, 7, 1), at(0));
        assert_eq!(list.urgency(), Urgency { band: 3, level: 7 });
        list.know(ContextIndex::new(1), of_band(Band::Idle, 7, 1), at(0));
        assert_eq!(list.urgency(), lowest);
        list.know(ContextIndex::new(2), of_band(Band::Realtime, 7, 1), at(0));
        assert_eq!(list.urgency(), lowest, "without work it is nothing");
    }
}
