//! A guest that sends what it likes, to either front; it is reset, stands still and moves meanwhile.
//!
//! ```text
//!   op │ arguments        COMMAND: queue, room (2 bytes), request;  PAGES: and the pages of its answer, a byte each
//! ```
//!
//! Every request is answered once or waits; a device that moves takes along those that wait. Handles and keys have random
//! parts: a word `0xfeed_f00d_0000_00nn` of a request stands for the n-th number of 8 bytes that an answer had.

use std::collections::BTreeMap;
use std::sync::Arc;

use campanile_daemon::frontend::device::FrontDevice;
use campanile_daemon::frontend::vhost::answers::Answers;
use campanile_daemon::frontend::vhost::device::Device;
use campanile_daemon::frontend::vhost::device::WindowError;
use campanile_daemon::frontend::vhost::ticket::Ticket;
use campanile_daemon::migration::state;
use campanile_daemon::vgpu::config::Config;
use campanile_protocol::fs::fuse::OutHeader;
use campanile_protocol::fs::fuse::opcode;
use zerocopy::FromBytes;

use super::conversation;
use super::input::Input;
use super::world::Fronted;
use super::world::GOLDEN;
use super::world::SMALL;
use super::world::config;
use super::world::device;
use super::world::memory;

/// A request.
pub(crate) const COMMAND: u8 = 0;
/// A request whose answer goes to pages: a read that registers them, or a page list.
pub(crate) const PAGES: u8 = 1;
/// The session is looked at.
pub(crate) const EVENT: u8 = 2;
/// Guest memory is another; with bit 4, with an aperture.
pub(crate) const MEMORY: u8 = 3;
/// The guest resets the device.
pub(crate) const RESET: u8 = 4;
/// It moves.
pub(crate) const MOVE: u8 = 5;
/// It stands still, and goes on.
pub(crate) const PAUSE: u8 = 6;
/// The window is there; with bit 4, it never will be.
pub(crate) const WINDOW: u8 = 7;
/// With [`COMMAND`] or [`PAGES`]: there is room for less than 64 bytes.
pub(crate) const SCARCE: u8 = 8;
/// Stands for a number of an answer.
pub(crate) const STANDS_FOR: u64 = 0xfeed_f00d_0000_0000;

/// What one input may do, and how much of it may be dear: other memory, resets and moves.
const MAX_STEPS: [usize; 2] = [200, 8];

/// Whether an op takes long.
pub(crate) const fn is_dear(op: u8) -> bool {
    matches!(op & 7, MEMORY | RESET | MOVE | PAUSE)
}

/// A request that was sent.
struct Sent {
    bytes: Vec<u8>,
    buffers: Vec<(u64, u32)>,
}

/// What came of an input.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Came {
    /// Answers.
    pub(crate) answers: Vec<Vec<u8>>,
    /// Requests that waited at the end.
    pub(crate) waiting: usize,
    /// Moves.
    pub(crate) moves: usize,
}

/// A guest, and the device that it has.
pub(crate) struct Guest<F: Fronted> {
    config: Arc<Config>,
    device: FrontDevice<F>,
    answers: Answers,
    /// By queue and head.
    open: BTreeMap<(u16, u16), Sent>,
    words: Vec<u64>,
    with_aperture: bool,
    came: Came,
}

impl<F: Fronted> Guest<F> {
    /// One that has done nothing.
    pub(crate) fn new(config: Arc<Config>) -> Self {
        let mut device = device::<F>(&config);
        let mut answers = Answers::kept();
        device.memory_changed(memory(F::IS_FS), &mut answers);
        let (open, words, came) = (BTreeMap::new(), Vec::new(), Came::default());
        Self { config, device, answers, open, words, with_aperture: F::IS_FS, came }
    }

    /// One that has done what an input says.
    fn after(config: Arc<Config>, bytes: &[u8]) -> Self {
        let mut guest = Self::new(config);
        let mut rest = Input(bytes);
        let mut dear = 0;
        for _ in 0..MAX_STEPS[0] {
            let Some(op) = rest.byte() else { break };
            dear += usize::from(is_dear(op));
            if dear > MAX_STEPS[1] {
                break;
            }
            guest.step(op, &mut rest);
        }
        guest
    }

    fn ticket(&self, (queue, head): (u16, u16)) -> Ticket {
        Ticket::detached_over(queue, head, &self.open[&(queue, head)].buffers)
    }

    fn send(&mut self, queue: u16, bytes: &[u8], buffers: Vec<(u64, u32)>) {
        let mut bytes = bytes.to_vec();
        for word in bytes.as_chunks_mut::<8>().0 {
            let number = u64::from_le_bytes(*word);
            if number & !0xff == STANDS_FOR
                && let Some(known) = usize::try_from(number & 0xff).ok().and_then(|at| self.words.get(at))
            {
                *word = known.to_le_bytes();
            }
        }
        let head = (0..1024).find(|head| !self.open.contains_key(&(queue, *head))).unwrap();
        self.open.insert((queue, head), Sent { bytes: bytes.clone(), buffers });
        let ticket = self.ticket((queue, head));
        self.device.command(queue, &bytes, ticket, &mut self.answers);
        self.look();
    }

    /// Takes what was answered.
    fn look(&mut self) {
        for kept in self.answers.take_kept() {
            let sent = self.open.remove(&(kept.queue, kept.head)).expect("an answer to what was asked, once");
            let room: usize = sent.buffers.iter().map(|(_, bytes)| usize::try_from(*bytes).unwrap()).sum();
            assert!(kept.response.len() <= room);
            if F::IS_FS {
                check_fuse(&sent.bytes, &kept.response, room);
            }
            // An OPEN's handle, a key, names: all that a request may have to repeat.
            let words = kept.response.as_chunks::<8>().0.iter().skip(2).take(6);
            self.words.extend(words.map(|word| u64::from_le_bytes(*word)));
            self.words.truncate(256);
            self.came.answers.push(kept.response);
        }
    }

    /// What was answered so far.
    pub(crate) fn answers(&self) -> &[Vec<u8>] {
        &self.came.answers
    }

    /// Whether its vGPU is as a new one.
    pub(crate) fn is_fresh(&mut self) -> bool {
        self.device.session().is_fresh()
    }

    /// Resets the device.
    pub(crate) fn reset(&mut self) {
        self.device.reset();
        self.open.clear();
        self.look();
    }

    /// Everything stands still, or does not yet.
    fn freeze(&mut self) -> bool {
        self.device.freeze();
        for _ in 0..4 {
            self.device.event(&mut self.answers);
            self.look();
        }
        self.device.is_frozen()
    }

    fn thaw(&mut self) {
        self.device.thaw();
        self.device.event(&mut self.answers);
        self.look();
    }

    /// Another device becomes what this one is; requests that wait go along.
    fn go_elsewhere(&mut self) {
        let goes = self.freeze();
        if goes {
            let saved = self.device.state(state::BundleId(1, 2)).unwrap();
            let state = state::decode(&saved.encode().unwrap()).unwrap();
            assert_eq!(state, saved);
            drop(std::mem::replace(&mut self.device, device::<F>(&self.config)));
            // Nobody has asked it anything.
            self.device.take_over(&state).expect("what a guest has, another device can have");
            self.device.memory_changed(memory(self.with_aperture), &mut self.answers);
            self.came.moves += 1;
        }
        self.thaw();
        for name in self.open.keys().copied().filter(|_| goes).collect::<Vec<_>>() {
            let bytes = self.open[&name].bytes.clone();
            let ticket = self.ticket(name);
            self.device.restored(Ok(&bytes), ticket, &mut self.answers);
        }
        self.look();
    }

    /// Does what an op says.
    pub(crate) fn step(&mut self, op: u8, rest: &mut Input<'_>) {
        match op & 7 {
            COMMAND | PAGES => {
                let (queue, room) = (u16::from(rest.byte().unwrap_or(0) % 9), rest.short());
                let room = if op & SCARCE == 0 { room } else { room % 64 };
                let mut buffers = vec![(0x1000, u32::from(room))];
                if op & 7 == PAGES {
                    let pages = rest.piece();
                    buffers.extend(pages.iter().take(64).map(|page| (u64::from(*page) << 12, 4096)));
                }
                let request = rest.piece();
                if !request.is_empty() {
                    self.send(queue, request, buffers);
                }
            }
            EVENT => {
                self.device.event(&mut self.answers);
                self.look();
            }
            MEMORY => {
                self.with_aperture = op & 16 != 0;
                self.device.memory_changed(memory(self.with_aperture), &mut self.answers);
                self.look();
            }
            RESET => self.reset(),
            MOVE => self.go_elsewhere(),
            PAUSE => {
                self.freeze();
                self.thaw();
            }
            _ => {
                let state = if op & 16 == 0 { Ok(()) } else { Err(WindowError::NotNegotiated) };
                self.device.window(state, &mut self.answers);
                self.look();
            }
        }
    }
}

/// An answer is one, and is that of its request.
fn check_fuse(request: &[u8], response: &[u8], room: usize) {
    let word = |at: usize| Some(u32::from_le_bytes(*request.get(at..)?.first_chunk()?));
    let is_forget = matches!(word(4), Some(opcode::FORGET | opcode::BATCH_FORGET));
    let Ok((header, _)) = OutHeader::read_from_prefix(response) else {
        assert!(response.is_empty() || room < 16, "half an answer");
        return;
    };
    assert!(!is_forget || request.len() < 40);
    assert!(header.error <= 0 && header.error > -4096, "error {}", header.error);
    if let Some(unique) = request.get(8..16).filter(|_| request.len() >= 40) {
        assert_eq!(header.unique.to_le_bytes(), unique);
    }
    let length = usize::try_from(header.length).unwrap();
    assert!(length == response.len() || (length > room && response.len() == room));
}

/// A guest that does what an input says; then it is reset, and an ordinary one has the device.
///
/// # Panics
/// Something is wrong with the daemon.
pub(crate) fn run<F: Fronted>(bytes: &[u8]) -> Came {
    let mut guest = Guest::<F>::after(config(SMALL), bytes);
    let mut came = std::mem::take(&mut guest.came);
    came.waiting = guest.open.len();
    guest.reset();
    assert!(guest.device.session().is_fresh(), "nothing is left");
    let before = guest.came.answers.len();
    let ordinary = conversation::hello(F::IS_FS);
    let mut ordinary = Input(&ordinary);
    while let Some(op) = ordinary.byte() {
        guest.step(op, &mut ordinary);
    }
    assert_eq!(guest.came.answers.len(), before + 1, "a guest that does nothing wrong is answered");
    came
}

/// The state of a device after that, as bytes.
///
/// # Panics
/// It does not stand still.
pub(crate) fn state_after<F: Fronted>(bytes: &[u8]) -> Vec<u8> {
    let mut guest = Guest::<F>::after(config(GOLDEN), bytes);
    assert!(guest.freeze());
    guest.device.state(state::BundleId(1, 2)).unwrap().encode().unwrap()
}
