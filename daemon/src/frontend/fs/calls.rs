//! Calls: what guest processes ask for by ioctl.

use std::io;

use campanile_protocol::fs::body;
use campanile_protocol::fs::body::About;
use campanile_protocol::fs::body::AwaitBlob;
use campanile_protocol::fs::body::BlobName;
use campanile_protocol::fs::body::CreatedBlob;
use campanile_protocol::fs::body::Key;
use campanile_protocol::fs::body::ReleaseAll;
use campanile_protocol::fs::body::Submit;
use campanile_protocol::fs::body::Submitted;
use campanile_protocol::fs::body::Wait;
use campanile_protocol::fs::body::Waited;
use campanile_protocol::fs::call;
use campanile_protocol::fs::call::Call;
use campanile_protocol::fs::call::ReplyHeader;
use campanile_protocol::fs::call::RequestHeader;
use campanile_protocol::fs::errno;
use campanile_protocol::fs::fuse::InHeader;
use campanile_protocol::fs::fuse::OutHeader;
use campanile_protocol::fs::fuse::file::IoctlIn;
use campanile_protocol::fs::fuse::file::IoctlOut;
use rustix::rand::GetRandomFlags;
use rustix::rand::getrandom;
use zerocopy::FromBytes;
use zerocopy::FromZeros;
use zerocopy::Immutable;
use zerocopy::IntoBytes;
use zerocopy::KnownLayout;

use super::answer;
use super::answer::Fault;
use super::blob_lifetime::Made;
use super::blobs::Backing;
use super::blobs::Blob;
use super::blobs::Stage;
use super::limits::MAX_OPEN;
use super::parked::Asked;
use super::parked::What;
use super::state::Fs;
use crate::frontend::vgpu::Vgpu;
use crate::frontend::vhost::answers::Answers;
use crate::frontend::vhost::ticket::Ticket;
use crate::ids::FrontContext;
use crate::vgpu::objects::refusal::Refusal;

/// A body that is exactly a `T`.
fn whole<T: FromBytes + KnownLayout + Immutable>(bytes: &[u8]) -> Result<T, Fault> {
    T::read_from_bytes(bytes).map_err(|_| answer::INVALID)
}

/// A call, taken out of its request.
struct Asks<'a> {
    call: Call,
    file: u32,
    user: u32,
    body: &'a [u8],
}

/// What a call comes to.
enum Told {
    /// This body.
    Now(Vec<u8>),
    /// Whatever becomes of this.
    Parked(What),
}

/// Bytes of a reply's body.
const fn reply_bytes(call: Call, capset: usize) -> usize {
    match call {
        Call::Capset => size_of::<About>() + capset,
        Call::CreateBlob => size_of::<CreatedBlob>(),
        Call::Submit => size_of::<Submitted>(),
        Call::Wait | Call::AwaitBlob => size_of::<Waited>(),
        Call::Key => size_of::<Key>(),
        Call::DestroyBlob | Call::ReleaseAll | Call::Join => 0,
    }
}

/// A random key.
fn new_key() -> io::Result<Key> {
    let mut key = Key::new_zeroed();
    getrandom(key.as_mut_bytes(), GetRandomFlags::empty())?;
    Ok(key)
}

impl Fs {
    /// IOCTL.
    pub(super) fn ioctl(
        &mut self,
        vgpu: &mut Vgpu<Asked>,
        header: &InHeader,
        bytes: &[u8],
        ticket: Ticket,
        answers: &mut Answers,
    ) {
        let unique = header.unique;
        let fault = match self.parse(vgpu, header, bytes, &ticket) {
            Err(fault) => fault,
            Ok(Asks { call: Call::CreateBlob, file, body, .. }) => {
                let message = whole(body).and_then(|message| self.files.session(vgpu, file).map(|_| message));
                let message = match message {
                    Ok(message) => message,
                    Err(fault) => return self.fault(vgpu, unique, fault, ticket, answers),
                };
                return match self.create_blob(vgpu, file, &message, unique, ticket) {
                    Ok(Made::Parked) => {}
                    Ok(Made::Now(ticket, bytes)) => answers.answer(ticket, &bytes),
                    Err((ticket, fault)) => self.fault(vgpu, unique, fault, ticket, answers),
                };
            }
            Ok(asks) => match self.call(vgpu, &asks, &ticket, answers) {
                Ok(Told::Now(body)) => {
                    return answers.answer(ticket, &answer::reply(unique, call::OK, &body));
                }
                Ok(Told::Parked(what)) => {
                    let token = vgpu.new_token();
                    return self.park(vgpu, token, ticket, Asked { unique, what });
                }
                Err(fault) => fault,
            },
        };
        self.fault(vgpu, unique, fault, ticket, answers);
    }

    /// Something is wrong.
    pub(super) fn fault(
        &self,
        vgpu: &Vgpu<Asked>,
        unique: u64,
        fault: Fault,
        ticket: Ticket,
        answers: &mut Answers,
    ) {
        vgpu.count_refused();
        answers.answer(ticket, &answer::fault(unique, fault));
    }

    fn parse<'a>(
        &self,
        vgpu: &Vgpu<Asked>,
        header: &InHeader,
        bytes: &'a [u8],
        ticket: &Ticket,
    ) -> Result<Asks<'a>, Fault> {
        let (ioctl, buffer) = IoctlIn::read_from_prefix(bytes).map_err(|_| answer::INVALID)?;
        let file = self.files.number(ioctl.handle)?;
        let (call, room) = Call::from_number(ioctl.number).ok_or(Fault::Errno(errno::ENOTTY))?;
        let given = [ioctl.in_size, ioctl.out_size].map(|size| usize::try_from(size).unwrap_or(usize::MAX));
        let answer_bytes = size_of::<OutHeader>() + size_of::<IoctlOut>() + room;
        if given != [room; 2] || buffer.len() != room || ticket.writable() < answer_bytes {
            return Err(answer::INVALID);
        }
        let (request, _) = RequestHeader::read_from_prefix(buffer).map_err(|_| answer::INVALID)?;
        let size = usize::try_from(request.size).unwrap_or(usize::MAX);
        let body = buffer.get(size_of::<RequestHeader>()..size).ok_or(answer::INVALID)?;
        let reply = size_of::<ReplyHeader>() + reply_bytes(call, vgpu.session.capset().as_bytes().len());
        if request.reserved != 0 || reply > room {
            return Err(answer::INVALID);
        }
        Ok(Asks { call, file, user: header.user, body })
    }

    fn call(
        &mut self,
        vgpu: &mut Vgpu<Asked>,
        asks: &Asks<'_>,
        ticket: &Ticket,
        answers: &mut Answers,
    ) -> Result<Told, Fault> {
        let &Asks { call, file, user, body, .. } = asks;
        if call == Call::Join {
            self.files.join(file, &whole(body)?)?;
            self.write_file(vgpu, file);
            return Ok(Told::Now(Vec::new()));
        }
        self.files.session(vgpu, file)?;
        match call {
            Call::Capset => self.about(vgpu, body).map(Told::Now),
            Call::Submit => self.submit(vgpu, file, body).map(Told::Now),
            Call::Wait => self.wait(file, &whole(body)?, ticket),
            Call::AwaitBlob => self.await_blob(file, &whole(body)?, ticket),
            Call::DestroyBlob => {
                let BlobName { blob, reserved } = whole(body)?;
                (reserved == 0).then_some(()).ok_or(Refusal::Parameter)?;
                self.blobs.own(file, blob)?;
                self.retire_blob(vgpu, blob, answers);
                Ok(Told::Now(Vec::new()))
            }
            Call::ReleaseAll => self.release_by_call(vgpu, file, user, &whole(body)?, answers),
            Call::Key => {
                (body.is_empty()).then_some(()).ok_or(Refusal::Parameter)?;
                let key = match self.files.session(vgpu, file)?.key {
                    Some(key) => key,
                    None => new_key().map_err(|_| Refusal::Unspecified)?,
                };
                self.files.session(vgpu, file)?.key = Some(key);
                self.write_file(vgpu, file);
                Ok(Told::Now(key.as_bytes().to_vec()))
            }
            Call::CreateBlob | Call::Join => Err(answer::INVALID),
        }
    }

    fn about(&self, vgpu: &Vgpu<Asked>, body: &[u8]) -> Result<Vec<u8>, Fault> {
        body.is_empty().then_some(()).ok_or(Refusal::Parameter)?;
        let capset = vgpu.session.capset();
        let about = About {
            aperture_bytes: self.aperture.found(),
            generation: self.files.generation,
            capset_bytes: u32::try_from(capset.as_bytes().len()).map_err(|_| Refusal::Unspecified)?,
        };
        Ok([about.as_bytes(), capset.as_bytes()].concat())
    }

    fn submit(&mut self, vgpu: &mut Vgpu<Asked>, file: u32, body: &[u8]) -> Result<Vec<u8>, Fault> {
        let (submit, rest) = Submit::read_from_prefix(body).map_err(|_| answer::INVALID)?;
        let Submit { flags, ring, length, reserved } = submit;
        let length = usize::try_from(length).map_err(|_| Refusal::Parameter)?;
        let ring = u8::try_from(ring).ok().filter(|ring| *ring < 64);
        if flags & !(body::SUBMIT_FENCE | body::SUBMIT_STAGED) != 0 || reserved != 0 {
            return Err(Refusal::Parameter.into());
        }
        let ring = ring.ok_or(Refusal::Parameter)?;
        let open = self.files.fences.len();
        let session = self.files.session(vgpu, file)?;
        let has_fence = flags & body::SUBMIT_FENCE != 0;
        if has_fence && (session.open.len() >= MAX_OPEN[0] || open >= MAX_OPEN[1]) {
            return Err(Refusal::OutOfMemory.into());
        }
        let staged;
        let frames = if flags & body::SUBMIT_STAGED == 0 {
            (rest.len() == length).then_some(rest).ok_or(Refusal::Parameter)?
        } else {
            (rest.is_empty()).then_some(()).ok_or(Refusal::Parameter)?;
            staged = std::mem::take(&mut session.staged);
            session.staged_charge = None;
            // A migration, or another thread: nothing was submitted.
            (staged.len() == length).then_some(staged.as_slice()).ok_or(Fault::Errno(errno::EAGAIN))?
        };
        vgpu.session.submit(FrontContext::new(file), ring, frames)?;
        let mut sequence = 0;
        if has_fence {
            let token = vgpu.new_token();
            let session = self.files.session(vgpu, file)?;
            session.sequence += 1;
            sequence = session.sequence;
            session.open.insert(sequence, Vec::new());
            self.files.fences.insert(token, (file, sequence));
            vgpu.session.fence(FrontContext::new(file), ring, token);
        }
        Ok(Submitted { sequence }.as_bytes().to_vec())
    }

    fn wait(&self, file: u32, message: &Wait, ticket: &Ticket) -> Result<Told, Fault> {
        let Wait { sequence, timeout } = *message;
        let session = self.files.sessions.get(&file).ok_or(Fault::Errno(errno::ENODEV))?;
        if sequence == 0 || sequence > session.sequence {
            return Err(Refusal::Parameter.into());
        }
        let is_done = !session.open.contains_key(&sequence);
        let timeout = timeout.min(body::MAX_TIMEOUT);
        self.wait_for(is_done, timeout, What::Wait { file, sequence, timeout }, ticket)
    }

    fn await_blob(&self, file: u32, message: &AwaitBlob, ticket: &Ticket) -> Result<Told, Fault> {
        let AwaitBlob { blob, reserved, timeout } = *message;
        (reserved == 0).then_some(()).ok_or(Refusal::Parameter)?;
        let is_done = match self.blobs.own(file, blob)?.stage {
            Stage::Ready => true,
            Stage::Failed(refusal) => return Err(refusal.into()),
            Stage::Waits | Stage::Making | Stage::Retired => false,
        };
        let timeout = timeout.min(body::MAX_TIMEOUT);
        self.wait_for(is_done, timeout, What::Await { blob, timeout }, ticket)
    }

    fn wait_for(&self, is_done: bool, timeout: u64, what: What, ticket: &Ticket) -> Result<Told, Fault> {
        if is_done || timeout == 0 {
            let waited = Waited { done: u32::from(is_done), reserved: 0 };
            return Ok(Told::Now(waited.as_bytes().to_vec()));
        }
        self.parked.check_room(ticket, &what, self.files.waits_of(&what))?;
        Ok(Told::Parked(what))
    }

    fn release_by_call(
        &mut self,
        vgpu: &mut Vgpu<Asked>,
        file: u32,
        user: u32,
        message: &ReleaseAll,
        answers: &mut Answers,
    ) -> Result<Told, Fault> {
        (message.reserved == 0).then_some(()).ok_or(Refusal::Parameter)?;
        match message.scope {
            body::RELEASE_SESSION => {
                let is_registered = |blob: &Blob| matches!(blob.backing, Backing::Pages { .. });
                self.release_blobs(vgpu, file, is_registered, answers);
            }
            body::RELEASE_VM if user == 0 => self.release_all(vgpu, answers),
            body::RELEASE_VM => return Err(Fault::Errno(errno::EPERM)),
            _ => return Err(Refusal::Parameter.into()),
        }
        Ok(Told::Now(Vec::new()))
    }
}
