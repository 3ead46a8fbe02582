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
use std::sync::Arc;

use campanile_protocol::page_table::SegmentId;

use super::launcher::Instance;
use crate::dirty::method::Method;
use crate::dirty::pagemap::Pagemap;
use crate::dirty::planes::Planes;
use crate::dirty::tracker::EngineKey;
use crate::dirty::tracker::Last;
use crate::dirty::tracker::Tracker;
use crate::dirty::view::EngineView;
use crate::dirty::view::How;

/// Ranges that are kept of one segment of guest RAM; beyond that it is all of it.
const MANY: usize = 4096;

/// Tracking of one engine, over all its processes.
#[derive(Debug)]
pub struct Tracking {
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
    pub(super) fn before_kill(&mut self, instance: &dyn Instance) -> bool {
        if self.method != Method::WriteProtect || self.key.is_none() {
            return false;
        }
        match instance.stand_still() {
            Ok(()) => {
                self.look(Last::Look);
                true
            }
            Err(error) => {
                log::warn!("engine process {} does not stop: {error}", instance.id());
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

    /// How its writes are tracked.
    pub fn method(&self) -> Method {
        self.method
    }

    /// It is about to be told, by the request with this serial, to map a segment of guest RAM of `length` bytes.
    pub(super) fn announce_segment(&self, id: SegmentId, serial: u64, length: u64, is_lost: bool) {
        if let Some(planes) = self.planes.as_ref().filter(|_| !is_lost) {
            planes.forget_segment(id.0);
        }
        self.view.announce_segment(id, serial, length);
    }

    /// Whether what it writes to guest RAM is asked for.
    pub fn log_guest_writes(&mut self, is_logged: bool) {
        self.is_logged = is_logged;
        if !is_logged {
            self.left.clear();
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
            None => std::mem::take(&mut self.left),
            Some(id) => self.left.remove(&id).map(|ranges| (id, ranges)).into_iter().collect(),
        };
        for (segment, ranges) in taken {
            ranges.into_iter().for_each(|(at, length)| found(segment, at, length));
        }
        if self.key.is_some() {
            self.view.sweep(only, found);
        }
    }
}
