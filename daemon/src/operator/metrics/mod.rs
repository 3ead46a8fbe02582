//! What scrapers read: OpenMetrics over HTTP, on a Unix socket or on a loopback port.
//!
//! ```text
//!   scraper ──GET /metrics──▶ server (one thread, "metrics", role Metrics) ── gather ── counters, meters (shared memory)
//!        ◀── text, made once a second at the most ─┘                           └─ orders: what only a vGPU's thread knows
//! ```
//!
//! Clients are bounded in number, in what they send and in time; no thread waits for one. A vGPU whose thread does not answer
//! is shown without what only that knows. Labels are names of the configuration and of this program: vGPUs, physical adapters,
//! nodes, causes, places; nothing that a guest chooses.

pub mod family;
pub mod gather;
pub mod names;
pub mod nodes;
pub mod scrapes;
