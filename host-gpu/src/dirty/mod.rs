//! Dirty tracking: which pages of a memory were written, by whomever (DIRTY-01 to DIRTY-56).
//!
//! ```text
//!   engine processes ── stores through their own mapping ──▶ EngineView: pagemap of a write-protected mapping,
//!                                                           or planes that the engine itself keeps ─┐
//!   the daemon ── Tracker::mark, after each write ────────────────────────────────────▶ Marks ─────┤ harvest: taken out
//!   processes that ended ── last look before the end, else all of it ──────────────────────────────┤ there, and noted in
//!   the guest's CPU ── contents of the pages in its window differ from what was sent ▶ Visible ────┘ each view that is on
//!                                                                                                  │
//!   Requests: one view of bits a basis that is tracked ◀───────────────────────────────────────────┘
//!      └── query: the bits of its ranges, in the order of the ranges; cleared there, and in no other view
//! ```
//!
//! A [`tracker::Tracker`] is of one memory (a *segment*) of one vGPU, and may be used from any thread: queries lock it,
//! [`tracker::Tracker::mark`] does not. A pass that moves a memory clears bits *first* and reads the pages *after*
//! (DIRTY-51), with [`tracker::Tracker::read`], which remembers what it gave of pages that the guest's CPU can write: no
//! log tells of those, so they are compared with it in the next query.
//!
//! Where tracking is costly ([`method::Method::ShadowCompare`]), what is harvested is only suspect: it is compared with the
//! hash of what was last sent of it, and nothing is in any view, or kept, while no basis is tracked.
//!
//! A part of a memory may lie where no CPU reads it ([`elsewhere::Elsewhere`]): comparisons and passes have that read for them.
//!
//! What engines wrote to views of guest RAM is in no plane: [`view::EngineView::sweep`] hands it to the VMM's own log.

pub mod basis;
pub mod caps;
mod compare;
pub mod elsewhere;
pub mod error;
pub mod marks;
pub mod method;
pub mod pagemap;
pub mod plane;
pub mod planes;
pub mod protect;
pub mod requests;
mod shadow;
pub mod tracker;
pub mod view;
pub mod visible;
