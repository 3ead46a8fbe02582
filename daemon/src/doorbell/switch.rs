//! The operator's switch between CONNECTED and CONNECTED_NOTIFY, while guests run (UMS-97).
//!
//! | word | writer | readers |
//! |---|---|---|
//! | one bit a node: every connect answers CONNECTED_NOTIFY | any thread of the daemon | the vGPU's thread |
//!
//! The word is what holds; the event says to look at it, and at the doorbells that are connected the other way.

use std::io;
use std::os::fd::AsFd;
use std::os::fd::BorrowedFd;
use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering;

use campanile_host_gpu::event::Event;

use super::modes::DoorbellModes;

/// The switch of one vGPU; sessions come and go.
#[derive(Debug)]
pub struct NotifySwitch {
    nodes: AtomicU8,
    event: Event,
}

impl NotifySwitch {
    /// As the operator chose at start.
    pub fn new(modes: &DoorbellModes) -> io::Result<Self> {
        let bits = modes.0.iter().enumerate().map(|(node, mode)| u8::from(mode.notify) << node);
        Ok(Self { nodes: AtomicU8::new(bits.sum()), event: Event::new()? })
    }

    /// Switches node `node` (its ordinal). Doorbells that are connected the other way are disconnected with RETRY, and
    /// answered anew when their guests reconnect; those whose guest chose notify mode stay in it.
    pub fn set(&self, node: usize, notify: bool) {
        let bit = 1u8 << (node & 7);
        if notify {
            self.nodes.fetch_or(bit, Ordering::Release);
        } else {
            self.nodes.fetch_and(!bit, Ordering::Release);
        }
        // PAIRS WITH `take`.
        self.event.signal();
    }

    /// Whether every connect on node `node` answers CONNECTED_NOTIFY.
    pub fn is_on(&self, node: usize) -> bool {
        self.nodes.load(Ordering::Acquire) & (1 << (node & 7)) != 0
    }

    /// The event was seen.
    pub fn take(&self) {
        self.event.drain();
    }
}

impl AsFd for NotifySwitch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}
