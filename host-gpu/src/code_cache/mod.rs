//! What a driver has compiled, kept for the next process of the same engine of the same vGPU.
//!
//! ```text
//!   engine ── CREATE_KERNEL ─▶ driver: looks into its files, else compiles ─▶ its files (of this process alone)
//!      │                                  ▲                                        │ new entries
//!      │                                  │ entries that this process has not     ▼
//!      └───────── shared log: a sealed memfd that the daemon made, and keeps for this engine's processes ──┐
//!                                         ▲                                                               │
//!   spare, or the process that comes next ┘ takes entries only; keeps its own once it was told to begin ◀─┘
//! ```
//!
//! Mesa's drivers for CPUs have machine code in no `VkPipelineCache` (its data are 32 bytes), but in their cache on disk. So that is
//! switched on, for a folder of this process alone, in which the driver makes its files while it opens; then the folder goes, and
//! the files live as long as their descriptors ([`folder`]). An engine that is sealed opens nothing, and Mesa's single-file cache
//! needs nothing to be opened ([`files`]).
//!
//! What is in the log was written by a process that ran guests' kernels, so it is a claim. It is read only after the reader is sealed:
//! what was sealed then, and runs the same guests, has no more from it than it had. The daemon maps the log and reads two counters,
//! and never an entry. A log is of one engine of one session of a vGPU: no other VM's engine gets its descriptor. It holds
//! entries of one driver and device: those of another are not taken ([`log`]).

mod ending;
pub mod files;
pub mod folder;
pub mod log;
pub mod store;
