//! What is known of a reset: collected before it, filed after it (TDR-81).

use campanile_host_gpu::clock;
use campanile_host_gpu::engine::address::node_index;
use campanile_host_gpu::engine::address::node_name;
use std::time::Duration;
use std::time::Instant;
use std::time::SystemTime;
use std::time::UNIX_EPOCH;

use campanile_host_gpu::adapter::Adapter;
use campanile_host_gpu::adapter::debug_info::DebugInfo;
use campanile_host_gpu::engine::address::EngineAddress;
use campanile_host_gpu::ids::QueueIndex;
use campanile_protocol::device_page;
use campanile_protocol::engine::hw_queue::HW_RESUBMISSION;
use campanile_protocol::engine::progress::Work;
use campanile_protocol::engine::saved::Saved;
use campanile_protocol::handle::Handle;
use serde_json::Value;
use serde_json::json;

use super::reason::Reason;
use super::reports::Filed;
use crate::ids::GuestProcess;
use crate::sched::alarm::Sighting;
use crate::vgpu::counters::count;
use crate::vgpu::recorder::Kind;
use crate::vgpu::tdr::recovery::Recovery;
use campanile_protocol::engine::save_area;
use campanile_protocol::engine::save_area::AreaKind;
use campanile_protocol::engine::save_area::KERNEL_MODE_SLOT;
use campanile_protocol::engine::save_area::SLOT_WORDS;
use std::sync::atomic::Ordering;

/// Devices that one report names; the rest is counted.
const MAX_AFFECTED: usize = 64;

/// Why a device was lost, as its guest is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Loss {
    /// Why there was a reset.
    pub reason: Reason,
    /// Whether other work was the cause.
    pub is_collateral: bool,
    /// Number of the report.
    pub report: u64,
}

impl Loss {
    /// The word of the device page.
    pub fn word(self) -> u64 {
        let role = if self.is_collateral { device_page::LOSS_COLLATERAL } else { device_page::LOSS_PRIMARY };
        role << 32 | u64::from(u32::from(self.reason))
    }
}

/// A reset that is under way.
#[derive(Debug)]
pub struct Case {
    /// Number of its report.
    pub number: u64,
    /// The engine.
    pub at: EngineAddress,
    /// Why.
    pub reason: Reason,
    /// Why, in words.
    pub text: String,
    /// Whose work it ran: the virtio-gpu context, and the queue.
    pub guilty: Option<(GuestProcess, Option<Handle>)>,
    /// Every device that it cost, and whether as a bystander.
    pub affected: Vec<(GuestProcess, bool)>,
    /// Whether a process of the engine is left over that cannot be ended: nothing of this vGPU may go on (TDR-15).
    pub is_fatal: bool,
    /// The id that the reset returned.
    pub last_aborted: Option<u64>,
    info: Option<DebugInfo>,
    /// How far its buffer was when it was last put aside, as its save area says.
    put_aside: Option<Saved>,
    details: Value,
    pid: Option<u32>,
    sighted: Option<Instant>,
    begun: Instant,
    reset_done: Option<Instant>,
}

/// FNV-1a, 64 bits: tells kernels apart in reports, no more.
fn hash(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

impl Case {
    /// The engine is reset.
    pub fn reset_is_done(&mut self) {
        self.reset_done = Some(clock::now());
    }

    /// What a device of it is told.
    pub fn loss(&self, is_collateral: bool) -> Loss {
        Loss { reason: self.reason, is_collateral, report: self.number }
    }

    fn report(&self, vgpu: &str, outcome: &str, is_adapter: bool) -> Value {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let micros = |from: Instant, to: Instant| to.saturating_duration_since(from).as_micros();
        let reset_done = self.reset_done.unwrap_or(self.begun);
        let affected = self.affected.iter().take(MAX_AFFECTED);
        let affected = affected.map(|(process, is_collateral)| {
            json!({ "process": process, "collateral_damage": u32::from(*is_collateral) })
        });
        json!({
            "report": self.number,
            "unix_time_ms": u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX),
            "code": format!("{:#x}", self.reason.report_code(is_adapter)),
            "reason": self.reason,
            "reason_name": self.reason.name(),
            "what": self.text,
            "outcome": outcome,
            "vgpu": vgpu,
            "node": node_name(self.at.node),
            "node_ordinal": node_index(self.at.node),
            "engine_ordinal": self.at.engine,
            "engine_pid": self.pid,
            "guilty": self.details,
            "affected": affected.collect::<Vec<_>>(),
            "affected_count": self.affected.len(),
            "last_aborted_fence": self.last_aborted,
            "engine": self.info.as_ref().map(|info| describe(info, self.put_aside)),
            "timings_us": {
                "standstill_seen_to_decision": self.sighted.map(|sighted| micros(sighted, self.begun)),
                "decision_to_reset": micros(self.begun, reset_done),
                "reset_to_end": micros(reset_done, clock::now()),
            },
        })
    }
}

fn describe(info: &DebugInfo, put_aside: Option<Saved>) -> Value {
    let buffer = info.hw_buffer.map(|buffer| {
        json!({
            "fence_id": buffer.fence_id,
            "va": format!("{:#x}", buffer.buffer_va),
            "bytes": buffer.length,
            "process_entry": buffer.process,
            "is_resubmitted": buffer.flags & HW_RESUBMISSION != 0,
        })
    });
    json!({
        "work": match info.progress.work {
            Work::Nothing => "nothing".to_owned(),
            Work::HwQueue => "kernel-mode buffer".to_owned(),
            Work::UserQueue(queue) => format!("user-mode queue {queue}"),
        },
        "steps": info.progress.steps,
        "exempt": info.progress.is_exempt,
        "grant": format!("{:?}", info.phase),
        "power": info.power,
        "last_completed_fence": info.last_completed,
        "last_submitted_fence": info.last_submitted,
        "hw_queue_head": buffer,
        "ring_consumed": info.ring_consumed,
        "ring_completed": info.ring_completed,
        "put_aside_at": put_aside.map(|saved| json!({ "packet": saved.at, "done": saved.done_in_packet })),
        "packet_at_fault": info.launched.map(|(kernel, at)| json!({ "byte": at, "kernel": format!("{kernel:#x}") })),
        "tables": { "changed": info.watch.0, "acknowledged": info.watch.1 },
        "page_tables": { "changed": info.page_tables.0, "acknowledged": info.page_tables.1 },
    })
}

impl Recovery<'_> {
    /// Collects what there is to say of an engine, without changing or waiting for anything (TDR-04, TDR-81).
    pub(in crate::vgpu) fn open_case(
        &mut self,
        at: EngineAddress,
        reason: Reason,
        text: &str,
        sighting: Option<Sighting>,
    ) -> Case {
        self.vm.counters.measures.note_reset(reason.index());
        self.vm.counters.measures.recorder.note(Kind::Reset, at, None, Some(reason.name()), Duration::ZERO);
        let slot = &mut self.vm.engines[at.index()];
        let snapshot = slot.process_mut().map(|process| process.hw_queue.snapshot());
        let info = slot.process().map(|process| process.collect_debug_info());
        let pid = slot.process().map(|process| process.pid());
        let guilty = match snapshot.map(|snapshot| snapshot.progress.work) {
            None | Some(Work::Nothing) => None,
            Some(Work::HwQueue) => {
                let oldest = slot.in_flight.front().and_then(|flight| flight.owner);
                oldest.map(|(context, buffer)| (context, Some(buffer.queue)))
            }
            Some(Work::UserQueue(hw_queue)) => self
                .vm
                .objects
                .owner_of_hw_queue(at, QueueIndex::new(hw_queue))
                .map(|(context, queue)| (context, Some(queue))),
        };
        Case {
            number: self.vm.config.reports.number(),
            at,
            reason,
            text: text.to_owned(),
            guilty,
            affected: Vec::new(),
            is_fatal: false,
            last_aborted: None,
            details: self.details(guilty, info.as_ref()),
            put_aside: info.as_ref().and_then(|info| self.put_aside(at, info)),
            info,
            pid,
            sighted: sighting.map(|sighting| sighting.at),
            begun: clock::now(),
            reset_done: None,
        }
    }

    /// Who it was; null when unsure (TDR-28).
    fn details(&self, guilty: Option<(GuestProcess, Option<Handle>)>, info: Option<&DebugInfo>) -> Value {
        let Some((context, queue)) = guilty else { return Value::Null };
        let Ok(device) = self.vm.objects.device(context) else { return Value::Null };
        let of_queue = queue.and_then(|handle| device.queues.get(handle).map(|queue| (handle, queue)));
        let launched = info.and_then(|info| info.launched).map(|(kernel, _)| Handle(kernel));
        let kernel = launched.and_then(|handle| device.kernels.get(handle).map(|source| (handle, source)));
        json!({
            "process": context,
            "context": of_queue.map(|(_, queue)| queue.context.get().index()),
            "queue": of_queue.map(|(handle, _)| handle.index()),
            "exempt": of_queue.map(|(_, queue)| queue.is_exempt),
            "kernel": kernel.map(|(handle, source)| json!({
                "handle": format!("{:#x}", handle.0),
                "fnv1a": format!("{:016x}", hash(&source.bytes)),
                "bytes": source.bytes.len(),
                "language": source.language,
            })),
        })
    }

    /// Files the report on a reset that is done.
    pub(in crate::vgpu) fn close_case(&mut self, case: &Case, outcome: &str, is_adapter: bool) {
        let report = case.report(&self.vm.config.name, outcome, is_adapter);
        match self.vm.config.clerk.file(&self.vm.config.reports, case.number, &report, clock::now()) {
            Ok(Filed::Written) => count(&self.vm.counters.reports_written),
            Ok(Filed::LeftOut) => count(&self.vm.counters.reports_left_out),
            Err(error) => {
                count(&self.vm.counters.reports_left_out);
                self.vm.journal.line(log::Level::Error, format_args!("report {}: {error}", case.number));
            }
        }
    }

    /// How far the buffer was that an engine runs, when it was last put aside: what its save area says, for a report.
    pub(in crate::vgpu) fn put_aside(&self, at: EngineAddress, info: &DebugInfo) -> Option<Saved> {
        let name = info.saved?;
        let ((of, context), (kind, offset)) = match info.progress.work {
            Work::Nothing => return None,
            Work::HwQueue => {
                let (of, buffer) = self.vm.engines[at.index()].in_flight.front()?.owner?;
                ((of, buffer.context), (AreaKind::Context, KERNEL_MODE_SLOT))
            }
            Work::UserQueue(hw_queue) => {
                let (of, queue) = self.vm.objects.owner_of_hw_queue(at, QueueIndex::new(hw_queue))?;
                let context = self.vm.objects.device(of).ok()?.queues.get(queue)?.context;
                ((of, context), save_area::queue_slot(queue.index()))
            }
        };
        let device = self.vm.objects.device(of).ok()?;
        let area = match kind {
            AreaKind::Device => device.area?,
            AreaKind::Context => device.contexts.get(context)?.area,
        };
        let (mapping, start) = self.vm.memory.allocations.view(area.allocation)?;
        let mut words = [0; SLOT_WORDS];
        for (place, word) in (start + offset..).step_by(8).zip(&mut words) {
            *word = mapping.word(place)?.load(Ordering::Acquire);
        }
        save_area::read_slot(words, name)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::Ordering;

    use campanile_host_gpu::adapter::Adapter;
    use campanile_host_gpu::adapter::debug_info::DebugInfo;
    use campanile_protocol::device_page::LOSS_COLLATERAL;
    use campanile_protocol::device_page::LOSS_PRIMARY;
    use campanile_protocol::engine::progress::Progress;
    use campanile_protocol::engine::progress::Work;
    use campanile_protocol::engine::save_area;
    use campanile_protocol::engine::saved::Saved;
    use serde_json::Value;
    use serde_json::json;

    use super::hash;
    use crate::vgpu::config::Config;
    use crate::vgpu::tdr::reason::Reason;
    use crate::vgpu::tdr::recovery::Recovery;
    use crate::vgpu::tdr::reports::ReportFolder;
    use crate::vgpu::tdr::reports::Reports;
    use crate::vgpu::testing::CONTEXT;
    use crate::vgpu::testing::COPY;
    use crate::vgpu::testing::OWNER;
    use crate::vgpu::testing::device;
    use crate::vgpu::testing::give;
    use crate::vgpu::testing::restored;
    use crate::vgpu::testing::startable;
    use crate::vgpu::testing::store_progress;
    use crate::vgpu::testing::take_buffer;

    #[test]
    fn tdr_28_tdr_81_a_report_says_what_the_engine_ran_and_whose_work_that_was() {
        let folder = tempfile::tempdir().unwrap();
        for run in ["nothing", "buffer", "queue"] {
            let reports = ReportFolder::open(&folder.path().join(run)).unwrap();
            let path = reports.path().to_owned();
            let config = Config { reports: Arc::new(Reports::new(Some(reports))), ..startable() };
            let mut session = restored(config);
            let buffer = take_buffer(&mut session);
            let doorbells = &device(&mut session, OWNER).doorbells;
            let rung = doorbells.iter().find_map(|(_, it)| Some((it.hw_queue?, it.queue))).unwrap();
            let (work, ran, queue) = match run {
                "nothing" => (Work::Nothing, "nothing".to_owned(), None),
                "buffer" => (Work::HwQueue, "kernel-mode buffer".to_owned(), Some(buffer.queue)),
                _ => (Work::UserQueue(rung.0.get()), format!("user-mode queue {}", rung.0), Some(rung.1)),
            };
            let fence_id = give(&mut session, Some((OWNER, buffer)));
            store_progress(&session, work);
            Recovery::of(&mut session.vm).recover_engine(COPY, Reason::EngineTimeout, "a test", None);
            let mut files = std::fs::read_dir(path).unwrap();
            let report = std::fs::read(files.next().unwrap().unwrap().path()).unwrap();
            let report: Value = serde_json::from_slice(&report).unwrap();
            assert_eq!((&report["engine"]["work"], &report["engine"]["steps"]), (&json!(ran), &json!(1)));
            assert_eq!(report["engine"]["last_submitted_fence"], fence_id, "{report}");
            assert_eq!((&report["what"], &report["outcome"]), (&json!("a test"), &json!("engine reset")));
            let guilty = &report["guilty"];
            let Some(queue) = queue else {
                assert_eq!((guilty, &report["affected_count"]), (&Value::Null, &json!(0)), "{report}");
                continue;
            };
            assert_eq!(
                (&guilty["process"], &guilty["queue"]),
                (&json!(OWNER), &json!(queue.index())),
                "{report}"
            );
            if run == "buffer" {
                assert_eq!(guilty["context"], CONTEXT.get().index(), "{report}");
                assert_eq!(report["engine"]["hw_queue_head"]["fence_id"], fence_id, "{report}");
            }
            assert_eq!(report["affected"], json!([{ "process": OWNER, "collateral_damage": 0 }]), "{report}");
        }
    }

    #[test]
    fn tdr_81_how_far_a_buffer_was_is_what_its_save_area_says_of_it_and_of_no_other() {
        let mut session = restored(startable());
        let buffer = take_buffer(&mut session);
        give(&mut session, Some((OWNER, buffer)));
        let of = device(&mut session, OWNER);
        let rung = of.doorbells.iter().find_map(|(_, it)| Some((it.hw_queue?, it.queue))).unwrap();
        let context = of.queues.get(rung.1).unwrap().context;
        let areas = [CONTEXT, context].map(|handle| of.contexts.get(handle).unwrap().area.allocation);
        let slots = [save_area::KERNEL_MODE_SLOT, save_area::queue_slot(rung.1.index()).1];
        let saved = [3, 13].map(|at| Saved { at, done_in_packet: 4, grid: [5, 6, 7] });
        for ((area, slot), (name, saved)) in areas.into_iter().zip(slots).zip([77, 78].into_iter().zip(saved))
        {
            let (mapping, start) = session.vm.memory.allocations.view(area).unwrap();
            for (place, word) in (start + slot..).step_by(8).zip(save_area::slot_words(name, saved)) {
                mapping.word(place).unwrap().store(word, Ordering::Release);
            }
        }
        for (work, name, expected) in [
            (Work::HwQueue, Some(77), Some(saved[0])),
            (Work::UserQueue(rung.0.get()), Some(78), Some(saved[1])),
            // Something else was put aside, or nothing; nothing runs; a queue that there is not.
            (Work::HwQueue, Some(78), None),
            (Work::HwQueue, None, None),
            (Work::Nothing, Some(77), None),
            (Work::UserQueue(900), Some(78), None),
        ] {
            let known = session.vm.engines[COPY.index()].process().unwrap().collect_debug_info();
            let progress = Progress { work, ..known.progress };
            let info = DebugInfo { saved: name, progress, ..known };
            let found = Recovery::of(&mut session.vm).put_aside(COPY, &info);
            assert_eq!(found, expected, "{work:?}, {name:?}");
        }
    }

    #[test]
    fn a_reset_is_done_when_that_is_said_and_its_devices_are_told_the_reason() {
        let mut session = restored(startable());
        let mut case = Recovery::of(&mut session.vm).open_case(COPY, Reason::EngineTimeout, "a test", None);
        assert_eq!(case.reset_done, None);
        case.reset_is_done();
        assert!(case.reset_done.is_some_and(|done| done >= case.begun));
        for (is_collateral, role) in [(false, LOSS_PRIMARY), (true, LOSS_COLLATERAL)] {
            let loss = case.loss(is_collateral);
            assert_eq!((loss.word(), loss.report), (role << 32 | 6, case.number));
        }
    }

    #[test]
    fn kernels_are_told_apart_by_the_published_values_of_the_hash() {
        assert_eq!(hash(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(hash(b"a"), 0xaf63_dc4c_8601_ec8c);
    }
}
