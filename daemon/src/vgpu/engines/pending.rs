//! What waits until every engine has let go.

use campanile_host_gpu::memory::page_table::writer::Root;
use campanile_protocol::page_table::SegmentId;

use super::barrier::Barrier;
use crate::ids::GuestProcess;
use crate::vgpu::memory::vidmm::vram::Place;
use crate::vgpu::objects::budget::Charge;
use crate::vgpu::objects::ids::AllocationId;
use crate::vgpu::objects::message::Origin;
use crate::vgpu::objects::save_area::SaveArea;
use crate::vgpu::objects::timeline::Token;

/// Actions of one session that may wait while more work is taken.
pub const MAX_PENDING: usize = 16 * 1024;

/// What to do then.
#[derive(Debug)]
pub enum Action {
    /// Drop references to allocations.
    Release(Vec<AllocationId>),
    /// Free save areas.
    FreeAreas(Vec<SaveArea>),
    /// Give the tables of an address space back.
    DestroyRoot(Root),
    /// Free native fences.
    FreeFences(Vec<u32>),
    /// Raise a process's paging fence.
    PagingFence {
        /// The virtio-gpu context.
        context: GuestProcess,
        /// Its address space: a later device of the same context has another.
        root: Root,
        /// The value.
        value: u64,
    },
    /// Copy an allocation to its new place and show it there.
    Move {
        /// The allocation; this holds one reference.
        allocation: AllocationId,
        /// Where it goes.
        target: Place,
        /// The blob.
        resource: u32,
        /// What to answer.
        token: Token,
    },
    /// Copy an allocation to host memory, or to where it is less in the way.
    Relocate {
        /// The allocation; this holds one reference.
        allocation: AllocationId,
        /// Where it goes.
        target: Place,
    },
    /// Show an allocation where the device has brought it back to. Waits for no engine.
    Restore {
        /// The allocation; this holds one reference.
        allocation: AllocationId,
        /// Where it goes.
        target: Place,
    },
    /// Show guest RAM where it is mapped: engines have this segment. The allocation may have another by then.
    ShowSegment(AllocationId, SegmentId),
    /// Answer a control message with OK.
    Reply {
        /// Where its answer goes.
        origin: Origin,
        /// The address space of its device: a later device of the same context has another.
        root: Root,
    },
    /// Answer a command.
    Answer(Token),
    /// Let a process run that has come back.
    Return {
        /// The process.
        context: GuestProcess,
        /// Its address space.
        root: Root,
    },
}

/// An action and what it waits for.
#[derive(Debug)]
pub struct Pending {
    /// What must have passed.
    pub barrier: Barrier,
    /// What to do.
    pub action: Action,
    /// What is held until then.
    pub charges: Vec<Charge>,
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::Arc;
    use std::sync::atomic::Ordering;

    use campanile_host_gpu::adapter::program::Program;
    use campanile_host_gpu::engine::address::EngineAddress;
    use campanile_host_gpu::engine::message::NodeKind;
    use campanile_host_gpu::memory::mapping::Mapping;
    use campanile_host_gpu::memory::page_table::writer::Root;
    use campanile_protocol::device_page;
    use campanile_protocol::engine::block;
    use campanile_protocol::page_table::SegmentId;

    use super::Action;
    use super::Pending;
    use crate::ids::FrontContext;
    use crate::ids::GuestProcess;
    use crate::vgpu::config::Config;
    use crate::vgpu::control::deferred::Deferred;
    use crate::vgpu::engines::barrier::Barrier;
    use crate::vgpu::engines::barrier::tests::LOOKED;
    use crate::vgpu::engines::lifecycle::Lifecycle;
    use crate::vgpu::memory::vidmm::allocations::Backing;
    use crate::vgpu::memory::vidmm::allocations::Spot;
    use crate::vgpu::objects::message::Origin;
    use crate::vgpu::objects::timeline::Token;
    use crate::vgpu::session::Session;
    use crate::vgpu::testing::COPY;
    use crate::vgpu::testing::OWNER;
    use crate::vgpu::testing::config;
    use crate::vgpu::testing::device;
    use crate::vgpu::testing::end;
    use crate::vgpu::testing::give;
    use crate::vgpu::testing::restored;
    use crate::vgpu::testing::session;
    use crate::vgpu::testing::startable;

    const AT: EngineAddress = EngineAddress { engine: 0, node: NodeKind::Copy };

    /// A session with an engine that says nothing by itself, and the words that it would say it by.
    fn bench() -> (Session, Arc<Mapping>) {
        // It never answers, and ends when it is killed.
        let launcher = Arc::new(Program::new(PathBuf::from("/usr/bin/yes"), Vec::new()));
        let mut session = session(&Arc::new(Config { launcher, ..config() }));
        assert!(
            !Lifecycle::of(&mut session.vm)
                .ensure_engine(AT)
                .unwrap_or_else(|refused| panic!("{}", refused.text))
        );
        let shared = session.vm.engines[AT.index()].process().unwrap().grant_handle().shared;
        // Of the tables it has seen all; what it is waited for is the rest.
        acknowledge(&shared, block::WATCH_ACK, u64::MAX);
        (session, shared)
    }

    fn acknowledge(shared: &Mapping, word: u64, value: u64) {
        shared.word(word).unwrap().store(value, Ordering::Release);
    }

    fn due(session: &mut Session) -> Vec<u64> {
        std::mem::take(&mut session.vm.objects.due).into_iter().map(|(token, _)| token.0).collect()
    }

    #[test]
    fn what_waits_for_engines_is_done_in_the_order_in_which_it_came_although_they_go_on_meanwhile() {
        let (mut session, shared) = bench();
        for token in [1, 2] {
            let barrier = Barrier::raise(&mut session.vm.engines);
            Deferred::of(&mut session.vm).after(barrier, Action::Answer(Token(token)));
        }
        // The engine acknowledges both right after it was looked at for the first of them.
        LOOKED.set(Some(Box::new(move || acknowledge(&shared, block::PAGE_TABLE_ACK, 2))));
        Deferred::of(&mut session.vm).run_pending();
        assert_eq!(due(&mut session), [0; 0], "what came second is done first");
        Deferred::of(&mut session.vm).run_pending();
        assert_eq!(due(&mut session), [1, 2]);
        LOOKED.set(None);
    }

    #[test]
    fn ums_128_an_answer_that_is_late_ends_no_work_of_the_next_context_of_the_same_number() {
        let (mut session, shared) = bench();
        let origin = Origin { context: GuestProcess::new(5), slot: 0, sequence: 1, ring: 1, item: None };
        session.create_context(FrontContext::new(5)).unwrap();
        let late = session.vm.objects.park(origin).unwrap_or_else(|refused| panic!("{}", refused.text));
        let barrier = Barrier::raise(&mut session.vm.engines);
        Deferred::of(&mut session.vm).after(barrier, Action::Reply { origin: late, root: Root(1) });
        session.destroy_context(FrontContext::new(5)).unwrap();
        session.create_context(FrontContext::new(5)).unwrap();
        let next = session.vm.objects.park(origin).unwrap_or_else(|refused| panic!("{}", refused.text));
        session.fence(FrontContext::new(5), 1, Token(9));
        acknowledge(&shared, block::PAGE_TABLE_ACK, 1);
        Deferred::of(&mut session.vm).run_pending();
        assert!(session.vm.engines.pending.is_empty());
        assert_eq!(due(&mut session), [0; 0], "its own work goes on");
        session.vm.objects.end_item(GuestProcess::new(5), 1, next.item);
        assert_eq!(due(&mut session), [9]);
    }

    #[test]
    fn pages_that_come_in_the_place_of_others_are_shown_when_engines_have_them_and_not_when_they_have_the_others()
     {
        let (mut session, shared) = bench();
        let [first, second] = [SegmentId(1), SegmentId(2)];
        let allocation = session.vm.memory.allocations.create_guest(first, 4096);
        let announce = |session: &mut Session| {
            let serial = session.vm.engines[AT.index()].segment_serial().unwrap();
            Deferred::of(&mut session.vm).show_when_announced(allocation);
            serial
        };
        let before = announce(&mut session);
        session.vm.memory.allocations.get_mut(allocation).unwrap().backing = Backing::Guest(second);
        let after = announce(&mut session);
        acknowledge(&shared, block::SEGMENT_ACK, before);
        Deferred::of(&mut session.vm).run_pending();
        assert_eq!(
            session.vm.memory.allocations.spot(allocation),
            Spot::Moving,
            "engines do not know the new pages"
        );
        acknowledge(&shared, block::SEGMENT_ACK, after);
        Deferred::of(&mut session.vm).run_pending();
        assert_eq!(session.vm.memory.allocations.spot(allocation), Spot::Segment(second, 0));
    }

    #[test]
    fn mcdm_06_too_much_waits_when_as_much_does_as_may() {
        let mut session = session(&Arc::new(config()));
        let pending =
            || Pending { barrier: Barrier::default(), action: Action::Answer(Token(1)), charges: Vec::new() };
        session.vm.engines.pending.extend((0..16 * 1024 - 1).map(|_| pending()));
        assert!(!session.vm.engines.has_too_much_pending());
        session.vm.engines.pending.push(pending());
        assert!(session.vm.engines.has_too_much_pending());
    }

    #[test]
    fn a_message_that_waited_is_answered_to_the_device_that_sent_it_and_to_no_later_one() {
        let mut session = restored(startable());
        let root = device(&mut session, OWNER).root;
        let sequence = |session: &Session| {
            let page = session.vm.memory.page(&session.vm.objects, OWNER).unwrap();
            page.word(device_page::response(9)).unwrap().load(Ordering::Acquire)
        };
        let origin = Origin { context: OWNER, slot: 9, sequence: 77, ring: 9, item: None };
        for (root, expected) in [(Root(root.0 + 1), 0), (root, 77)] {
            let origin = session.vm.objects.park(origin).unwrap_or_else(|refused| panic!("{}", refused.text));
            session.fence(FrontContext::new(OWNER.get()), 9, Token(5));
            Deferred::of(&mut session.vm).act(Action::Reply { origin, root });
            assert_eq!((sequence(&session), due(&mut session)), (expected, vec![5]));
        }
    }

    #[test]
    fn an_engine_that_signals_is_looked_at() {
        let mut session = restored(startable());
        let fence_id = give(&mut session, None);
        end(&session, 0, fence_id, 0);
        session.power().engine_event(COPY);
        let slot = &session.vm.engines[COPY.index()];
        assert_eq!((slot.in_flight.len(), slot.fences.completed()), (0, fence_id));
    }
}
