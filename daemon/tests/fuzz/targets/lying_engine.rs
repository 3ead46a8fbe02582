//! An engine that is no process: the test has the other end of its channel, and what was sent with it.

use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;

use campanile_host_gpu::engine::channel::Channel;
use campanile_host_gpu::engine::message::Request;
use campanile_host_gpu::engine::message::Response;
use campanile_host_gpu::engine::message::Start;
use campanile_host_gpu::event::Event;
use campanile_host_gpu::kernel::name::KernelName;
use campanile_host_gpu::memory::mapping::Access;
use campanile_host_gpu::memory::mapping::Mapping;
use campanile_protocol::engine::block;
use campanile_protocol::engine::hw_queue;
use campanile_protocol::engine::hw_queue::HwResult;
use campanile_protocol::engine::scheduling;
use rustix::net::SendAncillaryBuffer;
use rustix::net::SendAncillaryMessage;
use rustix::net::SendFlags;
use zerocopy::IntoBytes;

/// A process, as it were.
pub(super) struct Engine {
    channel: Channel,
    pub(super) shared: Mapping,
    pub(super) event: Event,
    pub(super) asks: Event,
    pub(super) requests: VecDeque<Request>,
    segments: u64,
    has_started: bool,
    pub(super) is_gone: bool,
}

impl Engine {
    pub(super) fn new(channel: Channel) -> Self {
        let received = channel.receive::<Start>(false).unwrap().expect("what it works on comes first");
        let mut files = received.descriptors.into_iter();
        let shared = File::from(files.next().unwrap());
        let shared = Mapping::new(shared, 0, block::BLOCK_BYTES, Access::ReadWrite).unwrap();
        let mut events = files.skip(2).map(Event::from);
        let (event, asks) = (events.next().unwrap(), events.next().unwrap());
        let (requests, segments) = (VecDeque::new(), 0);
        Self { channel, shared, event, asks, requests, segments, has_started: false, is_gone: false }
    }

    pub(super) fn load(&self, place: u64) -> u64 {
        self.shared.word(place).map_or(0, |word| word.load(Ordering::Acquire))
    }

    pub(super) fn store(&self, place: u64, value: u64) {
        if let Some(word) = self.shared.word(place) {
            word.store(value, Ordering::Release);
        }
    }

    /// Reads what it was asked.
    pub(super) fn read(&mut self) {
        loop {
            match self.channel.receive::<Request>(false) {
                Ok(Some(received)) => self.requests.push_back(received.message),
                Ok(None) => return,
                // The daemon has ended it.
                Err(_) => {
                    self.is_gone = true;
                    return;
                }
            }
        }
    }

    pub(super) fn say(&self, response: &Response) {
        // A response that cannot be encoded, a full or closed channel: nothing is said.
        let _said = self.channel.send(response, &[], &[], false);
    }

    pub(super) fn started(&mut self) {
        self.has_started = true;
        self.say(&Response::Started { device: "none".to_owned(), is_cpu: true, vram: 0, profile: None });
    }

    pub(super) fn be_honest(&mut self) {
        self.read();
        if !self.has_started {
            self.started();
        }
        for request in std::mem::take(&mut self.requests) {
            match request {
                Request::Begin { .. } | Request::Move { .. } => {}
                Request::AddSegment { segment, serial, .. } => {
                    self.segments = serial;
                    self.say(&Response::SegmentAdded { segment, serial, address: None });
                }
                Request::RemoveSegment { serial, .. } => self.segments = serial,
                Request::CreateKernel { kernel, .. } => self.say(&Response::KernelCreated {
                    kernel,
                    workgroup: [1; 3],
                    binding_count: 0,
                    constant_bytes: 0,
                }),
                Request::DestroyKernel { kernel } => self.say(&Response::KernelDestroyed { kernel }),
            }
        }
        for (told, said) in [
            (block::WATCH_SEQUENCE, block::WATCH_ACK),
            (block::PAGE_TABLE_GENERATION, block::PAGE_TABLE_ACK),
            (scheduling::PREEMPT_REQUEST, scheduling::PREEMPT_REPORT),
        ] {
            self.store(said, self.load(told));
        }
        while self.end(0) {}
        self.store(block::SEGMENT_ACK, self.segments);
        for context in 0..8 {
            self.store(block::context_report(context), self.load(block::context_request(context)) >> 1);
        }
        self.store(block::SUSPEND_REPORTS, 0xff);
        for queue in (0..8).map(block::queue) {
            self.store(queue + block::QUEUE_DRAINED, self.load(queue + block::QUEUE_DRAIN));
        }
        self.store(block::ATTENTION, 0xff);
        self.event.signal();
    }

    /// One of each type, about what it was asked next or about something else.
    pub(super) fn answer(&mut self, kind: u8, wrong: u8, number: u64) {
        self.read();
        let number = if wrong & 1 == 0 { number & 7 } else { number.wrapping_mul(0x9e37_79b9_7f4a_7c15) };
        let mut kernel = KernelName { root: number, handle: number };
        let (mut segment, mut serial) = (u16::try_from(number & 0xffff).unwrap(), number);
        match self.requests.front() {
            Some(Request::AddSegment { segment: of, serial: to, .. }) if wrong & 2 == 0 => {
                (segment, serial) = (*of, *to);
            }
            Some(Request::CreateKernel { kernel: of, .. } | Request::DestroyKernel { kernel: of })
                if wrong & 2 == 0 =>
            {
                kernel = *of;
            }
            _ => {}
        }
        if wrong & 4 == 0 {
            self.requests.pop_front();
        }
        let reason = "no".repeat(if wrong & 8 == 0 { 1 } else { 8 << 10 });
        let part = u32::try_from(number >> 32).unwrap();
        self.say(&match kind % 7 {
            0 => Response::Started { device: reason, is_cpu: wrong & 16 == 0, vram: number, profile: None },
            1 => Response::Refused { reason },
            2 => Response::SegmentAdded { segment, serial, address: (wrong & 16 != 0).then_some(number) },
            3 => Response::SegmentRefused { segment, reason },
            4 => Response::KernelCreated {
                kernel,
                workgroup: [part; 3],
                binding_count: part,
                constant_bytes: part,
            },
            5 => Response::KernelRefused { kernel, reason },
            _ => Response::KernelDestroyed { kernel },
        });
    }

    /// Ends the oldest kernel-mode buffer so, where there is one.
    pub(super) fn end(&self, fault: u32) -> bool {
        let done = self.load(block::HW_QUEUE_COMPLETED);
        let submitted = self.load(block::HW_QUEUE_SUBMITTED);
        if !(1..=hw_queue::HW_QUEUE_DEPTH).contains(&submitted.wrapping_sub(done)) {
            return false;
        }
        let slot = hw_queue::slot(done);
        let result = HwResult { fence_id: self.load(slot), fault, ..HwResult::default() };
        let place = self.shared.slice(slot + hw_queue::RESULT, size_of::<HwResult>() as u64);
        place.unwrap().copy_from(result.as_bytes());
        self.store(block::HW_QUEUE_COMPLETED, done.wrapping_add(1));
        true
    }

    pub(super) fn packet(&self, descriptors: u8, bytes: &[u8]) {
        let files = vec![self.channel.as_fd(); usize::from(descriptors % 40)];
        let mut space = vec![std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(40))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let files: &[BorrowedFd<'_>] = &files;
        if !files.is_empty() {
            assert!(ancillary.push(SendAncillaryMessage::ScmRights(files)));
        }
        let parts = [std::io::IoSlice::new(bytes)];
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let _sent = rustix::net::sendmsg(&self.channel, &parts, &mut ancillary, flags);
    }
}
