//! Images become texel buffers before a module leaves the driver: neither the protocol nor the host knows of any others.
//!
//! ```text
//!   OpTypeImage 2D … ─▶ OpTypeImage Buffer …      a coordinate ─▶ index(record, coordinate) ─▶ the index of a texel
//!   record: what the bound view is like (`records`), in one uniform buffer that a dispatch fills from its descriptors
//! ```
//!
//! `module` writes what stands before the functions, `body` and `sampling` the functions; `library` adds functions that compute indices
//! and filter, which are written in GLSL.
//! Types that have become the same are one. Samplers are records alone. An image that a function is given brings its record along.
//!
//! A module without images stays as it is, and so does one of which something cannot be lowered: the host refuses it.

mod body;
mod code;
mod emit;
mod handle;
mod library;
mod module;
mod operands;
pub(crate) mod records;
mod sampling;
mod shape;
#[cfg(test)]
mod tests;
pub(crate) mod write;
