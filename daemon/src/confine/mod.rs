//! What the daemon itself gives up before it hears of a guest.
//!
//! ```text
//!   main     Identity::find ── the account of --user
//!     │
//!     ├──── what only root can open: /dev/cpu_dma_latency, the key for TLS
//!     │
//!     ├──── privileges::confine_process, while this is the only thread:
//!     │       uid, gid and groups of --user; with that, every capability
//!     │       no_new_privs, no core dumps, not dumpable
//!     │
//!     ├──── host_gpu::outside ── thread "engines": no domain, no filter: engines would inherit both
//!     │
//!     └──── Confiner::within(role), for each of roles::Role:
//!             a thread gives up capabilities, takes a Landlock domain and filters ─▶ starts the role's threads, which
//!             inherit all three
//! ```
//!
//! The threads of a process share its memory, so a role that is taken over has what all others have in memory: this is a
//! second line. What it withstands is code that can be made to open, execute or send something and no more. [`roles`] says
//! what each role needs, as data, since each is to be a process of its own.
//!
//! [`status`] asks the kernel what is in force, thread by thread; it is what `campanile ctl status` shows.

mod calls;
pub mod cgroup;
pub mod confiner;
pub mod error;
pub mod files;
pub mod identity;
pub mod privileges;
pub mod roles;
pub mod starter;
pub mod status;
pub mod system_calls;

/// Whether the daemon confines itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Confinement {
    /// It does.
    On,
    /// It does not: for debugging, and inside of programs that are not the daemon.
    #[default]
    Off,
}
