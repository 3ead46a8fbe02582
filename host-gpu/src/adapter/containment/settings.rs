//! What holds the engine processes of a vGPU, as the operator wants it.

use std::sync::Arc;

use super::facts::Seen;
use super::isolation::Account;
use super::limits::Cgroup;

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
    /// Whether it is left to each to end when the daemon is killed, and not to the kernel: what runs is put aside first. What started
    /// the daemon ends those that do not.
    pub outlives: bool,
    /// What was seen of the last that was started.
    pub seen: Arc<Seen>,
}
