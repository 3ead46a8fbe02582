//! What gives engines their turns: the supervisor of this daemon, or the broker of the host in its place.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use campanile_host_gpu::adapter::process::GrantHandle;
use campanile_host_gpu::engine::address::EngineAddress;
use campanile_host_gpu::ids::ContextIndex;

use super::alarm::Alarm;
use super::meter::Meters;
use super::share::Share;
use super::turns::EngineId;

/// An engine that is to take part.
#[derive(Debug, Clone)]
pub struct Participant {
    /// Its node.
    pub at: EngineAddress,
    /// What its turns are given by.
    pub handle: GrantHandle,
    /// Raised where it does not yield, or gets nowhere, for the timeout, or breaks the protocol of the grant word.
    pub alarm: Arc<Alarm>,
    /// How long it may do so; without one only breaches count.
    pub timeout: Option<Duration>,
    /// What it gets of its node.
    pub share: Share,
}

/// Turns on the nodes of the physical GPU. Nothing here waits for an engine, nor for another process.
pub trait Schedule: fmt::Debug + Send + Sync {
    /// An engine takes part, whose process was started over a grant word that said `{IDLE, 0}`. What it has of its node is added
    /// up in `meters`.
    ///
    /// # Errors
    /// Memory or descriptors could not be had.
    fn add(&self, participant: Participant, meters: &Arc<Meters>) -> io::Result<EngineId>;

    /// Whether an engine that was asked to yield its node has it still, by the schedule's own record: what the engine's word says
    /// between two looks does not count.
    fn keeps_node(&self, engine: EngineId) -> bool;

    /// An engine was asked to suspend the context of an entry, and has the timeout to report it (UMS-112).
    fn expect_suspend(&self, engine: EngineId, context: ContextIndex, fence: u64);

    /// How long an engine has had its node, up to the last decision.
    fn held(&self, engine: EngineId) -> Duration;

    /// An engine has another timeout and another share from the next decision on.
    fn retune(&self, engine: EngineId, timeout: Option<Duration>, share: Share);

    /// An engine is gone; only after its process is reaped, or stands still for ever.
    fn remove(&self, engine: EngineId);

    /// Has the thread behind it make a round, and says how many it has made by now: where two calls some time apart say the same, it
    /// stands still.
    fn pulse(&self) -> u64;
}
