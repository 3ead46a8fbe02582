//! Sessions end: with their file, with the file system, or by a call.

use super::blobs::Blob;
use super::parked::Asked;
use super::state::Fs;
use crate::frontend::vgpu::Vgpu;
use crate::frontend::vhost::answers::Answers;
use crate::ids::FrontContext;
use crate::vgpu::objects::refusal::Refusal;
use crate::vgpu::objects::timeline::Token;

impl Fs {
    /// RELEASE: a session ends as if its process had died, with everything of it.
    pub(super) fn release(&mut self, vgpu: &mut Vgpu<Asked>, number: u32, answers: &mut Answers) {
        self.files.open.remove(&number);
        let session = self.files.sessions.remove(&number);
        self.write_file(vgpu, number);
        self.end_strays(vgpu, number);
        let Some(session) = session else { return };
        let waiters: Vec<Token> = session.open.into_values().flatten().collect();
        for waiter in waiters {
            self.settle(vgpu, waiter, Err(Refusal::Context), answers);
        }
        self.files.fences.retain(|_, (file, _)| *file != number);
        if let Err(refusal) = vgpu.session.destroy_context(FrontContext::new(number)) {
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
        let its = self.blobs.by_name.iter().filter(|(_, blob)| blob.owner == number && which(blob));
        let its: Vec<u32> = its.map(|(name, _)| *name).collect();
        for name in its {
            self.retire_blob(vgpu, name, answers);
        }
    }

    /// The file system is mounted anew, or not any more: no file is open.
    pub(super) fn close_all(&mut self, vgpu: &mut Vgpu<Asked>, answers: &mut Answers) {
        self.release_all(vgpu, answers);
        for number in std::mem::take(&mut self.files.open).into_keys() {
            self.write_file(vgpu, number);
        }
        for file in self.strays.keys().copied().collect::<Vec<_>>() {
            self.end_strays(vgpu, file);
        }
    }

    /// Every session ends.
    pub(super) fn release_all(&mut self, vgpu: &mut Vgpu<Asked>, answers: &mut Answers) {
        let all: Vec<u32> = self.files.sessions.keys().copied().collect();
        for number in all {
            self.release(vgpu, number, answers);
        }
    }
}
