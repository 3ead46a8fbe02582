//! `campanile-guest relay`: a process between a front-end and a daemon that passes on everything, file descriptors too.
//!
//! For tests that kill a VMM's end of a connection while the guest's own process lives on.

use std::io::IoSlice;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::os::unix::net::UnixStream;
use std::path::Path;

use anyhow::Context;
use rustix::fs::MemfdFlags;
use rustix::net::RecvAncillaryBuffer;
use rustix::net::RecvAncillaryMessage;
use rustix::net::RecvFlags;
use rustix::net::SendAncillaryBuffer;
use rustix::net::SendAncillaryMessage;
use rustix::net::SendFlags;

/// Most descriptors of a message: vhost-user's 32.
const FDS: usize = 32;

/// What a relay may do beside passing on.
#[derive(Debug, Clone, Copy, Default)]
pub struct Mischief {
    /// The daemon gets another log of dirty pages than the front-end reads, so that what it writes is not moved.
    pub lose_log: bool,
}

/// Of vhost-user's SET_LOG_BASE.
const SET_LOG_BASE: u32 = 6;
/// Request, flags, bytes behind: 32 bits each.
const HEADER_BYTES: usize = 12;
/// More than any message has.
const MAX_PAYLOAD: u32 = 1 << 16;

/// Serves connections on `listen`, one after the other, each with one of its own to `socket`.
pub fn run(listen: &Path, socket: &Path, mischief: Mischief) -> anyhow::Result<()> {
    let listener =
        UnixListener::bind(listen).with_context(|| format!("listening on {}", listen.display()))?;
    loop {
        let (front, _) = listener.accept()?;
        let back = UnixStream::connect(socket).with_context(|| format!("reaching {}", socket.display()))?;
        let (front_too, back_too) = (front.try_clone()?, back.try_clone()?);
        let forth = std::thread::spawn(move || pass(&front, &back, mischief));
        pass(&back_too, &front_too, Mischief::default());
        anyhow::ensure!(forth.join().is_ok(), "a thread of the relay panicked");
    }
}

/// Passes on until one side ends; then both do.
fn pass(from: &UnixStream, to: &UnixStream, mischief: Mischief) {
    if let Err(error) = pass_all(from, to, mischief) {
        log::debug!("the relay: {error}");
    }
    // Fails only where the other direction was faster.
    let _ended = from.shutdown(Shutdown::Both);
    let _ended = to.shutdown(Shutdown::Both);
}

fn pass_all(from: &UnixStream, to: &UnixStream, mischief: Mischief) -> anyhow::Result<()> {
    loop {
        // Descriptors come with the first byte of their message, so that is what is taken: one message at a time.
        let mut message = vec![0; HEADER_BYTES];
        let mut fds = Vec::new();
        if !receive(from, &mut message, &mut fds)? {
            return Ok(());
        }
        let word = |at: usize| message.get(at..)?.first_chunk().map(|word| u32::from_ne_bytes(*word));
        let (request, size) = (word(0).unwrap_or_default(), word(8).unwrap_or_default());
        anyhow::ensure!(size <= MAX_PAYLOAD, "a message of {size} bytes");
        let mut payload = vec![0; usize::try_from(size)?];
        if !payload.is_empty() && !receive(from, &mut payload, &mut fds)? {
            return Ok(());
        }
        if mischief.lose_log && request == SET_LOG_BASE && !fds.is_empty() {
            fds = vec![other_log(&payload)?];
        }
        message.extend_from_slice(&payload);
        send(to, &message, &fds)?;
    }
}

/// Fills `bytes`, and adds what descriptors come with them. `false` where the other side has ended.
fn receive(from: &UnixStream, bytes: &mut [u8], fds: &mut Vec<OwnedFd>) -> anyhow::Result<bool> {
    let mut filled = 0;
    while filled < bytes.len() {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(bytes.get_mut(filled..).unwrap_or_default())];
        let message = rustix::net::recvmsg(from, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)?;
        if message.bytes == 0 {
            return Ok(false);
        }
        filled += message.bytes;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(more) = message {
                fds.extend(more);
            }
        }
    }
    Ok(true)
}

/// A log as long as the one of this SET_LOG_BASE (length and offset), which is not read.
fn other_log(payload: &[u8]) -> anyhow::Result<OwnedFd> {
    let words = payload.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word));
    let other = rustix::fs::memfd_create("lost-log", MemfdFlags::CLOEXEC)?;
    rustix::fs::ftruncate(&other, words.take(2).fold(0, u64::saturating_add))?;
    Ok(other)
}

fn send(to: &UnixStream, mut bytes: &[u8], fds: &[OwnedFd]) -> anyhow::Result<()> {
    let borrowed: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
    let mut borrowed = &borrowed[..];
    while !bytes.is_empty() {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !borrowed.is_empty() {
            anyhow::ensure!(control.push(SendAncillaryMessage::ScmRights(borrowed)), "too many descriptors");
        }
        let sent = rustix::net::sendmsg(to, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?;
        bytes = &bytes[sent..];
        // They went with the first byte.
        borrowed = &[];
    }
    Ok(())
}
