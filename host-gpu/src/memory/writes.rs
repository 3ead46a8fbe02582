//! What an engine is about to write, for the daemon: in the tracking method where only the engine can see it.
//!
//! ```text
//!   packet resolved for writing ──▶ open ──▶ its work runs ──▶ all work is done ──▶ touched, no longer open
//!   ring control, device page ────▶ held ─────────────── forgotten ───────────────▶ touched, no longer held
//! ```
//!
//! Owned by the execution thread. Without planes nothing is noted, and nothing costs anything.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use campanile_protocol::PAGE_SIZE;
use campanile_protocol::engine::written::HELD;
use campanile_protocol::engine::written::Layout;
use campanile_protocol::engine::written::OPEN;
use campanile_protocol::engine::written::TOUCHED;
use campanile_protocol::engine::written::part_bytes;
use campanile_protocol::page_table::SegmentId;

use super::bits::masks;
use super::mapping::Mapping;
use super::page_table::reader::Run;

/// Ranges that are remembered, before the thread that runs work is asked to wait for it.
const MANY: usize = 256;

/// Bits of a plane: pages of video memory, or parts of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Span {
    segment: SegmentId,
    first: u64,
    count: u64,
}

/// Whether offsets in a segment are those in the video memory, wherever that lies.
fn is_video(segment: SegmentId) -> bool {
    matches!(segment, SegmentId::VRAM | SegmentId::LOCAL)
}

impl Span {
    fn covers(&self, other: &Self) -> bool {
        self.segment == other.segment
            && self.first <= other.first
            && other.first + other.count <= self.first + self.count
    }
}

/// The engine's side of the planes.
#[derive(Debug, Default)]
pub struct Writes {
    planes: Option<(Arc<Mapping>, Layout)>,
    open: RefCell<Vec<Span>>,
    held: RefCell<Vec<Span>>,
}

impl Writes {
    /// Over the planes of this engine.
    pub fn new(planes: Arc<Mapping>, layout: Layout) -> Self {
        Self { planes: Some((planes, layout)), ..Self::default() }
    }

    /// Whether anything is noted.
    pub fn is_on(&self) -> bool {
        self.planes.is_some()
    }

    /// Work that is about to start may write to this run, which lies in a segment of `length` bytes.
    pub fn open(&self, run: Run, length: u64) {
        self.begin(OPEN, &self.open, run, length);
    }

    /// From here on, until [`Self::let_go`], this run may be stored to at any time.
    pub fn hold(&self, run: Run, length: u64) {
        self.begin(HELD, &self.held, run, length);
    }

    fn begin(&self, plane: u64, list: &RefCell<Vec<Span>>, run: Run, length: u64) {
        if !self.is_on() || run.length == 0 || run.segment == SegmentId::FENCES {
            return;
        }
        let unit = if is_video(run.segment) { PAGE_SIZE } else { part_bytes(length) };
        let first = run.offset / unit;
        let count = (run.offset + run.length).div_ceil(unit) - first;
        let span = Span { segment: run.segment, first, count };
        let mut list = list.borrow_mut();
        if !list.iter().any(|other| other.covers(&span)) {
            self.set(plane, &span);
            list.push(span);
        }
    }

    /// Whether so much is open that the work that is under way should be waited for.
    pub fn are_many(&self) -> bool {
        self.open.borrow().len() >= MANY
    }

    /// All work that was started is done.
    pub fn close(&self) {
        if self.is_on() {
            self.end(OPEN, &self.open);
        }
    }

    /// No place of what was held is known any more.
    pub fn let_go(&self) {
        if self.is_on() {
            self.end(HELD, &self.held);
        }
    }

    fn end(&self, plane: u64, list: &RefCell<Vec<Span>>) {
        let mut list = list.borrow_mut();
        for span in list.iter() {
            // PAIRS WITH dirty/planes.rs `take`: touched before it is not open any more.
            self.set(TOUCHED, span);
        }
        for span in list.drain(..) {
            self.change(plane, &span, |word, mask| {
                word.fetch_and(!mask, Ordering::Release);
            });
        }
    }

    fn set(&self, plane: u64, span: &Span) {
        self.change(plane, span, |word, mask| {
            word.fetch_or(mask, Ordering::AcqRel);
        });
    }

    fn change(&self, plane: u64, span: &Span, change: impl Fn(&std::sync::atomic::AtomicU64, u64)) {
        let Some((shared, layout)) = &self.planes else { return };
        for (index, mask) in masks(span.first, span.count) {
            let place = if is_video(span.segment) {
                layout.vram(plane, index)
            } else {
                layout.segment(plane, span.segment.0)
            };
            if let Some(word) = shared.word(place) {
                change(word, mask);
            }
        }
    }
}
