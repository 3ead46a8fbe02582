//! What the device asks of the VMM: SHMEM_MAP and SHMEM_UNMAP.

use std::fs::File;
use std::io;
use std::io::Read;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use campanile_protocol::virtio_gpu::SHM_HOST_VISIBLE;
use rustix::io::FdFlags;
use vhost::vhost_user::message::BackendReq;
use vhost::vhost_user::message::VhostUserMMap;
use vhost::vhost_user::message::VhostUserMMapFlags;
use vm_memory::ByteValued;
use vmm_sys_util::sock_ctrl_msg::ScmSocket;
use zerocopy::FromBytes;
use zerocopy::Immutable;
use zerocopy::IntoBytes;

use super::front_end::FrontEnd;
use super::front_end::Main;
use super::options::BackChannel;
use super::window::MapRequest;
use super::window::Maps;

/// Header flags: version 1, and what marks a reply or asks for one.
const VERSION: u32 = 1;
const VERSION_MASK: u32 = 3;
const REPLY: u32 = 1 << 2;
const NEED_REPLY: u32 = 1 << 3;
/// Longest body that is read; no request of a device is as long.
const MAX_BODY: usize = 4096;
/// What QEMU answers to a map that it refuses: -EFAULT.
const REFUSED: u64 = (-14_i64).cast_unsigned();

/// Opens each message of the channel.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct MessageHeader {
    request: u32,
    flags: u32,
    size: u32,
}

/// Serves the device's requests until the channel closes.
pub(crate) fn serve(channel: &UnixStream, front_end: &Arc<FrontEnd>, window: &Maps, when: BackChannel) {
    loop {
        match receive(channel) {
            Ok(Some((header, body, file))) => {
                if let Err(error) = answer(channel, front_end, window, when, header, &body, file) {
                    log::debug!("the device's request {}: {error}", header.request);
                    return;
                }
            }
            Ok(None) => return,
            Err(error) => {
                log::debug!("the device's channel: {error}");
                return;
            }
        }
    }
}

type Message = (MessageHeader, Vec<u8>, Option<File>);

fn receive(mut channel: &UnixStream) -> io::Result<Option<Message>> {
    let mut bytes = [0; size_of::<MessageHeader>()];
    let (mut got, file) = loop {
        match channel.recv_with_fd(&mut bytes) {
            Ok(received) => break received,
            Err(error) if error.errno() == rustix::io::Errno::INTR.raw_os_error() => {}
            Err(error) => return Err(error.into()),
        }
    };
    if got == 0 {
        return Ok(None);
    }
    if let Some(file) = &file {
        rustix::io::fcntl_setfd(file, FdFlags::CLOEXEC)?;
    }
    while got < bytes.len() {
        match channel.read(&mut bytes[got..])? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => got += count,
        }
    }
    let header: MessageHeader = zerocopy::transmute!(bytes);
    let size = usize::try_from(header.size).unwrap_or(usize::MAX);
    if header.flags & VERSION_MASK != VERSION || header.flags & REPLY != 0 || size > MAX_BODY {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "no vhost-user request"));
    }
    let mut body = vec![0; size];
    channel.read_exact(&mut body)?;
    Ok(Some((header, body, file)))
}

fn answer(
    channel: &UnixStream,
    front_end: &Arc<FrontEnd>,
    window: &Maps,
    when: BackChannel,
    header: MessageHeader,
    body: &[u8],
    file: Option<File>,
) -> io::Result<()> {
    // QEMU's main loop serves this channel, so it cannot while it waits for an answer on the other one.
    let main = (when == BackChannel::LikeQemu).then(|| front_end.main());
    let accepted = handle(window, header.request, body, file);
    if header.flags & NEED_REPLY != 0 {
        reply(channel, header.request, if accepted { 0 } else { REFUSED })?;
    }
    if accepted {
        // Only now: a device that waits for the reply above answers nothing before it.
        match main {
            Some(mut main) => tell(front_end, &mut main),
            None => {
                let front_end = Arc::clone(front_end);
                let told = move || tell(&front_end, &mut front_end.main());
                std::thread::Builder::new().name("loopback-memory".to_owned()).spawn(told)?;
            }
        }
    }
    Ok(())
}

fn tell(front_end: &FrontEnd, main: &mut Main) {
    if let Err(error) = front_end.memory_changed(main) {
        log::warn!("the device was not told of its window: {error}");
    }
}

fn handle(window: &Maps, request: u32, body: &[u8], file: Option<File>) -> bool {
    let map = request == u32::from(BackendReq::SHMEM_MAP);
    if !map && request != u32::from(BackendReq::SHMEM_UNMAP) {
        log::warn!("the device asks for {request}, which this VMM has not");
        return false;
    }
    let mut message = VhostUserMMap::default();
    if body.len() != message.as_slice().len() {
        return false;
    }
    message.as_mut_slice().copy_from_slice(body);
    if message.shmid != SHM_HOST_VISIBLE {
        return false;
    }
    let VhostUserMMap { shm_offset: offset, fd_offset: file_offset, len: length, flags, .. } = message;
    let outcome = match file {
        Some(file) if map => {
            let writable = flags & VhostUserMMapFlags::WRITABLE.bits() != 0;
            window.map(MapRequest { offset, length, file, file_offset, writable })
        }
        None if map => return false,
        _ => window.unmap(offset, length),
    };
    if let Err(error) = &outcome {
        log::warn!("the device's window request was refused: {error}");
    }
    outcome.is_ok()
}

fn reply(mut channel: &UnixStream, request: u32, value: u64) -> io::Result<()> {
    let header = MessageHeader { request, flags: VERSION | REPLY, size: 8 };
    let mut bytes = [0; 20];
    bytes[..12].copy_from_slice(header.as_bytes());
    bytes[12..].copy_from_slice(&value.to_ne_bytes());
    channel.write_all(&bytes)
}
