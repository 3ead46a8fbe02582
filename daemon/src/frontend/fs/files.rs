//! Open files: sessions, and those that register pages for them.

use std::collections::BTreeMap;

use campanile_protocol::control::frame::MAX_CONTROL_BYTES;
use campanile_protocol::fs::body::Key;
use campanile_protocol::fs::errno;
use campanile_protocol::fs::fuse::file;
use campanile_protocol::fs::fuse::file::OpenOut;
use campanile_protocol::fs::fuse::file::WriteIn;
use campanile_protocol::fs::fuse::file::WriteOut;
use campanile_protocol::fs::place;

use super::answer;
use super::answer::Fault;
use super::limits::MAX_FILES;
use super::limits::MAX_STAGED;
use super::parked::Asked;
use super::parked::What;
use crate::frontend::vgpu::Vgpu;
use crate::ids::FrontContext;
use crate::ledger::log::Key as LedgerKey;
use crate::ledger::lost::FileKind;
use crate::vgpu::objects::budget::Charge;
use crate::vgpu::objects::refusal::Refusal;
use crate::vgpu::objects::timeline::Token;

/// A guest process that uses the device.
#[derive(Debug, Default)]
pub(super) struct ProcessFile {
    pub(super) key: Option<Key>,
    /// Last number of a submission.
    pub(super) sequence: u64,
    /// Submissions that are not done, and the requests that wait for them.
    pub(super) open: BTreeMap<u64, Vec<Token>>,
    /// Waits that are parked.
    pub(super) waits: usize,
    /// Frames for the next submission.
    pub(super) staged: Vec<u8>,
    /// What was charged for them.
    pub(super) staged_charge: Option<Charge>,
}

/// An open file that is no session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OpenFile {
    /// Nothing was asked of it.
    Blank,
    /// It registers pages for that session, if there still is one.
    Registrar(u32),
}

/// The open files of one VM.
#[derive(Debug, Default)]
pub(super) struct Files {
    /// Random: part of handles.
    pub(super) generation: u32,
    /// Number of the last one.
    pub(super) last: u32,
    pub(super) open: BTreeMap<u32, OpenFile>,
    /// Those that are sessions: contexts of the same number.
    pub(super) sessions: BTreeMap<u32, ProcessFile>,
    /// Submissions (file, number), by what the session will say.
    pub(super) fences: BTreeMap<Token, (u32, u64)>,
}

impl Files {
    /// The number of an open file, by its handle.
    pub(super) fn number(&self, handle: u64) -> Result<u32, Fault> {
        let number = u32::try_from(handle & u64::from(u32::MAX)).unwrap_or(0);
        let is_open = self.open.contains_key(&number) || self.sessions.contains_key(&number);
        let is_ours = handle >> 32 == u64::from(self.generation);
        if is_open && is_ours { Ok(number) } else { Err(Fault::Errno(errno::ENODEV)) }
    }

    /// OPEN.
    pub(super) fn create(&mut self) -> Result<OpenOut, Fault> {
        if self.open.len() + self.sessions.len() >= MAX_FILES {
            return Err(Fault::Errno(errno::ENFILE));
        }
        let is_taken = |number| self.open.contains_key(&number) || self.sessions.contains_key(&number);
        let mut number = self.last;
        loop {
            number = number.checked_add(1).unwrap_or(1);
            if !is_taken(number) {
                break;
            }
        }
        self.last = number;
        self.open.insert(number, OpenFile::Blank);
        let handle = u64::from(self.generation) << 32 | u64::from(number);
        let flags = file::DIRECT_IO | file::NO_FLUSH | file::PARALLEL_WRITES;
        Ok(OpenOut { handle, flags, padding: 0 })
    }

    /// The session of a file, which begins with its first call.
    pub(super) fn session(&mut self, vgpu: &mut Vgpu<Asked>, number: u32) -> Result<&mut ProcessFile, Fault> {
        match self.open.get(&number) {
            Some(OpenFile::Blank) => {
                vgpu.session.create_context(FrontContext::new(number))?;
                self.open.remove(&number);
                vgpu.config.ledger.put(LedgerKey::File(number), &FileKind::Session(None));
                log::debug!("{}: session {number} opened", vgpu.name());
            }
            Some(OpenFile::Registrar(_)) => return Err(answer::INVALID),
            None => {}
        }
        Ok(self.sessions.entry(number).or_default())
    }

    /// JOIN.
    pub(super) fn join(&mut self, number: u32, key: &Key) -> Result<(), Fault> {
        if self.open.get(&number) != Some(&OpenFile::Blank) {
            return Err(answer::INVALID);
        }
        let session = self.sessions.iter().find(|(_, session)| session.key.as_ref() == Some(key));
        let (session, _) = session.ok_or(Fault::Refused(Refusal::Context))?;
        self.open.insert(number, OpenFile::Registrar(*session));
        Ok(())
    }

    /// Waits that are parked already for the session that this is a wait of; else none.
    pub(super) fn waits_of(&self, what: &What) -> usize {
        let What::Wait { file, .. } = what else { return 0 };
        self.sessions.get(file).map_or(0, |session| session.waits)
    }

    /// WRITE: frames for the next submission.
    pub(super) fn stage(
        &mut self,
        vgpu: &mut Vgpu<Asked>,
        number: u32,
        write: &WriteIn,
        bytes: &[u8],
    ) -> Result<WriteOut, Fault> {
        let at = place::staged(write.offset).and_then(|at| usize::try_from(at).ok());
        let at = at.ok_or(answer::INVALID)?;
        if usize::try_from(write.size).ok() != Some(bytes.len()) {
            return Err(answer::INVALID);
        }
        let all: usize = self.sessions.values().map(|session| session.staged.len()).sum();
        let session = self.session(vgpu, number)?;
        if at == 0 {
            session.staged.clear();
        }
        let end = at.saturating_add(bytes.len());
        if at != session.staged.len()
            || u64::try_from(end).is_ok_and(|end| end > u64::from(MAX_CONTROL_BYTES))
        {
            return Err(answer::INVALID);
        }
        if all + bytes.len() > MAX_STAGED {
            return Err(Fault::Errno(errno::ENOMEM));
        }
        let held = u64::try_from(end).unwrap_or(u64::MAX);
        match &mut session.staged_charge {
            Some(charge) => charge.resize(held).map_err(Refusal::from)?,
            None => session.staged_charge = Some(vgpu.session.blobs().charge_front(held)?),
        }
        session.staged.extend_from_slice(bytes);
        Ok(WriteOut { size: write.size, padding: 0 })
    }
}
