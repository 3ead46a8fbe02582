//! A session: one guest process as the daemon sees it, with all that a frame takes.

use campanile_protocol::PAGE_SIZE;
use campanile_protocol::PROTOCOL_VERSION;
use campanile_protocol::capset::NODE_COMPUTE;
use campanile_protocol::control::memory::QUERY_MEMORY;
use campanile_protocol::control::message;
use campanile_protocol::control::message::CreateContext;
use campanile_protocol::control::message::CreateDevice;
use campanile_protocol::control::message::CreateKernel;
use campanile_protocol::control::message::CreateQueue;
use campanile_protocol::control::message::MapMemory;
use campanile_protocol::control::message::QUEUE_NATIVE_PROGRESS_FENCE;
use campanile_protocol::control::message::QUEUE_USER_MODE_SUBMISSION;
use campanile_protocol::control::message::Submit;
use campanile_protocol::control::reply::Created;
use campanile_protocol::control::reply::KernelCreated;
use campanile_protocol::control::reply::Paging;
use campanile_protocol::control::reply::QueueCreated;
use campanile_protocol::control::reply::Submitted;
use campanile_protocol::device_page;
use campanile_protocol::device_page::DEVICE_PAGE_BYTES;
use campanile_protocol::handle::Handle;
use campanile_protocol::packet::Binding;
use campanile_protocol::packet::Dispatch;
use zerocopy::IntoBytes;

use crate::arena::Arena;
use crate::clock::Patience;
use crate::commands::Commands;
use crate::control::Control;
use crate::fault::Fault;
use crate::front::Front;
use crate::memory::Memory;
use crate::model;
use crate::model::Model;
use crate::options::Options;
use crate::user_queue;
use crate::user_queue::UserQueue;

/// Where the device page lies in the address space, and where buffers begin.
const PAGE_VA: u64 = 0x10_0000;
const FIRST_VA: u64 = 0x100_0000;
/// Where in the page of packets the host's clock goes, in nanoseconds.
const CLOCK: u64 = 2048;
/// How long work may take before the daemon is asked whether it is there still, and how often it may say yes.
const PATIENCE_MS: u32 = 1_000;
const QUESTIONS: u32 = 20;

/// A buffer of the session.
#[derive(Clone, Copy)]
struct Buffer {
    resource: u32,
    va: u64,
    size: u64,
}

/// How a frame goes to the GPU.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// By ring and doorbell.
    User,
    /// Through the daemon.
    Kernel,
}

/// A session.
pub(crate) struct Session {
    context: u32,
    control: Control,
    next_va: u64,
    kernel: Handle,
    queue: QueueCreated,
    user: Option<UserQueue>,
    packets: (Buffer, Memory),
    picture: (Buffer, Memory),
    copies: (Buffer, Memory),
    trail: Buffer,
    ballast: Option<(Buffer, Memory)>,
    model: Model,
}

impl Session {
    /// Opens the context of this number, and makes all that frames take, with memory of `arena`.
    pub(crate) fn begin(
        front: &mut Front,
        context: u32,
        options: &Options,
        mut arena: Arena,
    ) -> Result<Self, Fault> {
        front.create_context(context)?;
        let page = arena.take(DEVICE_PAGE_BYTES);
        let page_resource = front.create_blob(context, page.length(), Some(page))?;
        let control = Control::new(context, page);
        let bytes = options.words * 4;
        let model = Model::new(arena.take(bytes).part(0, bytes));
        let nothing = Buffer { resource: 0, va: 0, size: 0 };
        let queue = QueueCreated { queue: Handle::NONE, fence_offset: 0, fence_va: 0 };
        let none = (nothing, page);
        let mut session = Self {
            context,
            control,
            next_va: FIRST_VA,
            kernel: Handle::NONE,
            queue,
            user: None,
            packets: none,
            picture: none,
            copies: none,
            trail: nothing,
            ballast: None,
            model,
        };
        let create = CreateDevice {
            protocol_version: PROTOCOL_VERSION,
            page_resource,
            page_offset: 0,
            page_va: PAGE_VA,
        };
        session.control.tell(front, "CREATE_DEVICE", message::CREATE_DEVICE, &[create.as_bytes()])?;
        let mut shared = |session: &mut Self, front: &mut Front, bytes| {
            let memory = arena.take(bytes);
            session.buffer(front, memory.length(), Some(memory)).map(|buffer| (buffer, memory))
        };
        session.packets = shared(&mut session, front, PAGE_SIZE)?;
        session.picture = shared(&mut session, front, bytes)?;
        session.copies = shared(&mut session, front, bytes * u64::from(model::KEPT))?;
        let ring = shared(&mut session, front, user_queue::RING_BYTES)?;
        session.trail = session.buffer(front, bytes.next_multiple_of(PAGE_SIZE), None)?;
        if options.ballast > 0 {
            let memory = arena.take_as_it_is(options.ballast * model::PIECE);
            session.ballast = Some((session.buffer(front, memory.length(), Some(memory))?, memory));
        }
        session.kernel = session.create_kernel(front)?;
        session.create_queues(front, ring)?;
        Ok(session)
    }

    /// Makes a buffer and maps it.
    fn buffer(&mut self, front: &mut Front, size: u64, memory: Option<Memory>) -> Result<Buffer, Fault> {
        let resource = front.create_blob(self.context, size, memory)?;
        let va = self.next_va;
        self.next_va += size;
        let map = MapMemory { resource, flags: message::MAP_WRITABLE, offset: 0, va, size };
        let paging: Paging = self.control.ask(front, "MAP_MEMORY", message::MAP_MEMORY, &[map.as_bytes()])?;
        self.wait(front, |session| {
            session.control.page().word(device_page::PAGING_FENCE).acquire() >= paging.fence
        })?;
        Ok(Buffer { resource, va, size })
    }

    fn create_kernel(&mut self, front: &mut Front) -> Result<Handle, Fault> {
        let source = model::KERNEL.as_bytes();
        let source_bytes = u32::try_from(source.len()).unwrap_or(0);
        let create =
            CreateKernel { language: message::LANGUAGE_WGSL, entry_bytes: 0, source_bytes, reserved: 0 };
        let parts = [create.as_bytes(), source];
        let created: KernelCreated =
            self.control.ask(front, "CREATE_KERNEL", message::CREATE_KERNEL, &parts)?;
        Ok(created.kernel)
    }

    fn create_queues(&mut self, front: &mut Front, ring: (Buffer, Memory)) -> Result<(), Fault> {
        let create = CreateContext { node: NODE_COMPUTE, engine_affinity: 1, flags: 0, reserved: 0 };
        let context: Created =
            self.control.ask(front, "CREATE_CONTEXT", message::CREATE_CONTEXT, &[create.as_bytes()])?;
        let create = |flags| CreateQueue { context: context.handle, flags, reserved: 0 };
        let own = create(0);
        self.queue = self.control.ask(front, "CREATE_QUEUE", message::CREATE_QUEUE, &[own.as_bytes()])?;
        let own = create(QUEUE_USER_MODE_SUBMISSION | QUEUE_NATIVE_PROGRESS_FENCE);
        let queue = self.control.ask(front, "CREATE_QUEUE", message::CREATE_QUEUE, &[own.as_bytes()])?;
        let (Buffer { resource, va, .. }, memory) = ring;
        self.user = Some(UserQueue::create(front, &mut self.control, queue, memory, resource, va)?);
        Ok(())
    }

    /// Waits until something holds; asks the daemon now and then whether it is there still.
    fn wait(&mut self, front: &mut Front, holds: impl Fn(&Self) -> bool) -> Result<(), Fault> {
        for _ in 0..QUESTIONS {
            let mut patience = Patience::new(PATIENCE_MS);
            while !patience.is_over() {
                if holds(self) {
                    return Ok(());
                }
                self.control.check()?;
            }
            self.control.tell(front, "QUERY_MEMORY", QUERY_MEMORY, &[])?;
        }
        Err(Fault::NoProgress)
    }

    /// How often the doorbell had to be connected.
    pub(crate) fn connects(&self) -> u64 {
        self.user.as_ref().map_or(0, UserQueue::connects)
    }

    /// When the last frame was done, by the host's clock, in microseconds.
    pub(crate) fn time(&self) -> u64 {
        self.packets.1.read64(CLOCK) / 1000
    }

    /// Has the GPU take step `step`, waits for it, and checks every word; a sum over the frame.
    pub(crate) fn frame(&mut self, front: &mut Front, step: u32, way: Way) -> Result<u32, Fault> {
        let length = self.record(step);
        let buffer_va = self.packets.0.va;
        if way == Way::Kernel {
            let submit = Submit { queue: self.queue.queue, buffer_va, length, flags: 0 };
            let parts = [submit.as_bytes()];
            let _submitted: Submitted = self.control.ask(front, "SUBMIT", message::SUBMIT, &parts)?;
        } else if let Some(user) = &mut self.user {
            user.submit(front, &mut self.control, buffer_va, length)?;
            self.wait(front, |session| {
                session.user.as_ref().is_none_or(|user| user.is_done(session.control.page()))
            })?;
        }
        self.control.check()?;
        if let Some((_, memory)) = self.ballast {
            Model::check_ballast(step, memory)?;
        }
        self.model.check(step, self.picture.1, self.copies.1)
    }

    /// Writes the packets of a step; their bytes.
    fn record(&mut self, step: u32) -> u32 {
        let mut commands = Commands::new(self.packets.1);
        let bytes = self.model.bytes();
        let groups = u32::try_from(bytes / 4 / model::GROUP).unwrap_or(0);
        let dispatch = Dispatch {
            kernel: self.kernel,
            groups: [groups, 1, 1],
            binding_count: 2,
            constant_bytes: model::CONSTANT_BYTES,
            reserved: 0,
        };
        let binding = |slot, buffer: Buffer| Binding::new(buffer.va, buffer.size, slot);
        let bindings = [binding(0, self.trail), binding(1, self.picture.0)];
        commands.dispatch(&dispatch, &bindings, &step.to_le_bytes());
        commands.barrier();
        commands.copy(self.trail.va, self.copies.0.va + model::place(step, bytes), bytes);
        if let Some((buffer, memory)) = self.ballast {
            if step == 1 {
                commands.fill(buffer.va, buffer.size, model::filling(0));
                commands.barrier();
            }
            commands.fill(
                buffer.va + model::piece(step, memory.length()),
                model::PIECE,
                model::filling(step),
            );
        }
        commands.timestamp(self.packets.0.va + CLOCK);
        commands.length()
    }
}
