//! What a front-end's requests tell of a command line that cannot work: one line of the log each, which says what to
//! change, at most once a connection.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;

use vm_memory::GuestAddress;
use vm_memory::GuestMemoryBackend;
use vm_memory::GuestMemoryRegion;

use super::memory::GuestRam;

/// Something on the VMM's command line that has to change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Advice {
    /// The front-end asks for so many bytes of configuration at once, and the device has others.
    ConfigSize {
        /// Bytes asked for.
        asked: u32,
        /// Bytes of the device.
        own: u32,
    },
    /// The front-end has set up so many queues, and the device has others.
    Queues {
        /// Queues set up.
        asked: u32,
        /// Queues of the device.
        own: u32,
    },
    /// What the guest writes does not reach this process.
    PrivateMemory,
}

impl Advice {
    /// The line.
    pub(super) fn line(self) -> String {
        match self {
            Self::ConfigSize { asked, own } => format!(
                "the VMM gives the guest {asked} bytes of device configuration, and there are {own}: set config_size={own} \
                 on its command line"
            ),
            Self::Queues { asked, own } => format!(
                "the VMM has set up {asked} of {own} queues, so that the guest's driver will refuse the device: set \
                 num_vqs={own} on its command line"
            ),
            Self::PrivateMemory => "what the guest writes to its memory does not arrive here: the VMM's memory must be \
                                    shared; in QEMU, share=on at the memory-backend object that the machine uses"
                .to_owned(),
        }
    }
}

/// What was said on one connection.
#[derive(Debug, Default)]
pub(super) struct Said {
    what: BTreeSet<Advice>,
}

impl Said {
    /// Logs it, if it is new.
    pub(super) fn say(&mut self, socket: &str, advice: Advice) {
        // Few, whatever a front-end sends: one of each kind.
        let known = |said: &Advice| std::mem::discriminant(said) == std::mem::discriminant(&advice);
        if !self.what.iter().any(known) {
            self.what.insert(advice);
            log::warn!("{socket}: {}", advice.line());
        }
    }
}

/// Whether the file behind this guest address has no page at all, although the guest has written its ring there: then
/// the front-end maps it privately.
pub(super) fn is_private(ram: &GuestRam, address: u64) -> bool {
    let region = ram.find_region(GuestAddress(address));
    let file = region.and_then(|region| region.file_offset()).map(|place| place.file());
    let metadata = file.and_then(|file| file.metadata().ok());
    metadata.is_some_and(|metadata| metadata.is_file() && metadata.blocks() == 0)
}

#[cfg(test)]
mod tests {
    use super::Advice;

    #[test]
    fn each_line_says_what_to_change() {
        assert!(Advice::ConfigSize { asked: 8, own: 16 }.line().contains("config_size=16"));
        assert!(Advice::Queues { asked: 1, own: 2 }.line().contains("num_vqs=2"));
        assert!(Advice::PrivateMemory.line().contains("share=on"));
    }
}
