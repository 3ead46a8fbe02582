//! A connection goes from one daemon to the next: what the predecessor says of it, and how the successor takes it up.
//!
//! The front-end notices nothing: it is sent nothing, and what it sends meanwhile waits in its socket. The order, on both sides:
//!
//! ```text
//!   predecessor   between two messages ─▶ device quiesced ─▶ interrupts that are due ─▶ record ─▶ … ─▶ ends without a word
//!   successor     device as it was, frozen ─▶ rings: what is in flight ─▶ features ─▶ memory ─▶ size, place, base, call, kick, enable
//!                 ─▶ a ring is live: the device thaws ─▶ the front-end's next message
//! ```
//!
//! The vhost crate keeps for itself which features were set, and takes them from messages only: these four the successor sends to
//! itself, over a pair of sockets, of which the connection then takes the place.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::io::IoSliceMut;
use std::io::Write;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use campanile_host_gpu::descriptors;
use campanile_host_gpu::event::Event;
use rustix::event::PollFd;
use rustix::event::PollFlags;
use rustix::event::poll;
use rustix::net::RecvAncillaryBuffer;
use rustix::net::RecvAncillaryMessage;
use rustix::net::RecvFlags;
use rustix::net::recvmsg;
use vhost::vhost_user::Backend;
use vhost::vhost_user::BackendReqHandler;
use vhost::vhost_user::VhostUserBackendReqHandler;

use super::device::WindowError;
use super::handed::Files;
use super::handed::Handed;
use super::handed::HandedShell;
use super::handed::Placed;
use super::handed::Recorded;
use super::memory_table::Claim;
use super::memory_table::MemoryTable;
use super::motion::Load;
use super::saved::Own;
use super::saved::SavedRing;
use super::saved::SavedShell;
use super::saved::StateError;
use super::session::Negotiated;
use super::session::Session;
use crate::ledger::log::Key;
use crate::ledger::read::CHANNEL;

/// How long the front-end may take to answer a request for the window that is under way.
const WINDOW_PATIENCE: Duration = Duration::from_secs(1);

/// Requests by their numbers in the vhost-user protocol.
const GET_FEATURES: u32 = 1;
const SET_FEATURES: u32 = 2;
const GET_PROTOCOL_FEATURES: u32 = 15;
const SET_PROTOCOL_FEATURES: u32 = 16;
const SET_BACKEND_REQ_FD: u32 = 21;
/// Bytes of a message before its payload: request, flags, size.
const HEADER: usize = 12;
/// Version of the protocol, in the flags of each message.
const VERSION: u32 = 1;

/// Why a wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Woken {
    /// The front-end has sent something, or has hung up.
    FrontEnd,
    /// Another thread asks for something.
    Bell,
}

/// Waits for a message of the front-end, or for the bell.
pub(super) fn wait(line: &UnixStream, bell: &Event) -> Woken {
    loop {
        let mut fds = [PollFd::new(bell, PollFlags::IN), PollFd::new(line, PollFlags::IN)];
        match poll(&mut fds, None) {
            Err(rustix::io::Errno::INTR) => {}
            Ok(_) if !fds[0].revents().is_empty() => {
                let _rung = bell.drain();
                return Woken::Bell;
            }
            // What cannot be polled says so when it is read.
            Ok(_) | Err(_) => return Woken::FrontEnd,
        }
    }
}

impl Session {
    /// Keeps the descriptor of a back channel that is about to be received.
    pub(super) fn look_for_back_channel(&self) -> io::Result<()> {
        let mut header = [0; HEADER];
        let peek = RecvFlags::PEEK | RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        // Without room for descriptors none is made.
        let mut none = RecvAncillaryBuffer::default();
        let seen = recvmsg(&self.line, &mut [IoSliceMut::new(&mut header)], &mut none, peek)?;
        let request = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]);
        if seen.bytes < HEADER || request != SET_BACKEND_REQ_FD {
            return Ok(());
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut room = RecvAncillaryBuffer::new(&mut space);
        recvmsg(&self.line, &mut [IoSliceMut::new(&mut header)], &mut room, peek)?;
        let sent = room.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut files) => files.next(),
            _ => None,
        });
        if let Some(channel) = sent {
            self.shared.ledger.keep(CHANNEL, channel.as_fd());
            self.negotiated().back_channel = Some(channel);
        }
        Ok(())
    }

    /// What this connection is, for another process. The device is quiesced, and this thread does nothing meanwhile.
    ///
    /// # Errors
    /// Why it cannot go now: the front-end is in the middle of something.
    pub(super) fn hand_over(&self) -> Result<Handed, String> {
        if self.shared.log.is_on() {
            return Err("its VMM is migrating it".to_owned());
        }
        if self.negotiated().motion.transfer.is_some() || self.negotiated().motion.load == Load::Unchecked {
            return Err("its VMM is saving or loading its state".to_owned());
        }
        let window = self.window_shown()?;
        let failed = |error: io::Error| format!("no descriptor is left: {error}");
        let negotiated = self.negotiated();
        let mut files = VecDeque::new();
        if let Some(channel) = &negotiated.back_channel {
            files.push_back(channel.try_clone().map_err(failed)?);
        }
        let regions = negotiated.memory.regions();
        for region in &regions {
            let file = negotiated.memory.file_of(region).ok_or("a region of guest memory has no file")?;
            files.push_back(file.map_err(failed)?.into());
        }
        let (mut placed, mut saved) = (Vec::new(), Vec::new());
        for ring in self.shared.rings.iter() {
            let (place, state, its_files) = ring.lock().hand_over().map_err(failed)?;
            placed.push(place);
            saved.push(state);
            files.extend(its_files);
        }
        let shell = self.shell(&negotiated, saved, placed, window);
        Ok(Handed { stream: self.line.try_clone().map_err(failed)?, shell, files })
    }

    /// What the front-end has said.
    fn shell(
        &self,
        negotiated: &Negotiated,
        saved: Vec<SavedRing>,
        rings: Vec<Placed>,
        window: Option<bool>,
    ) -> HandedShell {
        let shell = SavedShell {
            features: negotiated.features,
            config: self.config.clone(),
            smallest_answer: self.smallest_answer,
            rings: saved,
        };
        HandedShell {
            shell,
            protocol: negotiated.protocol,
            has_asked: negotiated.has_asked,
            is_greeted: negotiated.is_greeted,
            window,
            has_back_channel: negotiated.back_channel.is_some(),
            regions: negotiated.memory.regions(),
            rings,
        }
    }

    /// Writes for a daemon after this one what the front-end has said by now. What is in flight lies elsewhere, and whether the window
    /// is shown: that is known later.
    pub(super) fn write_ledger(&self) {
        let ledger = &self.shared.ledger;
        let negotiated = self.negotiated();
        let files: io::Result<Vec<File>> = negotiated
            .memory
            .regions()
            .iter()
            .filter_map(|region| negotiated.memory.file_of(region))
            .collect();
        let files = match files {
            Ok(files) => files,
            Err(error) => return log::error!("{}: the VM may not outlive this daemon: {error}", self.name),
        };
        let Some(memory) = ledger.keep_memory(&files) else { return };
        let rings = self.shared.rings.iter().map(|ring| ring.lock().placed()).collect();
        let shell = self.shell(&negotiated, Vec::new(), rings, None);
        ledger.put(Key::Connection, &Recorded { shell, memory, epoch: negotiated.epoch });
    }

    /// Whether the front-end shows the window; waits for an answer that is under way.
    fn window_shown(&self) -> Result<Option<bool>, String> {
        if !self.negotiated().window_asked {
            return Ok(None);
        }
        let shown = self.shared.window.wait(WINDOW_PATIENCE);
        shown.map(Some).ok_or_else(|| "its VMM has not answered the request for its window".to_owned())
    }

    /// Begins as the connection that a predecessor had. The device is frozen, and its worker has not begun.
    ///
    /// # Errors
    /// The state is none of this device's.
    pub(super) fn adopt(&self, handed: &HandedShell) -> Result<(), StateError> {
        let rings = self.shared.rings.len();
        let own = Own {
            features: self.offered | super::features::LOG_ALL,
            config: &self.config,
            smallest_answer: self.smallest_answer,
            queues: rings,
        };
        handed.shell.judge(own)?;
        if handed.rings.len() != rings {
            return Err(StateError::Queues { theirs: handed.rings.len(), ours: rings });
        }
        for (ring, saved) in self.shared.rings.iter().zip(handed.saved_rings()) {
            ring.lock().restore(saved.clone());
        }
        let mut negotiated = self.negotiated();
        (negotiated.motion.is_frozen, negotiated.motion.is_taken_up) = (true, true);
        negotiated.is_greeted = handed.is_greeted;
        // What is to be advised of was said before.
        negotiated.configured = true;
        negotiated.window_asked = handed.window.is_some();
        let epoch = negotiated.epoch;
        drop(negotiated);
        if let Some(is_shown) = handed.window {
            self.shared.window.set(Some(is_shown));
            let refused =
                || WindowError::Refused(io::Error::other("it said so to the daemon before this one"));
            let state = if is_shown { Ok(()) } else { Err(refused()) };
            self.shared.mailbox.post(|mail| {
                mail.serial += 1;
                mail.frozen = true;
                mail.tell_window(epoch, state);
            });
        } else {
            self.shared.mailbox.post(|mail| mail.frozen = true);
        }
        Ok(())
    }

    /// Puts in force what the front-end has said; rings that run go on.
    fn take_up(&self, shell: &HandedShell, files: VecDeque<OwnedFd>) -> Result<(), String> {
        let text = |error: vhost::vhost_user::Error| error.to_string();
        let missing = |missing: super::handed::Missing| missing.to_string();
        let mut files = Files(files);
        if let Some(channel) = files.next_if(shell.has_back_channel, "back channel").map_err(missing)? {
            let channel = OwnedFd::from(channel);
            let kept = channel.try_clone().map_err(|error| error.to_string())?;
            self.shared.ledger.keep(CHANNEL, channel.as_fd());
            self.negotiated().back_channel = Some(kept);
            self.set_backend(Backend::from_stream(UnixStream::from(channel)));
        }
        let mut memory = Vec::with_capacity(shell.regions.len());
        for _ in &shell.regions {
            memory.push(files.next("guest memory").map_err(missing)?);
        }
        // A front-end that has only just connected has said nothing of its memory yet.
        if !shell.regions.is_empty() {
            let claims = shell.regions.iter().map(Claim::from).collect();
            let table = MemoryTable::map(self.shared.common(), claims, memory);
            self.set_memory(table.map_err(|refusal| refusal.to_string())?);
        }
        for (index, (placed, saved)) in (0u8..).zip(shell.rings.iter().zip(shell.saved_rings())) {
            let [table, available, used] = placed.parts;
            let number = u32::from(index);
            let ring = self.ring(number).map_err(|refusal| refusal.to_string())?;
            let mut state = ring.lock();
            state.set_size(placed.size.into()).map_err(|refusal| refusal.to_string())?;
            state.set_addresses(table, available, used).map_err(|refusal| refusal.to_string())?;
            drop(state);
            self.set_vring_base(number, saved.position.into()).map_err(text)?;
            let kick = files.next_if(placed.has_kick, "kick").map_err(missing)?;
            let call = files.next_if(placed.has_call, "call").map_err(missing)?;
            let error = files.next_if(placed.has_error, "error").map_err(missing)?;
            self.set_vring_call(index, call).map_err(text)?;
            self.set_vring_err(index, error).map_err(text)?;
            ring.lock().set_enabled(placed.is_enabled);
            match kick {
                Some(kick) => self.set_vring_kick(index, Some(kick)).map_err(text)?,
                None if saved.was_used => ring.lock().was_stopped(),
                None => {}
            }
        }
        Ok(())
    }
}

/// Puts into the descriptor store all at once what a process after this one needs of a connection that was taken up: what the one
/// before has stored holds until then, and nothing has changed since.
fn store(session: &Session, window: Option<bool>, stream: &UnixStream) {
    if let Some(is_shown) = window {
        session.shared.ledger.put(Key::Window, &is_shown);
    }
    session.write_ledger();
    session.shared.ledger.begin(stream.as_fd());
}

/// Takes a connection up, with its device, frozen, behind `session`. What answers its requests from here on.
///
/// # Errors
/// Why it cannot: then the front-end has no device any more.
pub(super) fn resume(
    session: &Arc<Session>,
    stream: &UnixStream,
    handed: Handed,
) -> Result<BackendReqHandler<Session>, String> {
    let text = |error: io::Error| error.to_string();
    let (mut own, requests) = UnixStream::pair().map_err(text)?;
    let mut handler = BackendReqHandler::from_stream(requests, Arc::clone(session));
    let Handed { shell, files, .. } = handed;
    let mut say = |request: u32, value: Option<u64>| {
        let size = if value.is_some() { 8u32 } else { 0 };
        let mut message: Vec<u8> = [request, VERSION, size].into_iter().flat_map(u32::to_ne_bytes).collect();
        message.extend(value.into_iter().flat_map(u64::to_ne_bytes));
        own.write_all(&message).map_err(text)?;
        handler.handle_request().map_err(|error| error.to_string())
    };
    say(GET_FEATURES, None)?;
    if shell.has_asked {
        say(GET_PROTOCOL_FEATURES, None)?;
    }
    say(SET_PROTOCOL_FEATURES, Some(shell.protocol))?;
    if shell.shell.features != 0 {
        say(SET_FEATURES, Some(shell.shell.features))?;
    }
    descriptors::replace(&mut handler, stream).map_err(text)?;
    session.take_up(&shell, files)?;
    store(session, shell.window, stream);
    // From here on rings that are live run.
    session.negotiated().motion.is_taken_up = false;
    (0..).zip(session.shared.rings.iter()).for_each(|(index, _)| session.look_at(index));
    log::info!("{}: the front-end goes on with this daemon", session.name);
    Ok(handler)
}

#[cfg(test)]
mod tests;
