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
//!     └──── Host::start: sockets, threads, engines
//! ```
//!
//! [`status`] asks the kernel what is in force, thread by thread; it is what `campanile ctl status` shows.

pub mod error;
pub mod identity;
pub mod privileges;
pub mod status;

/// Whether the daemon confines itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Confinement {
    /// It does.
    On,
    /// It does not: for debugging, and inside of programs that are not the daemon.
    #[default]
    Off,
}
