//! A Vulkan layer for tests: it makes the nth call of an entry point fail, hides extensions of devices, a feature, and part of a limit, says that
//! memory is short, and claims global priorities of queues.
//!
//! ```text
//!   test ──Faults──▶ control file ◀──mapped── layer (in any process whose loader is told of it)
//!                                               │
//!   program ─▶ Vulkan loader ─▶ hooks: count, fail or pass on ─▶ driver
//! ```
//!
//! The library is both: what the loader loads, and what tests arm it with. They meet in a file beside the library, so a test reaches the
//! layer in its own process and in any other alike. A call that is made to fail does not reach the driver. One that fails with
//! `VK_ERROR_DEVICE_LOST` loses all devices of the process once they stand still, and from then on every call that may say so does.
//!
//! One process has one driver under the layer: the functions that hooks pass on to are kept once for all devices.

mod control;
pub mod entries;
pub mod faults;
mod hidden;
mod hooks;
mod layer;
mod lessened;
mod memory;
mod next;
mod priorities;
