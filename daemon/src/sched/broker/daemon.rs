//! What the broker has of a daemon, and of engines whose daemon has gone.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::time::Instant;

use super::line::Line;
use super::seat::Seat;
use crate::sched::turns::EngineId;

/// What a token of the poller stands for. That of a daemon is the daemon's key.
#[derive(Debug, Clone, Copy)]
pub(super) enum Source {
    Daemon,
    Alarm {
        daemon: u64,
        engine: u64,
    },
    /// The process of an engine whose daemon has gone.
    Process,
}

/// A daemon that is connected.
#[derive(Debug)]
pub(super) struct Daemon {
    pub(super) line: Line,
    /// For the log.
    pub(super) name: String,
    /// By when its Hello is due; none once that came.
    pub(super) hello_by: Option<Instant>,
    pub(super) devices: Vec<String>,
    pub(super) numbers: Vec<u8>,
    /// Engines that it has, and has still to add.
    pub(super) missing: u32,
    /// By the daemon's numbers; with the tokens of their alarms.
    pub(super) seats: BTreeMap<u64, (Seat, u64)>,
}

/// An engine whose daemon has gone.
#[derive(Debug)]
pub(super) struct Orphan {
    pub(super) id: EngineId,
    pub(super) name: String,
    pub(super) process: OwnedFd,
    pub(super) until: Instant,
}

impl Daemon {
    /// A connection that has not said Hello, which is due then.
    pub(super) fn new(line: Line, name: String, hello_by: Instant) -> Self {
        let (devices, numbers, seats) = Default::default();
        Self { line, name, hello_by: Some(hello_by), devices, numbers, missing: 0, seats }
    }

    /// Whether all of its engines are known.
    pub(super) fn is_whole(&self) -> bool {
        self.missing == 0 && self.hello_by.is_none()
    }
}
