//! The only files that call Vulkan. Each type owns its handles, keeps alive what they depend on, and can be
//! used by safe code without breaking a rule of memory safety:
//!
//! ```text
//!   Instance ◀── Gpu ◀──┬── Timeline ◀───────────┐
//!                       ├── Memory ◀── Buffer ◀──┤   ◀── means "keeps alive"
//!                       └── Layout ◀── Program ◀─┴── Slot, Transfer (hold what their pending work uses)
//! ```

mod budget;
pub(super) mod commands;
pub(super) mod device;
mod features;
pub(super) mod instance;
mod mapped;
pub(super) mod memory;
mod memory_types;
mod offers;
pub(super) mod program;
pub(super) mod stamps;
pub(super) mod transfer;
pub(super) mod view;
