//! One fake.

use std::fs::File;
use std::io;
use std::sync::atomic::Ordering;

use campanile_protocol::engine::block;
use campanile_protocol::engine::hw_queue;
use campanile_protocol::engine::hw_queue::HW_PREEMPTED;
use campanile_protocol::engine::hw_queue::HW_SUSPENDED;
use campanile_protocol::engine::hw_queue::HwResult;
use campanile_protocol::engine::hw_queue::HwSubmission;
use campanile_protocol::engine::progress::Progress;
use campanile_protocol::engine::progress::Work;
use campanile_protocol::engine::scheduling;
use campanile_protocol::engine::suspension::Suspension;
use campanile_protocol::handshake::power;
use campanile_protocol::packet::Fault;
use zerocopy::FromZeros;
use zerocopy::IntoBytes;

use super::conduct::Conduct;
use super::conduct::Ran;
use crate::engine::channel::Channel;
use crate::engine::message::NodeKind;
use crate::engine::message::Request;
use crate::engine::message::Response;
use crate::engine::message::Start;
use crate::engine::process::low_half;
use crate::event::Event;
use crate::ids::ContextIndex;
use crate::kernel::name::KernelName;
use crate::memory::bits;
use crate::memory::mapping::Access;
use crate::memory::mapping::Mapping;

/// An engine that does as it should, as far as it is stepped.
#[derive(Debug)]
pub(super) struct Fake {
    pub(super) node: NodeKind,
    /// None once it is dead.
    channel: Option<Channel>,
    shared: Mapping,
    event: Event,
    conduct: Conduct,
    has_started: bool,
    has_begun: bool,
    /// The serial of the last segment that it has carried out.
    segments: u64,
    steps: u32,
    /// The id of the last buffer that it has done.
    last_done: u64,
    /// The kernels that it was asked to compile, in order, and those that it was told to forget.
    pub(super) compiled: Vec<KernelName>,
    /// Which of them alone.
    pub(super) alone: Vec<bool>,
    pub(super) forgotten: Vec<KernelName>,
}

impl Fake {
    /// With the other end of the channel, on which what it works on was sent.
    pub(super) fn new(channel: Channel) -> io::Result<Self> {
        let received = channel.receive::<Start>(false).map_err(io::Error::other)?;
        let received = received.ok_or_else(|| io::Error::other("an engine that was not told its start"))?;
        let mut files = received.descriptors.into_iter();
        let missing = || io::Error::other("an engine without its block or events");
        let block = File::from(files.next().ok_or_else(missing)?);
        let shared =
            Mapping::new(block, 0, block::BLOCK_BYTES, Access::ReadWrite).map_err(io::Error::other)?;
        let event = Event::from(files.nth(2).ok_or_else(missing)?);
        Ok(Self {
            node: received.message.node,
            channel: Some(channel),
            shared,
            event,
            conduct: Conduct::Works,
            has_started: false,
            has_begun: false,
            segments: 0,
            steps: 0,
            last_done: 0,
            compiled: Vec::new(),
            alone: Vec::new(),
            forgotten: Vec::new(),
        })
    }

    pub(super) fn is_dead(&self) -> bool {
        self.channel.is_none()
    }

    pub(super) fn set(&mut self, conduct: Conduct) {
        self.conduct = conduct;
        if conduct == Conduct::Dies {
            self.channel = None;
        }
    }

    fn load(&self, place: u64) -> u64 {
        self.shared.word(place).map_or(0, |word| word.load(Ordering::Acquire))
    }

    fn store(&self, place: u64, value: u64) {
        if let Some(word) = self.shared.word(place) {
            word.store(value, Ordering::Release);
        }
    }

    /// Does what there is to do; up to `buffers` kernel-mode buffers are run.
    pub(super) fn step(&mut self, buffers: usize, ran: &mut Vec<Ran>) {
        if self.channel.is_none() {
            return;
        }
        if self.conduct == Conduct::Hangs {
            // It starts; then it is stuck in the first buffer that it is given.
            if !self.has_begun {
                self.converse();
            }
            if self.has_begun && self.oldest().is_some() {
                self.progress(Work::HwQueue);
            }
            return;
        }
        self.converse();
        if !self.has_begun {
            return;
        }
        // As an engine: tables before work, and suspends before buffers.
        self.store(block::WATCH_ACK, self.load(block::WATCH_SEQUENCE));
        self.store(block::PAGE_TABLE_ACK, self.load(block::PAGE_TABLE_GENERATION));
        self.store(block::SEGMENT_ACK, self.segments);
        self.report_suspends();
        self.run(buffers, ran);
        self.put_back();
        self.drain();
        self.event.signal();
    }

    fn say(&self, response: &Response) {
        if let Some(channel) = &self.channel {
            // A channel that is closed or full: nothing is said, as of an engine that has ended.
            let _said = channel.send(response, &[], &[], false);
        }
    }

    fn converse(&mut self) {
        if !std::mem::replace(&mut self.has_started, true) {
            self.say(&Response::Started {
                device: "a fake".to_owned(),
                is_cpu: true,
                vram: 0,
                profile: None,
            });
        }
        loop {
            let Some(channel) = &self.channel else { return };
            let Ok(Some(received)) = channel.receive::<Request>(false) else { return };
            match received.message {
                Request::Begin { segments } => {
                    self.has_begun = true;
                    self.segments = self.segments.max(segments);
                    self.store(block::POWER, power::ACTIVE);
                }
                Request::AddSegment { segment, serial, .. } => {
                    self.segments = serial;
                    self.say(&Response::SegmentAdded { segment, serial, address: None });
                }
                Request::RemoveSegment { serial, .. } => self.segments = serial,
                Request::CreateKernel { kernel, alone, .. } => {
                    self.compiled.push(kernel);
                    self.alone.push(alone);
                    if let Conduct::Compiles(left) = &mut self.conduct {
                        let Some(rest) = left.checked_sub(1) else { continue };
                        *left = rest;
                    }
                    self.say(&Response::KernelCreated {
                        kernel,
                        workgroup: [1; 3],
                        binding_count: 0,
                        constant_bytes: 0,
                    });
                }
                Request::DestroyKernel { kernel } => {
                    self.forgotten.push(kernel);
                    self.say(&Response::KernelDestroyed { kernel });
                }
                // It has no memory of its own that anything would be in.
                Request::Move { serial, .. } => self.say(&Response::Moved { serial }),
            }
        }
    }

    fn suspension(&self, context: ContextIndex) -> Suspension {
        Suspension::from_word(self.load(block::context_request(context.get())))
    }

    fn report_suspends(&self) {
        for context in bits::take(&self.shared, block::SUSPENDS, block::SUSPEND_WORDS) {
            self.store(block::context_report(context), self.suspension(ContextIndex::new(context)).fence);
            bits::raise(&self.shared, block::SUSPEND_REPORTS, context);
        }
    }

    /// The oldest buffer that it was given and has not ended.
    fn oldest(&self) -> Option<HwSubmission> {
        let done = self.load(block::HW_QUEUE_COMPLETED);
        if self.load(block::HW_QUEUE_SUBMITTED) <= done {
            return None;
        }
        let mut submission = HwSubmission::new_zeroed();
        let slice = self.shared.slice(hw_queue::slot(done), size_of::<HwSubmission>() as u64)?;
        slice.copy_to(submission.as_mut_bytes());
        Some(submission)
    }

    fn end(&mut self, submission: &HwSubmission, fault: u32) {
        let done = self.load(block::HW_QUEUE_COMPLETED);
        let result = HwResult { fence_id: submission.fence_id, fault, ..HwResult::default() };
        let place = hw_queue::slot(done) + hw_queue::RESULT;
        if let Some(slice) = self.shared.slice(place, size_of::<HwResult>() as u64) {
            slice.copy_from(result.as_bytes());
        }
        if !result.is_handed_back() {
            self.last_done = submission.fence_id;
        }
        self.store(block::HW_QUEUE_COMPLETED, done + 1);
    }

    fn progress(&self, work: Work) {
        self.store(block::PROGRESS, Progress { steps: self.steps, is_exempt: false, work }.word());
    }

    fn run(&mut self, buffers: usize, ran: &mut Vec<Ran>) {
        let mut left = buffers;
        while let Some(submission) = self.oldest() {
            let suspension = self.suspension(ContextIndex::new(submission.context));
            if suspension.fence != submission.suspends || suspension.is_suspended {
                self.end(&submission, HW_SUSPENDED);
                continue;
            }
            // In the address space of its process alone, which may have ended.
            let process = self.load(block::process(submission.process.min(block::MAX_PROCESSES)));
            if low_half(process) != submission.process_generation || submission.process_generation == 0 {
                self.end(&submission, Fault::PageFault as u32);
                continue;
            }
            if left == 0 {
                break;
            }
            left -= 1;
            self.store(block::LAST_CONTEXT, u64::from(submission.context) + 1);
            ran.push(Ran { node: self.node, submission });
            self.steps = self.steps.wrapping_add(1);
            self.end(&submission, 0);
        }
        self.progress(if self.oldest().is_some() { Work::HwQueue } else { Work::Nothing });
    }

    /// Puts back all that is in the hardware queue, where that is asked for.
    fn put_back(&mut self) {
        let request = self.load(scheduling::PREEMPT_REQUEST);
        if request == self.load(scheduling::PREEMPT_REPORT) {
            return;
        }
        while let Some(submission) = self.oldest() {
            self.end(&submission, HW_PREEMPTED);
        }
        self.store(scheduling::PREEMPT_LAST_COMPLETED, self.last_done);
        self.store(scheduling::PREEMPT_REPORT, request);
    }

    /// Queues whose doorbells are disconnected have nothing left: rings are not read.
    fn drain(&self) {
        for queue in 0..u32::try_from(self.load(block::USED_QUEUES)).unwrap_or(0).min(block::MAX_QUEUES) {
            let place = block::queue(queue);
            if self.load(place + block::QUEUE_DRAIN) != self.load(place + block::QUEUE_DRAINED) {
                self.store(place + block::QUEUE_DRAINED, self.load(place + block::QUEUE_DRAIN));
                bits::raise(&self.shared, block::ATTENTION, queue);
            }
        }
    }
}
