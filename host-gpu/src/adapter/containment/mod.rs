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
mod settings;
mod spawn;
mod watch;

pub(super) use ending::ending;
pub use facts::Facts;
pub use facts::Seen;
pub use isolation::Account;
pub use limits::Cgroup;
pub use settings::Containment;
pub(super) use spawn::spawn;
pub use watch::allocated_by;
