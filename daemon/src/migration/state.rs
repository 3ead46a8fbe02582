//! A vGPU that stands still, as bytes: at most 4 MiB, without its memories (LM-18 to LM-20, LM-40; design §10.8).
//!
//! ```text
//!   8 bytes      magic, "CAMPSTAT"
//!   u32 LE       version of what follows
//!   u32 LE       the oldest version of a reader that understands it
//!   CBOR map     immutable │ bundle │ session │ front      (RFC 8949)
//! ```
//!
//! Where that is more than 4 MiB, the kernel sources are packed: real Vulkan programs have hundreds of modules, which are 0.29 as
//! long then (1,569 of llama.cpp: 38.5 MB, 11.3 MB packed; 200 of them 4.7 and 1.4 MB).
//!
//! The rules for what may change are those of [`crate::vgpu::state::saved`]. In short: a reader refuses a state whose
//! minimum reader is newer than itself, reads any older version, ignores names that it does not know, and takes the
//! default for one that is missing. So a field that is added costs nothing, and one that must not be overlooked raises
//! the minimum reader.
//!
//! [`decode`] checks the form alone. Whether the immutable part fits is for
//! [`check_immutable`](crate::vgpu::state::restore::install::check_immutable) to say, and nothing of the rest is
//! believed by [`Session::restore`](crate::vgpu::session::Session::restore).

use std::io::Read;
use std::io::Write;

use serde::Deserialize;
use serde::Serialize;

use crate::vgpu::engines::kernels::MAX_KERNEL_BYTES;
use crate::vgpu::state::saved::SavedSession;
use crate::vgpu::state::saved::bytes::Bytes;
use crate::vgpu::state::saved::immutable::Immutable;

/// The first bytes of a state.
pub const MAGIC: [u8; 8] = *b"CAMPSTAT";
/// The version that is written. 2: what is half run lies in save areas, in the memory.
pub const VERSION: u32 = 2;
/// The oldest reader that understands what is written.
pub const MIN_READER: u32 = 2;
/// The version of a state whose sources are packed, and the oldest reader of it: the newest that is read.
pub const PACKED: u32 = 3;
/// Bytes of a state at the most.
pub const MAX_BYTES: usize = 4 << 20;
/// Bytes before the map.
const HEADER: usize = 16;
/// Level of zstd for sources: they are packed while the VM stands still.
const LEVEL: i32 = 1;
/// Bytes that packed sources may be: all that a VM may have, and their names.
const MAX_UNPACKED: usize = MAX_KERNEL_BYTES + (MAX_KERNEL_BYTES >> 3);
/// How deep maps and lists may lie in each other: ours do not by half.
const MAX_DEPTH: usize = 32;

/// Names the memories that belong to a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct BundleId(pub u64, pub u64);

/// A state.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct State {
    /// What must be the same where it goes. Always the first that is written and checked.
    pub immutable: Immutable,
    /// Its memories.
    pub bundle: BundleId,
    /// The session.
    pub session: SavedSession,
    /// What the front keeps: the commands that wait.
    pub front: Bytes,
}

/// Why bytes are no state, or a state has no bytes.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// Other bytes, or too few.
    #[error("this is not the state of a vGPU")]
    NotAState,
    /// Written by a newer daemon, and not for this one.
    #[error(
        "the state has version {version} and needs a reader of version {reader}; this daemon reads up to {PACKED}"
    )]
    Version {
        /// Of the state.
        version: u32,
        /// That it needs.
        reader: u32,
    },
    /// It has more bytes than a state may have.
    #[error("a state of more than {MAX_BYTES} bytes")]
    TooLarge,
    /// The map is none, or not of this kind.
    #[error("the state is damaged: {0}")]
    Damaged(String),
}

/// Counts, and takes no more than a state may have.
struct Bounded(Vec<u8>);

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.0.len() + bytes.len() > MAX_BYTES {
            return Err(std::io::ErrorKind::FileTooLarge.into());
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl State {
    /// As bytes.
    ///
    /// # Errors
    /// They are more than [`MAX_BYTES`].
    pub fn encode(&self) -> Result<Vec<u8>, StateError> {
        match self.encode_as(VERSION, MIN_READER) {
            Err(StateError::TooLarge) => self.with_packed_sources()?.encode_as(PACKED, PACKED),
            encoded => encoded,
        }
    }

    fn encode_as(&self, version: u32, reader: u32) -> Result<Vec<u8>, StateError> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(version.to_le_bytes());
        bytes.extend(reader.to_le_bytes());
        let mut bytes = Bounded(bytes);
        ciborium::into_writer(self, &mut bytes).map_err(|error| match error {
            ciborium::ser::Error::Io(_) => StateError::TooLarge,
            ciborium::ser::Error::Value(text) => StateError::Damaged(text),
        })?;
        Ok(bytes.0)
    }

    fn with_packed_sources(&self) -> Result<Self, StateError> {
        let damaged = |error: &dyn std::error::Error| StateError::Damaged(error.to_string());
        let mut plain = Vec::new();
        ciborium::into_writer(&self.session.sources, &mut plain).map_err(|error| damaged(&error))?;
        let packed = pack(&plain).map_err(|error| damaged(&error))?;
        let session =
            SavedSession { sources: Vec::new(), packed_sources: Bytes(packed), ..self.session.clone() };
        Ok(Self { session, ..self.clone() })
    }

    /// Whatever is packed may have been made by anybody: it is unpacked into so much memory and no more.
    fn unpack_sources(&mut self) -> Result<(), StateError> {
        let packed = std::mem::take(&mut self.session.packed_sources).0;
        if packed.is_empty() {
            return Ok(());
        }
        if !self.session.sources.is_empty() {
            return Err(StateError::Damaged("it has sources, and packed ones too".to_owned()));
        }
        let damaged = |error: &dyn std::error::Error| StateError::Damaged(format!("packed sources: {error}"));
        let plain = zstd::bulk::decompress(&packed, MAX_UNPACKED).map_err(|error| damaged(&error))?;
        self.session.sources = ciborium::de::from_reader_with_recursion_limit(plain.as_slice(), MAX_DEPTH)
            .map_err(|e| damaged(&e))?;
        Ok(())
    }
}

/// One zstd frame, which says whether it is whole.
fn pack(plain: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut compressor = zstd::bulk::Compressor::new(LEVEL)?;
    compressor.include_checksum(true)?;
    compressor.compress(plain)
}

/// Version and minimum reader of a state.
///
/// # Errors
/// It is none.
pub fn versions(bytes: &[u8]) -> Result<(u32, u32), StateError> {
    let header = bytes.get(..HEADER).filter(|header| header.starts_with(&MAGIC));
    let header = header.ok_or(StateError::NotAState)?;
    let word = |at: usize| {
        let word = header.get(at..at + 4).and_then(|word| word.try_into().ok());
        word.map(u32::from_le_bytes).ok_or(StateError::NotAState)
    };
    Ok((word(8)?, word(12)?))
}

/// From bytes, of whatever version that this daemon reads.
///
/// # Errors
/// They are too many, no state, of a version that is too new, or damaged.
pub fn decode(bytes: &[u8]) -> Result<State, StateError> {
    if bytes.len() > MAX_BYTES {
        return Err(StateError::TooLarge);
    }
    let (version, reader) = versions(bytes)?;
    if version == 0 || reader == 0 || reader > version || reader > PACKED {
        return Err(StateError::Version { version, reader });
    }
    let mut rest = &bytes[HEADER..];
    let mut state: State = ciborium::de::from_reader_with_recursion_limit(&mut rest, MAX_DEPTH)
        .map_err(|error| StateError::Damaged(error.to_string()))?;
    // One state, and nothing behind it.
    let mut more = [0];
    if matches!(rest.read(&mut more), Ok(1)) {
        return Err(StateError::Damaged("there is more behind it".to_owned()));
    }
    state.unpack_sources()?;
    Ok(state)
}

#[cfg(test)]
mod tests {
    use ciborium::Value;

    use super::BundleId;
    use super::HEADER;
    use super::MAGIC;
    use super::MAX_BYTES;
    use super::MAX_UNPACKED;
    use super::PACKED;
    use super::State;
    use super::StateError;
    use super::VERSION;
    use super::decode;
    use super::versions;
    use crate::ids::GuestProcess;
    use crate::vgpu::state::saved::bytes::Bytes;
    use crate::vgpu::state::saved::memory::SavedAllocation;
    use crate::vgpu::state::saved::memory::SavedPlace;
    use crate::vgpu::state::saved::process::SavedProcess;
    use crate::vgpu::state::saved::process::SavedSource;

    fn example() -> State {
        let mut state = State { bundle: BundleId(1, u64::MAX), ..State::default() };
        state.immutable.vram_bytes = 64 << 20;
        state.session.allocations = vec![
            SavedAllocation(1, 4096, SavedPlace::Aperture(0), 3),
            SavedAllocation(2, 8192, SavedPlace::Nowhere, 3),
        ];
        state.session.processes =
            vec![SavedProcess { context: GuestProcess::new(7), ..SavedProcess::default() }];
        state.front = Bytes(vec![1, 2, 3]);
        state
    }

    fn with_map(version: u32, reader: u32, map: &Value) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(version.to_le_bytes());
        bytes.extend(reader.to_le_bytes());
        ciborium::into_writer(map, &mut bytes).unwrap();
        bytes
    }

    fn map_of(state: &State) -> Vec<(Value, Value)> {
        let bytes = state.encode().unwrap();
        let value: Value = ciborium::from_reader(&bytes[HEADER..]).unwrap();
        value.into_map().unwrap()
    }

    #[test]
    fn lm_32_what_is_written_is_read() {
        let state = example();
        assert_eq!(decode(&state.encode().unwrap()).unwrap(), state);
    }

    /// Modules as compilers write them: each repeats itself, and the others.
    fn with_modules(count: u32, bytes: usize) -> State {
        let mut state = example();
        let module = |number: u32| {
            let words = (0..).flat_map(|at: u32| [(at % 37) << 16 | 248, at % 211, at / 7, number]);
            words.flat_map(u32::to_le_bytes).take(bytes).collect()
        };
        let source = |number| SavedSource { language: 3, entry: None, bytes: Bytes(module(number)) };
        state.session.sources = (0..count).map(source).collect();
        state
    }

    #[test]
    fn lm_18_two_hundred_modules_of_a_vulkan_program_move() {
        let small = with_modules(20, 30_000);
        assert_eq!(versions(&small.encode().unwrap()).unwrap(), (VERSION, super::MIN_READER), "as ever");
        let large = with_modules(200, 30_000);
        let bytes = large.encode().unwrap();
        assert_eq!(versions(&bytes).unwrap(), (PACKED, PACKED), "not for older readers");
        assert!(bytes.len() < MAX_BYTES);
        assert_eq!(decode(&bytes).unwrap(), large);
    }

    #[test]
    fn lm_40_packed_sources_that_are_damaged_endless_or_beside_others_are_refused() {
        let state = with_modules(200, 30_000).with_packed_sources().unwrap();
        let broken = |change: &dyn Fn(&mut State)| {
            let mut state = state.clone();
            change(&mut state);
            decode(&state.encode_as(PACKED, PACKED).unwrap()).map(|_| ()).unwrap_err().to_string()
        };
        for at in [0, 5, 100] {
            let why = broken(&|state| state.session.packed_sources.0[at] ^= 0x55);
            assert!(why.contains("packed sources"), "{why}");
        }
        let why = broken(&|state| state.session.packed_sources.0.truncate(1000));
        assert!(why.contains("packed sources"), "{why}");
        let endless = zstd::bulk::compress(&vec![0; MAX_UNPACKED + 1], 1).unwrap();
        let why = broken(&|state| state.session.packed_sources.0 = endless.clone());
        assert!(why.contains("packed sources"), "{why}");
        let why = broken(&|state| state.session.sources = with_modules(1, 8).session.sources);
        assert!(why.contains("and packed ones too"), "{why}");
    }

    #[test]
    fn lm_20_a_version_is_there_and_is_checked() {
        let map = Value::Map(map_of(&example()));
        assert_eq!(
            decode(&with_map(VERSION + 5, VERSION, &map)).unwrap(),
            example(),
            "newer, and still for us"
        );
        for (version, reader) in [(PACKED + 1, PACKED + 1), (0, 0), (VERSION, 0), (1, 2)] {
            let refused = decode(&with_map(version, reader, &map)).unwrap_err();
            assert!(matches!(refused, StateError::Version { .. }), "{version} {reader}");
            assert!(refused.to_string().contains(&version.to_string()));
        }
    }

    #[test]
    fn lm_20_names_that_are_not_known_are_ignored_and_missing_ones_have_defaults() {
        let mut map = map_of(&example());
        map.push((Value::Text("of_the_future".to_owned()), Value::Array(vec![Value::Null])));
        map.retain(|(name, _)| name.as_text() != Some("front"));
        let read = decode(&with_map(VERSION, VERSION, &Value::Map(map))).unwrap();
        assert_eq!(read, State { front: Bytes::default(), ..example() });
    }

    #[test]
    fn lm_40_what_is_cut_off_damaged_too_long_or_has_more_behind_it_is_refused() {
        let bytes = example().encode().unwrap();
        for length in 0..bytes.len() {
            assert!(decode(&bytes[..length]).is_err(), "{length} of {} bytes", bytes.len());
        }
        let mut longer = bytes.clone();
        longer.push(0);
        assert!(matches!(decode(&longer), Err(StateError::Damaged(_))));
        assert!(matches!(decode(&vec![0; MAX_BYTES + 1]), Err(StateError::TooLarge)));
        assert!(matches!(decode(b"CAMPSTAX--------"), Err(StateError::NotAState)));
    }

    #[test]
    fn lm_40_lists_in_lists_without_end_and_lengths_that_cannot_be_end_nothing_but_themselves() {
        let mut deep = MAGIC.to_vec();
        deep.extend([1, 0, 0, 0, 1, 0, 0, 0]);
        let header = deep.clone();
        deep.extend(vec![0x81; 1 << 20]);
        assert!(matches!(decode(&deep), Err(StateError::Damaged(_))));
        for first in [0x9b, 0xbb, 0x5b, 0x7b] {
            let mut long = header.clone();
            long.push(first);
            long.extend([0xff; 8]);
            assert!(matches!(decode(&long), Err(StateError::Damaged(_))), "{first:#x}");
        }
    }

    #[test]
    fn lm_40_a_state_that_is_too_large_is_not_written() {
        let state = State { front: Bytes(vec![0; MAX_BYTES]), ..State::default() };
        assert!(matches!(state.encode(), Err(StateError::TooLarge)));
    }
}
