//! Reads that register pages: their descriptors name them.

use campanile_protocol::PAGE_SIZE;
use campanile_protocol::fs::errno;
use campanile_protocol::fs::fuse::OutHeader;
use campanile_protocol::fs::fuse::file::ReadIn;
use campanile_protocol::fs::place;

use super::answer;
use super::answer::Fault;
use super::blobs::Backing;
use super::blobs::Part;
use super::blobs::Stage;
use super::files::OpenFile;
use super::parked::Asked;
use super::parked::What;
use super::state::Fs;
use crate::frontend::vgpu::Vgpu;
use crate::frontend::vhost::ticket::Ticket;

/// Bytes of a read that registers pages, besides their list.
const READ_BYTES: u64 = 512;

/// The pages behind the header of an answer: guest-physical address and bytes of each piece. `None`, where they are not
/// `bytes` of whole pages.
pub(super) fn pages(ticket: &Ticket, bytes: u32) -> Option<Vec<(u64, u32)>> {
    let mut header = u32::try_from(size_of::<OutHeader>()).ok()?;
    let mut left = bytes;
    let mut pages = Vec::new();
    for (address, length) in ticket.buffers() {
        let skipped = header.min(length);
        header -= skipped;
        let (address, length) = (address.checked_add(u64::from(skipped))?, length - skipped);
        if length == 0 {
            continue;
        }
        left = left.checked_sub(length)?;
        if !address.is_multiple_of(PAGE_SIZE) || !u64::from(length).is_multiple_of(PAGE_SIZE) {
            return None;
        }
        pages.push((address, length));
    }
    (left == 0 && header == 0 && !pages.is_empty()).then_some(pages)
}

/// What is charged for a list of pages, and the request that waits with it.
pub(super) fn price(pages: &[(u64, u32)]) -> u64 {
    let each = u64::try_from(2 * size_of::<(u64, u32)>()).unwrap_or(u64::MAX);
    u64::try_from(pages.len()).unwrap_or(u64::MAX).saturating_mul(each).saturating_add(READ_BYTES)
}

impl Fs {
    /// READ. Parks it, or gives the ticket back with what is wrong.
    pub(super) fn register(
        &mut self,
        vgpu: &mut Vgpu<Asked>,
        number: u32,
        read: &ReadIn,
        unique: u64,
        ticket: Ticket,
    ) -> Result<(), (Ticket, Fault)> {
        match self.check_registration(number, read, &ticket) {
            Ok((what @ What::Read { blob: name, at, bytes }, pages)) => {
                let charge = match vgpu.session.blobs().charge_front(price(&pages)) {
                    Ok(charge) => Some(charge),
                    Err(refusal) => return Err((ticket, refusal.into())),
                };
                let token = vgpu.new_token();
                self.blobs.add_part(name, at, Part { bytes, token, pages: Some(pages), charge });
                self.park(vgpu, token, ticket, Asked { unique, what });
                Ok(())
            }
            Ok(_) => Err((ticket, answer::INVALID)),
            Err(fault) => Err((ticket, fault)),
        }
    }

    fn check_registration(
        &self,
        number: u32,
        read: &ReadIn,
        ticket: &Ticket,
    ) -> Result<(What, Vec<(u64, u32)>), Fault> {
        let Some(OpenFile::Registrar(session)) = self.files.open.get(&number).copied() else {
            return Err(answer::INVALID);
        };
        if !self.files.sessions.contains_key(&session) {
            return Err(Fault::Errno(errno::ENODEV));
        }
        let (name, at) = place::registered(read.offset).ok_or(answer::INVALID)?;
        let blob = self.blobs.own(session, name).map_err(|_| answer::INVALID)?;
        let Backing::Pages { parts } = &blob.backing else { return Err(answer::INVALID) };
        let bytes = read.size;
        let end = at + u64::from(bytes);
        if blob.stage != Stage::Waits || bytes == 0 || !at.is_multiple_of(PAGE_SIZE) || end > blob.bytes {
            return Err(answer::INVALID);
        }
        let before = parts.range(..end).next_back();
        if before.is_some_and(|(start, part)| start + u64::from(part.bytes) > at) {
            return Err(Fault::Errno(errno::EEXIST));
        }
        let pages = pages(ticket, bytes).ok_or(answer::INVALID)?;
        if self.blobs.registered_bytes + u64::from(bytes) > self.blobs.memory_bytes {
            return Err(Fault::Errno(errno::ENOMEM));
        }
        let what = What::Read { blob: name, at, bytes };
        self.parked.check_room(ticket, &what, 0)?;
        Ok((what, pages))
    }
}
