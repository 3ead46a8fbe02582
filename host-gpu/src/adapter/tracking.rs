//! What an engine's processes write, tracked from before their first step to after their last.
//!
//! ```text
//!   spawned ──▶ armed by itself: mappings protected, or planes ──Started──▶ attached ──Begin──▶ runs
//!                                                                              │
//!     reset: stopped ─▶ looked at for the last time, carried over ─▶ killed ◀──┤ (with planes: killed, then looked at)
//!                                    died by itself: all of it counts as written ◀──┘ (with planes: looked at)
//! ```

use std::collections::BTreeMap;
use std::io;
use std::process::Child;
use std::sync::Arc;
use std::time::Duration;
use std::time::Instant;

use campanile_protocol::page_table::SegmentId;
use rustix::process::Pid;
use rustix::process::Signal;
use rustix::process::WaitId;
use rustix::process::WaitIdOptions;
use rustix::process::kill_process;
use rustix::process::waitid;

use super::process::EngineProcess;
use crate::dirty::method::Method;
use crate::dirty::pagemap::Pagemap;
use crate::dirty::planes::Planes;
use crate::dirty::tracker::EngineKey;
use crate::dirty::tracker::Last;
use crate::dirty::tracker::Tracker;
use crate::dirty::view::EngineView;
use crate::dirty::view::How;

/// How long a process may take to stop, before what it wrote counts as unknown.
const STOP_LIMIT: Duration = Duration::from_millis(100);
/// Between two looks whether it has.
const STOP_LOOK: Duration = Duration::from_micros(20);
/// Ranges that are kept of one segment of guest RAM; beyond that it is all of it.
const MANY: usize = 4096;

/// Tracking of one engine, over all its processes.
#[derive(Debug)]
pub(super) struct Tracking {
    method: Method,
    tracker: Option<Arc<Tracker>>,
    vram_bytes: u64,
    pub(super) planes: Option<Arc<Planes>>,
    /// The process that is there, or was last.
    view: Arc<EngineView>,
    /// While it runs.
    key: Option<EngineKey>,
    /// What processes that have ended wrote to guest RAM, and that has not been taken yet.
    left: BTreeMap<SegmentId, Vec<(u64, u64)>>,
    /// Whether that is asked for.
    is_logged: bool,
}

impl Tracking {
    pub(super) fn new(method: Method, tracker: Option<&Arc<Tracker>>, vram_bytes: u64) -> io::Result<Self> {
        let planes = if method.has_planes() { Some(Arc::new(Planes::new(vram_bytes)?)) } else { None };
        Ok(Self {
            method,
            tracker: tracker.cloned(),
            vram_bytes,
            planes,
            view: Arc::new(EngineView::new(vram_bytes)),
            key: None,
            left: BTreeMap::new(),
            is_logged: false,
        })
    }

    /// Another process takes the place of the last.
    pub(super) fn renew(&mut self) {
        self.view = Arc::new(EngineView::new(self.vram_bytes));
    }

    pub(super) fn view(&self) -> &EngineView {
        &self.view
    }

    /// The process has come up, and touches nothing yet.
    pub(super) fn attach(&mut self, pid: u32, vram: u64) {
        let how = match (self.method, &self.planes) {
            (Method::Off, _) => return,
            (Method::BoundRanges | Method::ShadowCompare, Some(planes)) => How::Planes(Arc::clone(planes)),
            _ => match Pagemap::of_process(pid) {
                Ok(pagemap) => How::Protected { pagemap, vram },
                Err(error) => {
                    log::warn!(
                        "engine process {pid}: all memory counts as written: its pages cannot be seen: {error}"
                    );
                    How::Unknown
                }
            },
        };
        self.view.begin(how);
        if let Some(tracker) = &self.tracker {
            self.key = Some(tracker.attach(Arc::clone(&self.view)));
        }
    }

    /// It is about to be killed: what the kernel noted of it goes with it. Whether it stands still by now, and all that it
    /// will ever have written is known.
    pub(super) fn before_kill(&mut self, child: &Child) -> bool {
        if self.method != Method::WriteProtect || self.key.is_none() {
            return false;
        }
        match stop(child) {
            Ok(()) => {
                self.look(Last::Look);
                true
            }
            Err(error) => {
                log::warn!("engine process {} does not stop: {error}", child.id());
                self.look(Last::Unscanned);
                false
            }
        }
    }

    /// It has ended.
    pub(super) fn after_end(&mut self) {
        if self.key.is_some() {
            self.look(Last::Look);
        }
    }

    /// For the last time.
    fn look(&mut self, last: Last) {
        let is_known = match self.tracker.as_ref().zip(self.key.take()) {
            Some((tracker, key)) => tracker.detach(key, last),
            None => true,
        };
        if !is_known {
            log::info!(
                "an engine process ended before it was seen what it wrote: all memory counts as written"
            );
        }
        if self.is_logged {
            let left = &mut self.left;
            self.view.sweep(None, |segment, at, length| {
                let ranges = left.entry(segment).or_default();
                match ranges.first() {
                    Some((0, u64::MAX)) => {}
                    _ if ranges.len() >= MANY => *ranges = vec![(0, u64::MAX)],
                    _ => ranges.push((at, length)),
                }
            });
        }
        self.view.close();
    }
}

/// Stops a process, all threads of it, or waits until it has ended, all threads of it: either way none of its own steps writes
/// any more. One that is stopped keeps its pages, which are looked at before it is killed, and only root or its own user could
/// continue it; of one that has ended by itself they are gone, which the look is told (`ESRCH`), and all counts as written. A
/// thread within a system call that writes keeps the process from being stopped, and so from being known.
fn stop(child: &Child) -> io::Result<()> {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| io::Error::other("a process without an id"))?;
    kill_process(pid, Signal::STOP)?;
    // Nothing is taken: the later reap finds what there is to find.
    let options =
        WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
    let begun = Instant::now();
    loop {
        if waitid(WaitId::Pid(pid), options)?.is_some() {
            return Ok(());
        }
        if begun.elapsed() >= STOP_LIMIT {
            return Err(io::ErrorKind::TimedOut.into());
        }
        std::thread::sleep(STOP_LOOK);
    }
}

impl EngineProcess {
    /// How its writes are tracked.
    pub fn tracking_method(&self) -> Method {
        self.tracking.method
    }

    /// It is about to be told, by the request with this serial, to map a segment of guest RAM of `length` bytes.
    pub fn announce_segment(&self, id: SegmentId, serial: u64, length: u64) {
        if let Some(planes) = self.tracking.planes.as_ref().filter(|_| !self.lost) {
            planes.forget_segment(id.0);
        }
        self.tracking.view.announce_segment(id, serial, length);
    }

    /// Whether what it writes to guest RAM is asked for.
    pub fn log_guest_writes(&mut self, is_logged: bool) {
        self.tracking.is_logged = is_logged;
        if !is_logged {
            self.tracking.left.clear();
        }
    }

    /// Takes out what was written to segments of guest RAM, or to one of them, by this process and by those before it:
    /// segment, byte, bytes, which may reach past the end of the segment.
    pub fn sweep_guest_writes(
        &mut self,
        only: Option<SegmentId>,
        mut found: impl FnMut(SegmentId, u64, u64),
    ) {
        let taken = match only {
            None => std::mem::take(&mut self.tracking.left),
            Some(id) => self.tracking.left.remove(&id).map(|ranges| (id, ranges)).into_iter().collect(),
        };
        for (segment, ranges) in taken {
            ranges.into_iter().for_each(|(at, length)| found(segment, at, length));
        }
        if self.tracking.key.is_some() {
            self.tracking.view.sweep(only, found);
        }
    }
}
