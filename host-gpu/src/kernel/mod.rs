//! Guest kernels: what a guest programmer wrote, made safe to hand to a GPU driver. No Vulkan in here.
//!
//! ```text
//!   WGSL ─▶ naga: parse ▶ limits ▶ validate ▶ one entry ▶ write ─┐ wgsl.rs, limits.rs, memory.rs, resources.rs
//!                                                               ▼
//!   SPIR-V ───────────────────────────────────────────────▶ guard (crate::shader) ─▶ interface ─▶ Kernel
//!   (claims: source.rs)                                       checks, clamps, grid     packets     (trusted)
//!
//!   caller ──Source──▶ [ kernel-sanitizer thread: big stack, panics caught ] ──Result<Kernel, KernelError>──▶ caller
//! ```
//!
//! - A [`source::Source`] is the guest's claim. [`sanitizer::Sanitizer`] is the one way to turn it into a
//!   [`program::Kernel`], and the SPIR-V of a `Kernel` is the guard's output, never the guest's bytes.
//! - An index out of bounds of a buffer reads zero and writes nothing; an index out of bounds of workgroup or private
//!   memory is clamped. In buffers naga's code sees to it for WGSL, and for SPIR-V the device
//!   ([`program::BufferChecks`]), whose `robustBufferAccess2` the driver's self-test has seen at work.
//! - Workgroup memory starts zeroed by the driver, so that no kernel reads what the last one left.
//! - naga panics on a few texts and can exhaust a stack. The first becomes
//!   [`error::KernelError::Crashed`]; the second ends the process, which is the engine's sandbox: an engine
//!   fault of that guest. Do not call this in the daemon. The guard does neither.
//! - A kernel that asks for the number of workgroups is told that of the whole grid, also where a dispatch runs in
//!   slices: the guard has it read them from memory.
//! - A loop without end is legal: ending it is the business of slicing and TDR.

pub mod error;
pub(crate) mod interface;
mod limits;
pub(crate) mod memory;
pub mod name;
pub mod program;
mod resources;
pub mod sanitizer;
pub mod source;
mod translate;
mod wgsl;

#[cfg(test)]
mod tests;
