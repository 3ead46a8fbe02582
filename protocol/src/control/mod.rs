//! Control messages: what a guest process asks of the daemon, inside SUBMIT_3D.
//!
//! ```text
//!   SUBMIT_3D:  [ frame header | body ][ frame header | body ] …     at most 128 KiB together
//!   answer:     response slot of the device page: sequence, status, payload; sequence stored last
//! ```
//!
//! One command may carry several frames; each is answered in the slot that it names. The virtio response
//! says only whether the frames could be read. A virtio fence on ring index r signals when all that came with
//! SUBMIT_3D on r before it is done: messages answered, buffers complete.

pub mod away;
pub mod frame;
pub mod memory;
pub mod message;
pub mod native_fence;
pub mod pipeline;
pub mod reply;
pub mod scheduling;
pub mod status;
