//! What an engine process gives up before it sees anything of a guest.
//!
//! ```text
//!   harden_process        always: gains no privilege, dumps no core
//!        │
//!   drop_capabilities     root or not, nothing beyond a plain user's rights is left
//!        │
//!   restrict_files        Landlock, this thread and those it starts: a copy engine opens no file at all, a
//!        │                compute engine reads libraries and drivers and opens the device nodes of its driver's
//!        │                profile; no TCP, no signal and no abstract socket to other processes
//!   ── the driver starts: threads, self-test, everything that it opens late ──
//!        │
//!   restrict_system_calls seccomp, all threads at once: what the loop needs, and nothing else
//!        │
//!   ── first message of a guest ──
//! ```
//!
//! A copy engine whose local memory is a device's own has a driver, too, and is held as a compute engine is.
//!
//! | | copies | kernels on the CPU | kernels on a GPU |
//! |---|---|---|---|
//! | opens files | no: fails with `EACCES` | no: fails with `EACCES` | what Landlock leaves |
//! | memory that no limit counts | no | no | yes |
//! | locks files | no | those of the driver's cache | those of the driver's cache |
//! | asks whether a descriptor is a terminal | fails with `ENOTTY` | fails with `ENOTTY` | yes |
//! | makes requests of drivers (`ioctl`) | no | no | those of its driver's [profile](driver_profiles) |
//! | makes code executable | no | never what is writable | yes (compilers are loaded late) |
//! | starts threads | no | no: fails with `EPERM` | yes |
//! | starts processes | no | no: fails with `EPERM` | no |
//! | makes sockets | no | no | no |
//! | any other call | kills the process | kills the process | fails with `ENOSYS` |
//!
//! `PR_SET_DUMPABLE` stays on: the daemon, a process of the same user, reads `/proc/PID/pagemap` of engines to
//! see which memory they wrote, and may do so only of dumpable ones. No other user may.

pub mod driver_profiles;
pub mod error;
pub mod files;
pub mod process;
pub mod system_calls;

/// What an engine runs, which says how much of the system it needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Workload {
    /// Copies and fills by the engine itself.
    Copies,
    /// Kernels that a driver compiles for the CPU: guest code runs in this process, as checked machine code.
    KernelsOnCpu,
    /// Kernels on a GPU: the driver calls into the kernel for each step.
    KernelsOnGpu,
}
