//! A session, its fakes, and a guest that talks to it as a virtio-gpu front does.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;
use std::time::Duration;

use campanile_host_gpu::adapter::fake::Fakes;
use campanile_host_gpu::clock;
use campanile_host_gpu::clock::virtual_time::VirtualTime;
use campanile_host_gpu::engine::address::EngineAddress;
use campanile_host_gpu::engine::message::NodeKind;
use campanile_host_gpu::sched::choice::Choice;
use campanile_protocol::PAGE_SIZE;
use campanile_protocol::PROTOCOL_VERSION;
use campanile_protocol::control::frame::FrameHeader;
use campanile_protocol::control::frame::MAGIC;
use campanile_protocol::control::message;
use campanile_protocol::control::message::CreateContext;
use campanile_protocol::control::message::CreateDevice;
use campanile_protocol::control::message::CreateQueue;
use campanile_protocol::control::message::Named;
use campanile_protocol::control::message::Submit;
use campanile_protocol::control::status::Status;
use campanile_protocol::device_page;
use campanile_protocol::device_page::DEVICE_PAGE_BYTES;
use campanile_protocol::device_page::RESPONSE_SLOTS;
use campanile_protocol::handle::Handle;
use zerocopy::IntoBytes;

use crate::ids::FrontContext;
use crate::ids::GuestProcess;
use crate::sched::awake::Awake;
use crate::sched::thread::Supervisor;
use crate::vgpu::config::Config;
use crate::vgpu::objects::budget::Budget;
use crate::vgpu::objects::refusal::Refusal;
use crate::vgpu::objects::timeline::Token;
use crate::vgpu::session::Session;
use crate::vgpu::testing;

/// Bytes of video memory.
const VRAM: u64 = 8 << 20;
/// Bytes of the VM's budget.
const BUDGET: u64 = 64 << 20;
/// Where the device page of each process lies.
const PAGE_VA: u64 = 0x10_0000;
/// The copy engine.
pub(super) const COPY: EngineAddress = EngineAddress::new(0, NodeKind::Copy);

/// What was asked, and is due to be signalled once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Asked {
    pub(super) of: u32,
    pub(super) slot: u32,
    pub(super) sequence: u64,
}

/// An answer in a response slot: its status word, and the first words of its payload.
pub(super) type Answer = (u32, [u64; 2]);

/// The session first: it ends before time does.
pub(super) struct World {
    pub(super) session: Session,
    pub(super) fakes: Fakes,
    pub(super) budget: Arc<Budget>,
    /// What is asked and not signalled yet.
    pub(super) asked: BTreeMap<u64, Asked>,
    sequence: u64,
    pub(super) time: VirtualTime,
}

/// One for all: nothing asks it for a node.
fn supervisor() -> Arc<Supervisor> {
    static SUPERVISOR: OnceLock<Arc<Supervisor>> = OnceLock::new();
    let start = || Arc::new(Supervisor::start(Choice::default(), 10, Awake::off()).unwrap());
    Arc::clone(SUPERVISOR.get_or_init(start))
}

fn config(fakes: &Fakes, budget: &Arc<Budget>) -> Config {
    Config {
        vram_bytes: VRAM,
        launcher: Arc::new(fakes.clone()),
        budget: Arc::clone(budget),
        code_mib: 0,
        freeze_limit: Duration::from_secs(1),
        // The supervisor's time is real, and passes while a busy machine stands still: it convicts no fake.
        timeouts: [Duration::from_secs(3600); 2],
        d3_after: Some(Duration::from_secs(10)),
        ..testing::config_under(supervisor())
    }
}

impl World {
    pub(super) fn new() -> Self {
        Self::with(|config| config)
    }

    /// As configured otherwise.
    pub(super) fn with(change: impl FnOnce(Config) -> Config) -> Self {
        let time = VirtualTime::begin();
        let (fakes, budget) = (Fakes::default(), Arc::new(Budget::new(BUDGET)));
        let session = testing::session(&Arc::new(change(config(&fakes, &budget))));
        Self { session, fakes, budget, asked: BTreeMap::new(), sequence: 0, time }
    }

    /// The session that takes its place, with its state, and fakes and a budget of its own.
    pub(super) fn move_on(&mut self) {
        let saved = self.session.save().unwrap();
        let (fakes, budget) = (Fakes::default(), Arc::new(Budget::new(BUDGET)));
        let mut session = testing::session(&Arc::new(config(&fakes, &budget)));
        session.restore(&saved).unwrap();
        (self.session, self.fakes) = (session, fakes);
        let (held, old) = (self.budget.standing().held, std::mem::replace(&mut self.budget, budget));
        let left = old.standing().held;
        assert_eq!((left.bytes, left.items), (0, 0), "what ended holds something of {held:?}");
    }

    /// A guest process with a device; its page is the blob of the same number.
    pub(super) fn open(&mut self, of: u32) {
        self.session.create_context(FrontContext::new(of)).unwrap();
        self.session.blobs().create_vram_blob(of, DEVICE_PAGE_BYTES, false).unwrap();
        self.session.blobs().attach(FrontContext::new(of), of).unwrap();
        let (protocol_version, page_resource) = (PROTOCOL_VERSION, of);
        let create = CreateDevice { protocol_version, page_resource, page_offset: 0, page_va: PAGE_VA };
        self.ask(of, message::CREATE_DEVICE, create.as_bytes());
    }

    /// Ends a guest process, and its page.
    pub(super) fn close(&mut self, of: u32) {
        self.session.destroy_context(FrontContext::new(of)).unwrap();
        self.session.blobs().unref_blob(of).unwrap();
    }

    /// Sends a message, with a fence behind it; what to look for its answer by.
    pub(super) fn ask(&mut self, of: u32, opcode: u32, body: &[u8]) -> Asked {
        self.try_ask(of, opcode, body).unwrap()
    }

    /// As [`Self::ask`], where the command may be refused, and nothing asked.
    pub(super) fn try_ask(&mut self, of: u32, opcode: u32, body: &[u8]) -> Result<Asked, Refusal> {
        self.sequence += 1;
        let sequence = self.sequence;
        let slot = u32::try_from(sequence % u64::from(RESPONSE_SLOTS)).unwrap();
        let size = u32::try_from(size_of::<FrameHeader>() + body.len()).unwrap();
        let header = FrameHeader { magic: MAGIC, size, opcode, slot, sequence };
        let frame = [header.as_bytes(), body].concat();
        let asked = Asked { of, slot, sequence };
        self.session.submit(FrontContext::new(of), 0, &frame)?;
        self.asked.insert(sequence, asked);
        self.session.fence(FrontContext::new(of), 0, Token(sequence));
        Ok(asked)
    }

    /// Its answer, once it is there.
    pub(super) fn answer(&self, asked: Asked) -> Option<Answer> {
        let page = self.session.vm.memory.page(&self.session.vm.objects, GuestProcess::new(asked.of))?;
        let at = device_page::response(asked.slot);
        let word = |offset: u64| page.word(at + offset).unwrap().load(Ordering::Acquire);
        let is_there = word(0) == asked.sequence;
        is_there.then(|| (u32::try_from(word(8) & 0xffff_ffff).unwrap(), [word(16), word(24)]))
    }

    /// The answer of what is answered at the latest when the engines have done what they have.
    pub(super) fn call(&mut self, of: u32, opcode: u32, body: &[u8]) -> Answer {
        let asked = self.ask(of, opcode, body);
        for _ in 0..8 {
            if let Some(answer) = self.answer(asked) {
                return answer;
            }
            self.turn(0);
        }
        panic!("message {opcode} of {of} is not answered");
    }

    /// The payload of an answer that is OK.
    pub(super) fn ok(&mut self, of: u32, opcode: u32, body: &[u8]) -> [u64; 2] {
        let (status, payload) = self.call(of, opcode, body);
        assert_eq!(status, Status::Ok.word(), "message {opcode} of {of}");
        payload
    }

    pub(super) fn context(&mut self, of: u32) -> Handle {
        let create = CreateContext { node: 1, engine_affinity: 1, flags: 0, reserved: 0 };
        Handle(self.ok(of, message::CREATE_CONTEXT, create.as_bytes())[0])
    }

    pub(super) fn queue(&mut self, of: u32, context: Handle) -> Handle {
        let create = CreateQueue { context, flags: 0, reserved: 0 };
        Handle(self.ok(of, message::CREATE_QUEUE, create.as_bytes())[0])
    }

    pub(super) fn submit(&mut self, of: u32, queue: Handle, buffer_va: u64) -> Asked {
        let submit = Submit { queue, buffer_va, length: 8, flags: 0 };
        self.ask(of, message::SUBMIT, submit.as_bytes())
    }

    pub(super) fn named(&mut self, of: u32, opcode: u32, handle: Handle) -> Asked {
        self.ask(of, opcode, Named { handle }.as_bytes())
    }

    /// The engines do what there is to do, with up to `buffers` buffers each; then the session does.
    pub(super) fn turn(&mut self, buffers: usize) {
        self.fakes.step(buffers);
        self.look();
    }

    /// The session looks at what its engines have said, and at its timer.
    pub(super) fn look(&mut self) {
        for _ in 0..4 {
            self.session.event();
        }
        if self.session.vm.timer.due().is_some_and(|due| due <= clock::now()) {
            self.session.timer_event();
            self.session.event();
        }
        for (Token(token), outcome) in self.session.take_due() {
            assert!(outcome.is_ok(), "{outcome:?}");
            assert!(
                self.asked.remove(&token).is_some(),
                "fence {token} is signalled, which is not waited for"
            );
        }
    }

    /// Time passes.
    pub(super) fn pass(&mut self, time: Duration) {
        self.time.pass(time);
        self.look();
    }

    pub(super) fn is_active(&self, of: u32) -> bool {
        self.session.vm.objects.active_device(GuestProcess::new(of)).is_ok()
    }

    /// A blob of one page that a process has.
    pub(super) fn blob(&mut self, of: u32, resource: u32) -> bool {
        self.session.blobs().create_vram_blob(resource, PAGE_SIZE, false).is_ok()
            && self.session.blobs().attach(FrontContext::new(of), resource).is_ok()
    }
}
