//! The Vulkan driver, on whatever device `VK_DRIVER_FILES` or `.cache/vulkan/env` names.

mod batches;
mod bench;
mod flight;
mod grid;
mod kernels;
mod limits;
mod memory;
mod results;
mod scene;
mod slices;
