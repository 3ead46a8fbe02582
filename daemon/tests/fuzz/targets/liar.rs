//! An engine that says what an input says, behind a guest that does what an input says.
//!
//! ```text
//!   op │ arguments       op < 128: a step of the guest (`front`);  else a step of the newest engine
//! ```
//!
//! Engines are no processes here: the test has the other end of each channel, and what was sent with it.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::sync::mpsc::Receiver;

use campanile_daemon::frontend::gpu::device::Gpu;
use campanile_daemon::vgpu::config::Config;
use campanile_host_gpu::adapter::stand_in::StandIn;
use campanile_host_gpu::engine::channel::Channel;
use campanile_protocol::engine::block;
use campanile_protocol::engine::hw_queue;

use super::conversation;
use super::front;
use super::front::Guest;
use super::input::Input;
use super::lies;
use super::lying_engine::Engine;
use super::words;
use super::world;
use super::world::SMALL;

/// With an op: it is the engine's.
pub(crate) const ENGINE: u8 = 128;
/// It says that it has started.
pub(crate) const STARTED: u8 = ENGINE;
/// It does all that it was asked, and acknowledges all that it was told.
pub(crate) const HONEST: u8 = ENGINE + 1;
/// It answers: which type, what is wrong with it, a number.
pub(crate) const ANSWER: u8 = ENGINE + 2;
/// A packet: descriptors, its bytes.
pub(crate) const PACKET: u8 = ENGINE + 3;
/// It stores: which word, which of those (2 bytes), which value.
pub(crate) const WORD: u8 = ENGINE + 4;
/// It stores: where (4 bytes), 8 bytes.
pub(crate) const STORE: u8 = ENGINE + 5;
/// It signals: the session, or the supervisor.
pub(crate) const SIGNAL: u8 = ENGINE + 6;
/// It closes its channel.
pub(crate) const CLOSE: u8 = ENGINE + 7;
/// Another engine that is there goes on being the one that acts.
pub(crate) const OTHER: u8 = ENGINE + 8;
const OPS: u8 = 9;

const MAX_STEPS: [usize; 2] = [400, 6];
/// Engines that one input can bring about.
const MAX_ENGINES: usize = 200;

/// What came of an input.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Came {
    /// Engines that were started while it lasted.
    pub(crate) engines: usize,
    /// Requests that they were sent, and read.
    pub(crate) requests: usize,
    /// Answers to the guest.
    pub(crate) answers: Vec<Vec<u8>>,
}

struct Scene {
    guest: Guest<Gpu>,
    starts: Receiver<Channel>,
    engines: Vec<Engine>,
    acts: usize,
    came: Came,
}

/// A vGPU whose engines are here.
fn stage() -> (Arc<Config>, Receiver<Channel>) {
    let (stand_in, starts) = mpsc::channel();
    let mut config = Arc::into_inner(world::config(SMALL)).unwrap();
    config.launcher = Arc::new(StandIn(stand_in));
    (Arc::new(config), starts)
}

impl Scene {
    /// Engines that were started since.
    fn adopt(&mut self) {
        self.engines.retain(|engine| !engine.is_gone);
        while let Ok(channel) = self.starts.try_recv() {
            self.engines.push(Engine::new(channel));
            self.acts = self.engines.len() - 1;
            self.came.engines += 1;
            assert!(self.came.engines < MAX_ENGINES, "engines are started without end");
        }
    }

    fn act(&mut self, op: u8, rest: &mut Input<'_>) {
        if let Some(engine) = self.engines.get_mut(self.acts) {
            let before = engine.requests.len();
            engine.read();
            self.came.requests += engine.requests.len() - before;
        }
        // What an op takes of the input does not depend on what there is.
        let (kind, wrong, number) = (rest.byte().unwrap_or(0), rest.byte().unwrap_or(0), rest.short());
        let piece = if op == PACKET { rest.piece() } else { &[] };
        let Some(engine) = self.engines.get_mut(self.acts) else { return };
        match op {
            STARTED => engine.started(),
            HONEST => engine.be_honest(),
            ANSWER => engine.answer(kind, wrong, u64::from(number)),
            PACKET => engine.packet(kind, piece),
            WORD => {
                let all = &words::ALL[usize::from(kind) % words::ALL.len()];
                let place = all.place(number.into());
                engine.store(place, words::hostile(wrong, engine.load(place)));
            }
            STORE => {
                let place = u64::from(u32::from_le_bytes([kind, wrong, 0, 0])) << 16 | u64::from(number);
                let bytes = rest.take(8).first_chunk().copied().unwrap_or_default();
                engine.store((place % block::BLOCK_BYTES) & !7, u64::from_le_bytes(bytes));
            }
            SIGNAL if kind & 1 == 0 => engine.event.signal(),
            SIGNAL => engine.asks.signal(),
            CLOSE => drop(self.engines.remove(self.acts)),
            _ => self.acts = usize::from(kind),
        }
        self.acts = self.acts.min(self.engines.len().saturating_sub(1));
    }
}

/// A guest, and engines that do what an input says; then all of them end, and an ordinary guest has the device.
///
/// # Panics
/// Something is wrong with the daemon.
pub(crate) fn run(bytes: &[u8]) -> Came {
    let (config, starts) = stage();
    let guest = Guest::<Gpu>::new(config);
    let mut scene = Scene { guest, starts, engines: Vec::new(), acts: 0, came: Came::default() };
    let mut rest = Input(bytes);
    let mut dear = 0;
    for _ in 0..MAX_STEPS[0] {
        let Some(op) = rest.byte() else { break };
        if op & ENGINE == 0 {
            dear += usize::from(front::is_dear(op));
            if dear > MAX_STEPS[1] {
                break;
            }
            scene.guest.step(op, &mut rest);
        } else {
            scene.act(ENGINE + (op - ENGINE) % OPS, &mut rest);
        }
        scene.adopt();
    }
    let started = scene.came.engines;
    // They end, and those that follow them, until the vGPU has had enough.
    for _ in 0..MAX_ENGINES {
        if scene.engines.is_empty() {
            break;
        }
        scene.engines.clear();
        scene.guest.step(front::EVENT, &mut Input(&[]));
        scene.adopt();
    }
    assert!(scene.engines.is_empty(), "there is no end to them");
    scene.guest.reset();
    assert!(scene.guest.is_fresh(), "nothing is left");
    let before = scene.guest.answers().len();
    let ordinary = conversation::hello(false);
    let mut ordinary = Input(&ordinary);
    while let Some(op) = ordinary.byte() {
        scene.guest.step(op, &mut ordinary);
    }
    assert_eq!(scene.guest.answers().len(), before + 1, "a guest that does nothing wrong is answered");
    scene.came.engines = started;
    scene.came.answers = scene.guest.answers()[..before].to_vec();
    scene.came
}

/// The most results that one look at an engine has taken, where that gives each buffer back as blocked as soon as it has it.
pub(crate) fn give_back_for_ever() -> u64 {
    let (config, starts) = stage();
    let guest = Guest::<Gpu>::new(config);
    let mut scene = Scene { guest, starts, engines: Vec::new(), acts: 0, came: Came::default() };
    // Up to the first submission.
    let all = lies::conversation_with(usize::MAX, &[]);
    let mut rest = Input(&all);
    let submitted =
        |scene: &Scene| scene.engines.iter().position(|engine| engine.load(block::HW_QUEUE_SUBMITTED) > 0);
    while let Some(op) = rest.byte().filter(|_| submitted(&scene).is_none()) {
        if op & ENGINE == 0 {
            scene.guest.step(op, &mut rest);
        } else {
            scene.act(op, &mut rest);
        }
        scene.adopt();
    }
    let busy = submitted(&scene).expect("a buffer was submitted");
    let engine = scene.engines.swap_remove(busy);
    let (given, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Acquire) {
                given.fetch_add(u64::from(engine.end(hw_queue::HW_BLOCKED)), Ordering::AcqRel);
            }
        });
        let mut most = 0;
        // As long as it takes for both to have had a CPU at the same time, often.
        while given.load(Ordering::Acquire) < 5000 {
            let before = given.load(Ordering::Acquire);
            engine.event.signal();
            scene.guest.step(front::EVENT, &mut Input(&[]));
            most = most.max(given.load(Ordering::Acquire) - before);
        }
        is_over.store(true, Ordering::Release);
        most
    })
}
