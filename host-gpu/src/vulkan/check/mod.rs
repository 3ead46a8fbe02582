//! What every device of this machine can do, tried and measured.
//!
//! ```text
//!   Devices::find ─▶ each: Found (as Vulkan says it)
//!                          └─open─▶ Driver ─▶ trial     each way to share memory, with kernels that write and read
//!                                          └▶ figures   launches, imports, copies, bandwidth
//! ```

pub mod devices;
pub mod figures;
mod kernels;
pub mod trial;
