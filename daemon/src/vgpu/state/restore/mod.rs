//! A session out of the data of another one (LM-31 to LM-34, LM-37, LM-40, LM-45 to LM-57).
//!
//! ```text
//!   SavedSession ─▶ checked, and built beside the session ─▶ memory taken ─▶ put in place, all at once ─▶ FROZEN
//!        │ anything wrong                                        │ no room                                 │
//!        └────────────▶ refused: which check; nothing is applied ┘      guest memory known: pages found ───┤
//!                                                                                                          ▼
//!                                                     thaw: pages looked for a last time, engines started, RUNNING
//! ```
//!
//! Nothing in the data is believed. What it says about memory holds within the memory of this session alone, and what it
//! says about guest RAM is looked up in the memory that the front-end shows; so the worst that it can do is what the
//! guest whose state it is could do by itself.

mod areas;
mod builder;
mod check;
mod claims;
mod engines;
pub mod install;
mod invalid;
#[cfg(test)]
mod kept;
#[cfg(test)]
mod limits;
mod memory;
mod objects;
mod pages;
mod processes;
#[cfg(test)]
mod read_only;
mod restored_engine;
mod space;
#[cfg(test)]
mod tests;
mod waits;
