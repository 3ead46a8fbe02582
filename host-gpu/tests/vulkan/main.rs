//! The Vulkan driver, on whatever device `VK_DRIVER_FILES` or `.cache/vulkan/env` names.

#[path = "../../src/shader/tests/assembly.rs"]
mod assembly;
mod batches;
mod bench;
mod chains;
mod faults;
mod flight;
#[path = "../../src/shader/tests/frame.rs"]
mod frame;
mod from_spirv;
mod grid;
mod interfaces;
mod kernels;
mod limits;
mod local;
mod local_copies;
mod memory;
mod priority;
mod results;
mod scene;
mod secondary;
mod slices;
mod staging;
mod texel_ends;
mod texels;
