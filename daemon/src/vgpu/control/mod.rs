//! Control: the guest's requests and the operator's commands, decoded, carried out by the other rooms, answered.
//!
//! ```text
//!   SUBMIT_3D bytes ─▶ request (decoded once) ─▶ dispatch ─▶ the room that it is for ─▶ reply
//!   operator ─▶ orders ─▶ vgpu::orders ────────────────────▶ the same          ▲
//!                                                                 └─ effects ────┘
//! ```
//!
//! A room changes itself, and says what must follow; that is carried out here ([`memory`], [`fences`], [`devices`]), since it
//! needs engines, answers or other rooms.

pub mod answers;
pub mod caps;
pub mod deferred;
pub mod devices;
pub mod fences;
pub mod guest_pages;
pub mod history;
pub mod memory;
pub mod moves;
pub mod orders;
pub mod reply;
pub(crate) mod request;
pub mod tuning;
