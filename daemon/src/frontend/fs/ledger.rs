//! What the fs front writes for a daemon after this one, and how it begins with what one before it has written: handles stay what they
//! are, and no range of the aperture that a process may have mapped is handed out.

use super::files::OpenFile;
use super::files::ProcessFile;
use super::state::Fs;
use super::state::random;
use crate::frontend::fs::parked::Asked;
use crate::frontend::vgpu::Vgpu;
use crate::ids::FrontContext;
use crate::ledger::log::Key;
use crate::ledger::lost::FileKind;
use crate::ledger::lost::Lost;
use crate::ledger::lost::Stray;
use campanile_protocol::fs::body::Key as SessionKey;
use campanile_protocol::fs::place;

/// Submissions of a session that was lost are done, whatever their numbers were; the next ones have numbers beyond.
const DONE: u64 = 1 << 62;

impl Fs {
    /// Writes what an open file is by now.
    pub(super) fn write_file(&self, vgpu: &Vgpu<Asked>, number: u32) {
        let kind = match (self.files.open.get(&number), self.files.sessions.get(&number)) {
            (Some(OpenFile::Blank), _) => FileKind::Blank,
            (Some(OpenFile::Registrar(session)), _) => FileKind::Registrar(*session),
            (None, Some(session)) => FileKind::Session(session.key.map(|key| key.words)),
            (None, None) => return vgpu.config.ledger.remove(Key::File(number)),
        };
        vgpu.config.ledger.put(Key::Generation, &self.files.generation);
        vgpu.config.ledger.put(Key::File(number), &kind);
    }

    /// Takes a range of the aperture for a blob of this file.
    pub(super) fn take_range(&mut self, vgpu: &Vgpu<Asked>, file: u32, bytes: u64) -> Option<u64> {
        let offset = self.aperture.take(bytes)?;
        vgpu.config.ledger.put(Key::Range(offset), &Stray { file, bytes });
        Some(offset)
    }

    /// Gives a range back.
    pub(super) fn give_range_back(&mut self, vgpu: &Vgpu<Asked>, offset: u64, bytes: u64) {
        vgpu.config.ledger.remove(Key::Range(offset));
        self.aperture.give_back(offset, bytes);
    }

    /// The process of a file has ended: it has nothing mapped any more.
    pub(super) fn end_strays(&mut self, vgpu: &Vgpu<Asked>, file: u32) {
        for (offset, bytes) in self.strays.remove(&file).unwrap_or_default() {
            self.give_range_back(vgpu, offset, bytes);
        }
    }

    /// Begins with the files that a daemon before this one has left.
    pub(super) fn begin_with(&mut self, lost: &Lost) {
        if let Some(generation) = lost.generation {
            self.files.generation = generation;
        }
        for (number, kind) in &lost.files {
            let _first = match kind {
                FileKind::Blank => self.files.open.insert(*number, OpenFile::Blank),
                FileKind::Registrar(session) => {
                    self.files.open.insert(*number, OpenFile::Registrar(*session))
                }
                FileKind::Session(key) => {
                    let key = key.map(|words| SessionKey { words });
                    let session = ProcessFile { key, sequence: DONE, ..ProcessFile::default() };
                    if lost.contexts.contains(&FrontContext::new(*number)) {
                        self.files.sessions.insert(*number, session);
                    }
                    None
                }
            };
            self.files.last = self.files.last.max(*number);
        }
        for (offset, Stray { file, bytes }) in &lost.strays {
            if self.aperture.take_at(*offset, *bytes) {
                self.strays.entry(*file).or_default().push((*offset, *bytes));
            }
        }
        // Names that are not those of blobs which processes still call by theirs: most likely, as nothing says which these were.
        self.blobs.last = random().map_or(place::MAX_BLOB / 2, |random| random % place::MAX_BLOB);
    }
}
