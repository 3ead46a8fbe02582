//! The fence of one submission: a sync file, which `poll` waits for.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;
use std::time::Instant;

use rustix::event::PollFd;
use rustix::event::PollFlags;
use rustix::event::Timespec;
use rustix::event::poll;
use rustix::io::Errno;

use super::node::RenderNode;
use crate::transport::error::TransportError;
use crate::transport::submission::Completion;

/// How often it is looked whether the device is there.
const LOOK: Duration = Duration::from_secs(1);

/// A submission under way, or one without a fence, of which nothing more will be heard.
///
/// The kernel's fence uses a lock of the device's when it is polled and when it is closed, and holds nothing of the device: one
/// that is closed after the device was unplugged, and its last node closed, takes a lock in memory that is another's. So this
/// keeps the node open for as long, and is dropped first.
#[derive(Debug)]
pub(super) struct SyncFile {
    file: Option<OwnedFd>,
    node: Arc<RenderNode>,
}

impl SyncFile {
    /// The fence of a submission to `node`, if it has one.
    pub(super) fn new(file: Option<OwnedFd>, node: Arc<RenderNode>) -> Self {
        Self { file, node }
    }
}

impl SyncFile {
    /// Whether the fence is signalled within `timeout`. That of a device that was unplugged never is.
    fn signalled(&self, timeout: Option<Duration>) -> Result<bool, TransportError> {
        let Some(file) = &self.file else { return Ok(true) };
        let begun = Instant::now();
        loop {
            let left = timeout.map_or(LOOK, |timeout| timeout.saturating_sub(begun.elapsed()).min(LOOK));
            let mut files = [PollFd::new(file, PollFlags::IN)];
            match poll(&mut files, Some(&Timespec::try_from(left).unwrap_or_default())) {
                Ok(ready) if ready > 0 => return Ok(true),
                Ok(_) if self.node.is_gone() => return Err(TransportError::Disconnected),
                Ok(_) if timeout.is_some_and(|timeout| begun.elapsed() >= timeout) => return Ok(false),
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => {
                    return Err(TransportError::System { what: "waiting for a fence", source: errno.into() });
                }
            }
        }
    }
}

impl Completion for SyncFile {
    fn wait(&self, timeout: Option<Duration>) -> Result<(), TransportError> {
        if self.signalled(timeout)? {
            return Ok(());
        }
        Err(TransportError::Timeout { what: "SUBMIT_3D", after: timeout.unwrap_or_default() })
    }

    fn is_done(&self) -> bool {
        self.signalled(Some(Duration::ZERO)).unwrap_or(true)
    }
}
