//! What the shell itself saves, around the device's own state: the stream of DEVICE_STATE.
//!
//! ```text
//!   magic (8) │ version (4) │ oldest reader (4) │ bytes of the shell's part (4) │ shell's part (JSON) │ device's part
//! ```
//!
//! Little-endian. A version that adds to the shell's part keeps `oldest reader`: unknown fields are passed over, and
//! missing ones are what their type begins with. One that changes the meaning of what is there raises it.
//!
//! Everything read here is a claim: of a file, or of another host.

use std::collections::BTreeSet;

use serde::Deserialize;
use serde::Serialize;
use thiserror::Error;

use super::MAX_QUEUE_SIZE;
use super::MAX_REQUEST;

/// First bytes of a saved state.
pub const MAGIC: [u8; 8] = *b"CAMPVHST";
/// Version that is written.
pub const VERSION: u32 = 1;
/// Oldest version whose readers understand what is written.
const OLDEST_READER: u32 = 1;
const HEAD: usize = 20;

/// Bytes of a device's part (design §10.8).
pub const MAX_DEVICE: usize = 4 << 20;
/// Bytes of the shell's part: two rings with all their heads in flight, and some answers.
pub const MAX_SHELL: usize = 1 << 20;
/// Bytes of the longest state.
pub const MAX_STATE: usize = HEAD + MAX_SHELL + MAX_DEVICE;

/// Why a state cannot be taken. Nothing of it was applied.
#[derive(Debug, Error)]
pub enum StateError {
    /// Not one of ours.
    #[error("this is no saved vGPU: the first bytes are not {MAGIC:?}")]
    Magic,
    /// Of a later Campanile.
    #[error(
        "version {version} of the state needs a reader of version {oldest} or later; this one is {VERSION}"
    )]
    Version {
        /// Version of the state.
        version: u32,
        /// Oldest reader that understands it.
        oldest: u32,
    },
    /// It ends too early.
    #[error("the state ends after {0} bytes, in the middle of a part")]
    Truncated(usize),
    /// Longer than any can be.
    #[error("a part of the state has {bytes} bytes (at most {most} can be)")]
    TooLong {
        /// Bytes of the part.
        bytes: usize,
        /// Most that there can be.
        most: usize,
    },
    /// The shell's part cannot be read.
    #[error("the shell's part of the state")]
    Shell(#[from] serde_json::Error),
    /// Another device.
    #[error("the state has {theirs} queues, and this vGPU {ours}")]
    Queues {
        /// Queues of the state.
        theirs: usize,
        /// Queues of this device.
        ours: usize,
    },
    /// The guest uses what is not offered here.
    #[error("the guest uses feature bits {0:#x}, which this vGPU does not offer")]
    Features(u64),
    /// The guest would see its configuration change.
    #[error("the device configuration of the state is not that of this vGPU")]
    Config,
    /// Rooms for answers differ.
    #[error("the shortest answer of the state has {theirs} bytes, and of this vGPU {ours}")]
    SmallestAnswer {
        /// Bytes, of the state.
        theirs: usize,
        /// Bytes, of this device.
        ours: usize,
    },
    /// No such request can be in flight.
    #[error("queue {queue}: head {head} cannot be in flight, or is so twice")]
    Head {
        /// The queue.
        queue: usize,
        /// The head.
        head: u16,
    },
    /// No request has so long an answer.
    #[error("queue {queue}: an answer of {bytes} bytes")]
    Answer {
        /// The queue.
        queue: usize,
        /// Bytes.
        bytes: usize,
    },
}

/// A command that was taken from its ring and not answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parked {
    /// Its head, which names it.
    pub head: u16,
    /// What its writable buffers come to: see [`super::writable::Writable::shape`].
    pub shape: u64,
    /// The answer, if the device gave it while the ring stood still.
    #[serde(default)]
    pub answer: Option<Vec<u8>>,
}

/// What is saved of a ring. Addresses, sizes and positions come from the front-end.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedRing {
    /// Where the device was in the available ring; the front-end hands the same on.
    #[serde(default)]
    pub position: u16,
    /// Whether anything was taken since the guest's reset.
    #[serde(default)]
    pub was_used: bool,
    /// An interrupt is due and could not be sent (LM-44).
    #[serde(default)]
    pub owes_interrupt: bool,
    /// What is in flight, answers that wait for the ring first, in their order.
    #[serde(default)]
    pub in_flight: Vec<Parked>,
    /// In flight when a daemon was killed, whose device knew more than is known now: to be handled as if they came now, in this
    /// order. Never part of a state.
    #[serde(skip)]
    pub repeated: Vec<u16>,
}

/// The shell's part.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedShell {
    /// Feature bits that the guest has acknowledged.
    pub features: u64,
    /// Device configuration space.
    pub config: Vec<u8>,
    /// Bytes of the device's shortest answer.
    pub smallest_answer: usize,
    /// Each ring.
    pub rings: Vec<SavedRing>,
}

/// What this device is: a state must fit it (LM-67).
#[derive(Debug, Clone, Copy)]
pub struct Own<'a> {
    /// All feature bits offered.
    pub features: u64,
    /// Device configuration space.
    pub config: &'a [u8],
    /// Bytes of the shortest answer.
    pub smallest_answer: usize,
    /// Rings.
    pub queues: usize,
}

impl SavedShell {
    /// The stream of this part and the device's.
    ///
    /// # Errors
    /// A part is too long.
    pub fn encode(&self, device: &[u8]) -> Result<Vec<u8>, StateError> {
        let shell = serde_json::to_vec(self)?;
        within(shell.len(), MAX_SHELL)?;
        within(device.len(), MAX_DEVICE)?;
        let length = u32::try_from(shell.len()).unwrap_or(u32::MAX);
        let mut stream = Vec::with_capacity(HEAD + shell.len() + device.len());
        stream.extend_from_slice(&MAGIC);
        for word in [VERSION, OLDEST_READER, length] {
            stream.extend_from_slice(&word.to_le_bytes());
        }
        stream.extend_from_slice(&shell);
        stream.extend_from_slice(device);
        Ok(stream)
    }

    /// Both parts of a stream. The numbers of the shell's are not judged yet: see [`Self::judge`].
    ///
    /// # Errors
    /// It is none, or too new, or cut off.
    pub fn decode(stream: &[u8]) -> Result<(Self, &[u8]), StateError> {
        let word = |at: usize| -> Result<u32, StateError> {
            let bytes = stream.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
            Ok(u32::from_le_bytes(bytes.ok_or(StateError::Truncated(stream.len()))?))
        };
        match stream.get(..MAGIC.len()) {
            None => return Err(StateError::Truncated(stream.len())),
            Some(magic) if magic != MAGIC => return Err(StateError::Magic),
            Some(_) => {}
        }
        let (version, oldest, length) = (word(8)?, word(12)?, word(16)?);
        if oldest > VERSION {
            return Err(StateError::Version { version, oldest });
        }
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        within(length, MAX_SHELL)?;
        let shell = stream.get(HEAD..HEAD + length).ok_or(StateError::Truncated(stream.len()))?;
        let device = &stream[HEAD + length..];
        within(device.len(), MAX_DEVICE)?;
        Ok((serde_json::from_slice(shell)?, device))
    }

    /// Whether this state can be that of this device.
    ///
    /// # Errors
    /// The first thing that cannot.
    pub fn judge(&self, own: Own<'_>) -> Result<(), StateError> {
        if self.rings.len() != own.queues {
            return Err(StateError::Queues { theirs: self.rings.len(), ours: own.queues });
        }
        let missing = self.features & !own.features;
        if missing != 0 {
            return Err(StateError::Features(missing));
        }
        if self.config != own.config {
            return Err(StateError::Config);
        }
        if self.smallest_answer != own.smallest_answer {
            return Err(StateError::SmallestAnswer {
                theirs: self.smallest_answer,
                ours: own.smallest_answer,
            });
        }
        for (queue, ring) in self.rings.iter().enumerate() {
            let mut heads = BTreeSet::new();
            for parked in &ring.in_flight {
                if parked.head >= MAX_QUEUE_SIZE || !heads.insert(parked.head) {
                    return Err(StateError::Head { queue, head: parked.head });
                }
                if let Some(bytes) = parked.answer.as_ref().map(Vec::len).filter(|bytes| *bytes > MAX_REQUEST)
                {
                    return Err(StateError::Answer { queue, bytes });
                }
            }
        }
        Ok(())
    }
}

fn within(bytes: usize, most: usize) -> Result<(), StateError> {
    if bytes > most { Err(StateError::TooLong { bytes, most }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::any;
    use proptest::proptest;

    use super::*;

    /// What version 1 wrote. Never changed: what it reads as must stay.
    const OLD: &[u8] = br#"{"features":5637144576,"config":[1,2],"smallest_answer":24,"rings":[{"position":7,"was_used":true,"owes_interrupt":true,"in_flight":[{"head":3,"shape":18446744073709551615,"answer":[9]},{"head":4,"shape":0,"answer":null}]},{}]}"#;

    fn stream(version: u32, oldest: u32, shell: &[u8], device: &[u8]) -> Vec<u8> {
        let length = u32::try_from(shell.len()).unwrap();
        let words = [version, oldest, length].map(u32::to_le_bytes).concat();
        [&MAGIC, &words[..], shell, device].concat()
    }

    fn shell() -> SavedShell {
        let in_flight = vec![
            Parked { head: 3, shape: u64::MAX, answer: Some(vec![9]) },
            Parked { head: 4, shape: 0, answer: None },
        ];
        let used =
            SavedRing { position: 7, was_used: true, owes_interrupt: true, in_flight, repeated: vec![] };
        SavedShell {
            features: 5_637_144_576,
            config: vec![1, 2],
            smallest_answer: 24,
            rings: vec![used, SavedRing::default()],
        }
    }

    #[test]
    fn state_of_version_one_is_read_as_ever() {
        assert_eq!(SavedShell::decode(&stream(1, 1, OLD, b"device")).unwrap(), (shell(), &b"device"[..]));
        let written = shell().encode(b"device").unwrap();
        assert_eq!(SavedShell::decode(&written).unwrap(), (shell(), &b"device"[..]));
    }

    #[test]
    fn later_version_is_read_if_it_says_that_it_can_be() {
        let later = stream(7, VERSION, OLD, &[]);
        assert_eq!(SavedShell::decode(&later).unwrap(), (shell(), &[][..]));
        let later = stream(7, VERSION + 1, OLD, &[]);
        assert!(matches!(SavedShell::decode(&later), Err(StateError::Version { version: 7, .. })));
    }

    #[test]
    fn parts_that_are_too_long_are_refused() {
        let long = vec![b' '; MAX_SHELL + 1];
        assert!(matches!(SavedShell::decode(&stream(1, 1, &long, &[])), Err(StateError::TooLong { .. })));
        let long = vec![0; MAX_DEVICE + 1];
        assert!(matches!(SavedShell::decode(&stream(1, 1, OLD, &long)), Err(StateError::TooLong { .. })));
        assert!(matches!(shell().encode(&long), Err(StateError::TooLong { .. })));
    }

    proptest! {
        #[test]
        fn no_stream_is_a_crash(bytes in vec(any::<u8>(), 0..200), at in 0..280usize, value in any::<u8>()) {
            let own = Own { features: u64::MAX, config: &[1, 2], smallest_answer: 24, queues: 2 };
            for mut hostile in [bytes.clone(), stream(1, 1, &bytes, &bytes), stream(1, 1, OLD, &bytes)] {
                if let Some(byte) = hostile.get_mut(at) {
                    *byte = value;
                }
                if let Ok((shell, _)) = SavedShell::decode(&hostile)
                    && shell.judge(own).is_ok()
                {
                    assert_eq!(shell.rings.len(), 2);
                    let heads = shell.rings.iter().flat_map(|ring| &ring.in_flight).map(|parked| parked.head);
                    assert!(heads.into_iter().all(|head| head < MAX_QUEUE_SIZE));
                }
            }
        }
    }
}
