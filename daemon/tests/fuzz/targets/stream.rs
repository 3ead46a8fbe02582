//! What a source sends over its lines (LM-30, LM-39, LM-40): pages and messages in any order, claims meanwhile.

use std::sync::Arc;
use std::sync::Mutex;
use std::thread::JoinHandle;
use std::time::Duration;

use campanile_daemon::frontend::gpu::device::Gpu;
use campanile_daemon::migration::channel::frame;
use campanile_daemon::migration::channel::frame::Kind;
use campanile_daemon::migration::channel::message::Message;
use campanile_daemon::migration::endpoint::adopt;
use campanile_daemon::migration::error::MigrationError;
use campanile_daemon::migration::id::BundleId;
use campanile_daemon::migration::local_fill::Contents;
use campanile_daemon::migration::settings::Timeouts;
use campanile_daemon::migration::stage::Staged;
use campanile_daemon::migration::target::arrivals::Arrivals;
use campanile_daemon::migration::target::arrivals::Claim;
use campanile_daemon::migration::target::arriving::Arriving;
use campanile_daemon::vgpu::config::Config;
use campanile_daemon::vgpu::state::saved::SavedSession;

use super::wire::Handle;
use super::wire::Lines;
use super::wire::Wire;
use super::world::SMALL;
use super::world::config;
use super::world::device;

/// How far a source came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Came {
    /// Lines that were accepted.
    pub(crate) accepted: usize,
    /// Bundles that were complete.
    pub(crate) stored: usize,
    /// Bundles that a session took.
    pub(crate) claimed: usize,
    /// And that ran.
    pub(crate) ran: usize,
}

/// A daemon that a vGPU may come to.
pub(crate) struct Target {
    config: Arc<Config>,
    arriving: Arc<Arriving>,
    arrivals: Arrivals,
    named: Mutex<Option<BundleId>>,
    claims: Mutex<Vec<Claim>>,
    came: Mutex<Came>,
    pub(crate) lines: Lines,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Target {
    fn new() -> Arc<Self> {
        let config = config(SMALL);
        let arriving = Arc::new(Arriving::of(&config, Vec::new(), None));
        // Nobody here is slow.
        let timeouts = Timeouts {
            message: Duration::from_secs(10),
            answer: Duration::from_millis(1),
            claim: Duration::from_millis(1),
        };
        let arrivals = Arrivals::without_door(vec![Arc::clone(&arriving)], timeouts).unwrap();
        let (named, claims, came) = (Mutex::default(), Mutex::default(), Mutex::default());
        let (lines, threads) = (Lines::default(), Mutex::default());
        Arc::new(Self { config, arriving, arrivals, named, claims, came, lines, threads })
    }

    /// A source has named a bundle.
    pub(crate) fn heard(&self, bundle: BundleId) {
        *self.named.lock().unwrap() = Some(bundle);
    }

    fn try_claim(&self) -> Result<Claim, MigrationError> {
        let named = self.named.lock().unwrap().unwrap_or(BundleId([0; 16]));
        self.arrivals.claim(&self.config.name, named)
    }

    /// A session takes the bundle, if there is one.
    pub(crate) fn claim(&self) {
        let Ok(mut claim) = self.try_claim() else { return };
        let memories = claim.take_memories().unwrap();
        assert!(claim.take_memories().is_none(), "once");
        self.check(&memories);
        // As LOAD does, of a session with nothing in it.
        let mut device = device::<Gpu>(&self.config);
        let mut state = SavedSession::default();
        adopt(device.session(), &self.config, memories, Contents::InFile, &mut state).unwrap();
        self.claims.lock().unwrap().push(claim);
        self.came.lock().unwrap().claimed += 1;
    }

    fn check(&self, memories: &[Staged; 2]) {
        let shape = self.arriving.shape;
        for ((staged, length), limit) in memories.iter().zip(shape.lengths).zip(shape.limits) {
            assert_eq!(staged.file.metadata().unwrap().len(), length);
            assert!(staged.received.count() * 4096 <= limit);
            assert_eq!(staged.received.pages(), length / 4096);
        }
    }

    /// Its rings begin.
    pub(crate) fn start(&self) {
        let claims: Vec<Claim> = self.claims.lock().unwrap().drain(..).collect();
        for claim in claims {
            match claim.start() {
                Ok(()) => self.came.lock().unwrap().ran += 1,
                Err(error) => assert!(!error.to_string().is_empty()),
            }
        }
    }

    /// Sessions that have taken something end.
    pub(crate) fn forget(&self) {
        drop(self.claims.lock().unwrap().drain(..).collect::<Vec<Claim>>());
    }

    /// Another line, until it has said all.
    pub(crate) fn serve_beside(self: &Arc<Self>, input: &[u8]) {
        let mut threads = self.threads.lock().unwrap();
        if threads.len() < 8 {
            let (target, input, before) = (Arc::clone(self), input.to_vec(), self.lines.count());
            let thread = std::thread::spawn(move || target.serve(&input, false));
            self.lines.wait(before, || thread.is_finished());
            threads.push(thread);
        }
    }

    /// One line, to its end.
    pub(crate) fn serve(self: &Arc<Self>, input: &[u8], is_first: bool) {
        let (wire, said) = Wire::new(self, input, is_first);
        let outcome = self.arrivals.serve_line(Box::new(wire), Box::new(Handle));
        let messages = heard(&said.lock().unwrap());
        let accepted = messages.iter().any(|message| matches!(message, Message::Accept { .. }));
        let stored = messages.contains(&Message::Stored);
        let mut came = self.came.lock().unwrap();
        came.accepted += usize::from(accepted);
        came.stored += usize::from(stored);
        drop(came);
        let Err(error) = outcome else { return };
        assert!(!error.to_string().is_empty());
        if accepted && !matches!(error, MigrationError::Closed | MigrationError::Stalled) {
            match messages.last() {
                Some(Message::GiveUp { reason } | Message::Refused { reason }) => assert!(!reason.is_empty()),
                other => panic!("{error}, and the source hears {other:?}"),
            }
        }
    }
}

/// What the target has said: whole messages.
fn heard(mut bytes: &[u8]) -> Vec<Message> {
    let mut messages = Vec::new();
    let mut body = Vec::new();
    for sequence in 0.. {
        match frame::read_next(&mut bytes, sequence, &mut body).unwrap() {
            None => break,
            Some(kind) => assert_eq!(kind, Kind::Message),
        }
        messages.push(Message::decode(&body).unwrap());
    }
    messages
}

/// Lines one after the other; the first has others beside it. How far they came.
///
/// # Panics
/// Something is wrong with the daemon.
pub(crate) fn run(bytes: &[u8]) -> Came {
    let target = Target::new();
    target.serve(bytes, true);
    target.lines.end();
    for thread in target.threads.lock().unwrap().drain(..) {
        thread.join().expect("a line beside the first");
    }
    target.forget();
    // Nothing is left that a session could take.
    assert!(target.try_claim().is_err());
    let came = *target.came.lock().unwrap();
    assert!(came.ran <= came.claimed && came.claimed <= came.accepted);
    came
}
