//! What holds an engine process from outside: limits, an account, namespaces. The process has them before it is sent its
//! first message, and its own sandbox comes on top.
//!
//! ```text
//!   thread "engines"                      child
//!   ────────────────                      ─────
//!   pid namespace of its own ──fork────▶  net and ipc namespaces of its own
//!                                         rlimits, which root without CAP_SYS_RESOURCE sets of itself only
//!                                         groups, gid and uid of the account
//!                                         execve
//!   cgroup.procs  ◀───────────────────────┘
//!   /proc/PID: what is in force ──▶ Seen, for the operator
//!   without a cgroup: watch, as long as it lives
//!   first message ──channel───────────▶   sandbox
//! ```
//!
//! Namespaces need `CAP_SYS_ADMIN`. Where they are not to be had an engine starts without, and [`Facts`] say so.

mod ending;
mod facts;
mod isolation;
mod limits;
mod spawn;
mod watch;

use std::sync::Arc;

pub use facts::Facts;
pub use facts::Seen;
pub use isolation::Account;
pub use limits::Cgroup;
pub(super) use spawn::spawn;

/// How the engine processes of a vGPU are held.
#[derive(Debug, Clone, Default)]
pub struct Containment {
    /// Bytes of private writable memory of each process, and of the largest file that it makes; none where that is not
    /// limited.
    pub memory: Option<u64>,
    /// The cgroup of all of them.
    pub cgroup: Option<Arc<Cgroup>>,
    /// The account that they run as; none for that of the daemon.
    pub account: Option<Arc<Account>>,
    /// Whether each is to have namespaces of its own.
    pub namespaces: bool,
    /// What was seen of the last that was started.
    pub seen: Arc<Seen>,
}
