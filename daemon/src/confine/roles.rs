//! The roles of the daemon's threads: which there are, and what each needs. Data only; [`super::files`],
//! [`super::privileges`] and [`super::system_calls`] make it hold.
//!
//! Each role is to be a process of its own later; what is listed here is what that process gets.

use std::path::PathBuf;

use rustix::thread::CapabilitySet;

/// What a thread of the daemon is there for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// The supervisor: turns of engines, over words that they share with it.
    Schedule,
    /// The line between daemons and the broker of turns, on either side.
    Turns,
    /// Front and session of one VM: its socket, its queues, its engines, its migration away.
    Front,
    /// The operator's socket, and what the operator orders: files, migrations.
    Operator,
    /// What other daemons bring.
    Arrivals,
    /// Scrapers of metrics, and browsers.
    Metrics,
}

impl Role {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Schedule, Self::Turns, Self::Front, Self::Operator, Self::Arrivals, Self::Metrics];

    /// Its name, for people and as that of the thread that begins it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Schedule => "schedule",
            Self::Turns => "turns",
            Self::Front => "front",
            Self::Operator => "operator",
            Self::Arrivals => "arrivals",
            Self::Metrics => "metrics",
        }
    }

    /// The capabilities that are left of those that the process has.
    pub const fn capabilities(self) -> CapabilitySet {
        match self {
            Self::Schedule | Self::Turns | Self::Arrivals | Self::Metrics => CapabilitySet::empty(),
            // Engines may have a user of their own, and are ended by signal.
            Self::Front => CapabilitySet::KILL,
            // The operator names files of any user.
            Self::Operator => CapabilitySet::DAC_OVERRIDE,
        }
    }
}

/// What of the machine a role may reach beside what is open.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reach {
    /// Folders in which it makes, reads, writes, renames and removes files.
    pub folders: Vec<PathBuf>,
    /// Files and folders that it reads.
    pub reads: Vec<PathBuf>,
    /// TCP ports that it connects to.
    pub ports: Ports,
    /// Whether it connects to anything.
    pub has_peers: bool,
}

/// TCP ports, by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Ports {
    /// None.
    #[default]
    None,
    /// One.
    One(u16),
    /// Any: the operator says which.
    Any,
}

/// Where vGPUs go when their VMM migrates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Peering {
    /// Nowhere, or into a file.
    #[default]
    None,
    /// To a daemon on this host, over a Unix socket.
    Local,
    /// To a daemon that listens to this TCP port.
    Port(u16),
}

/// What a name is looked up with.
const RESOLVER: &[&str] = &[
    "/etc/hosts",
    "/etc/host.conf",
    "/etc/resolv.conf",
    "/etc/nsswitch.conf",
    "/etc/gai.conf",
    "/etc/ld.so.cache",
    "/run/systemd/resolve",
    "/usr/lib",
    "/lib",
    "/lib64",
];

/// What the daemon's options say of files and peers.
#[derive(Debug, Clone, Copy)]
pub struct Setting<'a> {
    /// Where reports and side files go.
    pub state_dir: Option<&'a PathBuf>,
    /// The daemon to which vGPUs go when their VMM migrates.
    pub peering: Peering,
}

impl Reach {
    /// Of a role in a daemon with these options.
    pub fn of(role: Role, setting: Setting<'_>) -> Self {
        match role {
            Role::Schedule | Role::Arrivals | Role::Metrics => Self::default(),
            // A daemon connects again when the broker has gone.
            Role::Turns => Self { has_peers: true, ..Self::default() },
            Role::Front => {
                let ports = match setting.peering {
                    Peering::None | Peering::Local => Ports::None,
                    Peering::Port(port) => Ports::One(port),
                };
                let reads = if ports == Ports::None { &[] } else { RESOLVER };
                Self {
                    folders: setting.state_dir.into_iter().cloned().collect(),
                    reads: reads.iter().map(PathBuf::from).collect(),
                    ports,
                    has_peers: setting.peering != Peering::None,
                }
            }
            Role::Operator => {
                Self { folders: vec!["/".into()], reads: Vec::new(), ports: Ports::Any, has_peers: true }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::Peering;
    use super::Ports;
    use super::Reach;
    use super::Role;
    use super::Setting;

    #[test]
    fn a_front_reaches_its_state_directory_and_the_peer_of_the_command_line_and_nothing_else() {
        let none = Setting { state_dir: None, peering: Peering::None };
        assert_eq!(Reach::of(Role::Front, none), Reach::default());
        let local = Reach::of(Role::Front, Setting { peering: Peering::Local, ..none });
        assert_eq!(local, Reach { has_peers: true, ..Reach::default() });
        let state_dir = PathBuf::from("/var/lib/campanile");
        let some = Setting { state_dir: Some(&state_dir), peering: Peering::Port(4711) };
        let reach = Reach::of(Role::Front, some);
        assert_eq!((&reach.folders, reach.ports), (&vec![state_dir.clone()], Ports::One(4711)));
        assert!(reach.reads.contains(&PathBuf::from("/etc/resolv.conf")));
        for role in [Role::Schedule, Role::Arrivals, Role::Metrics] {
            assert_eq!(Reach::of(role, some), Reach::default(), "{role:?}");
        }
    }
}
