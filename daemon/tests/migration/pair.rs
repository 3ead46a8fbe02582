//! A source and a target.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;
use std::time::Instant;

use campanile_daemon::migration::channel::address::Peer;
use campanile_daemon::migration::channel::connect::Door;
use campanile_daemon::migration::channel::tls::Identity;
use campanile_daemon::migration::id::BundleId;
use campanile_daemon::migration::pages::PAGE;
use campanile_daemon::migration::passes::plan::Goal;
use campanile_daemon::migration::settings::Settings;
use campanile_daemon::migration::settings::Timeouts;
use campanile_daemon::migration::source::departing::Departing;
use campanile_daemon::migration::source::departure::Departure;
use campanile_daemon::migration::stage::Shape;
use campanile_daemon::migration::stage::Staged;
use campanile_daemon::migration::target::arrivals::Arrivals;
use campanile_daemon::migration::target::arrivals::Claim;
use campanile_daemon::migration::target::arriving::Arriving;
use campanile_daemon::vgpu::objects::kernel_board::KernelBoard;
use serde_json::Value;
use tempfile::TempDir;

use crate::memory::Memory;

pub(crate) const VRAM_PAGES: u64 = 1024;
pub(crate) const EVICTED_PAGES: u64 = 2048;
pub(crate) const IMMUTABLE: &[u8] = b"the same at both ends";
pub(crate) const NAME: &str = "vgpu0";

/// Long enough for a busy machine, short enough for a test that waits for it.
pub(crate) const SHORT: Timeouts = Timeouts {
    message: Duration::from_millis(400),
    answer: Duration::from_millis(400),
    claim: Duration::from_secs(20),
};

/// For tests in which nobody stands still.
pub(crate) const LONG: Timeouts = Timeouts {
    message: Duration::from_secs(20),
    answer: Duration::from_secs(20),
    claim: Duration::from_secs(60),
};

pub(crate) fn eventually(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A vGPU as a target.
pub(crate) fn arriving(name: &str) -> Arriving {
    Arriving {
        name: name.to_owned(),
        peers: Vec::new(),
        shape: Shape {
            lengths: [VRAM_PAGES * PAGE, EVICTED_PAGES * PAGE],
            limits: [VRAM_PAGES * PAGE, EVICTED_PAGES * PAGE / 2],
        },
        check: Box::new(|immutable| {
            if immutable == IMMUTABLE { Ok(()) } else { Err("the driver is another one".to_owned()) }
        }),
        compiler: None,
    }
}

/// A daemon that takes vGPUs.
pub(crate) struct Target {
    pub(crate) arrivals: Arrivals,
    pub(crate) _folder: TempDir,
}

impl Target {
    pub(crate) fn new(timeouts: Timeouts) -> Self {
        let folder = TempDir::new().unwrap();
        let at = Peer::Unix(folder.path().join("door"));
        let door = Door::open(&at, None).unwrap();
        Self {
            arrivals: Arrivals::serve(door, vec![Arc::new(arriving(NAME))], timeouts, Arc::default())
                .unwrap(),
            _folder: folder,
        }
    }

    pub(crate) fn on(at: &Peer, identity: Option<&Identity>, timeouts: Timeouts) -> Self {
        let door = Door::open(at, identity).unwrap();
        let arrivals =
            Arrivals::serve(door, vec![Arc::new(arriving(NAME))], timeouts, Arc::default()).unwrap();
        Self { arrivals, _folder: TempDir::new().unwrap() }
    }

    pub(crate) fn peer(&self) -> Peer {
        self.arrivals.address().unwrap().clone()
    }

    pub(crate) fn bundles(&self) -> Vec<Value> {
        self.arrivals.describe()["bundles"].as_array().unwrap().clone()
    }

    /// Nothing is left of anything that came.
    pub(crate) fn is_clean(&self) -> bool {
        self.bundles().is_empty()
    }

    pub(crate) fn claim(&self, bundle: BundleId) -> (Claim, [Staged; 2]) {
        let mut claim = self.arrivals.claim(NAME, bundle).unwrap();
        let memories = claim.take_memories().unwrap();
        (claim, memories)
    }
}

/// A guest's vGPU.
pub(crate) struct Source {
    pub(crate) departure: Arc<Departure>,
    pub(crate) memories: [Arc<Memory>; 2],
    pub(crate) kernels: Arc<KernelBoard>,
}

impl Source {
    pub(crate) fn new(settings: Settings) -> Self {
        Self::with(settings, [Memory::new(VRAM_PAGES), Memory::new(EVICTED_PAGES)])
    }

    pub(crate) fn with(settings: Settings, memories: [Memory; 2]) -> Self {
        let memories = memories.map(Arc::new);
        let departure = Arc::new(Departure::new(NAME.to_owned(), settings).unwrap());
        let source = Self { departure, memories, kernels: Arc::default() };
        source.attach(IMMUTABLE);
        source
    }

    pub(crate) fn attach(&self, immutable: &[u8]) {
        self.attach_in(immutable, None);
    }

    /// As a session whose memories lie in these files.
    pub(crate) fn attach_in(&self, immutable: &[u8], files: Option<[File; 2]>) {
        let [vram, evicted] = &self.memories;
        let memories = [Arc::clone(vram) as _, Arc::clone(evicted) as _];
        self.departure.attach(Departing {
            immutable: immutable.to_vec(),
            memories,
            files,
            code: Vec::new(),
            kernels: Arc::clone(&self.kernels),
            local: None,
        });
    }

    /// The guest has written here and there.
    pub(crate) fn scribble(&self) {
        let [vram, evicted] = &self.memories;
        for page in (0..VRAM_PAGES / 2).filter(|page| page % 3 != 0) {
            vram.fill(page, u8::try_from(page % 251).unwrap());
        }
        for page in [0, 1, 77, EVICTED_PAGES - 1] {
            evicted.fill(page, 5);
        }
        vram.fill(VRAM_PAGES - 1, 9);
    }

    pub(crate) fn phase(&self) -> String {
        self.departure.describe()["phase"].as_str().unwrap().to_owned()
    }

    pub(crate) fn doing(&self) -> String {
        self.departure.describe()["progress"]["doing"].as_str().unwrap_or_default().to_owned()
    }

    /// Until the brownout waits for the pause.
    pub(crate) fn converge(&self) {
        eventually("the brownout waits", || self.doing().starts_with("waiting"));
    }

    pub(crate) fn passes(&self) -> Vec<Value> {
        self.departure.describe()["progress"]["passes"].as_array().unwrap().clone()
    }
}

pub(crate) fn settings(peer: Peer, timeouts: Timeouts) -> Settings {
    let goal = Goal { pause: Duration::from_millis(1), passes: 4 };
    Settings { peer: Some(peer), timeouts, goal, ..Settings::default() }
}

/// What was staged is what the source has.
pub(crate) fn assert_same(memories: &[Arc<Memory>; 2], staged: &[Staged; 2]) {
    for (memory, staged) in memories.iter().zip(staged) {
        let expected = memory.contents();
        let mut found = vec![0; expected.len()];
        staged.file.read_exact_at(&mut found, 0).unwrap();
        assert!(found == expected, "the target differs from the source");
        let length = usize::try_from(PAGE).unwrap();
        for (page, bytes) in (0..).zip(expected.chunks(length)) {
            let is_zero = bytes.iter().all(|byte| *byte == 0);
            assert!(is_zero || staged.received.contains(page), "page {page} does not count as written");
        }
    }
}
