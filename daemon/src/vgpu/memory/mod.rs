//! Memory: allocations of video memory ([`vidmm`]), the GPU's mappings of them, residency, and which pages were written.
//!
//! ```text
//!   Memory (room) ─▶ blobs ─▶ allocations (vidmm) ◀─ shown ─ page tables
//!      │                          ▲
//!      └─▶ residency: wanted, served, waiting ─┘      what must follow ─▶ LetGo, Leaving, Released ─▶ control/memory
//! ```

pub mod blobs;
pub mod dirty;
pub mod mapping;
pub mod occupancy;
pub mod page;
pub mod paging;
pub mod residency;
pub mod residency_faults;
pub mod residency_requests;
pub mod room;
pub mod save_areas;
pub mod segments;
pub mod shown;
pub mod vidmm;
pub mod window;
