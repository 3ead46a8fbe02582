//! When the next slice is started, where slices are started one by one.

use std::thread;
use std::time::Instant;

use campanile_protocol::packet::Fault;

use super::compute::ComputeNode;
use super::compute::Started;
use crate::kernel::name::KernelName;
use crate::vulkan::request::IN_FLIGHT;

impl ComputeNode {
    /// Waits until there is room for a slice. With one device instance also until the last in flight is nearly done: the next one need
    /// not be there sooner, and what is more urgent would have to wait for both. With two it runs beside that one.
    pub(super) fn await_turn(&mut self, kernel: KernelName) -> Result<(), Fault> {
        if self.instances.get(1).is_some_and(|second| second.has_kernel(kernel)) {
            while self.flight.len() >= IN_FLIGHT {
                self.finish_oldest(false)?;
            }
            return Ok(());
        }
        if self.flight.len() >= IN_FLIGHT && !self.flight.may_pass() {
            self.finish_oldest(false)?;
        }
        while let Some(nap) = self.flight.nap(usize::MAX, Instant::now()) {
            // What is likely may be wrong: a thread that sleeps for longer than two slices should look now and then.
            thread::sleep(nap.min(2 * self.slice));
            let newest = self.flight.newest().map(|slice| slice.ticket);
            let Some(Started { instance, ticket, .. }) = newest else { break };
            let driver = self.instances.get_mut(instance).ok_or(Fault::Driver)?.driver();
            if driver.is_done(&ticket).map_err(|error| self.lose(&error))? {
                break;
            }
        }
        while let Some(oldest) = self.flight.oldest() {
            let Started { instance, ticket, .. } = oldest.ticket;
            let driver = self.instances.get_mut(instance).ok_or(Fault::Driver)?.driver();
            let is_done = driver.retire_if_done(&ticket).map_err(|error| self.lose(&error))?;
            let is_last = self.flight.len() < IN_FLIGHT;
            match (is_done, is_last) {
                (true, false) => self.flight.pass(Instant::now()),
                (false, true) => break,
                // Too early.
                (false, false) => self.finish_oldest(false)?,
                // Too late: nothing is in flight any more.
                (true, true) => {
                    if let Some(ended) = self.flight.end(Instant::now()) {
                        self.learn(&ended, true);
                    }
                }
            }
        }
        Ok(())
    }
}
