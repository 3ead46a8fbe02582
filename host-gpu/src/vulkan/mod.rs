//! The compute driver: guest kernels on a Vulkan device, over imported host memory.
//!
//! ```text
//!  Options ─▶ Driver::open ─▶ self_test ─▶ sealed ─▶  dispatch ──▶ Ticket ──▶ wait / is_done
//!             (loader, device,  (is this    (seccomp,   │  ▲
//!              all demands)      driver      by its     │  └ slot free again
//!                                right?)     owner)     ▼
//!             Mapping ─▶ import ─▶ Import ──bound at──▶ slot 0 │ slot 1 ──submit──▶ queue ──raises──▶ timeline
//!             Kernel ─▶ pipeline ─▶ Pipeline ──run by──▶ ┘ at most 2 in flight, in order
//! ```
//!
//! - One [`driver::Driver`] belongs to one thread. [`pipeline::Compiler`] is its part that other threads may use.
//! - Every dispatch sees what the host wrote before it and what earlier dispatches wrote; the host sees what a
//!   dispatch wrote once its ticket is done. Where a device can import no host memory both are copies ([`staging`]): the host sees
//!   what dispatches wrote after [`driver::Driver::settle`], and so do they what it wrote.
//! - Limits, ranges and bindings are checked in [`request`] before Vulkan sees them: a refusal is an
//!   [`request::DispatchError`] and costs nothing. An [`error::VulkanError`] is the host's trouble.
//! - A kernel without end is not ended here. Dropping anything that it uses waits for it: end the process instead.
//! - A driver compiles at a kernel's first dispatch, so [`pipeline::Compiler::pipeline`] makes one of no groups.
//!   lavapipe compiles on its queue's thread: 10 ms as a rule, ten seconds for the worst kernel that passes the
//!   sanitizer, and until then nothing else runs on the device. Do not count that as a hang of a dispatch. What keeps its
//!   cache compiles on another device first ([`crate::engine::compiling`]), and nothing waits.
//! - After one pipeline and one dispatch (the self-test's), dispatching makes no system call but futex.
//! - Demanded: Vulkan 1.3, `robustBufferAccess` and `robustBufferAccess2`, timeline
//!   semaphores, `shaderZeroInitializeWorkgroupMemory`. Never enabled: `bufferDeviceAddress`.
//! - The process that starts this one sets `VK_DRIVER_FILES` (one driver: opening takes 15 ms, not 150) and
//!   `MESA_SHADER_CACHE_DISABLE=true` (the cache on disk would be a channel between guests, and needs `openat`), but for engines
//!   whose cache is theirs alone and in one file: see [`crate::code_cache`].
//!
//! `local` is memory of the device's own, and `check` looks at every device, for `campanile check-gpu`.
//!
//! `raw` holds all unsafe code; the rest is safe.

pub mod chain;
pub mod check;
pub mod device_name;
pub mod driver;
pub mod error;
pub mod gates;
mod grids;
pub mod import;
pub mod info;
pub mod local;
pub mod options;
pub mod pipeline;
pub mod priority;
mod priority_request;
mod profile;
mod raw;
pub mod request;
pub mod self_test;
mod settling;
mod staging;
mod views;
