//! Guest kernels: what a guest programmer wrote, made safe to hand to a GPU driver. No Vulkan in here.
//!
//! ```text
//!   Source ──bounded──▶ parse ──▶ limits ──▶ validate ──▶ one entry ──▶ reflect ──▶ write ──▶ Kernel
//!  (claim)  source.rs   └───────────── naga, translate.rs ─────────────┘ interface.rs  │   (trusted)
//!                              limits.rs, memory.rs, grid.rs: ours            SPIR-V 1.3, checks added
//!
//!   caller ──Source──▶ [ kernel-sanitizer thread: big stack, panics caught ] ──Result<Kernel, KernelError>──▶ caller
//! ```
//!
//! - A [`source::Source`] is the guest's claim. [`sanitizer::Sanitizer`] is the one way to turn it into a
//!   [`program::Kernel`], and the SPIR-V of a `Kernel` is naga's output, never the guest's bytes.
//! - An index out of bounds of a buffer reads zero and writes nothing (`ReadZeroSkipWrite`); an index out of
//!   bounds of workgroup or private memory is clamped. One exception, because naga cannot express it: a kernel
//!   with an atomic at a computed buffer index leaves the check of its buffers to the device
//!   ([`program::BufferChecks`]), whose `robustBufferAccess2` the driver's self-test has seen at work.
//! - Workgroup memory starts zeroed by the driver, so that no kernel reads what the last one left.
//! - naga panics on about 0.3 % of mutated modules and can exhaust a stack. The first becomes
//!   [`error::KernelError::Crashed`]; the second ends the process, which is the engine's sandbox: an engine
//!   fault of that guest. Do not call this in the daemon.
//! - A kernel that asks for the number of workgroups is told that of the whole grid, also where a dispatch runs in
//!   slices: `grid.rs` has it read them from memory.
//! - A loop without end is legal: ending it is the business of slicing and TDR.

pub mod error;
mod grid;
mod interface;
mod limits;
mod memory;
pub mod name;
pub mod program;
pub mod sanitizer;
pub mod source;
mod translate;

#[cfg(test)]
mod tests;
