//! Demo and benchmark: a daemon as a child process, a guest without a VM in this one.
//!
//! ```text
//!   campanile demo ─┬─ campanile serve (child) ── engines (its children)
//!                   ├─ guest: LoopbackVm ▶ Device ▶ queues        the figures
//!                   └─ campanile peer (child): bare ping-pong     what the machine can do, in the same run
//! ```

pub mod continuity;
pub mod cpu_time;
pub mod daemon;
pub mod dirty;
pub mod doorbells;
pub mod figures;
pub mod gpu;
pub mod guests;
pub mod memory;
pub mod migration;
pub mod peer;
pub mod recovery;
pub mod round_trips;
pub mod scheduling;
pub mod slicing;
pub mod stolen;
pub mod upgrade_picture;
pub mod wake_ups;
pub mod workers;
