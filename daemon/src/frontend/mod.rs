//! What a guest sees: the fronts over the session layer (design §2).
//!
//! ```text
//!   vhost::Device ◀── device (any front behind rings)
//!                       ├─ kind: what a front has to say
//!                       │    ├─ gpu   a virtio-gpu device
//!                       │    └─ fs    a virtio-fs device, whose one file is the command channel
//!                       └─ vgpu: the session, and the ways in and out (moving)
//!                            └─ waiting: commands that are answered later
//! ```
//!
//! A front decodes its own commands and answers them in its own words; control messages are the same bytes on every
//! front, and the session does not know which one it serves.

pub mod device;
pub mod fs;
pub mod gpu;
pub mod kind;
pub mod moving;
pub mod vgpu;
pub mod vhost;
pub mod waiting;

mod status;
