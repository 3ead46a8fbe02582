//! User-mode queues: the ring that a guest writes and an engine fetches.
//!
//! ```text
//!   ring:     [ entry 0 | entry 1 | … | entry n-1 ]      n a power of two
//!   control:  write pointer (guest) · read pointer (engine)
//!             both count entries ever, and never wrap; entry k lies at k mod n
//! ```

pub mod doorbell;
pub mod ring;
