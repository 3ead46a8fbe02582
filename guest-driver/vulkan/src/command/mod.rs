//! Command buffers: packets, written when they are recorded and read by the engine where they lie.
//!
//! ```text
//!   vkCmd… ─▶ Recording: packets, in segments of at most 64 KiB ─▶ vkEndCommandBuffer: one piece of memory
//!   vkQueueSubmit ─▶ one ring entry a segment, as often as it is submitted
//! ```

mod bound;
pub(crate) mod buffer;
pub(crate) mod compute;
pub(crate) mod drawing;
pub(crate) mod images;
pub(crate) mod pool;
mod recording;
mod records;
pub(crate) mod transfer;
pub(crate) mod waits;
