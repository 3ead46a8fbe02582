//! GPU page tables, from both sides.
//!
//! ```text
//!   table file:  [ page 0: free list head, unused as a table ][ table ][ table ] …
//!   root (level 2) ─▶ table (level 1) ─▶ table (level 0) ─▶ page of a segment
//! ```
//!
//! The writer stores an entry with release after the table below it is complete; the reader loads with
//! acquire, so a walk sees either nothing or a whole table.

pub mod reader;
#[cfg(test)]
mod tests;
pub mod writer;
