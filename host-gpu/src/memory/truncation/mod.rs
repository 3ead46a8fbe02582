//! Mappings of files that another process may cut short.
//!
//! A VMM owns the files of guest RAM. Where it truncates one, or a page of it cannot be had (a huge page that is not there,
//! a hardware memory error), the next access raises SIGBUS, which by default ends the process with the sessions of all VMs.
//!
//! ```text
//!   MmapRegion ── FaultDomain::register ──▶ registry (lock-free to read)
//!                      │                          ▲ find
//!   access ──SIGBUS────┼──▶ handler ──────────────┘
//!                      │       ├─ notes the address in the mapping's domain
//!                      │       └─ maps zero pages over the whole mapping: the access is repeated, and succeeds
//!   owner ◀── fault() ─┘    ends its session; what it reads until then are zeros
//!   SIGBUS anywhere else ──▶ the handler before, which ends the process
//! ```

pub mod domain;
mod registry;
mod signal;
