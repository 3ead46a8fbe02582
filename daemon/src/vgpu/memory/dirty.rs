//! What is written, as a session has it: video memory and what is evicted are tracked by the [`Tracker`]s of the memory
//! itself; what engines write to guest RAM is swept into the VMM's log.
//!
//! ```text
//!   hand-outs, moves, evictions ───┐                         ┌── engines: attached before they begin (adapter)
//!   device pages (page.rs) ────────┴──▶ Tracker::mark   Tracker ◀── CPU-visible pages: aperture places (vidmm)
//!
//!   engines ──sweep: every few ms while there is a log, when a segment goes, and by freezes──▶ log ◀── device
//!                                                                                                      pages in guest RAM
//! ```

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::time::Duration;
use std::time::Instant;

use campanile_host_gpu::dirty::caps::AdapterCaps;
use campanile_host_gpu::dirty::caps::CapsError;
use campanile_host_gpu::dirty::caps::DirtyCaps;
use campanile_host_gpu::dirty::caps::adapter_start;
use campanile_host_gpu::dirty::error::DirtyError;
use campanile_host_gpu::dirty::tracker::Tracker;

use super::vidmm::vram::VideoMemory;
use crate::guest_ram::mark::MarkGuestRam;

/// Least time between two sweeps.
pub(in crate::vgpu) const SWEEP: Duration = Duration::from_millis(5);
/// Sweeping takes at most one part in so many of the time.
pub(in crate::vgpu) const SWEEP_PART: u32 = 10;

/// The VMM's log, and when engines are asked next.
#[derive(Debug, Default)]
pub struct Dirty {
    pub(in crate::vgpu) log: Option<Arc<dyn MarkGuestRam>>,
    pub(in crate::vgpu) sweep_at: Option<Instant>,
}

impl Dirty {
    /// The log, if there is one.
    pub fn log(&self) -> Option<&Arc<dyn MarkGuestRam>> {
        self.log.as_ref()
    }

    /// Whether there is one.
    pub fn has_log(&self) -> bool {
        self.log.is_some()
    }
}

/// Where a vGPU shows the trackers of its memory, to threads that are not its own. Empty while no VM is there.
#[derive(Debug, Default)]
pub struct TrackerBoard {
    shown: Mutex<Option<[Arc<Tracker>; 2]>>,
}

impl TrackerBoard {
    pub(in crate::vgpu) fn lock(&self) -> MutexGuard<'_, Option<[Arc<Tracker>; 2]>> {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Of video memory and of what is evicted, as long as there is a session.
    pub fn trackers(&self) -> Option<[Arc<Tracker>; 2]> {
        self.lock().clone()
    }
}

/// The memory of a vGPU, asked as an adapter.
struct Memories<'a> {
    memory: &'a VideoMemory,
    live_migration: bool,
}

impl DirtyCaps for Memories<'_> {
    fn adapter_caps(&mut self) -> AdapterCaps {
        let caps = self.memory.tracker().caps();
        let live_migration = self.live_migration;
        AdapterCaps { supported: caps.supported, performant: caps.performant, live_migration }
    }

    fn segment_page_size(&mut self, segment: u32) -> Result<u64, DirtyError> {
        let trackers = [self.memory.tracker(), self.memory.evicted_tracker()];
        let tracker = trackers.into_iter().find(|tracker| tracker.segment() == segment);
        let caps = tracker.ok_or(DirtyError::Segment(segment))?.caps();
        if caps.supported { Ok(caps.page_size) } else { Err(DirtyError::NotImplemented) }
    }
}

/// Whether a vGPU over this memory may start: with live migration, all of it must be tracked (DIRTY-10, LM-02).
pub(in crate::vgpu) fn check_caps(memory: &VideoMemory, live_migration: bool) -> Result<(), CapsError> {
    let segments = [memory.tracker().segment(), memory.evicted_tracker().segment()];
    adapter_start(&mut Memories { memory, live_migration }, &segments).map(|_| ())
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt;
    use std::sync::Arc;
    use std::sync::Mutex;
    use std::sync::mpsc;
    use std::time::Duration;
    use std::time::Instant;

    use campanile_host_gpu::adapter::stand_in::StandIn;
    use campanile_host_gpu::dirty::caps::AdapterCaps;
    use campanile_host_gpu::dirty::caps::CapsError;
    use campanile_host_gpu::dirty::caps::DirtyCaps;
    use campanile_host_gpu::dirty::error::DirtyError;
    use campanile_host_gpu::dirty::method::Method;
    use campanile_host_gpu::engine::channel::Channel;
    use campanile_host_gpu::engine::message::Response;
    use campanile_host_gpu::engine::message::RunRecord;
    use campanile_host_gpu::engine::message::Start;
    use campanile_host_gpu::memory::vram::create_memfd;
    use campanile_protocol::PAGE_SIZE;
    use campanile_protocol::page_table::SegmentId;

    use super::Memories;
    use super::check_caps;
    use crate::guest_ram::mark::MarkGuestRam;
    use crate::vgpu::config::Config;
    use crate::vgpu::control::guest_pages::GuestPages;
    use crate::vgpu::engines::lifecycle::Lifecycle;
    use crate::vgpu::memory::segments::GuestSegment;
    use crate::vgpu::memory::vidmm::vram::VideoMemory;
    use crate::vgpu::objects::budget::Kind;
    use crate::vgpu::session::Session;
    use crate::vgpu::testing::COPY;
    use crate::vgpu::testing::config;
    use crate::vgpu::testing::session;

    /// What a VMM was told: guest-physical address and bytes.
    #[derive(Debug, Default)]
    struct Log(Mutex<Vec<(u64, u64)>>);

    impl Log {
        fn taken(&self) -> Vec<(u64, u64)> {
            std::mem::take(&mut *self.0.lock().unwrap())
        }
    }

    impl MarkGuestRam for Log {
        fn mark(&self, guest_physical: u64, length: u64) {
            self.0.lock().unwrap().push((guest_physical, length));
        }
    }

    const FIRST: (u64, u64) = (0x10_0000, PAGE_SIZE);
    const SECOND: (u64, u64) = (0x40_0000, PAGE_SIZE);

    fn add_segment(session: &mut Session, piece: (u64, u64)) -> SegmentId {
        let ram = create_memfd("ram", PAGE_SIZE).unwrap();
        let runs = vec![RunRecord { file: 0, offset: 0, length: PAGE_SIZE }];
        let segment = GuestSegment::new(runs, vec![Arc::new(ram)], vec![piece]);
        let charge = session.vm.purse.charge(Kind::Blobs, 1).unwrap();
        session.vm.memory.segments.insert(segment, charge).unwrap()
    }

    /// A session with two segments of guest RAM, whose copy engine, the other end of the channel, says at every look that
    /// it writes to all of both.
    fn writing() -> (Session, Channel, [SegmentId; 2]) {
        let (stand_in, starts) = mpsc::channel();
        let launcher = Arc::new(StandIn(stand_in));
        let config = Config { tracking: Method::BoundRanges, launcher, ..config() };
        let mut session = session(&Arc::new(config));
        let segments = [FIRST, SECOND].map(|piece| add_segment(&mut session, piece));
        assert!(
            !Lifecycle::of(&mut session.vm)
                .ensure_engine(COPY)
                .unwrap_or_else(|refused| panic!("{}", refused.text))
        );
        let engine = starts.recv().unwrap();
        let start = engine.receive::<Start>(true).unwrap().unwrap();
        let planes = File::from(start.descriptors.into_iter().next_back().unwrap());
        let bytes = usize::try_from(planes.metadata().unwrap().len()).unwrap();
        planes.write_all_at(&vec![0xff; bytes], 0).unwrap();
        let started =
            Response::Started { device: "a device".to_owned(), is_cpu: true, vram: 0, profile: None };
        engine.send(&started, &[], &[], false).unwrap();
        Lifecycle::of(&mut session.vm).engine_responses(COPY);
        assert!(session.vm.engines[COPY.index()].has_begun());
        (session, engine, segments)
    }

    /// A session that writes, and its log, which is empty again.
    fn logged() -> (Session, Channel, Arc<Log>, [SegmentId; 2]) {
        let (mut session, engine, segments) = writing();
        let log = Arc::new(Log::default());
        GuestPages::of(&mut session.vm).set_dirty_log(Some(Arc::clone(&log) as _));
        log.taken();
        (session, engine, log, segments)
    }

    #[test]
    fn the_board_shows_the_trackers_of_the_session_that_is_there_and_no_other_takes_them_off() {
        let config = Arc::new(config());
        let board = Arc::clone(&config.trackers);
        let shows = |session: &Session| {
            let shown = board.trackers().unwrap();
            shown.iter().zip(&session.memory().trackers()).all(|(shown, its)| Arc::ptr_eq(shown, its))
        };
        assert!(board.trackers().is_none());
        let first = session(&config);
        assert!(shows(&first));
        let second = session(&config);
        assert!(shows(&second) && !shows(&first));
        drop(first);
        assert!(shows(&second));
        drop(second);
        assert!(board.trackers().is_none());
    }

    #[test]
    fn dirty_05_dirty_10_lm_02_a_memory_answers_for_its_own_segments_and_migrates_only_if_it_is_tracked() {
        let memory = |method| VideoMemory::new(1 << 20, 1 << 20, method).unwrap();
        let (tracked, other) = (memory(Method::BoundRanges), memory(Method::Off));
        assert_eq!((check_caps(&tracked, true), check_caps(&tracked, false)), (Ok(()), Ok(())));
        assert_eq!(check_caps(&other, false), Ok(()));
        assert_eq!(check_caps(&other, true), Err(CapsError::MigrationWithoutTracking));
        let mut memories = Memories { memory: &tracked, live_migration: true };
        let caps = tracked.tracker().caps();
        let expected = AdapterCaps { supported: true, performant: caps.performant, live_migration: true };
        assert_eq!(memories.adapter_caps(), expected);
        for tracker in [tracked.tracker(), tracked.evicted_tracker()] {
            assert_eq!(memories.segment_page_size(tracker.segment()), Ok(tracker.caps().page_size));
        }
        assert_eq!(memories.segment_page_size(99), Err(DirtyError::Segment(99)));
        let mut memories = Memories { memory: &other, live_migration: true };
        let segment = other.tracker().segment();
        assert_eq!(memories.segment_page_size(segment), Err(DirtyError::NotImplemented));
    }

    #[test]
    fn dirty_55_a_log_has_what_engines_wrote_when_it_comes_and_before_it_goes_and_only_while_it_is_there() {
        let (mut session, _engine, _) = writing();
        assert!(!session.vm.memory.dirty.has_log() && session.vm.memory.dirty.log().is_none());
        assert_eq!(session.vm.memory.describe_tracking()["guest_ram_logged"], false);
        GuestPages::of(&mut session.vm).sweep_guest_ram();
        assert_eq!(session.vm.memory.dirty.sweep_at, None, "no log, no sweeps");
        let [one, two] = [(); 2].map(|()| Arc::new(Log::default()));
        let before = Instant::now();
        GuestPages::of(&mut session.vm).set_dirty_log(Some(Arc::clone(&one) as _));
        assert_eq!(one.taken(), [FIRST, SECOND]);
        assert!(session.vm.memory.dirty.sweep_at.is_some_and(|at| at > before), "and again later");
        assert!(session.vm.memory.dirty.has_log() && session.vm.memory.dirty.log().is_some());
        assert_eq!(session.vm.memory.describe_tracking()["guest_ram_logged"], true);
        GuestPages::of(&mut session.vm).set_dirty_log(Some(Arc::clone(&two) as _));
        assert_eq!((one.taken(), two.taken()), (vec![], vec![FIRST, SECOND]), "the next log has it");
        GuestPages::of(&mut session.vm).set_dirty_log(None);
        assert_eq!((one.taken(), two.taken()), (vec![], vec![FIRST, SECOND]));
        assert_eq!(session.vm.memory.dirty.sweep_at, None);
    }

    #[test]
    fn dirty_55_guest_ram_is_swept_when_that_is_due_and_not_before() {
        let (mut session, _engine, log, _) = logged();
        session.vm.memory.dirty.sweep_at = Some(Instant::now() + Duration::from_secs(3600));
        GuestPages::of(&mut session.vm).sweep_if_due();
        assert_eq!(log.taken(), []);
        session.vm.memory.dirty.sweep_at = Some(Instant::now());
        GuestPages::of(&mut session.vm).sweep_if_due();
        assert_eq!(log.taken(), [FIRST, SECOND]);
    }

    #[test]
    fn dirty_55_a_segment_that_goes_is_swept_alone_and_an_engine_that_goes_for_the_last_time() {
        let (mut session, _engine, log, segments) = logged();
        GuestPages::of(&mut session.vm).sweep_segment(segments[1]);
        assert_eq!(log.taken(), [SECOND]);
        Lifecycle::of(&mut session.vm).stop_engine(COPY);
        assert!(session.vm.engines[COPY.index()].process().is_none());
        assert_eq!(log.taken(), [FIRST, SECOND]);
        GuestPages::of(&mut session.vm).sweep_guest_ram();
        assert_eq!(log.taken(), []);
    }
}
