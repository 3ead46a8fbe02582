//! What predecessor and successor say to each other.

use serde::Deserialize;
use serde::Serialize;

use crate::frontend::vhost::handed::HandedShell;
use crate::vgpu::state::saved::bytes::Bytes;

/// The newest format of what is handed over. Raised when a successor that reads the one before could not go on.
pub(in crate::host) const FORMAT: u32 = 2;
/// The format where no vGPU has local memory of a device's own.
pub(in crate::host) const WITHOUT_LOCAL: u32 = 1;
/// The oldest one that is read.
pub(in crate::host) const OLDEST: u32 = 1;

/// What the operator has changed since the start.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::host) struct Changes {
    /// vGPUs that were made, in the operator's words.
    pub(in crate::host) made: Vec<String>,
    /// What was set, by vGPU.
    pub(in crate::host) set: Vec<(String, Vec<String>)>,
    /// The daemon is being drained.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(in crate::host) is_drained: bool,
}

/// What a successor says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(in crate::host) enum Said {
    /// First of all.
    Hello {
        /// The oldest format that it reads.
        oldest: u32,
        /// The newest one.
        newest: u32,
        /// Its version, for people.
        version: String,
        /// It wants to be told which engines there are, once it is prepared.
        #[serde(default)]
        opens_ahead: bool,
    },
    /// It could serve, and waits.
    Prepared,
    /// Answers [`Handed::Engines`]: engines are open, as far as that could be.
    Opened {
        /// Their processes.
        processes: Vec<u32>,
    },
    /// All devices are as they were.
    Restored,
    /// Guests go on.
    Serving {
        /// vGPUs whose connection it could not take up, and why.
        lost: Vec<(String, String)>,
    },
    /// It cannot, and ends.
    Failed {
        /// Why, in the operator's words.
        why: String,
    },
}

/// What a predecessor says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(in crate::host) enum Handed {
    /// The sockets at which it listens; their descriptors in this order.
    Sockets(Vec<NamedSocket>),
    /// Engines that work while nothing stands still yet, by vGPU.
    Engines(Vec<HandedEngines>),
    /// Local memory of a vGPU that is a device's own, with a VM or not; before all that follows. Descriptor: the memory.
    Local(HandedLocal),
    /// What the operator has changed since the start, and how many vGPUs follow.
    Estate {
        /// That.
        #[serde(flatten)]
        changes: Changes,
        /// vGPUs with a VM.
        vgpus: u32,
    },
    /// One of them. Descriptors: the connection, video memory, evicted memory, and those of the connection's data.
    Vgpu(Box<HandedVgpu>),
    /// They are the successor's.
    Go,
}

/// A socket that listens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::host) struct NamedSocket {
    /// Its name, see [`crate::open_sockets`].
    pub(in crate::host) name: Bytes,
    /// It lies in a file that the daemon has made.
    pub(in crate::host) has_file: bool,
}

/// Engines of a vGPU that there are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::host) struct HandedEngines {
    /// Its name.
    pub(in crate::host) vgpu: String,
    /// Their places.
    pub(in crate::host) engines: Vec<u32>,
    /// The vGPU in the operator's words, where it was made at run time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(in crate::host) made: Option<String>,
}

/// Local memory that is a device's own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::host) struct HandedLocal {
    /// The vGPU's name.
    pub(in crate::host) vgpu: String,
    /// Bytes of the allocation.
    pub(in crate::host) length: u64,
    /// Vulkan's index of its type.
    pub(in crate::host) type_index: u32,
    /// UUIDs of device and driver.
    pub(in crate::host) uuids: [[u8; 16]; 2],
    /// No session has had it.
    pub(in crate::host) is_new: bool,
}

/// A vGPU with a VM.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::host) struct HandedVgpu {
    /// Its name.
    pub(in crate::host) name: String,
    /// Its connection.
    pub(in crate::host) shell: HandedShell,
    /// Its state, as migration has it.
    pub(in crate::host) state: Bytes,
    /// Engines, by place, of which the logs of compiled code come, behind all other descriptors.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(in crate::host) code: Vec<u32>,
    /// Pages of each memory, and runs of those that were ever written: first page, and the one after the last.
    pub(in crate::host) written: [(u64, Vec<(u64, u64)>); 2],
}

#[cfg(test)]
mod tests {
    use super::Said;

    #[test]
    fn a_successor_that_does_not_say_that_it_opens_engines_ahead_does_not() {
        let mut hello = Vec::new();
        let said = Said::Hello { oldest: 1, newest: 2, version: "0".to_owned(), opens_ahead: true };
        ciborium::into_writer(&said, &mut hello).unwrap();
        assert_eq!(ciborium::from_reader::<Said, _>(&*hello).unwrap(), said);
        let mut value: ciborium::Value = ciborium::from_reader(&*hello).unwrap();
        let fields = value.as_map_mut().unwrap()[0].1.as_map_mut().unwrap();
        fields.retain(|(name, _)| name.as_text() != Some("opens_ahead"));
        let older: Said = value.deserialized().unwrap();
        assert_eq!(older, Said::Hello { oldest: 1, newest: 2, version: "0".to_owned(), opens_ahead: false });
    }
}
