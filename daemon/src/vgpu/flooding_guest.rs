//! A guest of two processes, one of which asks for more and more.

use std::path::PathBuf;
use std::sync::Arc;

use campanile_host_gpu::adapter::program::Program;
use campanile_host_gpu::engine::address::EngineAddress;
use campanile_host_gpu::engine::message::NodeKind;
use campanile_protocol::PAGE_SIZE;
use campanile_protocol::PROTOCOL_VERSION;
use campanile_protocol::control::memory;
use campanile_protocol::control::memory::EVICT_NOW;
use campanile_protocol::control::memory::List;
use campanile_protocol::control::message;
use campanile_protocol::control::message::CreateContext;
use campanile_protocol::control::message::CreateDevice;
use campanile_protocol::control::message::CreateKernel;
use campanile_protocol::control::message::CreateQueue;
use campanile_protocol::control::message::LANGUAGE_WGSL;
use campanile_protocol::control::message::MAP_WRITABLE;
use campanile_protocol::control::message::MapMemory;
use campanile_protocol::control::message::Submit;
use campanile_protocol::control::message::UnmapMemory;
use campanile_protocol::control::reply::Created;
use campanile_protocol::control::reply::QueueCreated;
use campanile_protocol::control::status::Status;
use campanile_protocol::device_page::DEVICE_PAGE_BYTES;
use campanile_protocol::handle::Handle;
use rustix::process::Pid;
use rustix::process::Signal;
use rustix::process::kill_process;
use zerocopy::FromBytes;
use zerocopy::IntoBytes;

use super::config::Config;
use super::control::request::Request;
use super::objects::budget::Amount;
use super::objects::budget::Budget;
use super::objects::budget::Kind;
use super::session::Session;
use super::testing::config;
use super::testing::session;
use crate::ids::FrontContext;
use crate::ids::GuestProcess;
use crate::vgpu::control::devices::Devices;
use crate::vgpu::control::memory::paging::Pager;
use crate::vgpu::engines::lifecycle::Lifecycle;
use crate::vgpu::objects::message::Handled;
use crate::vgpu::objects::message::Origin;
use crate::vgpu::objects::message::Outcome;
use crate::vgpu::objects::refusal::Refusal;
use crate::vgpu::submission::buffers::Submission;
use crate::vgpu::submission::reports::EngineReports;

/// Bytes of the budget: three quarters of it are the pool.
pub(super) const BYTES: u64 = 16 << 20;
pub(super) const COPY: EngineAddress = EngineAddress::new(0, NodeKind::Copy);
pub(super) const COMPUTE: EngineAddress = EngineAddress::new(0, NodeKind::Compute);
/// The process that floods, and one that does not.
pub(super) const GREEDY: u32 = 1;
pub(super) const MODEST: u32 = 2;
pub(super) const PAGE_VA: u64 = 0x10_0000;
pub(super) const DATA_VA: u64 = 0x100_0000;

pub(super) struct Guest {
    pub(super) session: Session,
    pub(super) budget: Arc<Budget>,
}

pub(super) fn origin(of: u32) -> Origin {
    Origin { context: GuestProcess::new(of), slot: 0, sequence: 1, ring: 0, item: None }
}

pub(super) fn payload<T: FromBytes>(outcome: Outcome) -> T {
    match outcome {
        Ok(Handled::Now(payload)) => T::read_from_bytes(&payload).unwrap_or_else(|_| panic!("{payload:?}")),
        other => panic!("{other:?}"),
    }
}

/// Calls `make` until it is refused for want of room; how often it was not.
pub(super) fn until_refused(limit: u32, mut make: impl FnMut(u32) -> Outcome) -> u32 {
    for index in 0..limit {
        if let Err(refused) = make(index) {
            assert_eq!(refused.status, Status::OutOfResources, "at {index}: {}", refused.text);
            return index;
        }
    }
    panic!("{limit} were given, and there is no end");
}

impl Guest {
    /// Two processes with devices.
    pub(super) fn new() -> Self {
        let launcher = Arc::new(Program::new(PathBuf::from("/usr/bin/yes"), Vec::new()));
        let budget = Arc::new(Budget::new(BYTES));
        let config = Config { launcher, budget: Arc::clone(&budget), ..config() };
        let session = session(&Arc::new(config));
        let mut guest = Self { session, budget };
        guest.open(GREEDY);
        guest.open(MODEST);
        guest
    }

    /// A process with a device whose page is the blob of the same number.
    pub(super) fn open(&mut self, of: u32) {
        self.session.create_context(FrontContext::new(of)).unwrap();
        self.session.blobs().create_vram_blob(of, DEVICE_PAGE_BYTES, false).unwrap();
        self.session.blobs().attach(FrontContext::new(of), of).unwrap();
        self.open_device(of).unwrap();
        assert!(self.session.vm.objects.active_device(GuestProcess::new(of)).is_ok());
    }

    pub(super) fn open_device(&mut self, of: u32) -> Result<(), Refusal> {
        let (protocol_version, page_resource) = (PROTOCOL_VERSION, of);
        let create = CreateDevice { protocol_version, page_resource, page_offset: 0, page_va: PAGE_VA };
        Devices::of(&mut self.session.vm).open_device(origin(of), &create, false)
    }

    /// Has the session do what a message of `of` asks.
    pub(super) fn request(&mut self, of: u32, opcode: u32, body: &[u8]) -> Outcome {
        self.session.dispatch(origin(of), Request::decode(opcode, body)?)
    }

    /// An engine is there, and stands.
    pub(super) fn come_up(&mut self, at: EngineAddress) {
        assert!(!Lifecycle::of(&mut self.session.vm).ensure_engine(at).unwrap());
        self.session.vm.engines[at.index()].came_up();
        self.stop(at);
    }

    pub(super) fn stop(&self, at: EngineAddress) {
        let pid = self.session.vm.engines[at.index()].process().unwrap().pid();
        let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
        kill_process(pid, Signal::STOP).unwrap();
    }

    pub(super) fn context(&mut self, of: u32) -> Handle {
        let create = CreateContext { node: 1, engine_affinity: 1, flags: 0, reserved: 0 };
        payload::<Created>(Lifecycle::of(&mut self.session.vm).new_context(origin(of), &create)).handle
    }

    pub(super) fn queue(&mut self, of: u32, context: Handle) -> Handle {
        let create = CreateQueue { context, flags: 0, reserved: 0 };
        payload::<QueueCreated>(Submission::of(&mut self.session.vm).create_queue(origin(of), &create)).queue
    }

    pub(super) fn submit(&mut self, of: u32, queue: Handle) -> Outcome {
        let submit = Submit { queue, buffer_va: DATA_VA, length: 8, flags: 0 };
        EngineReports::of(&mut self.session.vm).submit_buffer(origin(of), &submit)
    }

    /// A queue of a process, whose buffers are never done.
    pub(super) fn stuck(&mut self, of: u32) -> Handle {
        let context = self.context(of);
        let queue = self.queue(of, context);
        (0..4).for_each(|_| drop(self.submit(of, queue).unwrap()));
        queue
    }

    /// A blob of one page that a process has.
    pub(super) fn blob(&mut self, of: u32, resource: u32) {
        self.session.blobs().create_vram_blob(resource, PAGE_SIZE, false).unwrap();
        self.session.blobs().attach(FrontContext::new(of), resource).unwrap();
    }

    pub(super) fn map(&mut self, of: u32, resource: u32, va: u64) -> Outcome {
        let map = MapMemory { resource, flags: MAP_WRITABLE, offset: 0, va, size: PAGE_SIZE };
        Pager::of(&mut self.session.vm).map_memory(origin(of), &map)
    }

    pub(super) fn unmap(&mut self, of: u32, va: u64) {
        let outcome =
            Pager::of(&mut self.session.vm).unmap_memory(origin(of), &UnmapMemory { va, size: PAGE_SIZE });
        assert!(outcome.is_ok(), "what ends something is never refused: {outcome:?}");
    }

    pub(super) fn kernel(&mut self, of: u32, source_bytes: usize) -> Outcome {
        let bytes = u32::try_from(source_bytes).unwrap();
        let head = CreateKernel { language: LANGUAGE_WGSL, entry_bytes: 0, source_bytes: bytes, reserved: 0 };
        let mut message = head.as_bytes().to_vec();
        message.resize(message.len() + source_bytes.next_multiple_of(8), b' ');
        self.request(of, message::CREATE_KERNEL, &message)
    }

    pub(super) fn evict(&mut self, of: u32, resource: u32, count: u32) -> Outcome {
        let mut message = List { count, argument: EVICT_NOW }.as_bytes().to_vec();
        (0..count.next_multiple_of(2))
            .for_each(|at| message.extend(if at < count { resource } else { 0 }.to_le_bytes()));
        self.request(of, memory::EVICT, &message)
    }

    pub(super) fn held(&self) -> Amount {
        self.budget.standing().held
    }

    pub(super) fn held_of(&self, kind: Kind) -> Amount {
        self.budget.standing().kinds[kind as usize].1
    }

    /// The pool is used up, and not passed; the other process goes on with its own part; and all comes back.
    pub(super) fn ends_full(mut self) {
        let held = self.held().bytes;
        assert!(held <= BYTES && held > BYTES / 2, "{held} bytes are held: {:?}", self.budget.standing());
        assert!(self.budget.standing().refused > 0);
        if self.session.vm.engines[COPY.index()].is_running() {
            self.stuck(MODEST);
        }
        self.blobs_of_modest();
        self.session.reset();
        self.is_empty();
    }

    /// What the VM pays for is refused now, and nothing follows from that.
    pub(super) fn blobs_of_modest(&mut self) {
        let before = self.held();
        if self.session.blobs().create_vram_blob(9_000_000, PAGE_SIZE, false).is_ok() {
            self.session.blobs().unref_blob(9_000_000).unwrap();
        }
        assert_eq!(self.held(), before);
        assert!(self.session.vm.objects.active_device(GuestProcess::new(MODEST)).is_ok());
    }

    pub(super) fn is_empty(&self) {
        let Amount { bytes, items } = self.held();
        assert_eq!((bytes, items), (0, 0), "{:?}", self.budget.standing());
    }
}
