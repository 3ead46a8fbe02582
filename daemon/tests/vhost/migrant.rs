//! A device that migrates: it counts, parks requests, and has an engine that writes guest RAM by itself.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::AsFd;
use std::os::fd::BorrowedFd;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

use campanile_daemon::frontend::vhost::answers::Answers;
use campanile_daemon::frontend::vhost::device::Device;
use campanile_daemon::frontend::vhost::device::Offer;
use campanile_daemon::frontend::vhost::device::Save;
use campanile_daemon::frontend::vhost::device::WindowError;
use campanile_daemon::frontend::vhost::malformed::MalformedChain;
use campanile_daemon::frontend::vhost::ticket::Ticket;
use campanile_daemon::guest_ram::dirty_log::DirtyLog;
use campanile_daemon::guest_ram::memory::GuestRam;
use rustix::event::EventfdFlags;
use rustix::event::eventfd;
use vm_memory::Bytes;
use vm_memory::GuestAddress;
use vm_memory::GuestMemoryBackend;
use vm_memory::GuestMemoryRegion;
use vm_memory::MmapRegion;
use vm_memory::VolatileMemory;

use crate::device::CONFIG;
use crate::device::DEVICE_FEATURES;

/// Answers with the next number.
pub(crate) const COUNT: u8 = b'c';
/// Is answered at [`Script::release`].
pub(crate) const PARK: u8 = b'p';
/// Switches the engine on: it writes pages from [`SCRIBBLES`] on.
pub(crate) const SCRIBBLE: u8 = b'w';

/// Where the engine writes.
pub(crate) const SCRIBBLES: u64 = 0x180_0000;
/// Pages that it writes.
pub(crate) const SCRIBBLED_PAGES: u64 = 64;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Seen {
    Command(Vec<u8>),
    Freeze,
    Thaw,
    Log(bool),
    Save,
    Load(Vec<u8>),
    Started,
    Restored(u16, u16, Result<Vec<u8>, MalformedChain>),
    Reset,
    Dropped,
}

/// What goes wrong.
#[derive(Debug, Default, Clone)]
pub(crate) struct Faults {
    pub(crate) never_freezes: bool,
    pub(crate) save: Option<String>,
    pub(crate) load: Option<String>,
    pub(crate) start: Option<String>,
    /// Bytes of state more than there are.
    pub(crate) ballast: usize,
}

/// What the test and its devices share.
#[derive(Debug)]
pub(crate) struct Script {
    seen: Mutex<Vec<Seen>>,
    pub(crate) faults: Mutex<Faults>,
    release: AtomicBool,
    event: OwnedFd,
    pub(crate) offer: Mutex<Offer>,
}

impl Script {
    pub(crate) fn new() -> Arc<Self> {
        let event = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap();
        Arc::new(Self {
            seen: Mutex::default(),
            faults: Mutex::default(),
            release: AtomicBool::new(false),
            event,
            offer: Mutex::new(Offer {
                features: DEVICE_FEATURES,
                queues: 2,
                config: CONFIG.to_vec(),
                smallest_answer: 24,
                aperture: None,
                migrates: true,
            }),
        })
    }

    pub(crate) fn device(self: &Arc<Self>) -> io::Result<Box<dyn Device>> {
        Ok(Box::new(Migrant {
            script: self.clone(),
            counter: 0,
            parked: Vec::new(),
            log: None,
            memory: None,
            engine: None,
            is_frozen: false,
        }))
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    pub(crate) fn count(&self, what: &Seen) -> usize {
        self.seen().iter().filter(|seen| *seen == what).count()
    }

    pub(crate) fn await_seen(&self, what: &Seen) {
        crate::bench::eventually(&format!("{what:?}"), || self.count(what) > 0);
    }

    /// All parked requests are answered, and those that are parked from now on.
    pub(crate) fn release(&self) {
        self.release.store(true, Ordering::Release);
        self.poke();
    }

    fn poke(&self) {
        rustix::io::write(&self.event, &1u64.to_ne_bytes()).unwrap();
    }

    fn note(&self, seen: Seen) {
        self.seen.lock().unwrap().push(seen);
    }
}

/// Writes guest RAM without anybody's help, as engines do, and knows which pages.
struct Engine {
    stop: Arc<AtomicBool>,
    pages: Arc<Mutex<BTreeSet<u64>>>,
    thread: Option<JoinHandle<()>>,
}

impl Engine {
    fn start(memory: &GuestRam, script: Arc<Script>) -> Self {
        let region = memory.find_region(GuestAddress(SCRIBBLES)).unwrap();
        let file = region.file_offset().unwrap().clone();
        let (length, start) = (usize::try_from(region.len()).unwrap(), region.start_addr().0);
        let raw = MmapRegion::<()>::from_file(file, length).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let pages = Arc::new(Mutex::new(BTreeSet::new()));
        let (asked, noted) = (stop.clone(), pages.clone());
        let thread = std::thread::spawn(move || {
            let (mut value, mut left) = (0u64, 400);
            // It does not stop at once.
            while left > 0 {
                left -= u32::from(asked.load(Ordering::Acquire));
                value += 1;
                let page = SCRIBBLES + value * 7 % SCRIBBLED_PAGES * 4096;
                let offset = usize::try_from(page - start).unwrap();
                raw.as_volatile_slice()
                    .write_obj(value, offset + 8 * (usize::try_from(value).unwrap() % 512))
                    .unwrap();
                noted.lock().unwrap().insert(page);
                if value % 16 == 0 {
                    std::thread::sleep(Duration::from_micros(200));
                }
            }
            script.poke();
        });
        Self { stop, pages, thread: Some(thread) }
    }

    fn has_stopped(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// What was written goes into the log.
    fn sweep(&self, log: Option<&DirtyLog>) {
        for page in std::mem::take(&mut *self.pages.lock().unwrap()) {
            if let Some(log) = log {
                log.mark(page, 4096);
            }
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

struct Parked {
    queue: u16,
    head: u16,
    request: Vec<u8>,
    /// Restored ones come back later.
    ticket: Option<Ticket>,
}

struct Migrant {
    script: Arc<Script>,
    counter: u64,
    parked: Vec<Parked>,
    log: Option<Arc<DirtyLog>>,
    memory: Option<Arc<GuestRam>>,
    engine: Option<Engine>,
    is_frozen: bool,
}

impl Migrant {
    fn faults(&self) -> Faults {
        self.script.faults.lock().unwrap().clone()
    }

    fn look(&mut self, answers: &mut Answers) {
        if self.script.release.load(Ordering::Acquire) {
            for parked in &mut self.parked {
                if let Some(ticket) = parked.ticket.take() {
                    answers.answer(ticket, &parked.request);
                    parked.request.clear();
                }
            }
            self.parked.retain(|parked| !parked.request.is_empty());
        }
    }
}

impl Device for Migrant {
    fn offer(&self) -> io::Result<Offer> {
        let offer = self.script.offer.lock().unwrap();
        let Offer { features, queues, smallest_answer, migrates, .. } = *offer;
        Ok(Offer {
            features,
            queues,
            config: offer.config.clone(),
            smallest_answer,
            aperture: None,
            migrates,
        })
    }

    fn command(&mut self, queue: u16, request: &[u8], ticket: Ticket, answers: &mut Answers) {
        self.script.note(Seen::Command(request.to_vec()));
        let mut answer = request.to_vec();
        match request[0] {
            PARK => {
                let head = ticket.head();
                self.parked.push(Parked { queue, head, request: answer, ticket: Some(ticket) });
                return self.look(answers);
            }
            COUNT => {
                self.counter += 1;
                answer[8..16].copy_from_slice(&self.counter.to_le_bytes());
            }
            SCRIBBLE => {
                let memory = self.memory.clone().unwrap();
                self.engine = Some(Engine::start(&memory, self.script.clone()));
            }
            _ => {}
        }
        answers.answer(ticket, &answer);
    }

    fn malformed(&mut self, _queue: u16, _reason: MalformedChain, ticket: Ticket, answers: &mut Answers) {
        answers.answer(ticket, &[b'M'; 24]);
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.script.event.as_fd())
    }

    fn event(&mut self, answers: &mut Answers) {
        let _ = rustix::io::read(&self.script.event, &mut [0; 8]);
        self.look(answers);
        if let Some(engine) = &self.engine
            && engine.stop.load(Ordering::Acquire)
            && engine.has_stopped()
        {
            engine.sweep(self.log.as_deref());
            self.is_frozen = true;
        }
    }

    fn memory_changed(&mut self, memory: Arc<GuestRam>, _answers: &mut Answers) {
        self.memory = Some(memory);
    }

    fn window(&mut self, _state: Result<(), WindowError>, _answers: &mut Answers) {}

    fn reset(&mut self) {
        self.script.note(Seen::Reset);
        self.engine = None;
        self.counter = 0;
        self.parked.clear();
        self.is_frozen = false;
    }

    fn freeze(&mut self) {
        self.script.note(Seen::Freeze);
        match &self.engine {
            Some(engine) => engine.stop.store(true, Ordering::Release),
            None => self.is_frozen = true,
        }
    }

    fn is_frozen(&self) -> bool {
        // The engine's thread pokes a moment before it has ended.
        if self.engine.as_ref().is_some_and(|engine| engine.stop.load(Ordering::Acquire)) && !self.is_frozen {
            self.script.poke();
        }
        self.is_frozen && !self.faults().never_freezes
    }

    fn thaw(&mut self) {
        self.script.note(Seen::Thaw);
        self.is_frozen = false;
        if let (Some(_), Some(memory)) = (self.engine.take(), &self.memory) {
            self.engine = Some(Engine::start(memory, self.script.clone()));
        }
    }

    fn log_changed(&mut self, log: Option<Arc<DirtyLog>>) {
        self.script.note(Seen::Log(log.is_some()));
        self.log = log;
    }

    fn save(&mut self) -> Save {
        assert!(self.is_frozen);
        self.script.note(Seen::Save);
        let mut state = self.counter.to_le_bytes().to_vec();
        for parked in &self.parked {
            let length = u16::try_from(parked.request.len()).unwrap();
            for word in [parked.queue, parked.head, length] {
                state.extend_from_slice(&word.to_le_bytes());
            }
            state.extend_from_slice(&parked.request);
        }
        let faults = self.faults();
        state.resize(state.len() + faults.ballast, 0xff);
        Box::new(move || faults.save.map_or(Ok(state), Err))
    }

    fn load(&mut self, state: Vec<u8>) -> Result<(), String> {
        assert!(self.is_frozen && self.parked.is_empty() && self.counter == 0);
        self.script.note(Seen::Load(state.clone()));
        if let Some(fault) = self.faults().load {
            return Err(fault);
        }
        let word = |at: usize| u16::from_le_bytes([state[at], state[at + 1]]);
        let mut at = 8;
        while at < state.len() {
            let (queue, head, length) = (word(at), word(at + 2), usize::from(word(at + 4)));
            let request = state[at + 6..at + 6 + length].to_vec();
            self.parked.push(Parked { queue, head, request, ticket: None });
            at += 6 + length;
        }
        self.counter = u64::from_le_bytes(state[..8].try_into().unwrap());
        Ok(())
    }

    fn started(&mut self) -> Result<(), String> {
        self.script.note(Seen::Started);
        self.faults().start.map_or(Ok(()), Err)
    }

    fn restored(&mut self, request: Result<&[u8], MalformedChain>, ticket: Ticket, answers: &mut Answers) {
        let (queue, head) = (ticket.queue(), ticket.head());
        self.script.note(Seen::Restored(queue, head, request.map(<[u8]>::to_vec)));
        let known = self.parked.iter().position(|parked| (parked.queue, parked.head) == (queue, head));
        match (known, request) {
            (Some(known), Ok(_)) => {
                self.parked[known].ticket = Some(ticket);
                self.look(answers);
            }
            (known, _) => {
                known.map(|known| self.parked.remove(known));
                answers.answer(ticket, &[b'F'; 24]);
            }
        }
    }
}

impl Drop for Migrant {
    fn drop(&mut self) {
        self.script.note(Seen::Dropped);
    }
}
