//! Stopping a guest: threads that registered as virtual CPUs stand still wherever they are.
//!
//! ```text
//!   front-end: Gate::close                      a virtual CPU (any guest thread with a VirtualCpu guard)
//!   ─────────────────────                       ────────────────────────────────────────────────────────
//!   its slot's word becomes odd
//!   realtime signal to its thread ────────────▶ handler: inside a section?  ── no ──▶ stands: acknowledges the word,
//!                                                            │ yes                     sleeps on it as a futex
//!   sleeps until each slot is acknowledged                   └─ remembers; stands when it leaves the section
//!   …
//!   Gate::open: words become even, wakes ─────▶ goes on at the instruction where it was
//! ```
//!
//! A *section* ([`section::Section`]) is code that holds a lock which the front-end needs, too: one of its own
//! ([`lock::Lock`] opens one), or the memory allocator's ([`allocator::VcpuAllocator`]). A guest thread that stood
//! still in there would stop the front-end. What this cannot see are locks of the guest program and of the standard
//! library that front-end threads may want, such as that of the standard output: a virtual CPU that prints does so in
//! a section of its own ([`section::Section::enter`]).
//!
//! | word | writer | readers |
//! |---|---|---|
//! | `Slot::wanted` | the thread that closes and opens the gate, under the roster's lock | the virtual CPU |
//! | `Slot::acknowledged` | the virtual CPU | the thread that closes the gate |
//!
//! Threads that are no virtual CPUs are not stopped; while the VM is paused their commands wait for room on the ring.

pub mod allocator;
pub(super) mod gate;
pub(super) mod lock;
pub mod section;
pub(super) mod slot;
pub(super) mod stop_signal;
pub mod virtual_cpu;

#[cfg(test)]
mod tests;
