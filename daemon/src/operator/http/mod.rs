//! As much of an HTTP server as scrapers and browsers of this host need.
//!
//! ```text
//!   client ──GET /…──▶ server (one thread, role Metrics) ── Pages::page ──▶ what metrics and the web page have
//!        ◀── answer, then the end ─┘
//! ```
//!
//! Clients are bounded in number, in what they send and in time; no thread waits for one.

pub mod address;
pub mod client;
pub mod page;
pub mod request;
pub mod server;
