//! How a VM moves, and what is told of it.

use std::fmt;
use std::time::Duration;

use super::error::At;
use super::error::Failure;
use super::error::Step;
use crate::order::Order;
use campanile_guest_driver::transport::error::TransportError;

/// What becomes of guest RAM.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Ram {
    /// It stays the memory that it is; both daemons map it, one after the other.
    #[default]
    Stays,
    /// It moves to new memory, as between hosts.
    Moves,
    /// As [`Self::Moves`], but what the device's log says is ignored: the guest must notice. For tests.
    MovesWithoutLog,
}

/// One look at the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pass {
    /// From 0; the first one copies all of RAM, where RAM moves.
    pub number: u32,
    /// Pages that the device wrote since the last look.
    pub device_pages: u64,
    /// Pages that the guest's CPUs wrote since the last look; 0 where RAM stays.
    pub cpu_pages: u64,
    /// Pages that were copied.
    pub copied_pages: u64,
}

/// What follows a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Another pass.
    Again,
    /// The virtual CPUs stop, and the rest moves.
    Stop,
}

/// How a VM moves.
pub struct MigrateOptions<'a> {
    /// Whose message order.
    pub order: Order,
    /// Whether the device logs (LOG_ALL), and passes take place while the guest runs. Without, everything moves in the
    /// pause.
    pub live: bool,
    /// What becomes of guest RAM.
    pub ram: Ram,
    /// Called after each pass, on the calling thread; it may take its time.
    pub after_pass: Box<dyn FnMut(&Pass) -> Next + 'a>,
    /// Called while the virtual CPUs stand still and the source's rings are stopped, before the state is saved.
    pub while_paused: Box<dyn FnMut() + 'a>,
    /// Called when the device runs at the target and its memory shows, before the virtual CPUs go on.
    pub when_there: Box<dyn FnMut() + 'a>,
    /// Gives up before this step, as a VMM that changes its mind.
    pub give_up_at: Option<Step>,
}

impl MigrateOptions<'_> {
    /// Fails where the VMM is to change its mind before this step.
    pub(super) fn unless_given_up(&self, step: Step) -> Result<(), Failure> {
        if self.give_up_at == Some(step) { Err(TransportError::GivenUp).at(step) } else { Ok(()) }
    }
}

impl Default for MigrateOptions<'_> {
    /// QEMU's order, live, RAM stays, one pass.
    fn default() -> Self {
        Self {
            order: Order::Qemu,
            live: true,
            ram: Ram::Stays,
            after_pass: Box::new(|_| Next::Stop),
            while_paused: Box::new(|| ()),
            when_there: Box::new(|| ()),
            give_up_at: None,
        }
    }
}

impl fmt::Debug for MigrateOptions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MigrateOptions")
            .field("order", &self.order)
            .field("live", &self.live)
            .field("ram", &self.ram)
            .field("give_up_at", &self.give_up_at)
            .finish_non_exhaustive()
    }
}

/// How it went.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Report {
    /// From the order that stops the virtual CPUs to the one that lets them go on.
    pub pause: Duration,
    /// Of it: until the source's rings had stopped.
    pub stop: Duration,
    /// Of it: the state's way out of the source.
    pub save: Duration,
    /// Of it: the state's way into the target, its check included.
    pub load: Duration,
    /// Bytes of the device's state.
    pub state_bytes: usize,
    /// Looks at the log, the one in the pause included.
    pub passes: Vec<Pass>,
}
