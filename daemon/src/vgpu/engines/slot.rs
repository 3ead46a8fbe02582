//! One engine, as a session has it: its process, and what is on its way to it.
//!
//! ```text
//!   Off ──first use──▶ Starting ──Started──▶ Running ──gone, hung──▶ Starting (over the same shared block)
//!    ▲                     └──Refused──┐          │ └── too often ──┐
//!    └─────────────────────────────────┼──────────┼────────────────┘
//!                  Starting ◀──D0── Parked ◀──D3──┘
//! ```

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use campanile_host_gpu::adapter::Adapter;
use campanile_host_gpu::adapter::error::AdapterError;
use campanile_host_gpu::adapter::launcher::Launcher;
use campanile_host_gpu::adapter::launcher::Memory;
use campanile_host_gpu::adapter::process::EngineProcess;
use campanile_host_gpu::clock;
use campanile_host_gpu::engine::message::Start;
use campanile_host_gpu::ids::ContextIndex;
use campanile_host_gpu::sched::choice::Choice;
use campanile_host_gpu::sched::parameters::Settings;
use campanile_protocol::control::status::Status;
use campanile_protocol::engine::hw_queue::HW_QUEUE_DEPTH;
use campanile_protocol::handle::Handle;
use campanile_protocol::page_table::SegmentId;

use super::kept_code::KeptCode;
use super::outbox::Outbox;
use super::pending_kernel::PendingKernels;
use crate::ids::GuestProcess;
use crate::sched::alarm::Alarm;
use crate::sched::turns::EngineId;
use crate::vgpu::control::request::Request;
use crate::vgpu::doorbells::line::Line;
use crate::vgpu::doorbells::line::WaitingConnect;
use crate::vgpu::doorbells::slots::Slots;
use crate::vgpu::objects::budget::Charge;
use crate::vgpu::objects::budget::list_bytes;
use crate::vgpu::objects::ids::ContextHandle;
use crate::vgpu::objects::message::Origin;
use crate::vgpu::objects::process::Buffer;
use crate::vgpu::objects::recent::Recent;
use crate::vgpu::submission::run_list::RunList;
use crate::vgpu::tdr::fences::Fences;
use crate::vgpu::tdr::liveness::Liveness;

/// A message that waits for an engine: to start, or to forget a kernel. It is handled anew then, so that it is kept, and
/// saved, as the frame that it came in.
#[derive(Debug)]
pub struct WaitingMessage {
    /// Where its answer goes.
    pub origin: Origin,
    /// Its code.
    pub opcode: u32,
    /// Its body.
    pub body: Vec<u8>,
    /// What was charged for it; nothing where it ends something.
    pub charge: Option<Charge>,
}

/// Bytes of a message that waits, besides its body.
const MESSAGE_BYTES: u64 = 128;

impl WaitingMessage {
    /// What it asks, as [`Request::decode`] says it.
    pub(in crate::vgpu) fn request(&self) -> Result<Request<'_>, Status> {
        Request::decode(self.opcode, &self.body)
    }

    /// The kernel that it ends, where it ends one.
    pub(in crate::vgpu) fn ended_kernel(&self) -> Option<Handle> {
        match self.request() {
            Ok(Request::DestroyKernel(named)) => Some(named.handle),
            _ => None,
        }
    }

    /// Bytes that the VM is charged for it.
    pub(in crate::vgpu) fn price(&self) -> u64 {
        list_bytes(self.body.len(), 1).saturating_add(MESSAGE_BYTES)
    }
}

/// A buffer in the hardware queue.
#[derive(Debug, Clone, Copy)]
pub struct InFlight {
    /// The engine's fence id.
    pub fence_id: u64,
    /// Its context's entry.
    pub entry: ContextIndex,
    /// Suspends of its context before it was handed over.
    pub suspends: u64,
    /// The virtio-gpu context that it belongs to, and the buffer; none once its device has ended.
    pub owner: Option<(GuestProcess, Buffer)>,
}

#[derive(Debug)]
enum Life {
    Off,
    Starting(EngineProcess),
    Running(EngineProcess),
    /// In D3: the process has ended, its shared block stays.
    Parked(EngineProcess),
}

/// An engine, or its place.
#[derive(Debug)]
pub struct EngineSlot {
    life: Life,
    /// What its processes keep of compiled code.
    pub kept: Option<KeptCode>,
    /// Its number with the supervisor, once it takes part in turns.
    pub supervised: Option<EngineId>,
    alarm: Arc<Alarm>,
    /// Physical doorbells.
    pub slots: Slots,
    /// Connects that wait for their turn.
    pub line: Line<WaitingConnect>,
    /// Contexts with kernel-mode work, and whose turn it is.
    pub run_list: RunList,
    /// When whose turn it is must be decided again at the latest.
    pub decide_at: Option<Instant>,
    /// The hardware queue, oldest first.
    pub in_flight: VecDeque<InFlight>,
    /// Its fence ids.
    pub fences: Fences,
    /// Kernel-mode buffers taken, ever.
    pub taken: u64,
    /// Segments that it was told of and has not mapped yet, by the serials of the requests.
    pub segments_outstanding: BTreeMap<u64, SegmentId>,
    /// Requests that it has not read yet.
    pub outbox: Outbox,
    /// Messages that wait for it.
    pub waiting: Vec<WaitingMessage>,
    /// When it was reset of late.
    pub resets: Recent,
    /// What was seen of it while it ran nothing.
    pub liveness: Liveness,
    /// Whether it hangs and is kept as it is for a debugger (TDR-17).
    pub is_held: bool,
    /// When its process was started, or its compiler last got a kernel or gave one back.
    pub stirred: Instant,
    /// Whether its process was ended for a freeze, and is to be there again after it.
    pub is_stopped: bool,
    /// Kernels that it was asked to compile, ever.
    pub kernels_asked: u64,
    is_successor: bool,
    /// Kernels of earlier processes of it that it has not compiled again yet.
    pub rebuilding: BTreeSet<(u64, u64)>,
    /// Kernels that it compiles.
    pub compiling: PendingKernels,
    /// Kernels that its process may yet compile, and whose CREATE_KERNEL was answered: their device was lost or ended.
    pub abandoned: PendingKernels,
    /// Kernels that its process is to forget and may know yet, whose ends are waited for.
    pub forgetting: BTreeSet<(u64, u64)>,
}

impl EngineSlot {
    /// No process yet.
    pub fn new(doorbells: u32, policy: Choice, bands: &Settings) -> io::Result<Self> {
        Ok(Self {
            life: Life::Off,
            kept: None,
            supervised: None,
            alarm: Arc::new(Alarm::new()?),
            slots: Slots::new(doorbells),
            line: Line::default(),
            run_list: RunList::new(policy.make(), bands),
            decide_at: None,
            in_flight: VecDeque::new(),
            fences: Fences::default(),
            taken: 0,
            segments_outstanding: BTreeMap::new(),
            outbox: Outbox::default(),
            waiting: Vec::new(),
            resets: Recent::default(),
            liveness: Liveness::default(),
            is_held: false,
            stirred: clock::now(),
            is_stopped: false,
            kernels_asked: 0,
            is_successor: false,
            rebuilding: BTreeSet::new(),
            compiling: BTreeMap::new(),
            abandoned: BTreeMap::new(),
            forgetting: BTreeSet::new(),
        })
    }

    /// The process, starting or running.
    pub fn process(&self) -> Option<&EngineProcess> {
        match &self.life {
            Life::Off => None,
            Life::Starting(process) | Life::Running(process) | Life::Parked(process) => Some(process),
        }
    }

    /// Whether a process is there that can be told something.
    pub fn hears(&self) -> bool {
        matches!(self.life, Life::Starting(_) | Life::Running(_))
    }

    /// The process, to change.
    pub fn process_mut(&mut self) -> Option<&mut EngineProcess> {
        match &mut self.life {
            Life::Off => None,
            Life::Starting(process) | Life::Running(process) | Life::Parked(process) => Some(process),
        }
    }

    /// The serial of the next request to add or remove a segment, where there is a process that can be told.
    pub fn segment_serial(&mut self) -> Option<u64> {
        if self.hears() { self.process_mut().map(|process| process.segments.next_serial()) } else { None }
    }

    /// Whether the hardware queue takes another buffer (MCDM-24): not while it gives back what it has.
    pub fn has_room(&self) -> bool {
        (self.in_flight.len() as u64) < HW_QUEUE_DEPTH
            && self.process().is_some_and(|process| !process.hw_queue.is_preempting())
    }

    /// Whose buffer the hardware queue runs, or will run first.
    pub fn head(&self) -> Option<ContextIndex> {
        self.in_flight.front().map(|flight| flight.entry)
    }

    /// Whether its process has kernels to compile or to forget.
    pub fn owes_kernels(&self) -> bool {
        let kernels = [&self.compiling, &self.abandoned];
        kernels.iter().any(|kernels| !kernels.is_empty())
            || !self.rebuilding.is_empty()
            || !self.forgetting.is_empty()
    }

    /// Whether work can be given to it.
    pub fn is_running(&self) -> bool {
        self.has_begun() && self.segments_outstanding.is_empty() && self.rebuilding.is_empty()
    }

    /// Whether its process has come up.
    pub fn has_begun(&self) -> bool {
        matches!(self.life, Life::Running(_))
    }

    /// Whether devices may have work on it: it runs, or takes the place of one that did.
    pub fn has_devices(&self) -> bool {
        self.has_begun() || self.is_successor
    }

    /// Takes a process that was just started.
    pub fn begin(&mut self, mut process: EngineProcess) {
        process.hw_queue.continue_fences(self.fences.submitted(), self.fences.completed());
        self.stirred = clock::now();
        self.life = Life::Starting(process);
    }

    /// Its process has come up, and begins to compile.
    pub fn came_up(&mut self) {
        self.stirred = clock::now();
        self.compiling.values_mut().for_each(|kernel| kernel.begin());
        self.life = match std::mem::replace(&mut self.life, Life::Off) {
            Life::Starting(process) => Life::Running(process),
            other => other,
        };
    }

    /// What its process owed, that is no more.
    fn forget_kernels(&mut self) {
        self.rebuilding.clear();
        self.forgetting.clear();
        self.abandoned.clear();
    }

    /// Ends the process, and whatever it had; the buffers that it ran or was to run.
    #[must_use]
    pub fn clear(&mut self, doorbells: u32) -> Vec<(GuestProcess, Buffer)> {
        // Reaped when dropped: from here on nothing of it touches memory (TDR-46).
        self.life = Life::Off;
        self.slots = Slots::new(doorbells);
        self.segments_outstanding.clear();
        self.outbox = Outbox::default();
        self.forget_kernels();
        self.is_successor = false;
        (self.is_held, self.is_stopped) = (false, false);
        self.liveness.forget();
        // TDR-55: what was submitted is no more.
        self.fences.adapter_reset();
        self.run_list.clear();
        self.decide_at = None;
        std::mem::take(&mut self.in_flight).into_iter().filter_map(|flight| flight.owner).collect()
    }

    /// Starts the next process over the state of the last, which is reset.
    pub fn revive(&mut self, launcher: &dyn Launcher, start: &Start, memory: Memory<'_>) -> io::Result<()> {
        self.outbox = Outbox::default();
        self.segments_outstanding.clear();
        self.forget_kernels();
        self.is_successor = true;
        (self.is_held, self.is_stopped) = (false, false);
        self.stirred = clock::now();
        self.liveness.forget();
        match std::mem::replace(&mut self.life, Life::Off) {
            Life::Off => Err(io::Error::other("there is no process to replace")),
            Life::Starting(mut process) | Life::Running(mut process) | Life::Parked(mut process) => {
                let revived = process.revive(launcher, start, memory);
                self.life = Life::Starting(process);
                revived
            }
        }
    }

    /// Ends the process of an engine that runs nothing; what the shared block says stays, for the next (D3).
    ///
    /// # Errors
    /// It does not end.
    pub fn park(&mut self) -> Result<(), AdapterError> {
        if let Life::Running(process) = &mut self.life {
            process.drop_spare();
            process.reset_engine()?;
            // Of processes that have ended: all others' buffers were handed back before.
            process.hw_queue.hand_back_all();
        }
        self.life = match std::mem::replace(&mut self.life, Life::Off) {
            Life::Running(process) => Life::Parked(process),
            other => other,
        };
        self.is_successor = true;
        self.outbox = Outbox::default();
        self.forget_kernels();
        Ok(())
    }

    /// Whether the engine still has buffers of a context, whose entry with it this is, from before its last suspend. They come back,
    /// and what is handed over meanwhile would overtake them.
    pub fn has_stale(&self, of: GuestProcess, handle: ContextHandle, entry: ContextIndex) -> bool {
        let suspends = self.process().map_or(0, |process| process.contexts.suspends(entry));
        self.in_flight.iter().any(|flight| {
            flight.suspends != suspends
                && flight.owner.is_some_and(|(context, buffer)| context == of && buffer.context == handle)
        })
    }

    /// Ends the process for a freeze, whatever it was at; what the shared block says stays, for the next. Buffers that it
    /// had and did not do are handed back. One that never ran anything leaves nothing. False where there was no process.
    ///
    /// # Errors
    /// It does not end.
    pub fn stop(&mut self) -> Result<bool, AdapterError> {
        let is_new = matches!(self.life, Life::Starting(_)) && !self.is_successor;
        let (Life::Starting(process) | Life::Running(process)) = &mut self.life else { return Ok(false) };
        process.drop_spare();
        process.reset_engine()?;
        process.hw_queue.hand_back_all();
        self.life = match std::mem::replace(&mut self.life, Life::Off) {
            Life::Starting(_) if is_new => Life::Off,
            Life::Starting(process) | Life::Running(process) => Life::Parked(process),
            other => other,
        };
        self.is_successor = !is_new;
        self.is_stopped = !is_new;
        self.is_held = false;
        self.outbox = Outbox::default();
        self.segments_outstanding.clear();
        self.forget_kernels();
        self.liveness.forget();
        Ok(true)
    }

    /// Takes a shared block that no process works on yet: the state of an engine of another host.
    pub fn take_over(&mut self, process: EngineProcess, fences: Fences) {
        self.fences = fences;
        self.life = Life::Parked(process);
        (self.is_successor, self.is_stopped) = (true, true);
    }

    /// Whether its process was ended for D3, or for a freeze.
    pub fn is_parked(&self) -> bool {
        matches!(self.life, Life::Parked(_))
    }

    /// What was seen of it, and its process, to change.
    pub fn liveness_and_process(&mut self) -> (&mut Liveness, Option<&mut EngineProcess>) {
        let process = match &mut self.life {
            Life::Off | Life::Parked(_) => None,
            Life::Starting(process) | Life::Running(process) => Some(process),
        };
        (&mut self.liveness, process)
    }

    /// What tells that it hung.
    pub fn alarm(&self) -> &Arc<Alarm> {
        &self.alarm
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use campanile_host_gpu::adapter::Adapter;
    use campanile_host_gpu::adapter::process::EngineProcess;
    use campanile_host_gpu::adapter::process::Spare;
    use campanile_host_gpu::clock;
    use campanile_host_gpu::engine::message::NodeKind;
    use campanile_host_gpu::ids::ContextIndex;
    use campanile_host_gpu::sched::choice::Choice;
    use campanile_host_gpu::sched::parameters::Parameters;
    use campanile_host_gpu::sched::parameters::Settings;
    use campanile_protocol::handle::Handle;
    use campanile_protocol::page_table::SegmentId;

    use super::EngineSlot;
    use super::InFlight;
    use crate::ids::GuestProcess;
    use crate::vgpu::engines::lifecycle::Lifecycle;
    use crate::vgpu::engines::pending_kernel::PendingKernel;
    use crate::vgpu::objects::ids::ContextHandle;
    use crate::vgpu::objects::message::Origin;
    use crate::vgpu::tdr::fences::Fences;
    use crate::vgpu::testing::COPY;
    use crate::vgpu::testing::restored;
    use crate::vgpu::testing::run;
    use crate::vgpu::testing::session;
    use crate::vgpu::testing::startable;

    fn slot() -> EngineSlot {
        let mut slot = EngineSlot::new(4, Choice::default(), &Settings::default()).unwrap();
        slot.fences = Fences::after(9, 7);
        slot.begin(EngineProcess::unstarted(NodeKind::Copy).unwrap());
        slot
    }

    /// What is known of a process, and of no other.
    fn spoil(slot: &mut EngineSlot) {
        slot.is_held = true;
        slot.segments_outstanding.insert(1, SegmentId(3));
        slot.rebuilding.insert((1, 1));
        slot.forgetting.insert((1, 2));
    }

    fn is_clean(slot: &EngineSlot) -> bool {
        !slot.is_held
            && slot.segments_outstanding.is_empty()
            && slot.rebuilding.is_empty()
            && slot.forgetting.is_empty()
    }

    #[test]
    fn tdr_52_a_process_goes_on_with_the_fence_ids_of_its_engine() {
        let info = slot().process().unwrap().collect_debug_info();
        assert_eq!((info.last_submitted, info.last_completed), (9, 7));
    }

    #[test]
    fn tdr_55_an_engine_that_is_cleared_leaves_nothing_behind() {
        let mut slot = slot();
        spoil(&mut slot);
        slot.run_list.add(
            ContextIndex::new(3),
            (GuestProcess::new(1), ContextHandle::new(Handle(1))),
            Parameters::default(),
            Duration::ZERO,
            Duration::ZERO,
        );
        slot.run_list.list(ContextIndex::new(3), true, Duration::ZERO);
        let _none = slot.clear(4);
        assert!(is_clean(&slot) && slot.process().is_none() && !slot.has_devices());
        assert_eq!((slot.fences.submitted(), slot.fences.completed()), (9, 9));
        assert_eq!(slot.run_list.next(Duration::ZERO), None);
    }

    #[test]
    fn what_an_engine_owed_it_owes_no_more_when_it_has_ended_for_d3_or_a_freeze() {
        for freezes in [false, true] {
            let mut session = session(&Arc::new(startable()));
            run(&mut session, COPY);
            Lifecycle::of(&mut session.vm).start_spare(COPY);
            let slot = &mut session.vm.engines[COPY.index()];
            assert_ne!(slot.process().unwrap().spare(), Spare::Missing);
            if freezes {
                spoil(slot);
                assert!(slot.stop().unwrap());
            } else {
                slot.forgetting.insert((1, 2));
                slot.park().unwrap();
            }
            assert!(is_clean(slot) && slot.is_parked() && slot.has_devices());
            assert_eq!(slot.process().unwrap().spare(), Spare::Missing, "none runs on");
        }
    }

    #[test]
    fn the_buffer_that_runs_is_the_oldest_of_the_hardware_queue() {
        let mut slot = slot();
        assert_eq!(slot.head(), None);
        for entry in [7, 8] {
            slot.in_flight.push_back(InFlight {
                fence_id: 1,
                entry: ContextIndex::new(entry),
                suspends: 0,
                owner: None,
            });
        }
        assert_eq!(slot.head(), Some(ContextIndex::new(7)));
    }

    #[test]
    fn kernels_are_owed_while_there_are_any_to_compile_or_to_forget() {
        let mut slot = slot();
        assert!(!slot.owes_kernels());
        slot.rebuilding.insert((1, 1));
        assert!(slot.owes_kernels());
        slot.rebuilding.clear();
        slot.forgetting.insert((1, 1));
        assert!(slot.owes_kernels());
        slot.forgetting.clear();
        let origin = Origin { context: GuestProcess::new(1), slot: 0, sequence: 1, ring: 1, item: None };
        slot.compiling.insert((1, 1), PendingKernel::new(origin, Handle(1), 1));
        assert!(slot.owes_kernels());
    }

    #[test]
    fn the_time_of_a_kernel_does_not_count_while_its_process_comes_up() {
        let mut slot = slot();
        let origin = Origin { context: GuestProcess::new(1), slot: 0, sequence: 1, ring: 1, item: None };
        let long_ago = clock::now().checked_sub(Duration::from_secs(60)).unwrap();
        let kernel = PendingKernel { since: long_ago, ..PendingKernel::new(origin, Handle(1), 1) };
        slot.compiling.insert((1, 1), kernel);
        slot.stirred = long_ago;
        slot.came_up();
        assert!([slot.stirred, slot.compiling[&(1, 1)].since].iter().all(|time| *time > long_ago));
    }

    #[test]
    fn a_stopped_engine_that_never_ran_leaves_nothing_and_any_other_comes_back() {
        let mut slot = slot();
        assert!(slot.stop().unwrap());
        assert!(slot.process().is_none() && !slot.has_devices() && !slot.is_stopped);
        assert!(!slot.stop().unwrap(), "there is none");
        // The successor of a process: it runs, or it starts.
        let mut session = restored(startable());
        for has_begun in [true, false] {
            session.vm.engines.unwatch(COPY);
            let slot = &mut session.vm.engines[COPY.index()];
            assert_eq!(slot.has_begun(), has_begun);
            assert!(slot.stop().unwrap());
            assert!(slot.is_parked() && slot.has_devices() && slot.is_stopped, "{has_begun}");
            Lifecycle::of(&mut session.vm).start_next_process(COPY).unwrap();
        }
    }
}
