//! The guest's Vulkan driver: `libvulkan_campanile.so`, which Vulkan's loader opens, or a program without a loader.
//!
//! ```text
//!   program ─▶ loader ─▶ loader, table            names of commands ─▶ functions
//!                          │
//!       instance ─ physical (profile) ─ device ─ queue        objects behind handles, in `abi`
//!                          │
//!       memory, buffer · shader, pipeline · descriptor · command · fence, semaphore, event, query
//!                          ▼
//!       the guest driver: resources, kernels, one user-mode queue: a submission is stores to shared memory
//! ```
//!
//! * What the physical device reports is the vGPU's profile, and nothing else: the least of the host's device, its engine and its
//!   guard.
//! * Commands are encoded when they are recorded, descriptors resolved with them; a command buffer that is submitted again costs one
//!   ring entry for each 64 KiB.
//! * Fences and semaphores are 64-bit words: to ask for their state is a load.
//! * There are no images, beyond objects of that name that compute programs make and never use; no graphics.

mod abi;
mod buffer;
mod claims;
mod command;
mod commands;
mod creation;
mod debug;
mod descriptor;
mod device;
mod event;
mod extensions;
mod external;
mod failure;
mod features;
mod fence;
mod formats;
mod graphics;
mod groups;
mod heap;
mod ids;
mod image;
mod instance;
mod kernels;
pub mod loader;
mod lower;
mod machine;
mod memory;
mod numbers;
mod offered;
mod open;
mod physical;
mod pipeline;
mod private;
mod properties;
mod query;
mod queue;
mod report;
mod semaphore;
mod shader;
mod spirv;
mod table;
mod texels;
mod unnamed;
mod wait;
mod words;
