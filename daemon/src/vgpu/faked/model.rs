//! What a guest expects of its buffers, whatever happens: each runs at most once, in the order of its context, and in the
//! address space of its process; all run that nothing has ended.

use std::collections::BTreeMap;

use campanile_host_gpu::adapter::fake::Ran;
use campanile_host_gpu::ids::ContextIndex;
use campanile_host_gpu::ids::ProcessIndex;
use campanile_protocol::handle::Handle;

use super::world::Asked;
use super::world::World;
use crate::ids::GuestProcess;
use crate::vgpu::objects::ids::ContextHandle;

/// Where the buffers of a process lie: its number times this.
const PROCESS: u64 = 1 << 32;

/// A buffer that was submitted.
#[derive(Debug, Clone, Copy)]
pub(super) struct Buffer {
    pub(super) of: u32,
    pub(super) context: Handle,
    pub(super) queue: Handle,
    asked: Asked,
    has_run: bool,
    /// Its process, device or queue has ended, or it was refused: it need not run.
    is_excused: bool,
}

/// All buffers, by their address.
#[derive(Debug, Default)]
pub(super) struct Model {
    buffers: BTreeMap<u64, Buffer>,
    last: u64,
    /// The greatest paging fence and suspend fences seen, by process and by process and context.
    paging: BTreeMap<u32, u64>,
    suspends: BTreeMap<(u32, Handle), u64>,
}

impl Model {
    /// Submits a buffer.
    pub(super) fn submit(&mut self, world: &mut World, of: u32, context: Handle, queue: Handle) {
        self.last += 8;
        let va = u64::from(of) * PROCESS + self.last;
        let asked = world.submit(of, queue, va);
        // SUBMIT is answered at once.
        let is_excused = world.answer(asked).is_none_or(|(status, _)| status != 0);
        self.buffers.insert(va, Buffer { of, context, queue, asked, has_run: false, is_excused });
    }

    /// What need not run any more.
    pub(super) fn excuse(&mut self, which: impl Fn(&Buffer) -> bool) {
        self.buffers.values_mut().filter(|buffer| which(buffer)).for_each(|buffer| buffer.is_excused = true);
    }

    /// Steps the engines, looks at what they have run, and has the session look.
    pub(super) fn turn(&mut self, world: &mut World, buffers: usize) {
        world.fakes.step(buffers);
        for ran in world.fakes.take_ran() {
            self.ran(world, &ran);
        }
        world.look();
        self.look(world);
    }

    fn ran(&mut self, world: &World, ran: &Ran) {
        let submission = &ran.submission;
        let va = submission.buffer_va;
        let buffer =
            *self.buffers.get(&va).unwrap_or_else(|| panic!("{va:#x} runs, which was not submitted"));
        assert!(!buffer.has_run, "{va:#x} runs twice");
        let before = self.buffers.range(..va).find(|(_, other)| {
            (other.of, other.context) == (buffer.of, buffer.context) && !other.has_run && !other.is_excused
        });
        assert!(before.is_none(), "{va:#x} runs before {before:x?} of its context");
        let device = world.session.vm.objects.device(GuestProcess::new(buffer.of));
        let device = device.unwrap_or_else(|_| panic!("{va:#x} runs, whose process has no device"));
        let at = super::world::COPY.index();
        assert_eq!(
            device.presence[at],
            Some(ProcessIndex::new(submission.process)),
            "{va:#x} runs in another address space"
        );
        let own = device.contexts.get(ContextHandle::new(buffer.context)).and_then(|context| context.entry);
        assert_eq!(own, Some(ContextIndex::new(submission.context)), "{va:#x} runs as another's context");
        self.buffers.get_mut(&va).unwrap().has_run = true;
    }

    /// Fences never go back; buffers of devices in error need not run.
    pub(super) fn look(&mut self, world: &World) {
        self.excuse(|buffer| !world.is_active(buffer.of));
        for (of, process) in &world.session.vm.objects.processes {
            let Some(device) = &process.device else { continue };
            let (done, applied, issued) =
                (device.paging.done(), device.paging.applied, device.paging.issued());
            assert!(done <= applied && applied <= issued, "{done} {applied} {issued}");
            let before = self.paging.insert(of.get(), done);
            assert!(before.is_none_or(|before| before <= done), "the paging fence of {of} goes back");
            for (handle, context) in device.contexts.iter() {
                let engine = world.session.vm.engines[context.at.index()].process();
                let Some((entry, engine)) = context.entry.zip(engine) else { continue };
                let fence = engine.contexts.suspends(entry);
                let before = self.suspends.insert((of.get(), handle.get()), fence);
                assert!(
                    before.is_none_or(|before| before <= fence),
                    "the suspend fence of {handle:?} goes back"
                );
            }
        }
    }

    /// Another process may have this number from now on.
    pub(super) fn forget_process(&mut self, of: u32) {
        self.excuse(|buffer| buffer.of == of);
        self.paging.remove(&of);
        self.suspends.retain(|(process, _), _| *process != of);
    }

    /// All is done that was to be done.
    pub(super) fn assert_done(&self) {
        for (va, buffer) in &self.buffers {
            assert!(buffer.has_run || buffer.is_excused, "{va:#x} was accepted and does not run: {buffer:?}");
        }
    }

    /// How many have run.
    pub(super) fn ran_in_all(&self) -> usize {
        self.buffers.values().filter(|buffer| buffer.has_run).count()
    }

    /// Whether it was signalled of each buffer that it is over.
    pub(super) fn has_signalled(&self, world: &World) -> bool {
        self.buffers.values().all(|buffer| !world.asked.contains_key(&buffer.asked.sequence))
    }
}
