//! SPIR-V of guests, made safe for drivers: words in, words out. No Vulkan in here, and no tree of the module.
//!
//! ```text
//!   words ─▶ module ─▶ reach ─▶ guard, which owns the parts and hands each instruction to one of them
//!            cut       │
//!     declarations     ├─ capabilities ◀── profile: what the device offers
//!                      ├─ symbols: types, constants (specialised here) ◀── types, constants (typing)
//!                      ├─ decorations, entries, variables (layout)
//!     functions        ├─ function: signatures, calls, costs;  flow: blocks, nesting, dominance
//!                      └─ body: each instruction, with access, atomics, composed, subgroup, texel_access
//!                           │ clamps
//!                           ▼
//!   pass:  one entry point ─▶ reflect: what it uses, bindings, sizes of a Shader
//!                          └▶ emit:    its words (writer)
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
mod capabilities;
mod clamp;
mod composed;
mod constants;
mod decorations;
mod dominance;
mod emit;
mod entries;
pub mod error;
mod flow;
mod function;
mod guard;
pub mod interface;
mod layout;
mod module;
mod nesting;
pub mod pass;
pub mod profile;
mod reach;
mod reflect;
mod rounding;
mod rules;
mod shape;
mod subgroup;
mod symbols;
mod texel_access;
mod texels;
mod types;
mod typing;
mod variables;
mod writer;

#[cfg(test)]
mod tests;
