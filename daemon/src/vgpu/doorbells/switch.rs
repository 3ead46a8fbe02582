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

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use rustix::event::PollFd;
    use rustix::event::PollFlags;
    use rustix::event::Timespec;
    use rustix::event::poll;

    use super::DoorbellModes;
    use super::NotifySwitch;
    use crate::vgpu::doorbells::modes::NodeMode;

    fn is_signalled(switch: &NotifySwitch) -> bool {
        let ready =
            poll(&mut [PollFd::from_borrowed_fd(switch.as_fd(), PollFlags::IN)], Some(&Timespec::default()));
        ready == Ok(1)
    }

    #[test]
    fn ums_97_each_node_is_switched_by_itself_and_the_vgpu_is_told_until_it_has_looked() {
        let notify = |notify| NodeMode { notify, ..NodeMode::default() };
        for begins in [[false, false], [true, false], [false, true], [true, true]] {
            let switch = NotifySwitch::new(&DoorbellModes(begins.map(notify))).unwrap();
            let mut modes = begins;
            let is_on = |switch: &NotifySwitch| [switch.is_on(0), switch.is_on(1)];
            assert_eq!(is_on(&switch), modes, "as chosen at start");
            assert!(!is_signalled(&switch));
            for (node, notify) in [(0, true), (1, true), (0, false), (0, false), (1, false), (1, true)] {
                switch.set(node, notify);
                modes[node] = notify;
                assert_eq!(is_on(&switch), modes, "{begins:?}: node {node} is set to {notify}");
                assert!(is_signalled(&switch));
                switch.take();
                assert!(!is_signalled(&switch), "it was seen");
            }
        }
    }
}
