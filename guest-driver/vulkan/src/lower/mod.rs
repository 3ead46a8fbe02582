//! Images become texel buffers before a module leaves the driver: neither the protocol nor the host knows of any others.
//!
//! ```text
//!   OpTypeImage 2D … ─▶ OpTypeImage Buffer …      a coordinate ─▶ index(record, coordinate) ─▶ the index of a texel
//!   record: what the bound view is like (`records`), in one uniform buffer that a dispatch fills from its descriptors
//! ```
//!
//! `module` writes what stands before the functions, `body` the functions, and `helpers` and `sampling` add functions of their own.
//! Types that have become the same are one. Samplers are records alone. An image that a function is given brings its record along.
//!
//! A module without images stays as it is, and so does one of which something cannot be lowered: the host refuses it.

mod body;
mod code;
mod emit;
mod helpers;
mod module;
mod operands;
pub(crate) mod records;
mod sampling;
mod shape;
#[cfg(test)]
mod tests;
mod write;

/// Why a module stays as it is.
pub(crate) type Refusal = &'static str;

pub(crate) use write::lowered;
