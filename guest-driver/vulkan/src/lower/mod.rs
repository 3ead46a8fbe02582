//! Images become texel buffers before a module leaves the driver: neither the protocol nor the host knows of any others.
//!
//! ```text
//!   OpTypeImage 2D … ─▶ OpTypeImage Buffer …      a coordinate ─▶ index(record, coordinate) ─▶ the index of a texel
//!   record: what the bound view is like (`records`), in one uniform buffer that a dispatch fills from its descriptors
//! ```
//!
//! `module` writes what stands before the functions, `body` and `sampling` the functions; `library` adds functions that compute indices
//! and filter, which are written in GLSL.
//! Types that have become the same are one. Samplers are records alone. An image that a function is given brings its record along, and one
//! that an index chooses of an array is accessed by functions that choose (`element`).
//!
//! A module without images stays as it is. Of an instruction that cannot be lowered nothing is left, nor of the entry points that reach it (`functions`);
//! a module of which a declaration cannot be stays as it is, and the host refuses its entry points with images.

mod array;
mod body;
mod code;
mod element;
mod emit;
pub(crate) mod functions;
mod handle;
mod library;
mod module;
mod operands;
pub(crate) mod records;
mod sampling;
mod shape;
#[cfg(test)]
pub(crate) mod tests;
pub(crate) mod write;
