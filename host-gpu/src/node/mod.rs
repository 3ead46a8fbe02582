//! What runs DMA buffers: the nodes of the GPU.
//!
//! ```text
//!   Buffer (bytes copied once) ──decode──▶ Packet ──run──▶ copy · fill · fence      (every node)
//!                                                   └─────▶ dispatch               (compute node, Vulkan)
//!   a dispatch:  slices ▶ device instances, in turn ▶ flight (when the next one is due) ▶ pace (what groups cost)
//!                  └ ahead (many at once, as long as no other engine waits)
//!      brief ones: chain (one submission)
//!   a run ends:  Done · Blocked (fence not there yet) · Paused (told to stop at a boundary) · Fault
//! ```
//!
//! A buffer keeps its place, so one that was paused or blocked goes on where it stopped: between two packets, two chunks
//! of a copy or fill, or two slices of a dispatch (PRE-16). Every address is resolved when its packet, or its chunk, runs.

mod ahead;
pub mod buffer;
pub mod candidate;
pub mod chain;
mod chain_length;
pub mod clock;
pub mod compute;
pub mod device_instance;
pub mod flight;
pub mod latency_boost;
mod learning;
pub mod local_copies;
pub mod pace;
pub mod packet;
mod secondary;
pub mod signal;
pub mod slices;
pub mod slicing;
mod slicing_scene;
pub mod space;
pub mod transfer;
mod turn;
