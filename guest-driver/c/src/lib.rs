//! The guest driver for C: what `campanile.h` declares, over the crate `campanile-guest-driver`.
//!
//! ```text
//!   C program ──▶ device, buffer, kernel, context, queues, commands, fence_point   one file a noun of the header
//!                   │                                   │
//!                   │ pointers: NULL, lengths, text     │ every body runs in
//!                   ▼                                   ▼
//!                 boundary, foreign                   boundary::guarded ──▶ campanile_result, last_error
//! ```
//!
//! * Handles are boxes: a `…_create` gives one away, its `…_destroy` takes it back. An `Option<&T>`, `Option<&mut T>`
//!   or `Option<Box<T>>` of an exported function is the pointer of the header, and `None` is NULL; so most functions
//!   need no unsafe code but for their exported name. A result's place is `MaybeUninit`: nothing is read there.
//! * Threads: the ones of the caller; nothing here has a lock but `vms`. The header says which calls may overlap.
//! * Panics end in [`boundary::guarded`], and the caller gets `CAMPANILE_INTERNAL`.
//!
//! `include/campanile.h` is generated from these files; `tests/header.rs` fails when it is out of date.

mod boundary;
pub mod buffer;
pub mod commands;
pub mod context;
pub mod device;
mod failure;
pub mod fence_point;
mod foreign;
pub mod kernel;
pub mod kernel_queue;
pub mod last_error;
pub mod local_buffer;
pub mod result;
pub mod scheduling;
mod this_vm;
pub mod user_queue;
#[cfg(feature = "loopback")]
mod vms;

#[cfg(test)]
mod tests {
    use crate::buffer::CampanileBuffer;
    use crate::commands::CampanileCommands;
    use crate::context::CampanileContext;
    use crate::device::CampanileDevice;
    use crate::fence_point::CampanileFencePoint;
    use crate::kernel::CampanileKernel;
    use crate::kernel_queue::CampanileKernelQueue;
    use crate::local_buffer::CampanileLocalBuffer;
    use crate::user_queue::CampanileUserQueue;

    #[test]
    fn handles_keep_the_thread_rules_of_the_header() {
        fn moves_and_is_shared<T: Send + Sync>() {}
        moves_and_is_shared::<CampanileBuffer>();
        moves_and_is_shared::<CampanileCommands>();
        moves_and_is_shared::<CampanileContext>();
        moves_and_is_shared::<CampanileDevice>();
        moves_and_is_shared::<CampanileFencePoint>();
        moves_and_is_shared::<CampanileKernel>();
        moves_and_is_shared::<CampanileKernelQueue>();
        moves_and_is_shared::<CampanileLocalBuffer>();
        moves_and_is_shared::<CampanileUserQueue>();
    }
}
