//! Writing such a file.

use std::fs;
use std::fs::File;
use std::io;
use std::io::BufWriter;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::path::PathBuf;

use crate::migration::brownout::pass::Sent;
use crate::migration::brownout::pass::Sink;
use crate::migration::channel::frame;
use crate::migration::channel::frame::Kind;
use crate::migration::channel::frame::MAX_STATE;
use crate::migration::channel::message::Message;
use crate::migration::error::MigrationError;

/// A file that is being written. Dropping it leaves nothing behind.
#[derive(Debug)]
pub struct Draft {
    file: Option<BufWriter<File>>,
    draft: PathBuf,
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
        let mut draft_name = std::ffi::OsString::from(".");
        draft_name.push(name);
        draft_name.push(format!(".{}.part", std::process::id()));
        let draft = path.with_file_name(draft_name);
        let open = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&draft);
        let file = open.map_err(|source| wrong(&draft, source))?;
        Ok(Self { file: Some(BufWriter::new(file)), draft, path: path.to_owned(), sequence: 0 })
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
        file.sync_all().map_err(|source| wrong(&self.path, source))?;
        fs::rename(&self.draft, &self.path).map_err(|source| wrong(&self.path, source))?;
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or_else(|| Path::new("."));
        File::open(folder).and_then(|folder| folder.sync_all()).map_err(|source| wrong(&self.path, source))
    }
}

/// What went wrong with which file.
pub(super) fn wrong(path: &Path, source: io::Error) -> MigrationError {
    MigrationError::File { path: path.display().to_string(), source }
}

impl Drop for Draft {
    fn drop(&mut self) {
        // Gone already where it has its name.
        let _renamed = fs::remove_file(&self.draft);
    }
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
