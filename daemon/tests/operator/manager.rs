//! A service manager's store of descriptors (sd_notify(3), `FDSTORE=1`).

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::Mutex;
use std::thread;

use rustix::io::FdFlags;
use rustix::io::fcntl_dupfd_cloexec;
use rustix::io::fcntl_setfd;
use rustix::net::RecvAncillaryBuffer;
use rustix::net::RecvAncillaryMessage;
use rustix::net::RecvFlags;
use rustix::net::recvmsg;
use tempfile::TempDir;

/// First of the numbers that descriptors have in this process which are for the next: above all that it has.
const ABOVE: i32 = 500;

/// The manager.
pub(crate) struct Manager {
    folder: TempDir,
    files: Arc<Mutex<BTreeMap<String, OwnedFd>>>,
}

impl Manager {
    pub(crate) fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = UnixDatagram::bind(folder.path().join("notify")).unwrap();
        let files = Arc::new(Mutex::new(BTreeMap::new()));
        let kept = Arc::clone(&files);
        thread::spawn(move || {
            loop {
                hear(&socket, &kept);
            }
        });
        Self { folder, files }
    }

    /// As `NOTIFY_SOCKET` has it.
    pub(crate) fn address(&self) -> PathBuf {
        self.folder.path().join("notify")
    }

    /// Of what it has.
    pub(crate) fn names(&self) -> BTreeSet<String> {
        self.files.lock().unwrap().keys().cloned().collect()
    }

    /// A command that starts the program again, with all that it has.
    pub(crate) fn restart(&self) -> Command {
        let files = self.files.lock().unwrap();
        let (mut redirected, mut closed) = (String::new(), String::new());
        for (number, file) in (3..).zip(files.values()) {
            let copy = fcntl_dupfd_cloexec(file, ABOVE).unwrap();
            fcntl_setfd(&copy, FdFlags::empty()).unwrap();
            let from = copy.as_raw_fd();
            // It stays open until this process ends.
            std::mem::forget(copy);
            redirected.push_str(&format!(" {number}<&{from}"));
            closed.push_str(&format!(" {from}<&-"));
        }
        let names: Vec<&str> = files.keys().map(String::as_str).collect();
        let script = format!(
            "exec{redirected}; exec{closed}; LISTEN_PID=$$ LISTEN_FDS={} LISTEN_FDNAMES={} exec \"$0\" \"$@\"",
            names.len(),
            names.join(":")
        );
        let mut command = Command::new("bash");
        command.args(["-c", &script, env!("CARGO_BIN_EXE_campanile")]).env("NOTIFY_SOCKET", self.address());
        command
    }
}

/// Takes the next thing that is said.
fn hear(socket: &UnixDatagram, kept: &Mutex<BTreeMap<String, OwnedFd>>) {
    let mut bytes = [0; 4096];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let got =
        recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::CMSG_CLOEXEC).unwrap();
    let file = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    let said = String::from_utf8_lossy(&bytes[..got.bytes]).into_owned();
    let Some(name) = said.lines().find_map(|line| line.strip_prefix("FDNAME=")).map(str::to_owned) else {
        return;
    };
    let mut kept = kept.lock().unwrap();
    if said.starts_with("FDSTOREREMOVE=1") {
        kept.remove(&name);
    } else if let Some(file) = file {
        kept.insert(name, file);
    }
}
