//! Control: the guest's requests and the operator's commands, decoded, carried out by the other rooms, answered.
//!
//! ```text
//!   SUBMIT_3D bytes ─▶ request (decoded once) ─▶ dispatch ─▶ the room that it is for ─▶ reply
//!   operator ─▶ orders ─▶ errands ─────────────────────────▶ the same
//! ```

pub mod caps;
pub mod devices;
pub mod dispatch;
pub mod errands;
pub mod fences;
pub mod history;
pub mod memory;
pub mod orders;
pub mod reply;
pub(crate) mod request;
