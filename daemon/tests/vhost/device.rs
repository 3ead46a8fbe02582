//! A device whose commands say what to do with them.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::fd::BorrowedFd;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;

use campanile_daemon::frontend::vhost::answers::Answers;
use campanile_daemon::frontend::vhost::device::Aperture;
use campanile_daemon::frontend::vhost::device::Device;
use campanile_daemon::frontend::vhost::device::Offer;
use campanile_daemon::frontend::vhost::device::WindowError;
use campanile_daemon::frontend::vhost::malformed::MalformedChain;
use campanile_daemon::frontend::vhost::ticket::Ticket;
use campanile_daemon::guest_ram::memory::GuestRam;
use rustix::event::EventfdFlags;
use rustix::event::eventfd;
use rustix::fs::MemfdFlags;
use rustix::fs::memfd_create;

/// Echoes the request, cut to the room there is.
pub(crate) const ECHO: u8 = b'e';
/// Keeps the ticket until [`Script::release`].
pub(crate) const PARK: u8 = b'p';
/// Panics.
pub(crate) const PANIC: u8 = b'!';
/// Makes the event descriptor readable, and echoes.
pub(crate) const POKE: u8 = b'k';
/// Takes 20 milliseconds, and echoes.
pub(crate) const SLOW: u8 = b's';

pub(crate) const APERTURE: u64 = 1 << 20;
pub(crate) const CONFIG: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4];
pub(crate) const DEVICE_FEATURES: u64 = 1 | 1 << 3 | 1 << 4;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Seen {
    Command(u16, Vec<u8>),
    Malformed(MalformedChain),
    Event,
    Memory(usize),
    Window(Result<(), String>),
    Reset,
    Dropped,
}

/// What the test and its device share.
#[derive(Debug)]
pub(crate) struct Script {
    seen: Mutex<Vec<Seen>>,
    quiet: bool,
    pub(crate) aperture: bool,
    event: OwnedFd,
}

impl Script {
    pub(crate) fn new(aperture: bool, quiet: bool) -> Arc<Self> {
        let event = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap();
        Arc::new(Self { seen: Mutex::default(), quiet, aperture, event })
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    pub(crate) fn count(&self, what: &Seen) -> usize {
        self.seen().iter().filter(|seen| *seen == what).count()
    }

    /// Waits until something was seen.
    pub(crate) fn await_seen(&self, what: &Seen) {
        crate::bench::eventually(&format!("{what:?}"), || self.count(what) > 0);
    }

    pub(crate) fn release(&self) {
        rustix::io::write(&self.event, &1u64.to_ne_bytes()).unwrap();
    }

    fn note(&self, seen: Seen) {
        if !self.quiet {
            self.seen.lock().unwrap().push(seen);
        }
    }

    pub(crate) fn device(self: &Arc<Self>) -> io::Result<Box<dyn Device>> {
        Ok(Box::new(Scripted { script: self.clone(), parked: Vec::new() }))
    }
}

struct Scripted {
    script: Arc<Script>,
    parked: Vec<(Ticket, Vec<u8>)>,
}

impl Device for Scripted {
    fn offer(&self) -> io::Result<Offer> {
        let aperture = if self.script.aperture {
            let file = File::from(memfd_create("aperture", MemfdFlags::CLOEXEC)?);
            file.set_len(APERTURE)?;
            Some(Aperture { region: 1, file, offset: 0, length: APERTURE })
        } else {
            None
        };
        let config = CONFIG.to_vec();
        Ok(Offer {
            features: DEVICE_FEATURES,
            queues: 2,
            config,
            smallest_answer: 24,
            aperture,
            migrates: false,
        })
    }

    fn command(&mut self, queue: u16, request: &[u8], ticket: Ticket, answers: &mut Answers) {
        self.script.note(Seen::Command(queue, request.to_vec()));
        match request[0] {
            PARK => return self.parked.push((ticket, request.to_vec())),
            PANIC => panic!("the test asked for it"),
            POKE => self.script.release(),
            SLOW => std::thread::sleep(Duration::from_millis(20)),
            _ => {}
        }
        answers.answer(ticket, request);
    }

    fn malformed(&mut self, _queue: u16, reason: MalformedChain, ticket: Ticket, answers: &mut Answers) {
        self.script.note(Seen::Malformed(reason));
        answers.answer(ticket, &[b'M'; 24]);
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.script.event.as_fd())
    }

    fn event(&mut self, answers: &mut Answers) {
        let _ = rustix::io::read(&self.script.event, &mut [0; 8]);
        for (ticket, response) in self.parked.drain(..) {
            answers.answer(ticket, &response);
        }
        self.script.note(Seen::Event);
    }

    fn memory_changed(&mut self, memory: Arc<GuestRam>, _answers: &mut Answers) {
        let regions = vm_memory::GuestMemoryBackend::num_regions(&*memory);
        self.script.note(Seen::Memory(regions));
    }

    fn window(&mut self, state: Result<(), WindowError>, _answers: &mut Answers) {
        self.script.note(Seen::Window(state.map_err(|error| error.to_string())));
    }

    fn reset(&mut self) {
        // The tickets stay, to see that they are void.
        self.script.note(Seen::Reset);
    }
}

impl Drop for Scripted {
    fn drop(&mut self) {
        self.script.note(Seen::Dropped);
    }
}
