//! Images, views of them, and samplers. An image is memory of a layout that the driver defines, and kernels see it as a texel buffer
//! ([`crate::lower`]).
//!
//! ```text
//!   Surface: level ─▶ slices (layers, or the depth) ─▶ rows ─▶ texels          each slice at a multiple of 256 bytes, rows without gaps
//!   View: first byte, bytes, format; and the words of its record               Sampler: the words of its record
//! ```
//!
//! Tiling and layout change nothing: all images are linear. Images of formats that are not said to be there are objects without
//! contents; whatever uses one fails.

pub(crate) mod clear;
pub(crate) mod object;
pub(crate) mod region;
pub(crate) mod sampler;
pub(crate) mod support;
pub(crate) mod surface;
pub(crate) mod view;
