//! Open files: sessions, and those that register pages for them.

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
use super::blob::Blob;
use super::parked::Asked;
use super::state::Fs;
use super::state::MAX_FILES;
use super::state::MAX_STAGED;
use super::state::OpenFile;
use super::state::ProcessFile;
use crate::frontend::vgpu::Vgpu;
use crate::frontend::vhost::answers::Answers;
use crate::vgpu::objects::refusal::Refusal;
use crate::vgpu::objects::timeline::Token;

impl Fs {
    /// The number of an open file, by its handle.
    pub(super) fn file(&self, handle: u64) -> Result<u32, Fault> {
        let number = u32::try_from(handle & u64::from(u32::MAX)).unwrap_or(0);
        let is_open = self.files.contains_key(&number) || self.sessions.contains_key(&number);
        let is_ours = handle >> 32 == u64::from(self.generation);
        if is_open && is_ours { Ok(number) } else { Err(Fault::Errno(errno::ENODEV)) }
    }

    /// OPEN.
    pub(super) fn open(&mut self) -> Result<OpenOut, Fault> {
        if self.files.len() + self.sessions.len() >= MAX_FILES {
            return Err(Fault::Errno(errno::ENFILE));
        }
        let is_taken = |number| self.files.contains_key(&number) || self.sessions.contains_key(&number);
        let mut number = self.last_file;
        loop {
            number = number.checked_add(1).unwrap_or(1);
            if !is_taken(number) {
                break;
            }
        }
        self.last_file = number;
        self.files.insert(number, OpenFile::Blank);
        let handle = u64::from(self.generation) << 32 | u64::from(number);
        let flags = file::DIRECT_IO | file::NO_FLUSH | file::PARALLEL_WRITES;
        Ok(OpenOut { handle, flags, padding: 0 })
    }

    /// The session of a file, which begins with its first call.
    pub(super) fn session(&mut self, vgpu: &mut Vgpu<Asked>, number: u32) -> Result<&mut ProcessFile, Fault> {
        match self.files.get(&number) {
            Some(OpenFile::Blank) => {
                vgpu.session.create_context(number)?;
                self.files.remove(&number);
                log::debug!("{}: session {number} opened", vgpu.name());
            }
            Some(OpenFile::Registrar(_)) => return Err(answer::INVALID),
            None => {}
        }
        Ok(self.sessions.entry(number).or_default())
    }

    /// JOIN.
    pub(super) fn join(&mut self, number: u32, key: &Key) -> Result<(), Fault> {
        if self.files.get(&number) != Some(&OpenFile::Blank) {
            return Err(answer::INVALID);
        }
        let session = self.sessions.iter().find(|(_, session)| session.key.as_ref() == Some(key));
        let (session, _) = session.ok_or(Fault::Refused(Refusal::Context))?;
        self.files.insert(number, OpenFile::Registrar(*session));
        Ok(())
    }

    /// RELEASE: a session ends as if its process had died, with everything of it.
    pub(super) fn release(&mut self, vgpu: &mut Vgpu<Asked>, number: u32, answers: &mut Answers) {
        self.files.remove(&number);
        let Some(session) = self.sessions.remove(&number) else { return };
        let waiters: Vec<Token> = session.open.into_values().flatten().collect();
        for waiter in waiters {
            self.settle(vgpu, waiter, Err(Refusal::Context), answers);
        }
        self.fences.retain(|_, (file, _)| *file != number);
        if let Err(refusal) = vgpu.session.destroy_context(number) {
            log::error!("{}: ending session {number}: {refusal:?}", vgpu.name());
        }
        self.release_blobs(vgpu, number, |_| true, answers);
        log::debug!("{}: session {number} closed", vgpu.name());
    }

    /// These blobs of a session are given up.
    pub(super) fn release_blobs(
        &mut self,
        vgpu: &mut Vgpu<Asked>,
        number: u32,
        which: impl Fn(&Blob) -> bool,
        answers: &mut Answers,
    ) {
        let its = self.blobs.iter().filter(|(_, blob)| blob.owner == number && which(blob));
        let its: Vec<u32> = its.map(|(name, _)| *name).collect();
        for name in its {
            self.retire_blob(vgpu, name, answers);
        }
    }

    /// The file system is mounted anew, or not any more: no file is open.
    pub(super) fn close_all(&mut self, vgpu: &mut Vgpu<Asked>, answers: &mut Answers) {
        self.release_all(vgpu, answers);
        self.files.clear();
    }

    /// Every session ends.
    pub(super) fn release_all(&mut self, vgpu: &mut Vgpu<Asked>, answers: &mut Answers) {
        let all: Vec<u32> = self.sessions.keys().copied().collect();
        for number in all {
            self.release(vgpu, number, answers);
        }
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
            None => session.staged_charge = Some(vgpu.session.charge_front(held)?),
        }
        session.staged.extend_from_slice(bytes);
        Ok(WriteOut { size: write.size, padding: 0 })
    }
}
