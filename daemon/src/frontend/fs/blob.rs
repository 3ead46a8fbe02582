//! Blobs of guest processes.

use std::collections::BTreeMap;

use campanile_protocol::PAGE_SIZE;
use campanile_protocol::fs::body;
use campanile_protocol::fs::body::CreateBlob;
use campanile_protocol::fs::body::CreatedBlob;
use campanile_protocol::fs::place;
use campanile_protocol::virtio_gpu::blob::MemEntry;

use super::answer;
use super::answer::Fault;
use super::parked::Asked;
use super::parked::What;
use super::state::Fs;
use super::state::MAX_BLOBS;
use crate::frontend::vgpu::Vgpu;
use crate::frontend::vhost::answers::Answers;
use crate::frontend::vhost::ticket::Ticket;
use crate::vgpu::objects::budget::Charge;
use crate::vgpu::objects::refusal::Refusal;
use crate::vgpu::objects::timeline::Token;

/// Pages that were registered by one read.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) bytes: u32,
    /// The read.
    pub(super) token: Token,
    /// Guest-physical address and bytes; none before its request is found again.
    pub(super) pages: Option<Vec<(u64, u32)>>,
    /// What was charged for them.
    pub(super) charge: Option<Charge>,
}

/// Where the memory of a blob is.
#[derive(Debug)]
pub(super) enum Backing {
    /// A range of the aperture.
    Aperture { offset: u64 },
    /// Pages of the process; parts by their first byte.
    Pages { parts: BTreeMap<u64, Part> },
    /// Video memory.
    Video,
}

/// How far a blob is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// Not all of its pages are registered.
    Waits,
    /// Engines are told of it.
    Making,
    /// It can be used.
    Ready,
    /// It never can.
    Failed(Refusal),
    /// Its name was given up.
    Retired,
}

/// What CREATE_BLOB comes to.
pub(super) enum Made {
    /// This answer.
    Now(Ticket, Vec<u8>),
    /// An answer when engines know it.
    Parked,
}

/// A blob. Its name is that of the session's resource, which is there from MAKING to READY.
#[derive(Debug)]
pub(super) struct Blob {
    /// The file of the process.
    pub(super) owner: u32,
    pub(super) bytes: u64,
    pub(super) backing: Backing,
    pub(super) stage: Stage,
    /// Who waits until it is ready.
    pub(super) awaited: Vec<Token>,
}

impl Blob {
    /// Whether all its pages are registered, and known.
    fn is_complete(&self) -> bool {
        let Backing::Pages { parts } = &self.backing else { return false };
        let known = parts.values().filter(|part| part.pages.is_some());
        known.map(|part| u64::from(part.bytes)).sum::<u64>() == self.bytes
    }

    /// Its page list.
    fn entries(&self) -> Vec<MemEntry> {
        let Backing::Pages { parts } = &self.backing else { return Vec::new() };
        let pages = parts.values().filter_map(|part| part.pages.as_ref()).flatten();
        pages.map(|&(address, length)| MemEntry { address, length, padding: 0 }).collect()
    }
}

impl Fs {
    /// A name that no blob has; the session's resources are named here only.
    fn new_blob_name(&mut self) -> u32 {
        loop {
            self.last_blob = self.last_blob % place::MAX_BLOB + 1;
            if !self.blobs.contains_key(&self.last_blob) {
                return self.last_blob;
            }
        }
    }

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
        if self.blobs.len() >= MAX_BLOBS {
            return Err((ticket, Refusal::OutOfMemory.into()));
        }
        let blob = self.new_blob_name();
        let now = |offset| {
            let created = CreatedBlob { blob, reserved: 0, offset };
            answer::reply_with(unique, &created)
        };
        let new = |backing, stage| Blob { owner, bytes, backing, stage, awaited: Vec::new() };
        match memory {
            body::MEMORY_PAGES if bytes <= place::MAX_REGISTERED => {
                self.blobs.insert(blob, new(Backing::Pages { parts: BTreeMap::new() }, Stage::Waits));
                Ok(Made::Now(ticket, now(place::registration(blob))))
            }
            body::MEMORY_VIDEO => {
                let made = vgpu.session.charge_name(owner).and_then(|charge| {
                    vgpu.session.create_vram_blob(blob, bytes, false)?;
                    vgpu.session.attach_charged(owner, blob, charge)
                });
                if let Err(refusal) = made {
                    return Err((ticket, refusal.into()));
                }
                self.blobs.insert(blob, new(Backing::Video, Stage::Ready));
                Ok(Made::Now(ticket, now(0)))
            }
            body::MEMORY_APERTURE => {
                let Some(offset) = self.aperture.take(bytes) else {
                    return Err((ticket, Refusal::OutOfMemory.into()));
                };
                let token = vgpu.new_token();
                let entries = self.aperture.clear(offset, bytes).ok_or(Refusal::Unspecified);
                let made = entries.and_then(|entries| {
                    let charge = vgpu.session.charge_name(owner)?;
                    vgpu.session.create_guest_blob(blob, bytes, &entries, token)?;
                    vgpu.session.attach_charged(owner, blob, charge)
                });
                if let Err(refusal) = made {
                    self.aperture.give_back(offset, bytes);
                    return Err((ticket, refusal.into()));
                }
                self.blobs.insert(blob, new(Backing::Aperture { offset }, Stage::Making));
                self.park(vgpu, token, ticket, Asked { unique, what: What::Create { blob, offset } });
                Ok(Made::Parked)
            }
            _ => Err((ticket, Refusal::Parameter.into())),
        }
    }

    /// A blob of this process.
    pub(super) fn own_blob(&self, owner: u32, name: u32) -> Result<&Blob, Fault> {
        let blob = self.blobs.get(&name).filter(|blob| blob.owner == owner && blob.stage != Stage::Retired);
        blob.ok_or(Fault::Refused(Refusal::Resource))
    }

    /// Makes the blobs whose pages are all there.
    pub(super) fn make_blobs(&mut self, vgpu: &mut Vgpu<Asked>, answers: &mut Answers) {
        for name in std::mem::take(&mut self.complete) {
            let Some(blob) = self.blobs.get_mut(&name) else { continue };
            if blob.stage != Stage::Waits || !blob.is_complete() {
                continue;
            }
            let (owner, bytes, entries) = (blob.owner, blob.bytes, blob.entries());
            blob.stage = Stage::Making;
            let token = vgpu.new_token();
            let made = vgpu.session.charge_name(owner).and_then(|charge| {
                vgpu.session.create_guest_blob(name, bytes, &entries, token)?;
                vgpu.session.attach_charged(owner, name, charge)
            });
            match made {
                Ok(()) => drop(self.making.insert(token, name)),
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
        let Some(blob) = self.blobs.get_mut(&name).filter(|blob| blob.stage == Stage::Making) else { return };
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
        let Some(blob) = self.blobs.get_mut(&name) else { return };
        let stage = std::mem::replace(&mut blob.stage, Stage::Retired);
        for waiter in std::mem::take(&mut blob.awaited) {
            self.settle(vgpu, waiter, Err(Refusal::Resource), answers);
        }
        match stage {
            Stage::Retired => {}
            Stage::Waits | Stage::Failed(_) => self.blob_is_gone(vgpu, name, answers),
            Stage::Making | Stage::Ready => {
                let token = vgpu.new_token();
                match vgpu.session.retire_blob(name, token) {
                    Ok(()) => drop(self.retired.insert(token, name)),
                    Err(_) => self.blob_is_gone(vgpu, name, answers),
                }
            }
        }
    }

    /// Nobody uses the memory of a blob any more.
    pub(super) fn blob_is_gone(&mut self, vgpu: &mut Vgpu<Asked>, name: u32, answers: &mut Answers) {
        self.answer_reads(vgpu, name, Ok(()), answers);
        let Some(Blob { bytes, backing, .. }) = self.blobs.remove(&name) else { return };
        if let Backing::Aperture { offset } = backing {
            self.aperture.give_back(offset, bytes);
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
        let Some(Blob { backing: Backing::Pages { parts }, .. }) = self.blobs.get_mut(&name) else { return };
        for part in std::mem::take(parts).into_values() {
            self.registered_bytes = self.registered_bytes.saturating_sub(u64::from(part.bytes));
            self.settle(vgpu, part.token, outcome, answers);
        }
    }
}
