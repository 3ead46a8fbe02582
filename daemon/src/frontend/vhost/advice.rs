//! What a front-end's requests tell of a command line that cannot work: one line of the log each, which says what to
//! change, at most once a connection.

use std::collections::BTreeSet;

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
    /// The guest's driver starts without having seen the configuration, of so many bytes.
    NoConfig {
        /// Bytes of the device.
        own: u32,
    },
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
            Self::NoConfig { own } => format!(
                "the guest's driver starts the device without having seen its configuration: set config_size={own} on the \
                 VMM's command line"
            ),
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

#[cfg(test)]
mod tests {
    use super::Advice;

    #[test]
    fn each_line_says_what_to_change() {
        assert!(Advice::ConfigSize { asked: 8, own: 16 }.line().contains("config_size=16"));
        assert!(Advice::Queues { asked: 1, own: 2 }.line().contains("num_vqs=2"));
        assert!(Advice::NoConfig { own: 16 }.line().contains("config_size=16"));
    }
}
