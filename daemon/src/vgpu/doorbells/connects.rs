//! Connecting doorbells: queued, each with a place of its own kind, the longest idle first to lose one.
//!
//! ```text
//!   CONNECT_DOORBELL ─▶ queue of connects ─▶ served at once, as a rule
//!                         └──── the guest connects too often, or every slot was just given away: the timer ─▶ served
//! ```
//!
//! Order, as the guest sees it: the place is there before the status says CONNECTED (UMS-57).

use std::time::Duration;
use std::time::Instant;

use campanile_host_gpu::adapter::Adapter;
use campanile_host_gpu::engine::address::EngineAddress;
use campanile_host_gpu::engine::address::node_index;
use campanile_host_gpu::ids::DoorbellIndex;
use campanile_protocol::control::reply::DoorbellConnected;
use campanile_protocol::control::status::Status;
use campanile_protocol::device_page;
use campanile_protocol::handle::Handle;
use campanile_protocol::queue::doorbell::DoorbellModel;

use super::line::WaitingConnect;
use super::room::Doorbells;
use super::room::Parts;
use super::slots::Holder;
use super::slots::Taken;
use crate::ids::GuestProcess;
use crate::vgpu::counters::count;
use crate::vgpu::engines::slot::EngineSlot;
use crate::vgpu::objects::doorbell_state::Connect;
use crate::vgpu::objects::doorbell_state::Place;
use crate::vgpu::objects::message::Checked;
use crate::vgpu::objects::message::Origin;
use crate::vgpu::objects::message::Refused;
use crate::vgpu::recorder::Kind;

/// What can be had now.
enum Found {
    /// This.
    Place(Place),
    /// Nothing before then.
    Later(Instant),
}

/// What a CONNECT_DOORBELL comes to.
#[derive(Debug)]
#[must_use]
pub enum Connecting {
    /// It was connected already: the answer.
    Already(DoorbellConnected),
    /// It is queued for this engine, whose connects are to be served next ([`Doorbells::serve`]).
    Queued(EngineAddress),
}

/// What serving connects comes to.
#[derive(Debug, Default)]
#[must_use]
pub struct Served {
    /// The answers, in the order in which the connects were served.
    pub answers: Vec<(Origin, Result<DoorbellConnected, Refused>)>,
    /// When the rest is to be served; none is left otherwise.
    pub retry_at: Option<Instant>,
    /// Whether the engine has new cells to watch, and must be poked.
    pub poke: bool,
}

impl Doorbells {
    /// Queues a connect, unless the doorbell is connected already.
    ///
    /// # Errors
    /// There is no such doorbell, it ends, it is dead, or too many connects of its process wait.
    pub fn connect(
        &self,
        parts: &mut Parts<'_>,
        origin: Origin,
        handle: Handle,
    ) -> Result<Connecting, Refused> {
        let device = parts.objects.device(origin.context)?;
        let doorbell = device.doorbells.get(handle).ok_or(Status::InvalidHandle)?;
        (!doorbell.is_draining).or(Status::Busy)?;
        match doorbell.state.connect() {
            Connect::Already => Ok(Connecting::Already(parts.publish(origin.context, handle, 0)?)),
            Connect::Refused => Err(Status::DeviceLost.into()),
            Connect::FindPlace => {
                let at = doorbell.at;
                let engine = &mut parts.engines[at.index()];
                engine.line.has_room(origin.context).or(Status::Busy)?;
                // It wakes while its doorbell is connected.
                if let Some(process) = engine.process() {
                    process.poke();
                }
                let origin = parts.objects.park(origin)?;
                engine.line.push(origin.context, WaitingConnect { origin, doorbell: handle });
                Ok(Connecting::Queued(at))
            }
        }
    }

    /// Serves the queued connects of an engine, as far as that is possible now.
    pub fn serve(&mut self, parts: &mut Parts<'_>, at: EngineAddress, now: Instant) -> Served {
        let mut outcome = Served::default();
        while let Some(connect) = parts.engines[at.index()].line.first().copied() {
            let served = match self.find_place(parts, at, connect, now) {
                Ok(Some(Found::Later(later))) => {
                    count(&parts.counters.connects_delayed);
                    outcome.retry_at = Some(later);
                    break;
                }
                Ok(Some(Found::Place(place))) => {
                    self.put_in_place(parts, connect, place, now).map(|watches| {
                        outcome.poke |= watches;
                        true
                    })
                }
                // Another message has connected it meanwhile.
                Ok(None) => Ok(false),
                Err(refused) => Err(refused),
            };
            let line = &mut parts.engines[at.index()].line;
            let turns = line.take().map_or(0, |(_, turns)| turns);
            if matches!(served, Ok(true)) {
                line.count_served();
            }
            let answer = served.and_then(|_| parts.publish(connect.origin.context, connect.doorbell, turns));
            outcome.answers.push((connect.origin, answer));
        }
        outcome
    }

    /// Where a doorbell can be connected; a slot that is handed out has no holder any more. `None`: it is connected.
    fn find_place(
        &self,
        parts: &mut Parts<'_>,
        at: EngineAddress,
        connect: WaitingConnect,
        now: Instant,
    ) -> Result<Option<Found>, Refused> {
        let device = parts.objects.active_device(connect.origin.context)?;
        let doorbell = device.doorbells.get(connect.doorbell).ok_or(Status::InvalidHandle)?;
        (!doorbell.is_draining).or(Status::Busy)?;
        match doorbell.state.connect() {
            Connect::Already => return Ok(None),
            Connect::Refused => return Err(Status::DeviceLost.into()),
            Connect::FindPlace => {}
        }
        let hw_queue = doorbell.hw_queue.ok_or(Status::DeviceLost)?;
        let mode = parts.config.doorbell_modes.0[node_index(at.node)];
        let notified = doorbell.notify || parts.config.notify.is_on(node_index(at.node));
        let next = self.rate.next(now);
        if next > now {
            return Ok(Some(Found::Later(next)));
        }
        if notified {
            return Ok(Some(Found::Place(Place::Notified)));
        }
        if mode.model == DoorbellModel::Global {
            // The watch table has an entry for every queue of the engine.
            return Ok(Some(Found::Place(Place::Shared(DoorbellIndex::new(u32::from(hw_queue.get()))))));
        }
        match parts.choose_slot(at, now) {
            Taken::Free(slot) => Ok(Some(Found::Place(Place::Own(slot)))),
            Taken::Victim(slot, holder) => {
                count(&parts.counters.victims);
                parts.victimise(holder);
                Ok(Some(Found::Place(Place::Own(slot))))
            }
            Taken::Later(at) => Ok(Some(Found::Later(at))),
            Taken::None => Err(Status::OutOfResources.into()),
        }
    }

    /// Slot or entry first; the status comes after it (UMS-57). True where the engine watches another cell now.
    fn put_in_place(
        &mut self,
        parts: &mut Parts<'_>,
        connect: WaitingConnect,
        place: Place,
        now: Instant,
    ) -> Result<bool, Refused> {
        let context = connect.origin.context;
        let device = parts.objects.device(context)?;
        let doorbell = device.doorbells.get(connect.doorbell).ok_or(Status::InvalidHandle)?;
        let (at, cell) = (doorbell.at, doorbell.queue.index());
        let hw_queue = doorbell.hw_queue.ok_or(Status::DeviceLost)?;
        let process = device.presence[at.index()].ok_or(Status::DeviceLost)?;
        let cell = u16::try_from(cell).map_err(|_| Status::InvalidHandle)?;
        let engine = &mut parts.engines[at.index()];
        let running = engine.process_mut().ok_or(Status::DeviceLost)?;
        let watches = match place {
            Place::Own(slot) => {
                running.connect_doorbell(slot, hw_queue, process, cell);
                let progress = running.tables.queue_completed(hw_queue);
                let holder = Holder { context, doorbell: connect.doorbell };
                engine.slots.hold(slot, holder, progress, now);
                true
            }
            Place::Shared(entry) => {
                running.connect_doorbell(entry, hw_queue, process, cell);
                true
            }
            Place::Notified => {
                running.connect_notified(hw_queue);
                false
            }
        };
        self.rate.take(now);
        count(&parts.counters.connects);
        parts.counters.measures.recorder.note(Kind::Doorbell, at, Some(context), None, Duration::ZERO);
        if let Some(doorbell) = parts.objects.device_mut(context)?.doorbells.get_mut(connect.doorbell) {
            doorbell.state.connected(place);
            doorbell.was_connected = true;
        }
        Ok(watches)
    }
}

impl Parts<'_> {
    fn choose_slot(&mut self, at: EngineAddress, now: Instant) -> Taken {
        let (processes, engine) = (&self.objects.processes, &mut self.engines[at.index()]);
        let mut slots = std::mem::take(&mut engine.slots);
        let taken = slots.choose(now, |holder: Holder| {
            let device = processes.get(&holder.context).and_then(|process| process.device.as_ref());
            let doorbell = device.and_then(|device| device.doorbells.get(holder.doorbell));
            let hw_queue = doorbell.and_then(|doorbell| doorbell.hw_queue);
            hw_queue
                .zip(engine.process())
                .map_or(0, |(hw_queue, process)| process.tables.queue_completed(hw_queue))
        });
        engine.slots = slots;
        taken
    }

    /// Stores the status word of a doorbell, and says what it is.
    fn publish(
        &self,
        context: GuestProcess,
        doorbell: Handle,
        turns: u64,
    ) -> Result<DoorbellConnected, Refused> {
        let doorbell = self.objects.device(context)?.doorbells.get(doorbell).ok_or(Status::InvalidHandle)?;
        let status = doorbell.state.status().word();
        self.memory.store_page_word(
            self.objects,
            context,
            device_page::status(doorbell.queue.index()),
            status,
        );
        Ok(DoorbellConnected { status, turns })
    }
}

/// Takes the queued connects of a guest process out; what is to be answered.
pub(in crate::vgpu) fn take_connects_of(engines: &mut [EngineSlot], context: GuestProcess) -> Vec<Origin> {
    let lines = engines.iter_mut().map(|engine| &mut engine.line);
    lines.flat_map(|line| line.take_all_of(context)).map(|connect| connect.origin).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use campanile_protocol::control::message::Named;
    use campanile_protocol::engine::block;
    use campanile_protocol::handle::Handle;
    use campanile_protocol::handshake::power;

    use crate::vgpu::config::Config;
    use crate::vgpu::doorbells::line::WaitingConnect;
    use crate::vgpu::doorbells::requests::DoorbellRequests;
    use crate::vgpu::doorbells::slots::Taken;
    use crate::vgpu::objects::doorbell_state::DoorbellState;
    use crate::vgpu::objects::doorbell_state::Place;
    use crate::vgpu::objects::message::Origin;
    use crate::vgpu::session::Session;
    use crate::vgpu::testing::COPY;
    use crate::vgpu::testing::OWNER;
    use crate::vgpu::testing::device;
    use crate::vgpu::testing::restored;
    use crate::vgpu::testing::startable;
    use crate::vgpu::testing::store;
    use campanile_host_gpu::ids::DoorbellIndex;

    const DOORBELL: Handle = Handle::new(0, 1);
    const ORIGIN: Origin = Origin { context: OWNER, slot: 1, sequence: 1, ring: 1, item: None };

    fn with_one_slot() -> Session {
        restored(Config { doorbells: 1, ..startable() })
    }

    fn connect(session: &mut Session) {
        let connected =
            DoorbellRequests::of(&mut session.vm).connect_doorbell(ORIGIN, &Named { handle: DOORBELL });
        connected.unwrap_or_else(|refused| panic!("{}", refused.text));
    }

    fn state(session: &mut Session) -> DoorbellState {
        device(session, OWNER).doorbells.get(DOORBELL).unwrap().state
    }

    #[test]
    fn a_doorbell_that_ends_while_it_waits_in_line_is_not_connected() {
        for ends in [false, true] {
            let mut session = with_one_slot();
            device(&mut session, OWNER).doorbells.get_mut(DOORBELL).unwrap().is_draining = ends;
            let waiting = WaitingConnect { origin: ORIGIN, doorbell: DOORBELL };
            session.vm.engines[COPY.index()].line.push(OWNER, waiting);
            DoorbellRequests::of(&mut session.vm).serve_connects(COPY);
            let expected = if ends {
                DoorbellState::Retry
            } else {
                DoorbellState::Connected(Place::Own(DoorbellIndex::new(0)))
            };
            assert_eq!(state(&mut session), expected);
        }
    }

    #[test]
    fn ums_14_ums_77_a_slot_counts_as_used_by_what_was_done_since_it_was_given() {
        let mut session = with_one_slot();
        let hw_queue = device(&mut session, OWNER).doorbells.get(DOORBELL).unwrap().hw_queue.unwrap();
        store(&session, COPY, block::queue(u32::from(hw_queue.get())) + block::QUEUE_COMPLETED, 9);
        let before = Instant::now();
        connect(&mut session);
        assert_eq!(state(&mut session), DoorbellState::Connected(Place::Own(DoorbellIndex::new(0))));
        // At that very moment: nothing was done through it yet, so it is no victim.
        let slots = &mut session.vm.engines[COPY.index()].slots;
        assert!(matches!(slots.choose(before, |_| 9), Taken::Later(_)));
        assert!(
            matches!(slots.choose(before, |_| 10), Taken::Victim(slot, _) if slot.get() == 0),
            "it has served a ring"
        );
    }

    #[test]
    fn each_connect_is_answered_with_those_that_came_first_and_its_engine_is_poked_after_them() {
        let mut session = restored(startable());
        let shown = |session: &mut Session| -> Vec<(Handle, bool)> {
            device(session, OWNER).doorbells.iter().map(|(it, bell)| (it, bell.was_connected)).collect()
        };
        device(&mut session, OWNER).doorbells.iter_mut().for_each(|(_, bell)| {
            (bell.was_connected, bell.is_draining) = (false, false);
        });
        let all: Vec<Handle> = shown(&mut session).into_iter().map(|(it, _)| it).collect();
        for doorbell in all.iter().copied() {
            session.vm.engines[COPY.index()].line.push(OWNER, WaitingConnect { origin: ORIGIN, doorbell });
        }
        let (doorbells, mut parts) = session.vm.doorbells();
        let served = doorbells.serve(&mut parts, COPY, Instant::now());
        let turns = served.answers.into_iter().map(|(_, answer)| answer.map(|it| it.turns));
        let turns: Vec<_> =
            turns.map(|turns| turns.unwrap_or_else(|refused| panic!("{}", refused.text))).collect();
        assert_eq!(turns, (0..turns.len() as u64).collect::<Vec<_>>());
        assert!(served.poke && shown(&mut session).iter().all(|(_, was_connected)| *was_connected));
        // The same by a message.
        let mut session = with_one_slot();
        store(&session, COPY, block::POWER, power::ASLEEP);
        connect(&mut session);
        let wake = session.vm.engines[COPY.index()].process().unwrap().grant_handle().wake;
        wake.drain();
        session.vm.engines.poke_listed();
        assert!(wake.drain(), "it has a cell more to watch");
    }

    #[test]
    fn connects_of_a_guest_have_a_rate() {
        let mut session = with_one_slot();
        let now = Instant::now();
        let mut connects = 0;
        while session.vm.doorbells.rate.next(now) <= now {
            connect(&mut session);
            session.vm.doorbells().1.disconnect_all(COPY);
            connects += 1;
            assert!(connects < 1_000_000, "without end");
        }
        assert!(connects > 0);
    }
}
