//! Who had the engines, and when: what the engines' scheduling logs say, with names.
//!
//! The engine's own word, so good for pictures and for people. Nothing is decided by it.

use std::collections::BTreeMap;
use std::time::Duration;

use campanile_host_gpu::adapter::process::EngineProcess;
use campanile_host_gpu::engine::address::EngineAddress;
use campanile_host_gpu::engine::address::node_name;
use campanile_host_gpu::ids::ContextIndex;
use campanile_host_gpu::node::clock;
use campanile_host_gpu::sched::parameters::Band;
use campanile_protocol::engine::scheduling::LogEntry;
use serde::Deserialize;
use serde::Serialize;

use crate::ids::GuestProcess;
use crate::vgpu::objects::ids::ContextHandle;
use crate::vgpu::vm::Vm;

/// What the engines of a vGPU ran of late.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct History {
    /// Those that have a process.
    pub engines: Vec<EngineHistory>,
}

/// What one engine ran of late.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineHistory {
    /// Name of the node.
    pub node: String,
    /// EngineOrdinal.
    pub engine: u8,
    /// Stretches before those below that are forgotten.
    pub forgotten: u64,
    /// In the order in which they first ran.
    pub contexts: Vec<ContextHistory>,
}

/// What one engine ran of one context.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContextHistory {
    /// The guest process, as the virtio-gpu context id; none where the context has ended.
    pub process: Option<GuestProcess>,
    /// The context's handle in that process; none where it has ended.
    pub context: Option<u64>,
    /// Its entry in the engine's table, and which use of that: what tells contexts apart that have ended.
    pub entry: (u32, u32),
    /// Oldest first.
    pub stretches: Vec<Stretch>,
}

/// A stretch of time in which a context had the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stretch {
    /// Begin, nanoseconds of the host's monotonic clock.
    pub begin_ns: u64,
    /// End.
    pub end_ns: u64,
    /// The band that it ran in.
    pub band: BandName,
    /// Whether it was put aside with work left; else it had no more, or waited.
    pub preempted: bool,
}

/// A band by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BandName {
    /// IDLE.
    Idle,
    /// NORMAL.
    Normal,
    /// FOCUS.
    Focus,
    /// REALTIME.
    Realtime,
}

impl From<Band> for BandName {
    fn from(band: Band) -> Self {
        match band {
            Band::Idle => Self::Idle,
            Band::Normal => Self::Normal,
            Band::Focus => Self::Focus,
            Band::Realtime => Self::Realtime,
        }
    }
}

/// A log entry that makes sense, and ended after `since`.
fn stretch(entry: &LogEntry, since: u64, now: u64) -> Option<Stretch> {
    let LogEntry { begin, end, band, was_preempted, .. } = *entry;
    let makes_sense = begin <= end && end <= now && was_preempted <= 1;
    let band = Band::from_number(band).filter(|_| makes_sense && end > since)?;
    Some(Stretch { begin_ns: begin, end_ns: end, band: band.into(), preempted: was_preempted == 1 })
}

/// Sorts the entries of a log by context; `name` says whose an entry of the table is, if any.
fn by_context(
    log: &[LogEntry],
    times: (u64, u64),
    name: impl Fn(u32, u32) -> Option<(GuestProcess, ContextHandle)>,
) -> Vec<ContextHistory> {
    let mut places = BTreeMap::new();
    let mut contexts: Vec<ContextHistory> = Vec::new();
    for entry in log {
        let Some(stretch) = stretch(entry, times.0, times.1) else { continue };
        let key = (entry.context, entry.generation);
        let place = *places.entry(key).or_insert_with(|| {
            let owner = name(key.0, key.1);
            let (process, context) = (owner.map(|owner| owner.0), owner.map(|owner| owner.1.get().0));
            contexts.push(ContextHistory { process, context, entry: key, stretches: Vec::new() });
            contexts.len() - 1
        });
        if let Some(context) = contexts.get_mut(place) {
            context.stretches.push(stretch);
        }
    }
    contexts
}

/// What the engines have run, as far back as they remember, or as `last` says.
pub(in crate::vgpu) fn history(vm: &Vm, last: Option<Duration>) -> History {
    let now = clock::monotonic();
    let since = last.map_or(Duration::ZERO, |last| now.saturating_sub(last));
    let times = (clock::nanoseconds(since), clock::nanoseconds(now));
    let engines = vm.engines.addresses().filter_map(|at| {
        let process = vm.engines[at.index()].process()?;
        Some(history_of(vm, at, process, times))
    });
    History { engines: engines.collect() }
}

fn history_of(vm: &Vm, at: EngineAddress, process: &EngineProcess, times: (u64, u64)) -> EngineHistory {
    let mut owners = BTreeMap::new();
    for (&of, guest) in &vm.objects.processes {
        let contexts = guest.device.iter().flat_map(|device| device.contexts.iter());
        for (handle, context) in contexts.filter(|(_, context)| context.at == at) {
            if let Some(entry) = context.entry {
                owners.insert(entry, (of, handle));
            }
        }
    }
    let (log, forgotten) = process.schedule.log();
    let contexts = by_context(&log, times, |entry, generation| {
        let is_present = process.contexts.generation(ContextIndex::new(entry)) == Some(generation);
        owners.get(&ContextIndex::new(entry)).copied().filter(|_| is_present)
    });
    EngineHistory { node: node_name(at.node).to_owned(), engine: at.engine, forgotten, contexts }
}

#[cfg(test)]
mod tests {
    use campanile_protocol::engine::scheduling::LogEntry;
    use campanile_protocol::handle::Handle;

    use super::BandName;
    use super::by_context;
    use crate::ids::GuestProcess;
    use crate::vgpu::objects::ids::ContextHandle;

    #[test]
    fn stretches_are_sorted_by_context_and_nonsense_of_an_engine_is_left_out() {
        let entry = |index: u32, begin: u64, end: u64| LogEntry {
            begin,
            end,
            context: index,
            generation: 1,
            band: 1,
            was_preempted: 0,
        };
        let log = [
            entry(4, 10, 20),
            LogEntry { band: 3, was_preempted: 1, ..entry(9, 20, 30) },
            entry(4, 30, 40),
            entry(4, 50, 41),
            entry(4, 41, u64::MAX),
            LogEntry { band: 9, ..entry(4, 50, 60) },
            LogEntry { was_preempted: 7, ..entry(4, 50, 60) },
            LogEntry { generation: 2, ..entry(4, 60, 70) },
            entry(7, 0, 5),
        ];
        let owner = |entry, generation| {
            (entry == 4 && generation == 2)
                .then_some((GuestProcess::new(8), ContextHandle::new(Handle::new(0, 1))))
        };
        let contexts = by_context(&log, (5, 100), owner);
        let seen: Vec<_> = contexts.iter().map(|it| (it.entry, it.process, it.stretches.len())).collect();
        assert_eq!(seen, [((4, 1), None, 2), ((9, 1), None, 1), ((4, 2), Some(GuestProcess::new(8)), 1)]);
        let urgent = contexts[1].stretches[0];
        assert_eq!((urgent.band, urgent.preempted), (BandName::Realtime, true));
    }
}
