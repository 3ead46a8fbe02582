//! The worker of one vGPU, and the orders that wait for it.

use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use super::board::Board;
use super::board::Seen;
use super::orders::Outcome;
use super::service::Phase;
use super::service::Service;
use crate::operator::client::ask_within;
use crate::operator::verb::Verb;

/// How long a worker may take to be drained, and bytes of its answer.
const DRAIN_TIME: Duration = Duration::from_secs(20);
const DRAIN_BYTES: usize = 64 << 10;

/// A worker.
#[derive(Debug)]
pub(super) struct Worker {
    pub(super) vgpu: String,
    pub(super) service: Service,
    /// What is told when it serves, has failed, or has ended.
    pub(super) outcomes: Vec<Outcome>,
}

impl Worker {
    /// Tells all orders that wait.
    pub(super) fn tell(&mut self, outcome: &Result<(), String>) {
        for waits in self.outcomes.drain(..) {
            // It may have waited for too long.
            let _gone = waits.send(outcome.clone());
        }
    }

    /// Shows it as it is now.
    pub(super) fn show(&self, board: &Board) {
        board.show(Seen {
            vgpu: self.vgpu.clone(),
            keeper: self.service.pid(),
            serves: matches!(self.service.phase(), Phase::Serving(_)),
            ended: self.service.ended,
        });
    }
}

/// Has a worker take no VM, as all others.
pub(super) fn drain(control: PathBuf) {
    let ask = move || {
        let verb = Verb::Drain { off: false, wait: false };
        if let Err(error) = ask_within(&control, &verb, DRAIN_TIME, DRAIN_BYTES) {
            log::error!("{}: it is not drained: {error}", control.display());
        }
    };
    if let Err(error) = thread::Builder::new().name("drain".to_owned()).spawn(ask) {
        log::error!("a worker is not drained: {error}");
    }
}
