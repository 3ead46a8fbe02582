use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::mpsc;
use std::thread;

use campanile_host_gpu::adapter::stand_in::StandIn;
use campanile_host_gpu::dirty::method::Method;
use campanile_host_gpu::engine::channel::Channel;
use campanile_host_gpu::engine::message::Request;
use campanile_host_gpu::engine::message::Response;
use campanile_host_gpu::engine::message::Start;
use campanile_host_gpu::memory::local::Passport;

use super::*;
use crate::vgpu::config::Config;
use crate::vgpu::memory::vidmm::device_local::DeviceLocal;
use crate::vgpu::memory::vidmm::vram::VideoMemory;
use crate::vgpu::state::restore::install::drop_claims;
use crate::vgpu::state::saved::process::SavedDevice;
use crate::vgpu::state::saved::process::SavedProcess;
use crate::vgpu::testing::config;
use crate::vgpu::testing::session;

const MIB: u64 = 1 << 20;
/// Where local memory begins, and its bytes.
const LOCAL: u64 = 32 * MIB;

#[test]
fn what_was_received_of_a_place_is_copied_with_short_gaps_and_nothing_beside_it() {
    let mut received = PageSet::none(1000);
    [0..5, 10..12, 12 + GAP..13 + GAP, 200..300].into_iter().for_each(|run| received.insert(run));
    assert_eq!(runs(&received, 0, 1000), [(0, 13 + GAP), (200, 300)]);
    assert_eq!(runs(&received, 3, 11), [(3, 11)]);
    assert_eq!(runs(&received, 220, 240), [(220, 240)]);
    assert_eq!(runs(&received, 300, 1000), []);
    assert_eq!(runs(&received, 80, 150), []);
}

/// What a process copied: from where, to where, bytes.
type Copied = (MoveSide, MoveSide, u64);

/// A vGPU whose local memory is a device's own, and the channels of the processes that it starts. Each session is one of a
/// VM: the first has that memory as it was allocated.
struct Bench {
    config: Arc<Config>,
    starts: Mutex<mpsc::Receiver<Channel>>,
}

impl Bench {
    fn new() -> Self {
        let (stand_in, starts) = mpsc::channel();
        let descriptor = create_memfd("opaque", LOCAL).unwrap().into();
        let device = DeviceLocal::new(descriptor, Passport { length: LOCAL, ..Passport::default() });
        let (local, launcher) = (Some(Arc::new(device)), Arc::new(StandIn(stand_in)));
        let config = Config { local, launcher, tracking: Method::BoundRanges, ..config() };
        Self { config: Arc::new(config), starts: Mutex::new(starts) }
    }

    /// Fills, while a process refuses so many times and then copies; what it copied, and what came of it.
    fn fill(
        &self,
        session: &mut Session,
        contents: Contents,
        received: &PageSet,
        state: &SavedSession,
        refusals: usize,
    ) -> (Vec<Copied>, Result<(), MigrationError>) {
        thread::scope(|scope| {
            let (over, is_over) = mpsc::channel::<()>();
            let plays = scope.spawn(move || self.play(refusals, &is_over));
            let filled = fill(session, contents, received, state);
            drop(over);
            (plays.join().unwrap(), filled)
        })
    }

    fn play(&self, mut refusals: usize, is_over: &mpsc::Receiver<()>) -> Vec<Copied> {
        let (starts, mut copied) = (self.starts.lock().unwrap(), Vec::new());
        loop {
            let channel = match starts.try_recv() {
                Ok(channel) => channel,
                Err(_) if is_over.try_recv() == Err(mpsc::TryRecvError::Disconnected) => return copied,
                Err(_) => {
                    thread::yield_now();
                    continue;
                }
            };
            let start = channel.receive::<Start>(true).unwrap().unwrap();
            let evicted = start.descriptors.last().map(|file| rustix::fs::fstat(file).unwrap().st_size);
            // What came lies in the file of the video memory; nothing else is to be seen.
            let came = VideoMemory::file_bytes_of(self.config.vram_bytes);
            assert_eq!((start.message.vram_bytes, evicted), (PAGE, i64::try_from(came).ok()));
            let device = "a device".to_owned();
            let started = Response::Started { device, is_cpu: true, vram: 0, profile: None };
            channel.send(&started, &[], &[], true).unwrap();
            while let Ok(Some(request)) = channel.receive::<Request>(true) {
                let Request::Move { serial, from, to, bytes } = request.message else { continue };
                let answer = if refusals > 0 {
                    refusals -= 1;
                    Response::MoveRefused { serial, reason: "it is broken".to_owned() }
                } else {
                    copied.push((from, to, bytes));
                    Response::Moved { serial }
                };
                // The daemon may have ended it by now.
                let _gone = channel.send(&answer, &[], &[], true);
            }
        }
    }

    /// What an earlier VM has left and is not zero.
    fn is_stale(&self, session: &Session, offset: u64) -> bool {
        let device = session.video_memory().device().unwrap();
        device.reader().port().device.stale_within(offset, PAGE) == [(offset, PAGE)]
    }
}

/// A state with these allocations, by number, and a process whose device page is the first one.
fn state(allocations: &[(u64, u64, SavedPlace)]) -> SavedSession {
    let device = SavedDevice { page_allocation: 1, ..SavedDevice::default() };
    SavedSession {
        allocations: allocations
            .iter()
            .map(|(id, bytes, place)| SavedAllocation(*id, *bytes, *place, 0))
            .collect(),
        processes: vec![SavedProcess { device: Some(device), ..SavedProcess::default() }],
        ..SavedSession::default()
    }
}

fn received(runs: &[(u64, u64)]) -> PageSet {
    let mut received = PageSet::none(2 * LOCAL / PAGE);
    runs.iter().for_each(|(offset, bytes)| received.insert(offset / PAGE..(offset + bytes) / PAGE));
    received
}

fn whole(offset: u64, bytes: u64) -> Copied {
    (MoveSide::Evicted(offset), MoveSide::Local(offset), bytes)
}

#[test]
fn lm_40_a_place_that_is_zero_gets_what_came_and_one_that_is_not_gets_all_of_it() {
    let bench = Bench::new();
    let state = state(&[(1, MIB, SavedPlace::Local(LOCAL)), (2, MIB, SavedPlace::Local(LOCAL + 2 * MIB))]);
    // Of the first some came, and something of a place that no allocation has.
    let received = received(&[(LOCAL + 8 * PAGE, 2 * PAGE), (LOCAL + MIB, MIB)]);
    let mut first = session(&bench.config);
    first.video_memory().file().write_all_at(&[7; 4096], LOCAL + 8 * PAGE).unwrap();
    let (copied, filled) = bench.fill(&mut first, Contents::InFile, &received, &state, 0);
    filled.unwrap();
    assert_eq!(copied, [whole(LOCAL + 8 * PAGE, 2 * PAGE)]);
    let mut page = [1; 4096];
    first.video_memory().file().read_exact_at(&mut page, LOCAL + 8 * PAGE).unwrap();
    assert_eq!(page, [0; 4096], "the file has given that back");
    drop(first);
    // The next VM: what was there is not zero.
    let mut next = session(&bench.config);
    assert!(bench.is_stale(&next, LOCAL) && bench.is_stale(&next, LOCAL + MIB));
    let (copied, filled) = bench.fill(&mut next, Contents::InFile, &received, &state, 2);
    filled.unwrap();
    assert_eq!(copied, [whole(LOCAL, MIB), whole(LOCAL + 2 * MIB, MIB)]);
    assert!(!bench.is_stale(&next, LOCAL), "it is this VM's");
    assert!(bench.is_stale(&next, LOCAL + MIB), "and that is not");
}

#[test]
fn contents_that_are_in_place_are_not_copied() {
    let bench = Bench::new();
    drop(session(&bench.config));
    let mut next = session(&bench.config);
    let state = state(&[(1, MIB, SavedPlace::Local(LOCAL)), (2, MIB, SavedPlace::Aperture(0))]);
    next.video_memory().file().write_all_at(&[7; 4096], LOCAL).unwrap();
    let (copied, filled) = bench.fill(&mut next, Contents::InPlace, &received(&[(LOCAL, MIB)]), &state, 0);
    filled.unwrap();
    assert!(copied.is_empty() && !bench.is_stale(&next, LOCAL));
    let mut page = [1; 4096];
    next.video_memory().file().read_exact_at(&mut page, LOCAL).unwrap();
    assert_eq!(page, [7; 4096]);
}

#[test]
fn a_place_that_two_have_or_that_is_none_is_refused_and_so_is_what_no_process_copies() {
    let bench = Bench::new();
    let mut target = session(&bench.config);
    let came = received(&[(LOCAL, MIB)]);
    for place in
        [SavedPlace::Local(LOCAL + PAGE), SavedPlace::Local(2 * LOCAL), SavedPlace::Local(LOCAL - PAGE)]
    {
        let wrong = state(&[(1, MIB, SavedPlace::Local(LOCAL)), (2, MIB, place)]);
        let (copied, filled) = bench.fill(&mut target, Contents::InFile, &came, &wrong, 0);
        let text = filled.unwrap_err().to_string();
        assert!(text.contains("the place of allocation 2 is taken, or outside of local memory"), "{text}");
        assert!(copied.is_empty());
        drop_claims(&mut target);
    }
    let right = state(&[(1, MIB, SavedPlace::Local(LOCAL))]);
    let (copied, filled) = bench.fill(&mut target, Contents::InFile, &came, &right, 3);
    let text = filled.unwrap_err().to_string();
    assert!(text.contains("filling local memory of the device") && text.contains("it is broken"), "{text}");
    assert!(copied.is_empty(), "three times, and no fourth");
}

#[test]
fn device_pages_that_would_lie_in_a_devices_memory_lie_among_what_is_evicted_behind_the_rest() {
    let bench = Bench::new();
    let target = session(&bench.config);
    let memory = target.video_memory();
    memory.mapping().slice(LOCAL, PAGE).unwrap().copy_from(&[5_u8; 4096]);
    let mut moving = state(&[
        (1, PAGE, SavedPlace::Local(LOCAL)),
        (2, PAGE, SavedPlace::Local(LOCAL + PAGE)),
        (3, MIB, SavedPlace::Host(2 * PAGE)),
        (4, PAGE, SavedPlace::Aperture(0)),
    ]);
    // A second process, whose page comes behind the first one's.
    let device = SavedDevice { page_allocation: 2, ..SavedDevice::default() };
    moving.processes.push(SavedProcess { device: Some(device), ..SavedProcess::default() });
    moving.allocations.push(SavedAllocation(5, PAGE, SavedPlace::Local(LOCAL + 2 * PAGE), 0));
    let written = || memory.evicted_tracker().pages_written();
    assert_eq!(written(), 0);
    lift_pages(&target, &mut moving).unwrap();
    let places: Vec<_> = moving.allocations.iter().map(|it| it.2).collect();
    let free = 2 * PAGE + MIB;
    assert_eq!(
        places,
        [
            SavedPlace::Host(free),
            SavedPlace::Host(free + PAGE),
            SavedPlace::Host(2 * PAGE),
            SavedPlace::Aperture(0),
            SavedPlace::Local(LOCAL + 2 * PAGE),
        ]
    );
    let mut page = [1; 4096];
    memory.evicted_file().read_exact_at(&mut page, free).unwrap();
    assert_eq!(page, [5; 4096]);
    assert_eq!(written(), 2, "what is there is to go along with a next move");
    // There is no room, and there is no such place.
    let end = memory.mapping_of(Place::Host(0)).len();
    for (page, evicted) in [(LOCAL, end - PAGE), (2 * LOCAL, 0), (LOCAL, u64::MAX - PAGE + 1)] {
        let mut wrong = state(&[(1, PAGE, SavedPlace::Local(page)), (2, PAGE, SavedPlace::Host(evicted))]);
        let refused = lift_pages(&target, &mut wrong);
        if evicted > end {
            // What overflows lies nowhere: the state is refused for it later.
            refused.unwrap();
            continue;
        }
        let text = refused.unwrap_err().to_string();
        assert!(text.contains("no room for allocation 1, which has a device page"), "{text}");
    }
    // Where local memory is the host's, all stays as it is.
    let plain = session(&Arc::new(config()));
    let mut stays = state(&[(1, PAGE, SavedPlace::Local(LOCAL))]);
    lift_pages(&plain, &mut stays).unwrap();
    assert_eq!(stays.allocations[0].2, SavedPlace::Local(LOCAL));
}
