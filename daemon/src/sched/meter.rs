//! What each vGPU had of a node, and what was due to it: for the operator; nothing is decided by it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::time::Duration;

use campanile_host_gpu::engine::address::EngineAddress;
use campanile_host_gpu::engine::address::MAX_PLACES;
use campanile_host_gpu::memory::mapping::Mapping;
use campanile_host_gpu::sched::parameters::WHOLE_ENGINE;

use super::measures::Measures;
use super::measures::Times;
use super::record::Record;
use super::share::Share;
use super::turns::EngineId;
use super::user_submissions::UserSubmissions;
use crate::latencies::Distribution;
use crate::latencies::Latencies;

/// Times of one node of a vGPU, over all engine processes that it has had.
#[derive(Debug, Default)]
pub struct Meter {
    held_ns: AtomicU64,
    due_ns: AtomicU64,
    wanted_ns: AtomicU64,
    user_submissions: UserSubmissions,
    preemptions: [Latencies; Preemption::ALL.len()],
    /// Of the engine that is there, where a supervisor in another process adds up what that has.
    record: Mutex<Option<Arc<Record>>>,
}

/// What an engine is told to stop for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preemption {
    /// Another vGPU is to have the node, or the watchdog asks whether the engine still yields it.
    Yield,
    /// Another context of the same vGPU is to run: a preempt command.
    Command,
}

impl Preemption {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Yield, Self::Command];
}

/// The meters of the node of an engine.
#[derive(Debug)]
struct OfNode {
    meters: Arc<Meters>,
    at: EngineAddress,
}

impl Measures for OfNode {
    fn add(&self, times: Times) {
        self.meters.add(self.at, times);
    }

    fn note_yield(&self, took: Duration) {
        self.meters.note_preemption(self.at, Preemption::Yield, took);
    }

    fn end(&self) {
        self.meters.engine_has_ended(self.at);
    }
}

impl Meter {
    fn add(&self, times: Times) {
        let parts = [(&self.held_ns, times.held), (&self.due_ns, times.due), (&self.wanted_ns, times.wanted)];
        for (sum, time) in parts {
            sum.fetch_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
        }
    }

    /// The record of the engine that is there. What is read of the sums while it is locked leaves nothing of it out, and has
    /// nothing of it twice.
    fn record(&self) -> MutexGuard<'_, Option<Arc<Record>>> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Another record, after what the one before says was added up.
    fn set_record(&self, next: Option<Arc<Record>>) {
        let mut record = self.record();
        if let Some(last) = std::mem::replace(&mut *record, next) {
            self.add(last.times());
            self.of(Preemption::Yield).add(&last.yields());
        }
    }

    fn of(&self, what: Preemption) -> &Latencies {
        let [yields, commands] = &self.preemptions;
        match what {
            Preemption::Yield => yields,
            Preemption::Command => commands,
        }
    }
}

/// Those of all nodes of a vGPU.
#[derive(Debug, Default)]
pub struct Meters([Meter; MAX_PLACES]);

impl Meters {
    /// Adds to the times of a node.
    pub fn add(&self, at: EngineAddress, times: Times) {
        if let Some(meter) = self.0.get(at.index()) {
            meter.add(times);
        }
    }

    /// An engine of this node begins, over this shared block: where the supervisor of this process writes what it has.
    pub fn begin(self: &Arc<Self>, at: EngineAddress, block: &Arc<Mapping>) -> Arc<dyn Measures> {
        self.engine_begins(at, block);
        Arc::new(OfNode { meters: Arc::clone(self), at })
    }

    /// An engine of this node begins whose supervisor, in another process, writes there.
    pub fn follow(&self, at: EngineAddress, block: &Arc<Mapping>, record: &Arc<Record>) {
        self.engine_begins(at, block);
        if let Some(meter) = self.0.get(at.index()) {
            meter.set_record(Some(Arc::clone(record)));
        }
    }

    /// An engine of a node has stopped so long after it was told to, or its process has ended.
    pub fn note_preemption(&self, at: EngineAddress, what: Preemption, took: Duration) {
        if let Some(meter) = self.0.get(at.index()) {
            meter.of(what).note(took);
        }
    }

    /// How long preemptions of a node took.
    pub fn preemptions(&self, at: EngineAddress, what: Preemption) -> Distribution {
        let Some(meter) = self.0.get(at.index()) else { return Distribution::default() };
        let record = meter.record();
        let mut seen = meter.of(what).distribution();
        if let Some(record) = record.as_ref().filter(|_| what == Preemption::Yield) {
            seen += record.yields();
        }
        seen
    }

    /// An engine of this node begins, over this shared block.
    pub fn engine_begins(&self, at: EngineAddress, block: &Arc<Mapping>) {
        if let Some(meter) = self.0.get(at.index()) {
            meter.user_submissions.follow(block);
        }
    }

    /// It has ended.
    pub fn engine_has_ended(&self, at: EngineAddress) {
        if let Some(meter) = self.0.get(at.index()) {
            meter.user_submissions.leave();
            meter.set_record(None);
        }
    }

    /// Buffers of user-mode queues that a node has retired so far.
    pub fn user_submissions(&self, at: EngineAddress) -> u64 {
        self.0.get(at.index()).map_or(0, |meter| meter.user_submissions.total())
    }

    /// The times of a node so far.
    pub fn times(&self, at: EngineAddress) -> Times {
        let Some(meter) = self.0.get(at.index()) else { return Times::default() };
        let record = meter.record();
        let of_record = record.as_ref().map(|record| record.times()).unwrap_or_default();
        let read = |sum: &AtomicU64, more| Duration::from_nanos(sum.load(Ordering::Relaxed)) + more;
        Times {
            held: read(&meter.held_ns, of_record.held),
            due: read(&meter.due_ns, of_record.due),
            wanted: read(&meter.wanted_ns, of_record.wanted),
        }
    }
}

/// Divides the time between two decisions among the engines that wanted their node in it.
#[derive(Debug, Default)]
pub struct Dues {
    since: Duration,
    awake: Vec<(EngineId, EngineAddress, Share)>,
}

impl Dues {
    /// It is `now`, and from now on these engines want their nodes, or have them. What the engines before had of the time since
    /// the last call.
    pub fn advance(
        &mut self,
        now: Duration,
        awake: impl Iterator<Item = (EngineId, EngineAddress, Share)>,
    ) -> Vec<(EngineId, EngineAddress, Times)> {
        let time = now.saturating_sub(self.since);
        self.since = now;
        let mut weights: BTreeMap<EngineAddress, u32> = BTreeMap::new();
        for (_, at, share) in &self.awake {
            *weights.entry(*at).or_default() += share.weight;
        }
        let due = |at: &EngineAddress, share: &Share| {
            let all = weights.get(at).copied().unwrap_or(1).max(1);
            let by_weight = time * share.weight / all;
            by_weight.min(time * share.cap / WHOLE_ENGINE)
        };
        let times = self.awake.iter().map(|(engine, at, share)| {
            (*engine, *at, Times { held: Duration::ZERO, due: due(at, share), wanted: time })
        });
        let times = times.collect();
        self.awake = awake.collect();
        times
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::Ordering;
    use std::time::Duration;

    use campanile_host_gpu::engine::address::EngineAddress;
    use campanile_host_gpu::engine::message::NodeKind;
    use campanile_host_gpu::memory::mapping::Access;
    use campanile_host_gpu::memory::mapping::Mapping;
    use campanile_host_gpu::memory::vram::create_memfd;
    use campanile_protocol::engine::scheduling::USER_SUBMISSIONS;

    use super::Dues;
    use super::Measures;
    use super::Meters;
    use super::Preemption;
    use super::Times;
    use crate::sched::record::Record;
    use crate::sched::share::Share;
    use crate::sched::turns::EngineId;

    #[test]
    fn time_is_due_by_weight_among_those_that_want_the_node_and_by_cap() {
        let [compute, copy] = [NodeKind::Compute, NodeKind::Copy].map(|node| EngineAddress::new(0, node));
        let share = |weight, cap| Share { weight, cap, ..Share::default() };
        let a = (EngineId(1), compute, share(300, 1000));
        let b = (EngineId(2), compute, share(100, 200));
        let c = (EngineId(3), copy, share(100, 500));
        let ms = Duration::from_millis;
        let mut dues = Dues::default();
        assert!(dues.advance(ms(10), [a, b, c].into_iter()).is_empty(), "none wanted it before");
        let due = |times: Vec<(EngineId, EngineAddress, Times)>| {
            times
                .into_iter()
                .map(|(engine, _, times)| (engine.0, times.due, times.wanted))
                .collect::<Vec<_>>()
        };
        let all = due(dues.advance(ms(110), [b].into_iter()));
        assert_eq!(all, [(1, ms(75), ms(100)), (2, ms(20), ms(100)), (3, ms(50), ms(100))]);
        assert_eq!(due(dues.advance(ms(120), [].into_iter())), [(2, ms(2), ms(10))], "alone, up to its cap");
        assert_eq!(due(dues.advance(ms(130), [a].into_iter())), []);
    }

    #[test]
    fn times_of_a_node_are_summed_up() {
        let at = EngineAddress::new(1, NodeKind::Copy);
        let meters = Meters::default();
        let times = Times {
            held: Duration::from_nanos(3),
            due: Duration::from_nanos(2),
            wanted: Duration::from_nanos(5),
        };
        meters.add(at, times);
        meters.add(at, Times { held: Duration::from_nanos(1), ..Times::default() });
        assert_eq!(meters.times(at), Times { held: Duration::from_nanos(4), ..times });
        assert_eq!(meters.times(EngineAddress::new(0, NodeKind::Copy)), Times::default());
    }

    #[test]
    fn what_a_supervisor_in_another_process_writes_counts_while_its_engine_is_there_and_afterwards() {
        let at = EngineAddress::new(0, NodeKind::Compute);
        let (block, ms) = (block(), Duration::from_millis);
        let meters = Meters::default();
        let seen = || {
            let yields = meters.preemptions(at, Preemption::Yield);
            (meters.times(at), yields.buckets.iter().sum::<u64>(), yields.sum)
        };
        let times = |of: u64| Times { held: ms(of), due: ms(of * 2), wanted: ms(of * 3) };
        meters.add(at, times(1));
        let records = [(); 2].map(|()| Arc::new(Record::new().unwrap().0));
        for (record, of) in records.iter().zip([2, 4]) {
            meters.follow(at, &block, record);
            record.add(times(of));
            record.note_yield(ms(of));
        }
        assert_eq!(seen(), (times(7), 2, ms(6)));
        assert_eq!(meters.preemptions(at, Preemption::Command).sum, Duration::ZERO);
        meters.engine_has_ended(at);
        records[1].add(times(8));
        assert_eq!(seen(), (times(7), 2, ms(6)), "it has ended");
    }

    fn block() -> Arc<Mapping> {
        let file = create_memfd("block", 1 << 16).unwrap();
        Arc::new(Mapping::new(file, 0, 1 << 16, Access::ReadWrite).unwrap())
    }

    #[test]
    fn user_mode_submissions_are_added_up_over_the_blocks_of_a_node() {
        let at = EngineAddress::new(0, NodeKind::Copy);
        let say = |block: &Mapping, count: u64| {
            block.word(USER_SUBMISSIONS).unwrap().store(count, Ordering::Relaxed);
        };
        let meters = Meters::default();
        let (first, second) = (block(), block());
        assert_eq!(meters.user_submissions(at), 0);
        meters.engine_begins(at, &first);
        say(&first, 5);
        assert_eq!((meters.user_submissions(at), meters.user_submissions(at)), (5, 5));
        say(&first, 7);
        meters.engine_has_ended(at);
        say(&first, 8);
        assert_eq!(meters.user_submissions(at), 7, "it has ended");
        // The next process works on the same block.
        meters.engine_begins(at, &first);
        say(&first, 10);
        meters.engine_begins(at, &second);
        say(&second, 1);
        assert_eq!(meters.user_submissions(at), 10);
        // It says what cannot be.
        say(&second, 0);
        assert_eq!(meters.user_submissions(at), 10);
        assert_eq!(meters.user_submissions(EngineAddress::new(0, NodeKind::Compute)), 0);
    }
}
