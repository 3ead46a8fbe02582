//! Requests and events of doorbells, as the dispatcher carries them out: create, connect, notify, destroy, switch.

use campanile_host_gpu::clock;
use campanile_host_gpu::engine::address::node_ordinal;

use campanile_host_gpu::adapter::Adapter;
use campanile_host_gpu::engine::address::EngineAddress;
use campanile_protocol::control::message::CreateDoorbell;
use campanile_protocol::control::message::DOORBELL_NOTIFY;
use campanile_protocol::control::message::DOORBELL_PRIVATE_BYTES;
use campanile_protocol::control::message::DOORBELL_REQUIRE_SECONDARY;
use campanile_protocol::control::message::DOORBELL_RESIZE_RING;
use campanile_protocol::control::message::Named;
use campanile_protocol::control::message::Notify;
use campanile_protocol::control::reply::DoorbellCreated;
use campanile_protocol::control::status::Status;
use campanile_protocol::device_page;
use campanile_protocol::engine::block::QUEUE_EXEMPT;
use campanile_protocol::engine::block::QueueEntry;
use campanile_protocol::queue::doorbell::global_value;
use campanile_protocol::queue::ring;
use zerocopy::IntoBytes;

use super::connects::Connecting;
use super::connects::Served;
use super::room::RingMemory;
use super::slots::Holder;
use crate::vgpu::control::deferred::Deferred;
use crate::vgpu::objects::budget::Kind;
use crate::vgpu::objects::doorbell_state::DoorbellState;
use crate::vgpu::objects::message::Checked;
use crate::vgpu::objects::message::Handled;
use crate::vgpu::objects::message::Origin;
use crate::vgpu::objects::message::Outcome;
use crate::vgpu::objects::message::Refused;
use crate::vgpu::objects::process::Doorbell;
use crate::vgpu::objects::process::QueueKind;
use crate::vgpu::objects::process::RingShape;
use crate::vgpu::submission::buffers::Submission;
use crate::vgpu::submission::waits::Waits;
use crate::vgpu::vm::Vm;

/// Bytes of a doorbell: itself, its end, and what waits then until engines have let go.
pub(in crate::vgpu) const DOORBELL_BYTES: u64 = 1024;

/// Requests and events of doorbells.
#[derive(Debug)]
pub struct DoorbellRequests<'a> {
    pub(in crate::vgpu) vm: &'a mut Vm,
}

impl<'a> DoorbellRequests<'a> {
    /// Over these rooms.
    pub fn of(vm: &'a mut Vm) -> Self {
        Self { vm }
    }
}

impl DoorbellRequests<'_> {
    /// CREATE_DOORBELL. Takes no physical doorbell (UMS-33).
    pub(in crate::vgpu) fn create_doorbell(&mut self, origin: Origin, message: &CreateDoorbell) -> Outcome {
        (message.flags & DOORBELL_REQUIRE_SECONDARY == 0).or(Status::NotSupported)?;
        let known = message.flags & !(DOORBELL_REQUIRE_SECONDARY | DOORBELL_RESIZE_RING | DOORBELL_NOTIFY)
            == 0
            && message.reserved == 0;
        known.or(Status::InvalidParameter)?;
        (!self.vm.engines.has_too_much_pending()).or(Status::OutOfResources)?;
        (message.private_bytes as usize <= DOORBELL_PRIVATE_BYTES).or(Status::InvalidParameter)?;
        let entries = message.ring_entries;
        let sized =
            entries.is_power_of_two() && (ring::MIN_RING_ENTRIES..=ring::MAX_RING_ENTRIES).contains(&entries);
        sized.or(Status::InvalidParameter)?;
        let device = self.vm.objects.device(origin.context)?;
        let queue = device.queues.get(message.queue).ok_or(Status::InvalidHandle)?;
        let at = queue.at;
        let entry = device.contexts.get(queue.context).and_then(|context| context.entry);
        let context = entry.ok_or(Status::DeviceLost)?;
        let flags = if queue.is_exempt { QUEUE_EXEMPT } else { 0 };
        let completed = match queue.kind {
            QueueKind::Ordinary { .. } => return Err(Status::InvalidParameter.into()),
            QueueKind::UserMode { doorbell: Some(_), .. } => return Err(Status::Busy.into()),
            QueueKind::UserMode { doorbell: None, completed } => completed,
        };
        let ring = RingMemory::ring(message.ring_resource, message.ring_va, entries);
        let ring = ring.allocation(&self.vm.objects, &self.vm.memory, origin.context)?;
        let control = RingMemory::control(message.control_resource, message.control_va);
        let control = control.allocation(&self.vm.objects, &self.vm.memory, origin.context)?;
        let charge = self.vm.objects.charge(origin.context, Kind::Objects, DOORBELL_BYTES)?;
        let process = Submission::of(self.vm).ensure_presence(origin.context, at)?;
        let index = message.queue.index();
        let engine = self.vm.engines[at.index()].process_mut().ok_or(Status::DeviceLost)?;
        let entry = QueueEntry {
            generation: 0,
            ring_va: message.ring_va,
            control_va: message.control_va,
            consumed: 0,
            completed,
            ring_entries: entries,
            process: process.get(),
            fence_index: index,
            flags,
            context: context.get(),
            reserved: 0,
        };
        let hw_queue = engine
            .create_hw_queue(entry)
            .map_err(|error| Refused { status: Status::OutOfResources, text: error.to_string() })?;
        let doorbell = Doorbell {
            queue: message.queue,
            at,
            state: DoorbellState::Retry,
            is_draining: false,
            was_connected: false,
            notify: message.flags & DOORBELL_NOTIFY != 0,
            hw_queue: Some(hw_queue),
            ring,
            control,
            shape: RingShape {
                ring_va: message.ring_va,
                control_va: message.control_va,
                entries: message.ring_entries,
            },
        };
        let device = self.vm.objects.device_mut(origin.context)?;
        // As many doorbells fit as queues, and a queue has one at the most.
        let handle = device.doorbells.insert(doorbell, charge).ok_or(Status::OutOfResources)?;
        if let Some(queue) = device.queues.get_mut(message.queue) {
            queue.kind = QueueKind::UserMode { doorbell: Some(handle), completed };
        }
        self.vm.memory.allocations.retain(ring);
        self.vm.memory.allocations.retain(control);
        // What an earlier doorbell of the same place was rung with is no ring of this one.
        self.vm.memory.store_page_word(&self.vm.objects, origin.context, device_page::cell(index), 0);
        self.vm.memory.store_page_word(
            &self.vm.objects,
            origin.context,
            device_page::status(index),
            DoorbellState::Retry.status().word(),
        );
        // CPU waits that are there already are for what the engine will signal through this entry.
        Waits::of(self.vm).release_waiters(origin.context, message.queue);
        let dedicated = DoorbellCreated {
            doorbell: handle,
            cell_offset: device_page::cell(index),
            status_offset: device_page::status(index),
            last_queued_offset: device_page::last_queued(index),
            summary_offset: device_page::summary(u32::from(at.engine), node_ordinal(at.node)),
            summary_bit: device_page::summary_bit(index),
            ring_value: 0,
            private_data: message.private_data,
        };
        Ok(Handled::with(&match self.vm.config.doorbell_modes.global_cell(at) {
            None => dedicated,
            Some(cell_offset) => DoorbellCreated {
                cell_offset,
                summary_bit: 0,
                ring_value: global_value(node_ordinal(at.node), index),
                ..dedicated
            },
        }))
    }

    /// CONNECT_DOORBELL. Waits for its turn, and never for another guest or for work: a slot is taken from another
    /// doorbell else if it must be (UMS-13, UMS-76).
    pub(in crate::vgpu) fn connect_doorbell(&mut self, origin: Origin, message: &Named) -> Outcome {
        let (doorbells, mut parts) = self.vm.doorbells();
        match doorbells.connect(&mut parts, origin, message.handle)? {
            Connecting::Already(connected) => Ok(Handled::with(&connected)),
            Connecting::Queued(at) => {
                self.serve_connects(at);
                Ok(Handled::Parked)
            }
        }
    }

    /// Serves the queued connects of an engine, as far as that is possible now; the timer sees to the rest.
    pub(in crate::vgpu) fn serve_connects(&mut self, at: EngineAddress) {
        let (doorbells, mut parts) = self.vm.doorbells();
        let Served { answers, retry_at, poke } = doorbells.serve(&mut parts, at, clock::now());
        if poke {
            self.vm.engines.poke_later(at);
        }
        for (origin, answer) in answers {
            self.vm.answer(origin, answer.map(|connected| connected.as_bytes().to_vec()));
        }
        if let Some(retry_at) = retry_at {
            self.vm.timer.set(retry_at);
        }
    }

    /// The operator has thrown the switch (UMS-97).
    pub(in crate::vgpu) fn notify_switched(&mut self) {
        self.vm.config.notify.take();
        for at in self.vm.engines.addresses() {
            self.vm.doorbells().1.follow_switch(at);
        }
    }

    /// DESTROY_DOORBELL (UMS-78, UMS-79): disconnects, and waits for what was rung (UMS-126).
    pub(in crate::vgpu) fn destroy_doorbell(&mut self, origin: Origin, message: &Named) -> Outcome {
        let device = self.vm.objects.device(origin.context)?;
        let doorbell = device.doorbells.get(message.handle).ok_or(Status::InvalidHandle)?;
        (!doorbell.is_draining).or(Status::Busy)?;
        let holder = Holder { context: origin.context, doorbell: message.handle };
        let (doorbells, mut parts) = self.vm.doorbells();
        parts.retry(holder);
        if doorbells.drain(&mut parts, origin, holder, clock::now())? {
            if let Some(at) = self.vm.doorbells.next_drain() {
                self.vm.timer.set(at);
            }
            return Ok(Handled::Parked);
        }
        let origin = self.vm.objects.park_end(origin);
        Deferred::of(self.vm).remove_doorbell(origin, holder);
        Ok(Handled::Parked)
    }

    /// NOTIFY: valid for any queue of the process; the engine looks at its rings (UMS-94, UMS-96).
    pub(in crate::vgpu) fn notify(&mut self, origin: Origin, message: &Notify) -> Outcome {
        self.vm.doorbells().1.notify(origin.context, message)?;
        Ok(Handled::done())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;
    use std::time::Instant;

    use campanile_host_gpu::engine::address::EngineAddress;
    use campanile_host_gpu::engine::address::node_index;
    use campanile_host_gpu::engine::address::node_ordinal;
    use campanile_host_gpu::engine::message::NodeKind;
    use campanile_host_gpu::ids::DoorbellIndex;
    use campanile_host_gpu::memory::bits;
    use campanile_protocol::PAGE_SIZE;
    use campanile_protocol::control::message::CreateDoorbell;
    use campanile_protocol::control::message::DOORBELL_NOTIFY;
    use campanile_protocol::control::message::DOORBELL_REQUIRE_SECONDARY;
    use campanile_protocol::control::message::DOORBELL_RESIZE_RING;
    use campanile_protocol::control::message::Named;
    use campanile_protocol::control::message::Notify;
    use campanile_protocol::control::reply::DoorbellCreated;
    use campanile_protocol::control::status::Status;
    use campanile_protocol::device_page;
    use campanile_protocol::engine::block;
    use campanile_protocol::engine::block::QUEUE_EXEMPT;
    use campanile_protocol::engine::block::QueueEntry;
    use campanile_protocol::handle::Handle;
    use campanile_protocol::handshake::power;
    use campanile_protocol::queue::doorbell::DoorbellModel;
    use campanile_protocol::queue::doorbell::global_value;
    use rustix::event::PollFd;
    use rustix::event::PollFlags;
    use rustix::event::Timespec;
    use rustix::event::poll;
    use zerocopy::FromBytes;

    use super::DoorbellRequests;
    use crate::vgpu::config::Config;
    use crate::vgpu::control::deferred::Deferred;
    use crate::vgpu::doorbells::room::LINE;
    use crate::vgpu::doorbells::room::RingMemory;
    use crate::vgpu::doorbells::room::connected_on;
    use crate::vgpu::doorbells::slots::Holder;
    use crate::vgpu::doorbells::slots::Taken;
    use crate::vgpu::engines::barrier::Barrier;
    use crate::vgpu::engines::lifecycle::Lifecycle;
    use crate::vgpu::engines::pending::Action;
    use crate::vgpu::engines::pending::MAX_PENDING;
    use crate::vgpu::engines::pending::Pending;
    use crate::vgpu::objects::budget::Kind;
    use crate::vgpu::objects::doorbell_state::DoorbellState;
    use crate::vgpu::objects::doorbell_state::Place;
    use crate::vgpu::objects::ids::AllocationId;
    use crate::vgpu::objects::mapping::GpuMapping;
    use crate::vgpu::objects::mapping::Mapped;
    use crate::vgpu::objects::message::Handled;
    use crate::vgpu::objects::message::Origin;
    use crate::vgpu::objects::process::QueueKind;
    use crate::vgpu::objects::waits::Wait;
    use crate::vgpu::session::Session;
    use crate::vgpu::testing::COPY;
    use crate::vgpu::testing::OWNER;
    use crate::vgpu::testing::device;
    use crate::vgpu::testing::load;
    use crate::vgpu::testing::restored;
    use crate::vgpu::testing::shared;
    use crate::vgpu::testing::startable;
    use crate::vgpu::testing::store;

    const COMPUTE: EngineAddress = EngineAddress::new(0, NodeKind::Compute);
    const HOLDER: Holder = Holder { context: OWNER, doorbell: Handle::new(0, 1) };
    const ORIGIN: Origin = Origin { context: OWNER, slot: 1, sequence: 1, ring: 1, item: None };

    /// A session with one physical doorbell, which this one has, or that is connected otherwise.
    fn connected(place: Place) -> Session {
        let mut session = restored(Config { doorbells: 1, ..startable() });
        if let Place::Own(slot) = place {
            session.vm.engines[COPY.index()].slots.hold(slot, HOLDER, 0, Instant::now());
        }
        let doorbell = device(&mut session, OWNER).doorbells.get_mut(HOLDER.doorbell).unwrap();
        doorbell.state = DoorbellState::Connected(place);
        session
    }

    fn state(session: &mut Session) -> DoorbellState {
        device(session, OWNER).doorbells.get(HOLDER.doorbell).unwrap().state
    }

    #[test]
    fn ums_66_a_slot_is_free_for_the_next_when_its_doorbell_is_disconnected() {
        let mut session = connected(Place::Own(DoorbellIndex::new(0)));
        let slots = &mut session.vm.engines[COPY.index()].slots;
        assert!(
            matches!(slots.choose(Instant::now(), |_| 1), Taken::Victim(slot, HOLDER) if slot.get() == 0)
        );
        session.vm.doorbells().1.disconnect_all(COPY);
        assert_eq!(state(&mut session), DoorbellState::Retry);
        let slots = &mut session.vm.engines[COPY.index()].slots;
        assert_eq!(slots.choose(Instant::now(), |_| 0), Taken::Free(DoorbellIndex::new(0)));
    }

    #[test]
    fn ums_38_a_ring_whose_mapping_is_still_to_come_is_not_resident() {
        let mut session = connected(Place::Own(DoorbellIndex::new(0)));
        let ring = device(&mut session, OWNER).doorbells.get(HOLDER.doorbell).unwrap().ring;
        let (&resource, _) =
            session.vm.memory.blobs.iter().find(|(_, blob)| blob.allocation == ring).unwrap();
        let row = device(&mut session, OWNER).mappings.iter().find(|(_, mapping)| mapping.allocation == ring);
        let (&there, mapping) = row.unwrap();
        let mapping = GpuMapping { size: PAGE_SIZE, ..**mapping };
        // Behind a change of the golden state that waits for the buffers before it.
        let to_come = 0x102_5000;
        let charge = session.vm.objects.charge(OWNER, Kind::Mappings, 1).unwrap();
        device(&mut session, OWNER).mappings.insert(to_come, Mapped { mapping, charge });
        let status = |va: u64| {
            let memory = RingMemory { resource, va, bytes: LINE, writable: false }.allocation(
                &session.vm.objects,
                &session.vm.memory,
                OWNER,
            );
            memory.err().map(|refused| refused.status)
        };
        assert_eq!((status(there), status(to_come)), (None, Some(Status::NotResident)));
        assert_eq!(status(to_come + 1), Some(Status::InvalidAddress));
    }

    #[test]
    fn ums_79_the_memory_of_a_doorbell_is_let_go_when_engines_have_forgotten_it_and_not_before() {
        let mut session = connected(Place::Own(DoorbellIndex::new(0)));
        let doorbell = device(&mut session, OWNER).doorbells.get(HOLDER.doorbell).unwrap();
        let memory = [doorbell.ring, doorbell.control];
        Deferred::of(&mut session.vm).remove_doorbell(ORIGIN, HOLDER);
        let waits = |session: &Session| {
            let actions = session.vm.engines.pending.iter().map(|pending| &pending.action);
            actions.filter(|action| matches!(action, Action::Release(list) if list[..] == memory)).count()
        };
        assert_eq!(waits(&session), 1, "its engine has acknowledged nothing");
        Lifecycle::of(&mut session.vm).stop_engine(COPY);
        Deferred::of(&mut session.vm).run_pending();
        assert_eq!(waits(&session), 0);
    }

    #[test]
    fn ums_94_a_notify_wakes_the_engine_of_its_queue_however_that_is_connected() {
        for (place, is_connected) in [
            (Place::Own(DoorbellIndex::new(0)), true),
            (Place::Notified, true),
            (Place::Own(DoorbellIndex::new(0)), false),
        ] {
            let mut session = connected(place);
            if !is_connected {
                session.vm.doorbells().1.disconnect_all(COPY);
            }
            let wake = session.vm.engines[COPY.index()].process().unwrap().grant_handle().wake;
            // It sleeps.
            store(&session, COPY, block::POWER, power::ASLEEP);
            wake.drain();
            bits::take(&shared(&session, COPY), block::LOOK, block::LOOK_WORDS);
            let doorbell = device(&mut session, OWNER).doorbells.get(HOLDER.doorbell).unwrap();
            let (queue, hw_queue) = (doorbell.queue, doorbell.hw_queue.unwrap());
            DoorbellRequests::of(&mut session.vm)
                .notify(ORIGIN, &Notify { queue, flags: 0, reserved: 0 })
                .unwrap_or_else(|refused| panic!("{}", refused.text));
            assert!(wake.drain(), "{place:?}, {is_connected}");
            // Nothing else announces the rings of one that has no doorbell to be watched.
            let looks = bits::take(&shared(&session, COPY), block::LOOK, block::LOOK_WORDS);
            let expected =
                if place == Place::Notified { vec![u32::from(hw_queue.get())] } else { Vec::new() };
            assert_eq!(looks, expected, "{place:?}, {is_connected}");
        }
    }

    #[test]
    fn ums_97_the_switch_disconnects_what_is_connected_the_other_way_and_nothing_else() {
        // Without the operator's switch each doorbell keeps the mode that its guest chose.
        for (place, wishes, stays) in [
            (Place::Own(DoorbellIndex::new(0)), false, true),
            (Place::Notified, true, true),
            (Place::Notified, false, false),
            (Place::Own(DoorbellIndex::new(0)), true, false),
        ] {
            let mut session = connected(place);
            device(&mut session, OWNER).doorbells.get_mut(HOLDER.doorbell).unwrap().notify = wishes;
            session.vm.config.notify.set(node_index(COPY.node), false);
            DoorbellRequests::of(&mut session.vm).notify_switched();
            let mut event = [PollFd::new(&session.vm.config.notify, PollFlags::IN)];
            assert_eq!(poll(&mut event, Some(&Timespec::default())), Ok(0), "it was looked at");
            let expected = if stays { DoorbellState::Connected(place) } else { DoorbellState::Retry };
            assert_eq!(state(&mut session), expected, "{place:?}, {wishes}");
        }
    }

    const GOOD: CreateDoorbell = CreateDoorbell {
        queue: Handle::new(0, 1),
        ring_va: 0x101_3000,
        control_va: 0x101_4000,
        ring_resource: 12,
        control_resource: 13,
        ring_entries: 64,
        flags: 0,
        private_bytes: 16,
        reserved: 0,
        private_data: [5; 16],
    };

    /// A session in which a queue has no doorbell any more.
    fn without_doorbell(config: Config) -> Session {
        let mut session = restored(config);
        Deferred::of(&mut session.vm).remove_doorbell(ORIGIN, HOLDER);
        session
    }

    fn created(session: &mut Session, message: &CreateDoorbell) -> Result<DoorbellCreated, Status> {
        match DoorbellRequests::of(&mut session.vm).create_doorbell(ORIGIN, message) {
            Ok(Handled::Now(bytes)) => Ok(DoorbellCreated::read_from_bytes(&bytes).unwrap()),
            Ok(Handled::Parked) => panic!("parked"),
            Err(refused) => Err(refused.status),
        }
    }

    #[test]
    fn ums_31_ums_41_what_is_wrong_with_a_new_doorbell_is_refused_and_the_next_limit_is_taken() {
        type Change = fn(&mut CreateDoorbell);
        let cases: [(Change, Option<Status>); 20] = [
            (|_| (), None),
            (|it| it.flags = DOORBELL_RESIZE_RING | DOORBELL_NOTIFY, None),
            (|it| it.flags = DOORBELL_RESIZE_RING, None),
            (|it| it.flags = DOORBELL_REQUIRE_SECONDARY, Some(Status::NotSupported)),
            (|it| it.flags = 8, Some(Status::InvalidParameter)),
            (|it| it.reserved = 1, Some(Status::InvalidParameter)),
            (|it| it.private_bytes = 17, Some(Status::InvalidParameter)),
            (|it| it.ring_entries = 63, Some(Status::InvalidParameter)),
            (|it| it.ring_entries = 1, Some(Status::InvalidParameter)),
            (|it| it.ring_entries = 1 << 17, Some(Status::InvalidParameter)),
            // A page of entries, and one entry more than a page has bytes for.
            (|it| it.ring_entries = 128, None),
            (|it| it.ring_entries = 256, Some(Status::InvalidAddress)),
            (|it| it.queue = Handle::new(9, 1), Some(Status::InvalidHandle)),
            (|it| it.queue = Handle::new(1, 1), Some(Status::Busy)),
            (|it| it.queue = Handle::new(3, 1), Some(Status::InvalidParameter)),
            (|it| it.ring_va += 4, Some(Status::InvalidAddress)),
            (|it| it.control_va = it.ring_va, Some(Status::InvalidAddress)),
            (|it| it.ring_resource = 13, Some(Status::InvalidAddress)),
            (|it| it.control_resource = 12, Some(Status::InvalidAddress)),
            (|it| it.ring_resource = 2, Some(Status::InvalidResource)),
        ];
        for (number, (change, expected)) in cases.into_iter().enumerate() {
            let mut session = without_doorbell(startable());
            let mut message = GOOD;
            change(&mut message);
            assert_eq!(created(&mut session, &message).err(), expected, "case {number}");
            let count = device(&mut session, OWNER).doorbells.iter().count();
            assert_eq!(count, if expected.is_none() { 3 } else { 2 }, "case {number}");
        }
    }

    #[test]
    fn ums_38_the_control_of_a_ring_is_writable_and_the_ring_need_not_be() {
        for (va, expected) in [(GOOD.ring_va, None), (GOOD.control_va, Some(Status::InvalidAddress))] {
            let mut session = without_doorbell(startable());
            device(&mut session, OWNER).mappings.get_mut(&va).unwrap().mapping.writable = false;
            assert_eq!(created(&mut session, &GOOD).err(), expected, "{va:#x}");
        }
    }

    #[test]
    fn mcdm_06_no_doorbell_is_made_while_too_much_waits() {
        let mut session = without_doorbell(startable());
        let pending = || Pending {
            barrier: Barrier::default(),
            action: Action::Release(Vec::new()),
            charges: Vec::new(),
        };
        session.vm.engines.pending.extend((0..MAX_PENDING).map(|_| pending()));
        assert_eq!(created(&mut session, &GOOD).err(), Some(Status::OutOfResources));
    }

    #[test]
    fn ums_09_ums_46_ums_89_a_guest_is_told_where_its_doorbell_lies_and_what_to_store_there() {
        let place = |it: DoorbellCreated| [it.cell_offset, it.summary_bit, it.ring_value, it.summary_offset];
        let summary = device_page::summary(0, node_ordinal(COPY.node));
        let mut session = without_doorbell(startable());
        let found = created(&mut session, &GOOD).unwrap();
        assert_eq!(place(found), [device_page::cell(0), device_page::summary_bit(0), 0, summary]);
        assert_eq!((found.status_offset, found.private_data), (device_page::status(0), [5; 16]));
        let mut config = startable();
        config.doorbell_modes.0[node_index(COPY.node)].model = DoorbellModel::Global;
        let mut session = without_doorbell(config);
        let found = created(&mut session, &GOOD).unwrap();
        let cell = device_page::global_cell(0, node_ordinal(COPY.node));
        assert_eq!(place(found), [cell, 0, global_value(node_ordinal(COPY.node), 0), summary]);
    }

    #[test]
    fn the_engine_is_told_of_a_doorbell_whose_queue_is_exempt() {
        for is_exempt in [false, true] {
            let mut session = without_doorbell(startable());
            device(&mut session, OWNER).queues.get_mut(GOOD.queue).unwrap().is_exempt = is_exempt;
            let made = created(&mut session, &GOOD).unwrap().doorbell;
            let doorbell = device(&mut session, OWNER).doorbells.get(made).unwrap();
            assert!(!doorbell.notify);
            let place = block::queue(u32::from(doorbell.hw_queue.unwrap().get()));
            let mut bytes = [0; size_of::<QueueEntry>()];
            shared(&session, COPY).slice(place, bytes.len() as u64).unwrap().copy_to(&mut bytes);
            let entry = QueueEntry::read_from_bytes(&bytes).unwrap();
            assert_eq!(entry.flags, if is_exempt { QUEUE_EXEMPT } else { 0 });
            assert_eq!((entry.ring_va, entry.ring_entries), (GOOD.ring_va, 64));
        }
    }

    /// How often an allocation is held, which is freed by this.
    fn references(session: &mut Session, id: AllocationId) -> usize {
        let allocations = &mut session.vm.memory.allocations;
        let mut count = 0;
        while allocations.get(id).is_some() {
            let _freed = allocations.release(id);
            count += 1;
        }
        count
    }

    #[test]
    fn ums_84_a_new_doorbell_goes_on_where_the_last_of_its_queue_stopped_with_nothing_rung() {
        let mut session = restored(startable());
        let last = device(&mut session, OWNER).doorbells.get(HOLDER.doorbell).unwrap().hw_queue.unwrap();
        store(&session, COPY, block::queue(u32::from(last.get())) + block::QUEUE_COMPLETED, 41);
        Deferred::of(&mut session.vm).remove_doorbell(ORIGIN, HOLDER);
        let kind = device(&mut session, OWNER).queues.get(GOOD.queue).unwrap().kind;
        assert_eq!(kind, QueueKind::UserMode { doorbell: None, completed: 41 });
        // A CPU waits already, and the last doorbell of this place was connected, and rung.
        let wait = Wait { origin: ORIGIN, queue: GOOD.queue, value: 1 << 40 };
        device(&mut session, OWNER).waits = vec![wait];
        let page = |session: &Session, at: u64| {
            let page = session.vm.memory.page(&session.vm.objects, OWNER).unwrap();
            page.word(at).unwrap().load(Ordering::Acquire)
        };
        for (at, word) in [(device_page::cell(0), 7), (device_page::status(0), 0)] {
            session.vm.memory.store_page_word(&session.vm.objects, OWNER, at, word);
        }
        let made =
            created(&mut session, &CreateDoorbell { flags: DOORBELL_NOTIFY, ..GOOD }).unwrap().doorbell;
        let doorbell = device(&mut session, OWNER).doorbells.get(made).unwrap();
        let queue = block::queue(u32::from(doorbell.hw_queue.unwrap().get()));
        assert!(doorbell.notify);
        assert_eq!(load(&session, COPY, queue + block::QUEUE_COMPLETED), 41);
        assert_eq!(load(&session, COPY, queue + block::QUEUE_MONITORED), (1 << 40) - 1);
        let retry = DoorbellState::Retry.status().word();
        assert_eq!([device_page::cell(0), device_page::status(0)].map(|at| page(&session, at)), [0, retry]);
        // A guest may give them up meanwhile.
        let mut without = without_doorbell(startable());
        for resource in [GOOD.ring_resource, GOOD.control_resource] {
            let id = session.vm.memory.blobs[&resource].allocation;
            assert_eq!(references(&mut session, id), references(&mut without, id) + 1, "{resource}");
        }
    }

    #[test]
    fn ums_78_ums_94_messages_to_a_doorbell_that_ends_or_with_unknown_bits_are_refused() {
        let mut session = connected(Place::Own(DoorbellIndex::new(0)));
        let queue = device(&mut session, OWNER).doorbells.get(HOLDER.doorbell).unwrap().queue;
        for (flags, reserved) in [(1, 0), (0, 1)] {
            let refused = DoorbellRequests::of(&mut session.vm)
                .notify(ORIGIN, &Notify { queue, flags, reserved })
                .err()
                .unwrap();
            assert_eq!(refused.status, Status::InvalidParameter);
        }
        // That the golden state drains.
        let ends = Named { handle: Handle::new(1, 1) };
        let refused = DoorbellRequests::of(&mut session.vm).destroy_doorbell(ORIGIN, &ends).err().unwrap();
        assert_eq!(refused.status, Status::Busy);
        assert!(
            DoorbellRequests::of(&mut session.vm)
                .destroy_doorbell(ORIGIN, &Named { handle: HOLDER.doorbell })
                .is_ok()
        );
        let slots = &mut session.vm.engines[COPY.index()].slots;
        assert_eq!(
            slots.choose(Instant::now(), |_| 0),
            Taken::Free(DoorbellIndex::new(0)),
            "it is disconnected first"
        );
    }

    #[test]
    fn ums_70_doorbells_are_found_by_engine_and_disconnected_as_they_are_connected() {
        let mut session = connected(Place::Own(DoorbellIndex::new(0)));
        assert_eq!(connected_on(&session.vm.objects, COPY), [HOLDER]);
        assert_eq!(connected_on(&session.vm.objects, COMPUTE), []);
        session.vm.doorbells().1.disconnect_all(COMPUTE);
        assert_eq!(state(&mut session), DoorbellState::Connected(Place::Own(DoorbellIndex::new(0))));
        session.vm.doorbells().1.victimise(HOLDER);
        assert_eq!(state(&mut session), DoorbellState::Retry);
        let mut session = connected(Place::Own(DoorbellIndex::new(0)));
        session.power().engine_to_f1(COPY);
        assert_eq!(state(&mut session), DoorbellState::Retry);
        let of = |session: &mut Session, index: u32| {
            let doorbell = device(session, OWNER).doorbells.get(Handle::new(index, 1)).unwrap();
            (doorbell.hw_queue.unwrap(), doorbell.queue)
        };
        for index in [0, 2] {
            let (hw_queue, queue) = of(&mut session, index);
            assert_eq!(session.vm.objects.owner_of_hw_queue(COPY, hw_queue), Some((OWNER, queue)));
        }
        let sequence = load(&session, COPY, block::WATCH_SEQUENCE);
        session.vm.doorbells().1.abort_all(OWNER);
        assert!(load(&session, COPY, block::WATCH_SEQUENCE) > sequence, "its engine forgets its queues");
        for (_, doorbell) in device(&mut session, OWNER).doorbells.iter() {
            assert_eq!((doorbell.state, doorbell.hw_queue), (DoorbellState::Abort, None));
        }
    }
}
