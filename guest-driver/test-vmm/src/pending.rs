//! A submission under way, as the transport's callers wait for it.

use std::sync::Arc;
use std::time::Duration;

use super::command;
use super::request::Request;
use super::virt_queue::VirtQueue;
use campanile_guest_driver::transport::error::TransportError;
use campanile_guest_driver::transport::submission::Completion;

/// A submission on a loopback queue.
pub(crate) struct Pending {
    pub(crate) queue: Arc<VirtQueue>,
    pub(crate) request: Arc<Request>,
    /// The fence number that the response must echo.
    pub(crate) fence: Option<u64>,
}

impl Completion for Pending {
    fn wait(&self, timeout: Option<Duration>) -> Result<(), TransportError> {
        self.queue.wait(&self.request, timeout)?;
        let (_, response) = self.request.answer()?;
        let header = command::check(self.request.name, response)?;
        if self.fence.is_some_and(|fence| header.fence_id != fence) {
            return Err(TransportError::BadAnswer {
                command: self.request.name,
                why: "it carries another fence",
            });
        }
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.queue.poll(&self.request)
    }
}
