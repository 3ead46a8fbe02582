//! A line between two daemons that breaks where it is told to.

use std::io::Read;
use std::io::Write;
use std::net::Shutdown;
use std::os::unix::net::UnixListener;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use campanile_daemon::migration::channel::address::Peer;
use campanile_daemon::migration::channel::frame::HEADER;
use tempfile::TempDir;

/// Where frames go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// From source to target.
    There,
    /// From target to source.
    Back,
}

/// What happens to a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The line is closed in its place.
    Close,
    /// Half of it comes, then the line is closed.
    Truncate,
    /// A byte of it is another.
    Corrupt,
    /// It comes twice.
    Replay,
    /// It never comes, and nothing else does.
    Stall,
}

/// At which frame of which way, counted over all lines.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Break {
    pub(crate) way: Way,
    pub(crate) frame: usize,
    pub(crate) fault: Fault,
}

/// Passes frames on, until the one that it breaks at.
pub(crate) struct Proxy {
    path: PathBuf,
    stop: Arc<AtomicBool>,
    broke: Arc<AtomicBool>,
    frames: Arc<[AtomicUsize; 2]>,
    thread: Option<JoinHandle<()>>,
    _folder: TempDir,
}

impl Proxy {
    pub(crate) fn new(to: &Peer, broken: Option<Break>) -> Self {
        let Peer::Unix(to) = to.clone() else { panic!("a Unix socket is wanted") };
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("proxy");
        let listener = UnixListener::bind(&path).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let broke = Arc::new(AtomicBool::new(false));
        let frames: Arc<[AtomicUsize; 2]> = Arc::default();
        let shared = (Arc::clone(&stop), Arc::clone(&broke), Arc::clone(&frames));
        let thread = std::thread::spawn(move || {
            let (stop, broke, frames) = shared;
            let mut ends = Vec::new();
            let mut threads = Vec::new();
            while let Ok((near, _)) = listener.accept() {
                if stop.load(Ordering::Acquire) {
                    break;
                }
                let Ok(far) = UnixStream::connect(&to) else { continue };
                ends.extend([near.try_clone().unwrap(), far.try_clone().unwrap()]);
                for (way, from, to) in [
                    (Way::There, near.try_clone().unwrap(), far.try_clone().unwrap()),
                    (Way::Back, far, near),
                ] {
                    let (broke, frames) = (Arc::clone(&broke), Arc::clone(&frames));
                    threads.push(std::thread::spawn(move || {
                        let broken = broken.filter(|broken| broken.way == way);
                        pass(from, to, &frames[way as usize], broken, &broke);
                    }));
                }
            }
            for end in ends {
                let _gone = end.shutdown(Shutdown::Both);
            }
            for thread in threads {
                thread.join().unwrap();
            }
        });
        Self { path, stop, broke, frames, thread: Some(thread), _folder: folder }
    }

    pub(crate) fn peer(&self) -> Peer {
        Peer::Unix(self.path.clone())
    }

    /// Whether the frame to break at has come.
    pub(crate) fn broke(&self) -> bool {
        self.broke.load(Ordering::Acquire)
    }

    /// Frames that went this way.
    pub(crate) fn frames(&self, way: Way) -> usize {
        self.frames[way as usize].load(Ordering::Acquire)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        let _wakes = UnixStream::connect(&self.path);
        self.thread.take().unwrap().join().unwrap();
    }
}

fn pass(
    mut from: UnixStream,
    mut to: UnixStream,
    count: &AtomicUsize,
    broken: Option<Break>,
    broke: &AtomicBool,
) {
    let mut bytes = vec![0; HEADER];
    while from.read_exact(&mut bytes[..HEADER]).is_ok() {
        let length = u32::from_le_bytes(bytes[8..12].try_into().unwrap());
        let end = HEADER + usize::try_from(length).unwrap();
        bytes.resize(end.max(bytes.len()), 0);
        if from.read_exact(&mut bytes[HEADER..end]).is_err() {
            break;
        }
        let frame = count.fetch_add(1, Ordering::AcqRel);
        let fault = broken.filter(|broken| broken.frame == frame).map(|broken| broken.fault);
        if fault.is_some() {
            broke.store(true, Ordering::Release);
        }
        let frame = &mut bytes[..end];
        let sent = match fault {
            None => to.write_all(frame),
            Some(Fault::Close) => break,
            Some(Fault::Truncate) => {
                let _last = to.write_all(&frame[..end / 2]);
                break;
            }
            Some(Fault::Corrupt) => {
                frame[end * 3 / 4] ^= 0x10;
                to.write_all(frame)
            }
            Some(Fault::Replay) => to.write_all(frame).and_then(|()| to.write_all(frame)),
            Some(Fault::Stall) => {
                // Whoever waits for it ends the line, and that is seen here.
                let mut rest = [0; 4096];
                while matches!(from.read(&mut rest), Ok(count) if count > 0) {}
                return;
            }
        };
        if sent.is_err() {
            break;
        }
    }
    let _gone = from.shutdown(Shutdown::Both);
    let _gone = to.shutdown(Shutdown::Both);
}
