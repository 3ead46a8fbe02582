//! A blob from CREATE_BLOB until no engine uses its memory any more.

use std::collections::BTreeMap;

use campanile_protocol::PAGE_SIZE;
use campanile_protocol::fs::body;
use campanile_protocol::fs::body::CreateBlob;
use campanile_protocol::fs::body::CreatedBlob;
use campanile_protocol::fs::place;

use super::answer;
use super::answer::Fault;
use super::blobs::Backing;
use super::blobs::Blob;
use super::blobs::Stage;
use super::limits::MAX_BLOBS;
use super::parked::Asked;
use super::parked::What;
use super::state::Fs;
use crate::frontend::vgpu::Vgpu;
use crate::frontend::vhost::answers::Answers;
use crate::frontend::vhost::ticket::Ticket;
use crate::ids::FrontContext;
use crate::vgpu::objects::refusal::Refusal;

/// What CREATE_BLOB comes to.
pub(super) enum Made {
    /// This answer.
    Now(Ticket, Vec<u8>),
    /// An answer when engines know it.
    Parked,
}

impl Fs {
    /// CREATE_BLOB.
    pub(super) fn create_blob(
        &mut self,
        vgpu: &mut Vgpu<Asked>,
        owner: u32,
        message: &CreateBlob,
        unique: u64,
        ticket: Ticket,
    ) -> Result<Made, (Ticket, Fault)> {
        let CreateBlob { memory, flags, size: bytes } = *message;
        if flags != 0 || bytes == 0 || !bytes.is_multiple_of(PAGE_SIZE) {
            return Err((ticket, Refusal::Parameter.into()));
        }
        if self.blobs.by_name.len() >= MAX_BLOBS {
            return Err((ticket, Refusal::OutOfMemory.into()));
        }
        let blob = self.blobs.new_name();
        let now = |offset| {
            let created = CreatedBlob { blob, reserved: 0, offset };
            answer::reply_with(unique, &created)
        };
        let new = |backing, stage| Blob { owner, bytes, backing, stage, awaited: Vec::new() };
        match memory {
            body::MEMORY_PAGES if bytes <= place::MAX_REGISTERED => {
                self.blobs.by_name.insert(blob, new(Backing::Pages { parts: BTreeMap::new() }, Stage::Waits));
                Ok(Made::Now(ticket, now(place::registration(blob))))
            }
            body::MEMORY_VIDEO => {
                let made = vgpu.session.blobs().charge_name(FrontContext::new(owner)).and_then(|charge| {
                    vgpu.session.blobs().create_vram_blob(blob, bytes, false)?;
                    vgpu.session.blobs().attach_charged(FrontContext::new(owner), blob, charge)
                });
                if let Err(refusal) = made {
                    return Err((ticket, refusal.into()));
                }
                self.blobs.by_name.insert(blob, new(Backing::Video, Stage::Ready));
                Ok(Made::Now(ticket, now(0)))
            }
            body::MEMORY_APERTURE => {
                let Some(offset) = self.take_range(vgpu, owner, bytes) else {
                    return Err((ticket, Refusal::OutOfMemory.into()));
                };
                let token = vgpu.new_token();
                let entries = self.aperture.clear(offset, bytes).ok_or(Refusal::Unspecified);
                let made = entries.and_then(|entries| {
                    let charge = vgpu.session.blobs().charge_name(FrontContext::new(owner))?;
                    vgpu.session.blobs().create_guest_blob(blob, bytes, &entries, token)?;
                    vgpu.session.blobs().attach_charged(FrontContext::new(owner), blob, charge)
                });
                if let Err(refusal) = made {
                    self.give_range_back(vgpu, offset, bytes);
                    return Err((ticket, refusal.into()));
                }
                self.blobs.by_name.insert(blob, new(Backing::Aperture { offset }, Stage::Making));
                self.park(vgpu, token, ticket, Asked { unique, what: What::Create { blob, offset } });
                Ok(Made::Parked)
            }
            _ => Err((ticket, Refusal::Parameter.into())),
        }
    }

    /// Makes the blobs whose pages are all there.
    pub(super) fn make_blobs(&mut self, vgpu: &mut Vgpu<Asked>, answers: &mut Answers) {
        for name in std::mem::take(&mut self.blobs.complete) {
            let Some(blob) = self.blobs.by_name.get_mut(&name) else { continue };
            if blob.stage != Stage::Waits || !blob.is_complete() {
                continue;
            }
            let (owner, bytes, entries) = (blob.owner, blob.bytes, blob.entries());
            blob.stage = Stage::Making;
            let token = vgpu.new_token();
            let made = vgpu.session.blobs().charge_name(FrontContext::new(owner)).and_then(|charge| {
                vgpu.session.blobs().create_guest_blob(name, bytes, &entries, token)?;
                vgpu.session.blobs().attach_charged(FrontContext::new(owner), name, charge)
            });
            match made {
                Ok(()) => drop(self.blobs.making.insert(token, name)),
                Err(refusal) => self.blob_is_made(vgpu, name, Err(refusal), answers),
            }
        }
    }

    /// Engines know a blob, or never will.
    pub(super) fn blob_is_made(
        &mut self,
        vgpu: &mut Vgpu<Asked>,
        name: u32,
        outcome: Result<(), Refusal>,
        answers: &mut Answers,
    ) {
        let Some(blob) = self.blobs.by_name.get_mut(&name).filter(|blob| blob.stage == Stage::Making) else {
            return;
        };
        blob.stage = outcome.map_or_else(Stage::Failed, |()| Stage::Ready);
        for waiter in std::mem::take(&mut blob.awaited) {
            self.settle(vgpu, waiter, outcome, answers);
        }
        if let Err(refusal) = outcome {
            // Nothing is kept.
            self.answer_reads(vgpu, name, Err(refusal), answers);
        }
    }

    /// A process gives a blob up, or is gone. What lies in it is free when it is no longer used.
    pub(super) fn retire_blob(&mut self, vgpu: &mut Vgpu<Asked>, name: u32, answers: &mut Answers) {
        let Some(blob) = self.blobs.by_name.get_mut(&name) else { return };
        let stage = std::mem::replace(&mut blob.stage, Stage::Retired);
        for waiter in std::mem::take(&mut blob.awaited) {
            self.settle(vgpu, waiter, Err(Refusal::Resource), answers);
        }
        match stage {
            Stage::Retired => {}
            Stage::Waits | Stage::Failed(_) => self.blob_is_gone(vgpu, name, answers),
            Stage::Making | Stage::Ready => {
                let token = vgpu.new_token();
                match vgpu.session.blobs().retire_blob(name, token) {
                    Ok(()) => drop(self.blobs.retired.insert(token, name)),
                    Err(_) => self.blob_is_gone(vgpu, name, answers),
                }
            }
        }
    }

    /// The memory of a blob is used no more.
    pub(super) fn blob_is_gone(&mut self, vgpu: &mut Vgpu<Asked>, name: u32, answers: &mut Answers) {
        self.answer_reads(vgpu, name, Ok(()), answers);
        let Some(Blob { bytes, backing, .. }) = self.blobs.by_name.remove(&name) else { return };
        if let Backing::Aperture { offset } = backing {
            self.give_range_back(vgpu, offset, bytes);
        }
    }

    /// Lets the pages of a blob go.
    fn answer_reads(
        &mut self,
        vgpu: &mut Vgpu<Asked>,
        name: u32,
        outcome: Result<(), Refusal>,
        answers: &mut Answers,
    ) {
        for part in self.blobs.take_parts(name) {
            self.settle(vgpu, part.token, outcome, answers);
        }
    }
}
