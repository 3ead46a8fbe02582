//! What a service manager is told (sd_notify(3)), as far as this program acts on it where it is one.

use std::io;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;

use rustix::io::Errno;
use rustix::net::RecvAncillaryBuffer;
use rustix::net::RecvAncillaryMessage;
use rustix::net::RecvFlags;
use rustix::net::recvmsg;
use rustix::process::Pid;

/// Bytes of the longest datagram that is read.
const LONGEST: usize = 4096;

/// One that has come.
#[derive(Debug)]
pub(crate) struct Datagram {
    pub(crate) bytes: Vec<u8>,
    pub(crate) files: Vec<OwnedFd>,
    /// What has sent it, where the socket asks for that.
    pub(crate) sender: Option<Pid>,
}

/// The next one at a socket that is not waited for; none when all were taken.
///
/// # Errors
/// The system refuses.
pub(crate) fn receive(socket: &UnixDatagram) -> io::Result<Option<Datagram>> {
    let mut bytes = vec![0; LONGEST];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16), ScmCredentials(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let got = loop {
        match recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::CMSG_CLOEXEC) {
            Ok(got) => break got.bytes,
            Err(Errno::AGAIN) => return Ok(None),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    };
    bytes.truncate(got);
    let (mut files, mut sender) = (Vec::new(), None);
    for part in control.drain() {
        match part {
            RecvAncillaryMessage::ScmRights(some) => files.extend(some),
            RecvAncillaryMessage::ScmCredentials(credentials) => sender = Some(credentials.pid),
            _ => {}
        }
    }
    Ok(Some(Datagram { bytes, files, sender }))
}

/// What one datagram says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Message {
    /// Keep the descriptor that comes with it under this name.
    Keep(String),
    /// Drop what has this name.
    Drop(String),
    /// The daemon serves.
    Ready,
    /// It lives.
    Alive,
    /// The daemon is this process from here on.
    Main(Pid),
    /// Something else.
    Other,
}

/// Reads a datagram.
pub(crate) fn read(bytes: &[u8]) -> Message {
    let text = String::from_utf8_lossy(bytes);
    let value = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    let is_set = |key: &str| value(key) == Some("1");
    match value("FDNAME") {
        Some(name) if is_set("FDSTOREREMOVE") => return Message::Drop(name.to_owned()),
        Some(name) if is_set("FDSTORE") => return Message::Keep(name.to_owned()),
        _ => {}
    }
    let pid = value("MAINPID").and_then(|pid| pid.parse::<u32>().ok());
    if let Some(pid) = pid.and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?)) {
        return Message::Main(pid);
    }
    match (is_set("READY"), is_set("WATCHDOG")) {
        (true, _) => Message::Ready,
        (_, true) => Message::Alive,
        _ => Message::Other,
    }
}

#[cfg(test)]
mod tests {
    use rustix::process::Pid;

    use super::Message;
    use super::read;

    #[test]
    fn datagrams_are_read_as_systemd_reads_them() {
        let pid = Pid::from_raw(77).unwrap();
        for (text, message) in [
            ("FDSTORE=1\nFDPOLL=0\nFDNAME=campanile.a.log", Message::Keep("campanile.a.log".to_owned())),
            ("FDNAME=campanile.a.log\nFDSTOREREMOVE=1\n", Message::Drop("campanile.a.log".to_owned())),
            ("READY=1", Message::Ready),
            ("WATCHDOG=1", Message::Alive),
            ("MAINPID=77", Message::Main(pid)),
            ("MAINPID=x", Message::Other),
            ("MAINPID=-1", Message::Other),
            ("FDSTORE=1", Message::Other),
            ("FDSTORE=0\nFDNAME=a", Message::Other),
            ("STATUS=READY=1", Message::Other),
            ("", Message::Other),
        ] {
            assert_eq!(read(text.as_bytes()), message, "{text:?}");
        }
        assert_eq!(read(&[0xff, 0]), Message::Other);
    }
}
