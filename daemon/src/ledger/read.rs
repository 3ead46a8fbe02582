//! What a daemon that was killed has left of a vGPU.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::fs::File;
use std::fs::Metadata;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use super::log::Log;
use super::log::LogError;
use super::words::Words;

/// Role of the log.
pub const LOG: &str = "log";
/// Role of the words of the rings.
pub const WORDS: &str = "words";
/// Role of the connection.
pub const CONNECTION: &str = "connection";
/// Role of the back channel.
pub const CHANNEL: &str = "channel";
/// Role of the file of video memory.
pub const VRAM: &str = "vram";
/// Role of the file that what is evicted lies in.
pub const EVICTED: &str = "evicted";

/// Role of local memory that is a device's own.
pub const LOCAL: &str = "local";
/// Role of the device at work.
pub const CHECKPOINT: &str = "checkpoint";
/// Role of the file of the values of native fences.
pub const FENCES: &str = "fences";

/// Role of the shared block of an engine, by the engine's place.
pub fn block_of(engine: u32) -> String {
    format!("block-{engine}")
}

/// How the role of a log of compiled code begins.
const CODE: &str = "code-";

/// Role of what the operator has changed, which is of no vGPU.
pub const ESTATE: &str = "estate";

/// Role of the log of what the driver of an engine has compiled, by the engine's place.
pub fn code_of(engine: u32) -> String {
    format!("{CODE}{engine}")
}

/// Role of an eventfd of a ring: `what` is kick, call or error.
pub fn eventfd(what: &str, ring: u16) -> String {
    format!("{what}-{ring}")
}

/// The role of a file of guest memory.
pub(super) fn role_of(metadata: &Metadata) -> String {
    format!("ram-{:x}-{:x}", metadata.dev(), metadata.ino())
}

/// Why it cannot be gone on with.
#[derive(Debug, thiserror::Error)]
pub enum LeftError {
    /// A descriptor is not in the store.
    #[error("a descriptor is missing in the store: {0}")]
    Missing(String),
    /// The log cannot be read.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The words of the rings cannot be read.
    #[error(transparent)]
    Words(#[from] io::Error),
}

/// What was left.
#[derive(Debug)]
pub struct Left {
    /// What was said.
    pub log: Log,
    /// The words of its rings.
    pub words: Arc<Words>,
    files: BTreeMap<String, OwnedFd>,
}

impl Left {
    /// What these descriptors say, by role.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn of(mut files: BTreeMap<String, OwnedFd>) -> Result<Self, LeftError> {
        let next = |role: &str| {
            let file = files.get(role).ok_or_else(|| LeftError::Missing(role.to_owned()))?;
            Ok::<_, LeftError>(File::from(file.try_clone()?))
        };
        let (log, words) = (Log::open(next(LOG)?)?, Arc::new(Words::open(next(WORDS)?)?));
        files.retain(|role, _| role != LOG && role != WORDS);
        Ok(Self { log, words, files })
    }

    /// The roles of what lies in the store.
    pub fn roles(&self) -> BTreeSet<String> {
        let own = [LOG, WORDS].into_iter().map(str::to_owned);
        self.files.keys().cloned().chain(own).collect()
    }

    /// The descriptor of this role.
    ///
    /// # Errors
    /// There is none.
    pub fn file(&self, role: &str) -> Result<OwnedFd, LeftError> {
        let file = self.files.get(role).ok_or_else(|| LeftError::Missing(role.to_owned()))?;
        Ok(file.try_clone()?)
    }

    /// The logs of what drivers have compiled, by the place of their engine.
    pub fn code(&self) -> impl Iterator<Item = (u32, &OwnedFd)> {
        self.files.iter().filter_map(|(role, file)| Some((role.strip_prefix(CODE)?.parse().ok()?, file)))
    }

    /// A file of guest memory. A store has no file twice, so it may lie there in another role.
    ///
    /// # Errors
    /// There is none.
    pub fn memory(&self, role: &str) -> Result<OwnedFd, LeftError> {
        if self.files.contains_key(role) {
            return self.file(role);
        }
        for file in self.files.values() {
            let file = file.try_clone()?;
            let metadata = File::from(file.try_clone()?).metadata()?;
            if role_of(&metadata) == role {
                return Ok(file);
            }
        }
        Err(LeftError::Missing(role.to_owned()))
    }
}
