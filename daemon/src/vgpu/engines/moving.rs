//! The copy engine moves memory for the daemon: see [`super::device_moves`].

use std::io;

use campanile_host_gpu::adapter::copy_process::CopyProcess;
use campanile_host_gpu::engine::address::EngineAddress;
use log::Level;

use super::device_moves::ATTEMPTS;
use super::device_moves::Next;
use super::device_moves::Then;
use super::device_moves::mover;
use super::lifecycle::Lifecycle;
use super::outbox::Outgoing;
use crate::vgpu::control::deferred::Deferred;
use crate::vgpu::engines::kernels::Kernels;
use crate::vgpu::memory::vidmm::device_memory::DeviceCopy;
use crate::vgpu::memory::vidmm::in_device::Zeroed;
use crate::vgpu::tdr::reason::Reason;

impl Lifecycle<'_> {
    /// Has the device zero what was given back, and go on with what it is to move.
    pub(in crate::vgpu) fn run_moves(&mut self) {
        if self.vm.memory.allocations.memory().device().is_none() {
            return;
        }
        for (offset, bytes) in self.vm.memory.allocations.take_unclean() {
            self.vm.engines.moves.zero(offset, bytes);
        }
        if self.vm.engines.moves.is_empty() || self.vm.freeze.is_stopping() {
            return;
        }
        let at = mover();
        // What is only to be zeroed waits until something needs it, or the engine runs anyway.
        let is_needed = self.vm.engines.moves.has_arrivals() || !self.vm.memory.residency.wants.is_empty();
        let is_missing = self.vm.engines[at.index()].process().is_none();
        if is_needed && is_missing && self.vm.engines.moves.is_available() {
            // Why it cannot be is in the log.
            let is_started = self.ensure_engine(at).is_ok();
            self.vm.engines.moves.set_available(is_started);
        }
        loop {
            let slot = &self.vm.engines[at.index()];
            if !slot.has_begun() || self.vm.engines.is_condemned(at) {
                return;
            }
            let pid = slot.process().map_or(0, |process| process.pid());
            match self.vm.engines.moves.next(pid) {
                Next::Nothing => return,
                Next::Send(request) => {
                    self.vm.engines[at.index()].outbox.push(Outgoing::Move(request));
                    Kernels::of(self.vm).flush_outbox(at);
                }
                Next::GiveUp(then) => self.give_up_move(at, then),
            }
        }
    }

    /// An engine says that it has moved what it was asked.
    pub(in crate::vgpu) fn has_moved(&mut self, serial: u64) {
        if let Some(then) = self.vm.engines.moves.moved(serial) {
            self.follow(then);
        }
        self.run_moves();
    }

    fn follow(&mut self, then: Then) {
        match then {
            Then::Clean { offset, bytes } => {
                self.vm.memory.allocations.is_zeroed((offset, bytes), Zeroed::Done);
                self.vm.memory.residency.look_again();
            }
            Then::Arrived(action) => Deferred::of(self.vm).carry_out(action),
        }
    }

    /// No engine runs, and what is on its way is to arrive: it is copied by a process of its own, which is waited for. What was to be
    /// zeroed is zeroed when engines run again.
    pub(in crate::vgpu) fn finish_moves(&mut self) {
        let mut process = None;
        while let Some((copy, then)) = self.vm.engines.moves.next_arrival() {
            match self.finish_move(&mut process, copy) {
                Ok(()) => self.follow(then),
                Err(error) => {
                    self.vm.journal.line(Level::Error, format_args!("memory that moves: {error}"));
                    self.give_up_move(mover(), then);
                }
            }
        }
        self.abandon_moves();
    }

    fn finish_move(&self, process: &mut Option<CopyProcess>, copy: DeviceCopy) -> io::Result<()> {
        let none = || io::Error::other("there is no device");
        let memory = self.vm.memory.allocations.memory();
        let port = memory.device().map(|device| device.reader().port()).ok_or_else(none)?;
        let mut attempts = 0;
        loop {
            attempts += 1;
            let opened = match process.take() {
                Some(opened) => Ok(opened),
                None => port.open(memory.file(), memory.evicted_file()),
            };
            let copied = opened.and_then(|mut opened| {
                opened.carry_out(copy.from, copy.to, copy.bytes)?;
                Ok(opened)
            });
            match copied {
                Ok(opened) => {
                    *process = Some(opened);
                    return Ok(());
                }
                Err(error) if attempts == ATTEMPTS => return Err(error),
                Err(_) => {}
            }
        }
    }

    /// A move that no process could do: its contents are lost, and with them everything of this vGPU. What was to be zeroed stays
    /// out of use.
    fn give_up_move(&mut self, at: EngineAddress, then: Then) {
        match then {
            Then::Clean { offset, bytes } => {
                self.vm.memory.allocations.is_zeroed((offset, bytes), Zeroed::Never);
                self.vm.journal.line(
                    Level::Error,
                    format_args!(
                        "{bytes} bytes of local memory at {offset:#x} cannot be zeroed: they stay unused"
                    ),
                );
            }
            Then::Arrived(action) => {
                let text = "memory could not be moved by the device: its contents are lost";
                self.vm.journal.line(Level::Error, format_args!("{text}"));
                self.vm.engines.condemn_for(at, Reason::PromotedToAdapter, text);
                Deferred::of(self.vm).carry_out(action);
            }
        }
    }

    /// No engine runs, and none of what was to be moved is needed.
    pub(in crate::vgpu) fn abandon_moves(&mut self) {
        for then in self.vm.engines.moves.abandon() {
            match then {
                Then::Clean { offset, bytes } => {
                    self.vm.memory.allocations.is_zeroed((offset, bytes), Zeroed::NotYet);
                }
                Then::Arrived(action) => Deferred::of(self.vm).carry_out(action),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc;
    use std::thread;

    use campanile_host_gpu::adapter::stand_in::StandIn;
    use campanile_host_gpu::engine::channel::Channel;
    use campanile_host_gpu::engine::message::MoveSide;
    use campanile_host_gpu::engine::message::Request;
    use campanile_host_gpu::engine::message::Response;
    use campanile_host_gpu::engine::message::Start;
    use campanile_host_gpu::memory::local::Passport;
    use campanile_host_gpu::memory::vram::create_memfd;

    use super::*;
    use crate::vgpu::config::Config;
    use crate::vgpu::engines::pending::Action;
    use crate::vgpu::memory::vidmm::device_local::DeviceLocal;
    use crate::vgpu::objects::timeline::Token;
    use crate::vgpu::session::Session;
    use crate::vgpu::testing::config;
    use crate::vgpu::testing::session;

    const MIB: u64 = 1 << 20;

    /// The next copy process, as a test plays it: what it was asked to copy.
    fn play(starts: &mpsc::Receiver<Channel>, moves: bool) -> (MoveSide, MoveSide, u64) {
        let channel = starts.recv().unwrap();
        channel.receive::<Start>(true).unwrap().unwrap();
        let device = "a device".to_owned();
        let started = Response::Started { device, is_cpu: true, vram: 0, profile: None };
        channel.send(&started, &[], &[], true).unwrap();
        loop {
            match channel.receive::<Request>(true).unwrap().unwrap().message {
                Request::Move { serial, from, to, bytes } => {
                    let refused = Response::MoveRefused { serial, reason: "it is broken".to_owned() };
                    let said = if moves { Response::Moved { serial } } else { refused };
                    channel.send(&said, &[], &[], true).unwrap();
                    return (from, to, bytes);
                }
                Request::Begin { .. } => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// A session with local memory of a device's own, of which it has begun to move some, and zeroes some.
    fn moving(stand_in: StandIn) -> Session {
        let descriptor = create_memfd("opaque", 32 * MIB).unwrap().into();
        let local = DeviceLocal::new(descriptor, Passport { length: 32 * MIB, ..Passport::default() });
        let config = Config { local: Some(Arc::new(local)), launcher: Arc::new(stand_in), ..config() };
        let mut session = session(&Arc::new(config));
        let id = session.vm.memory.allocations.create_vram(MIB).unwrap();
        let _placed = session.vm.memory.allocations.locate(id, 1);
        let _freed = session.vm.memory.allocations.release(id);
        for (offset, bytes) in session.vm.memory.allocations.take_unclean() {
            session.vm.engines.moves.zero(offset, bytes);
        }
        let copy = DeviceCopy { from: MoveSide::Local(40 * MIB), to: MoveSide::Evicted(0), bytes: MIB };
        session.vm.engines.moves.push(copy, Then::Arrived(Action::Answer(Token(7))));
        session
    }

    #[test]
    fn lm_64_what_a_device_moves_has_arrived_when_all_stands_still_and_what_it_zeroes_is_zeroed_later() {
        let (stand_in, starts) = mpsc::channel();
        let mut session = moving(StandIn(stand_in));
        thread::scope(|scope| {
            let played = scope.spawn(move || play(&starts, true));
            Lifecycle::of(&mut session.vm).finish_moves();
            let asked = played.join().unwrap();
            assert_eq!(asked, (MoveSide::Local(40 * MIB), MoveSide::Evicted(0), MIB));
        });
        assert!(session.vm.engines.moves.is_empty());
        assert_eq!(session.vm.objects.due.pop(), Some((Token(7), Ok(()))));
        assert_eq!(session.vm.memory.allocations.take_unclean(), [(32 * MIB, MIB)]);
        assert!(!session.vm.engines.is_condemned(mover()));
    }

    #[test]
    fn lm_64_what_no_process_could_move_is_lost_and_all_stands_still_nevertheless() {
        let (stand_in, starts) = mpsc::channel();
        let mut session = moving(StandIn(stand_in));
        thread::scope(|scope| {
            let played = scope.spawn(move || {
                for _ in 0..3 {
                    play(&starts, false);
                }
                starts.try_recv().is_err()
            });
            Lifecycle::of(&mut session.vm).finish_moves();
            assert!(played.join().unwrap(), "no fourth is started");
        });
        assert_eq!(session.vm.objects.due.pop(), Some((Token(7), Ok(()))), "what waits is answered");
        assert!(session.vm.engines.moves.is_empty());
        assert!(session.vm.engines.is_condemned(mover()));
    }
}
