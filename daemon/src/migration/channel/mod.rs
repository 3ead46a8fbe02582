//! The line between two daemons.
//!
//! ```text
//!   line ─▶ stream (Unix | TCP | TLS) ─▶ frame {magic, kind, length, sequence, checksum} ─┬─▶ message (JSON)
//!                                                                                         ├─▶ record  (pages)
//!                                                                                         └─▶ kernel  (from version 2 on)
//! ```
//!
//! A migration has one line or more. The first begins with HELLO and carries what is said; each further one begins with
//! JOIN. All carry pages, and the first one kernels. A frame's length is bounded by its kind, its sequence number counts from 0 on each line, so that
//! a repeated or lost frame is seen, and its checksum covers all of it. No wait is without an end: a peer that stands still
//! is a peer that is gone.

pub mod address;
pub mod connect;
pub mod frame;
pub mod kernel;
pub mod line;
pub mod message;
pub mod peer_name;
pub mod record;
pub mod stream;
pub mod tls;
