//! What the operator can change of a vGPU that serves.

use std::time::Duration;

use crate::sched::share::Share;
use crate::vgpu::tdr::policy::Policy;

/// All of it: it replaces what was before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tuning {
    /// What it gets of each node. Contexts keep a band that they have; the supervisor takes none above the highest.
    pub share: Share,
    /// How long work of each node, by ordinal, may stand still.
    pub timeouts: [Duration; 2],
    /// What hangs lead to.
    pub policy: Policy,
    /// How long all engines sleep before the device goes to D3; never for none.
    pub d3_after: Option<Duration>,
    /// How long engines may take to stand still for a migration.
    pub freeze_limit: Duration,
}
