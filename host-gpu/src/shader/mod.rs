//! SPIR-V of guests, made safe for drivers: words in, words out. No Vulkan in here, and no tree of the module.
//!
//! ```text
//!   words ─▶ module ──▶ guard: sections, capabilities ◀── profile: what the device offers
//!            cut        ├─ types, constants (specialised here), decorations, layout, variables
//!                       ├─ function: signatures, calls, costs     ─▶ flow: blocks ─▶ nesting, dominance
//!                       └─ body: each instruction by its row of rules (typing), access, composed
//!                                   │ clamps
//!                                   ▼
//!            interface: bindings, sizes ◀── one entry point ──▶ emit ─▶ words of a Shader
//! ```
//!
//! - Drivers take valid modules for granted. So every instruction is in a table here, or refused; every id is defined,
//!   typed and dominates its uses; control flow is structured. `spirv-val` is the oracle of the fuzzing, not of the product.
//! - What `robustBufferAccess2` does not cover is bounded in the result: indices into memory of workgroups and
//!   invocations, into push constants and inputs, into arrays of buffers and into vectors.
//! - Specialisation constants become constants, so that every length and size is known here and no driver computes another.
//! - The result has one entry point and what it uses, names no debug information, starts workgroup memory at zero and reads
//!   the number of workgroups from a buffer, since a device would tell that of a slice.
//! - Nothing here recurses deeper than types may nest, panics, or takes more than linear time and memory.

mod access;
mod atomics;
mod body;
mod composed;
mod constants;
mod decorations;
mod dominance;
mod emit;
pub mod error;
mod flow;
mod function;
mod guard;
pub mod interface;
mod layout;
mod module;
mod nesting;
pub mod profile;
mod rules;
mod subgroup;
mod types;
mod typing;
mod variables;

#[cfg(test)]
mod tests;
