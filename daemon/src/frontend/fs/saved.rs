//! The fs front's part of a vGPU's state: a CBOR map, with the rules of [`crate::vgpu::state::saved`].
//!
//! Requests that wait say by themselves which blob, or which submission, they wait for; what is staged does not go along
//! (the guest is told to stage it again), and waits begin anew.

use std::collections::BTreeMap;

use campanile_protocol::PAGE_SIZE;
use campanile_protocol::fs::body::Key;
use campanile_protocol::fs::place;
use serde::Deserialize;
use serde::Serialize;

use super::blobs::Backing;
use super::blobs::Blob;
use super::blobs::Part;
use super::blobs::Stage;
use super::files::OpenFile;
use super::files::ProcessFile;
use super::limits::MAX_BLOBS;
use super::limits::MAX_FILES;
use super::limits::MAX_OPEN;
use super::limits::MAX_PARKED;
use super::parked::Asked;
use super::parked::What;
use super::state::Fs;
use super::state::FsOptions;
use crate::frontend::waiting::WaitingList;
use crate::vgpu::objects::refusal::Refusal;
use crate::vgpu::objects::timeline::Token;
use crate::vgpu::state::saved::bytes::Bytes;

/// A session: its number, its last submission, and its key, if it was asked for.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct SavedProcess(u32, u64, Option<[u64; 2]>);

/// A blob: its name, its owner and its bytes.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct SavedBlob {
    name: u32,
    owner: u32,
    bytes: u64,
    backing: SavedBacking,
    stage: SavedStage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum SavedBacking {
    Aperture(u64),
    Pages,
    Video,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum SavedStage {
    Waits,
    Making,
    Ready,
    Failed,
    Retired,
}

/// All of it.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct SavedFs {
    waiting: Bytes,
    generation: u32,
    aperture: u64,
    last_file: u32,
    last_blob: u32,
    /// Files of which nothing was asked.
    blank: Vec<u32>,
    /// Registrars and their sessions.
    registrars: Vec<(u32, u32)>,
    sessions: Vec<SavedProcess>,
    blobs: Vec<SavedBlob>,
    /// Token, file and number of each submission that is not done.
    fences: Vec<(u64, u32, u64)>,
    /// Token and blob.
    making: Vec<(u64, u32)>,
    retired: Vec<(u64, u32)>,
}

fn pairs(of: &BTreeMap<Token, u32>) -> Vec<(u64, u32)> {
    of.iter().map(|(token, name)| (token.0, *name)).collect()
}

fn ensure(holds: bool, what: &str) -> Result<(), String> {
    if holds { Ok(()) } else { Err(format!("the state of the fs front: {what}")) }
}

impl SavedFs {
    pub(super) fn of(fs: &Fs, waiting: &WaitingList<Asked>) -> Result<Self, String> {
        let waiting = Bytes(waiting.save().map_err(|error| error.to_string())?);
        let session = |(number, session): (&u32, &ProcessFile)| {
            SavedProcess(*number, session.sequence, session.key.map(|key| key.words))
        };
        let blank = fs.files.open.iter().filter(|(_, file)| **file == OpenFile::Blank);
        let registrars = fs.files.open.iter().filter_map(|(number, file)| match file {
            OpenFile::Registrar(session) => Some((*number, *session)),
            OpenFile::Blank => None,
        });
        let fences = fs.files.fences.iter().map(|(token, (file, sequence))| (token.0, *file, *sequence));
        Ok(Self {
            waiting,
            generation: fs.files.generation,
            aperture: fs.aperture.wanted(),
            last_file: fs.files.last,
            last_blob: fs.blobs.last,
            blank: blank.map(|(number, _)| *number).collect(),
            registrars: registrars.collect(),
            sessions: fs.files.sessions.iter().map(session).collect(),
            blobs: fs.blobs.by_name.iter().map(|(name, blob)| save_blob(*name, blob)).collect(),
            fences: fences.collect(),
            making: pairs(&fs.blobs.making),
            retired: pairs(&fs.blobs.retired),
        })
    }

    pub(super) fn encode(&self) -> Result<Vec<u8>, String> {
        let mut bytes = Vec::new();
        ciborium::into_writer(self, &mut bytes).map_err(|error| error.to_string())?;
        Ok(bytes)
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, String> {
        ciborium::de::from_reader_with_recursion_limit(bytes, 16)
            .map_err(|error| format!("the state of the fs front: {error}"))
    }

    /// The front that this is the state of. Nothing in it is believed.
    pub(super) fn build(self, options: &FsOptions) -> Result<(Fs, WaitingList<Asked>), String> {
        let waiting: WaitingList<Asked> =
            WaitingList::load(&self.waiting.0).map_err(|error| error.to_string())?;
        if self.aperture != options.aperture {
            return Err(format!(
                "the VM has an aperture of {} bytes, and this vGPU is configured for {}",
                self.aperture, options.aperture
            ));
        }
        let mut fs = Fs::with(options.clone(), self.generation);
        (fs.files.last, fs.blobs.last) = (self.last_file, self.last_blob);
        self.build_files(&mut fs)?;
        self.build_blobs(&mut fs)?;
        let mut waits: Vec<(Token, Asked)> =
            waiting.undecided().map(|(token, asked)| (token, *asked)).collect();
        waits.sort_by_key(|(token, _)| *token);
        ensure(waits.len() <= MAX_PARKED, "more requests wait than may")?;
        for (token, Asked { what, .. }) in waits {
            build_wait(&mut fs, token, what)?;
        }
        for blob in fs.blobs.by_name.keys() {
            fs.blobs.complete.insert(*blob);
        }
        Ok((fs, waiting))
    }

    fn build_files(&self, fs: &mut Fs) -> Result<(), String> {
        let count = self.blank.len() + self.registrars.len() + self.sessions.len();
        ensure(count <= MAX_FILES, "more files are open than may be")?;
        let registrars =
            self.registrars.iter().map(|(number, session)| (*number, OpenFile::Registrar(*session)));
        let files = self.blank.iter().map(|number| (*number, OpenFile::Blank)).chain(registrars);
        for (number, file) in files {
            ensure(number != 0 && fs.files.open.insert(number, file).is_none(), "a file twice")?;
        }
        for SavedProcess(number, sequence, key) in &self.sessions {
            let key = key.map(|words| Key { words });
            let session = ProcessFile { key, sequence: *sequence, ..ProcessFile::default() };
            let is_new =
                !fs.files.open.contains_key(number) && fs.files.sessions.insert(*number, session).is_none();
            ensure(*number != 0 && is_new, "a session twice")?;
        }
        ensure(self.fences.len() <= MAX_OPEN[1], "more submissions than may be open")?;
        for (token, file, sequence) in &self.fences {
            let session =
                fs.files.sessions.get_mut(file).filter(|session| (1..=session.sequence).contains(sequence));
            let Some(session) = session else { return ensure(false, "a submission without a session") };
            let is_new = session.open.insert(*sequence, Vec::new()).is_none();
            ensure(is_new && session.open.len() <= MAX_OPEN[0], "a submission twice")?;
            let is_new = fs.files.fences.insert(Token(*token), (*file, *sequence)).is_none();
            ensure(is_new, "two submissions of one name")?;
        }
        Ok(())
    }

    fn build_blobs(&self, fs: &mut Fs) -> Result<(), String> {
        ensure(self.blobs.len() <= MAX_BLOBS, "more blobs than may be")?;
        for saved in &self.blobs {
            let SavedBlob { name, owner, bytes, backing, stage } = saved.clone();
            let is_whole = bytes > 0 && bytes.is_multiple_of(PAGE_SIZE);
            let has_owner = fs.files.sessions.contains_key(&owner) || stage == SavedStage::Retired;
            ensure(is_whole && has_owner && (1..=place::MAX_BLOB).contains(&name), "a blob that cannot be")?;
            let backing = match backing {
                SavedBacking::Aperture(offset) => {
                    ensure(fs.aperture.take_at(offset, bytes), "a blob outside the aperture")?;
                    Backing::Aperture { offset }
                }
                SavedBacking::Pages => {
                    ensure(bytes <= place::MAX_REGISTERED, "a blob that is too large")?;
                    Backing::Pages { parts: BTreeMap::new() }
                }
                SavedBacking::Video => Backing::Video,
            };
            let stage = match stage {
                SavedStage::Waits => Stage::Waits,
                SavedStage::Making => Stage::Making,
                SavedStage::Ready => Stage::Ready,
                SavedStage::Failed => Stage::Failed(Refusal::Unspecified),
                SavedStage::Retired => Stage::Retired,
            };
            let blob = Blob { owner, bytes, backing, stage, awaited: Vec::new() };
            ensure(fs.blobs.by_name.insert(name, blob).is_none(), "a blob twice")?;
        }
        for (from, to) in [(&self.making, &mut fs.blobs.making), (&self.retired, &mut fs.blobs.retired)] {
            for (token, name) in from {
                let is_new = to.insert(Token(*token), *name).is_none();
                ensure(is_new && fs.blobs.by_name.contains_key(name), "a blob on its way that is not there")?;
            }
        }
        Ok(())
    }
}

fn save_blob(name: u32, blob: &Blob) -> SavedBlob {
    let backing = match &blob.backing {
        Backing::Aperture { offset } => SavedBacking::Aperture(*offset),
        Backing::Pages { .. } => SavedBacking::Pages,
        Backing::Video => SavedBacking::Video,
    };
    let stage = match blob.stage {
        Stage::Waits => SavedStage::Waits,
        Stage::Making => SavedStage::Making,
        Stage::Ready => SavedStage::Ready,
        Stage::Failed(_) => SavedStage::Failed,
        Stage::Retired => SavedStage::Retired,
    };
    SavedBlob { name, owner: blob.owner, bytes: blob.bytes, backing, stage }
}

/// A request waits as it did.
fn build_wait(fs: &mut Fs, token: Token, what: What) -> Result<(), String> {
    match what {
        What::Create { blob, .. } | What::Await { blob, .. } => {
            ensure(fs.blobs.by_name.contains_key(&blob), "a request waits for a blob that is not there")?;
        }
        What::Wait { file, sequence, .. } => {
            let session = fs.files.sessions.get(&file);
            let is_open = session.is_some_and(|session| session.open.contains_key(&sequence));
            ensure(is_open, "a request waits for nothing")?;
        }
        What::Read { blob, at, bytes } => {
            let end = at.saturating_add(u64::from(bytes));
            let Some(Blob { bytes: whole, backing: Backing::Pages { parts }, .. }) =
                fs.blobs.by_name.get_mut(&blob)
            else {
                return ensure(false, "pages are registered for no blob");
            };
            let before = parts.range(..end).next_back();
            let is_apart = before.is_none_or(|(start, part)| start + u64::from(part.bytes) <= at);
            let pages = [at, u64::from(bytes)].iter().all(|number| number.is_multiple_of(PAGE_SIZE));
            ensure(is_apart && pages && bytes > 0 && end <= *whole, "pages are registered twice")?;
            parts.insert(at, Part { bytes, token, pages: None, charge: None });
            fs.blobs.registered_bytes += u64::from(bytes);
        }
    }
    fs.expect(token, &what);
    Ok(())
}
