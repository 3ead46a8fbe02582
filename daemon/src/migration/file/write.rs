//! Writing such a file.

use std::fs::File;
use std::io;
use std::io::BufWriter;
use std::io::Write;
use std::path::Path;
use std::path::PathBuf;

use tempfile::NamedTempFile;

use crate::migration::channel::frame;
use crate::migration::channel::frame::Kind;
use crate::migration::channel::frame::MAX_STATE;
use crate::migration::channel::message::Message;
use crate::migration::error::MigrationError;
use crate::migration::passes::pass::Sent;
use crate::migration::passes::pass::Sink;

/// A file that is being written. Dropping it leaves nothing behind.
#[derive(Debug)]
pub struct Draft {
    file: Option<BufWriter<NamedTempFile>>,
    path: PathBuf,
    sequence: u64,
}

impl Draft {
    /// Begins one that will be `path`, which only this user can read. What is there now stays until then.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn new(path: &Path) -> Result<Self, MigrationError> {
        let name = path
            .file_name()
            .ok_or_else(|| MigrationError::State(format!("{}: this is no name of a file", path.display())))?;
        let mut prefix = std::ffi::OsString::from(".");
        prefix.push(name);
        prefix.push(".");
        // Under a random name, with O_EXCL and mode 0600: no link that lies in the folder is ever written through.
        let made = tempfile::Builder::new().prefix(&prefix).suffix(".part").tempfile_in(folder_of(path));
        let file = made.map_err(|source| wrong(path, source))?;
        Ok(Self { file: Some(BufWriter::new(file)), path: path.to_owned(), sequence: 0 })
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), MigrationError> {
        let file = self.file.as_mut().ok_or_else(|| MigrationError::State("it is written".to_owned()))?;
        file.write_all(bytes).map_err(|source| wrong(&self.path, source))?;
        self.sequence += 1;
        Ok(())
    }

    /// Adds a message.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn say(&mut self, message: &Message) -> Result<(), MigrationError> {
        let frame = frame::framed(Kind::Message, self.sequence, &message.encode()?);
        self.write(&frame)
    }

    /// Adds the state.
    ///
    /// # Errors
    /// It is longer than any may be, or cannot be written.
    pub fn state(&mut self, state: &[u8]) -> Result<(), MigrationError> {
        if state.len() > MAX_STATE {
            return Err(MigrationError::State(format!("a state of {} bytes", state.len())));
        }
        let frame = frame::framed(Kind::State, self.sequence, state);
        self.write(&frame)
    }

    /// It is whole: gives it its name.
    ///
    /// # Errors
    /// It cannot be written. Then nothing is left of it.
    pub fn finish(mut self, sum: &Sent) -> Result<(), MigrationError> {
        self.say(&Message::Complete { records: sum.records, bytes: sum.bytes() })?;
        let written = || MigrationError::State("it is written".to_owned());
        let file = self.file.take().ok_or_else(written)?;
        let file = file.into_inner().map_err(|error| wrong(&self.path, error.into_error()))?;
        file.as_file().sync_all().map_err(|source| wrong(&self.path, source))?;
        file.persist(&self.path).map_err(|error| wrong(&self.path, error.error))?;
        let synced = File::open(folder_of(&self.path)).and_then(|folder| folder.sync_all());
        synced.map_err(|source| wrong(&self.path, source))
    }
}

fn folder_of(path: &Path) -> &Path {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    folder.unwrap_or_else(|| Path::new("."))
}

/// What went wrong with which file.
pub(super) fn wrong(path: &Path, source: io::Error) -> MigrationError {
    MigrationError::File { path: path.display().to_string(), source }
}

impl Sink for Draft {
    fn next_sequence(&self) -> u64 {
        self.sequence
    }

    fn put(&mut self, frame: &[u8]) -> Result<(), MigrationError> {
        self.write(frame)
    }

    fn finish_pass(&mut self, _pass: u32) -> Result<(), MigrationError> {
        Ok(())
    }
}
