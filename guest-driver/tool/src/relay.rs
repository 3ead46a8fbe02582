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
use rustix::net::RecvAncillaryBuffer;
use rustix::net::RecvAncillaryMessage;
use rustix::net::RecvFlags;
use rustix::net::SendAncillaryBuffer;
use rustix::net::SendAncillaryMessage;
use rustix::net::SendFlags;

/// Bytes passed on at a time; longer messages take several.
const CHUNK: usize = 1 << 16;
/// Most descriptors of a message: vhost-user's 32.
const FDS: usize = 32;

/// Serves connections on `listen`, one after the other, each with one of its own to `socket`.
pub fn run(listen: &Path, socket: &Path) -> anyhow::Result<()> {
    let listener =
        UnixListener::bind(listen).with_context(|| format!("listening on {}", listen.display()))?;
    loop {
        let (front, _) = listener.accept()?;
        let back = UnixStream::connect(socket).with_context(|| format!("reaching {}", socket.display()))?;
        let (front_too, back_too) = (front.try_clone()?, back.try_clone()?);
        let forth = std::thread::spawn(move || pass(&front, &back));
        pass(&back_too, &front_too);
        anyhow::ensure!(forth.join().is_ok(), "a thread of the relay panicked");
    }
}

/// Passes on until one side ends; then both do.
fn pass(from: &UnixStream, to: &UnixStream) {
    if let Err(error) = pass_all(from, to) {
        log::debug!("the relay: {error}");
    }
    // Fails only where the other direction was faster.
    let _ended = from.shutdown(Shutdown::Both);
    let _ended = to.shutdown(Shutdown::Both);
}

fn pass_all(from: &UnixStream, to: &UnixStream) -> anyhow::Result<()> {
    let mut bytes = vec![0; CHUNK];
    loop {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let message = rustix::net::recvmsg(from, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)?;
        if message.bytes == 0 {
            return Ok(());
        }
        let fds: Vec<OwnedFd> = control
            .drain()
            .filter_map(|message| match message {
                RecvAncillaryMessage::ScmRights(fds) => Some(fds),
                _ => None,
            })
            .flatten()
            .collect();
        send(to, &bytes[..message.bytes], &fds)?;
    }
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
