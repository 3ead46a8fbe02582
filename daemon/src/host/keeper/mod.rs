//! `campanile serve --respawn`: a small process that keeps what running VMs need of their daemon, and starts another when it is killed.
//!
//! ```text
//!   keeper ──spawn, standard input: what is in the store──▶ daemon ──NOTIFY_SOCKET: FDSTORE, FDSTOREREMOVE, READY, MAINPID──▶ keeper
//!     │ it ended, killed or in a panic
//!     └─▶ its engines put aside what they run and end, or are killed ─▶ the next one is spawned, and goes on with its VMs (`host::recovery`)
//! ```
//!
//! It speaks what systemd speaks (sd_notify(3)), so that a daemon under systemd needs none. It reads nothing of what it keeps, and
//! serves no other process. A daemon that ends well ends it; one that never served ends it with its exit status; one that is killed over
//! and over is given up.

pub mod keep;
mod process;
mod store;
