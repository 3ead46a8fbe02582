//! What is left of a session whose daemon was killed: names that the guest's driver goes on to use. What they named is lost.

use serde::Deserialize;
use serde::Serialize;

use super::log::Key;
use super::log::Log;
use super::log::LogError;
use crate::ids::FrontContext;

/// What an open file of the fs front was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileKind {
    /// Nothing was asked of it.
    Blank,
    /// It registers pages for that session.
    Registrar(u32),
    /// A session, and its key, if it was asked for.
    Session(Option<[u64; 2]>),
}

/// A range of the fs front's aperture, which processes of the guest may still have mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stray {
    /// The file of its process.
    pub file: u32,
    /// Bytes.
    pub bytes: u64,
}

/// All of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Lost {
    /// Contexts.
    pub contexts: Vec<FrontContext>,
    /// What the fs front's handles are told by.
    pub generation: Option<u32>,
    /// Its open files, by number.
    pub files: Vec<(u32, FileKind)>,
    /// Ranges of its aperture, by their first byte.
    pub strays: Vec<(u64, Stray)>,
}

impl Lost {
    /// What a log says of it.
    ///
    /// # Errors
    /// A value is not what its key has.
    pub fn of(log: &Log) -> Result<Self, LogError> {
        let mut lost = Self::default();
        for key in log.keys() {
            match key {
                Key::Context(context) => lost.contexts.push(context),
                Key::Generation => lost.generation = Some(log.get(key)?),
                Key::File(number) => lost.files.push((number, log.get(key)?)),
                Key::Range(offset) => lost.strays.push((offset, log.get(key)?)),
                Key::Connection | Key::Window | Key::Page(_) | Key::Estate | Key::Local => {}
            }
        }
        Ok(lost)
    }
}
