//! A connection that goes from session to session is the same.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::io::Read;
use std::os::fd::BorrowedFd;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::sync::mpsc::Receiver;
use std::sync::mpsc::Sender;
use std::thread;

use campanile_host_gpu::memory::truncation::domain::FaultDomain;
use campanile_host_gpu::memory::vram::create_memfd;
use rustix::event::EventfdFlags;
use rustix::event::eventfd;

use super::resume;
use crate::frontend::vhost::answers::Answers;
use crate::frontend::vhost::connection::Ended;
use crate::frontend::vhost::connection::Place;
use crate::frontend::vhost::connection::serve;
use crate::frontend::vhost::counters::Count;
use crate::frontend::vhost::counters::Counters;
use crate::frontend::vhost::device::Aperture;
use crate::frontend::vhost::device::Device;
use crate::frontend::vhost::device::Offer;
use crate::frontend::vhost::device::WindowError;
use crate::frontend::vhost::features;
use crate::frontend::vhost::gate::Gate;
use crate::frontend::vhost::handed::Handed;
use crate::frontend::vhost::handed::HandedShell;
use crate::frontend::vhost::handed::Placed;
use crate::frontend::vhost::handed::Region;
use crate::frontend::vhost::mailbox::Mailbox;
use crate::frontend::vhost::malformed::MalformedChain;
use crate::frontend::vhost::parking::Parking;
use crate::frontend::vhost::ring::Rings;
use crate::frontend::vhost::saved::SavedRing;
use crate::frontend::vhost::saved::SavedShell;
use crate::frontend::vhost::session::Session;
use crate::frontend::vhost::session::Shared;
use crate::frontend::vhost::ticket::Ticket;
use crate::frontend::vhost::window::Waiting;
use crate::guest_ram::dirty_log::DirtyLog;
use crate::guest_ram::memory::GuestRam;
use crate::ledger::keeping::Ledger;
use crate::ledger::log::Key;
use crate::poller::Poller;
use crate::service_manager::tests::HeardStore;

const CONFIG: [u8; 2] = [7, 8];
const RAM: u64 = 0x10000;

fn aperture() -> Aperture {
    Aperture { region: 1, file: create_memfd("aperture", RAM).unwrap(), offset: 0, length: RAM }
}

/// A session with a window, of which nothing is known yet, and how many requests for the window front-ends have not answered.
fn session(line: &UnixStream) -> (Arc<Session>, Waiting) {
    let log = Arc::new(DirtyLog::default());
    let shared = Shared {
        rings: Arc::new(Rings::new(1, 24, &log)),
        log,
        gate: Arc::new(Gate::default()),
        mailbox: Arc::new(Mailbox::new().unwrap()),
        poller: Arc::new(Poller::new().unwrap()),
        counters: Arc::new(Counters::default()),
        domain: FaultDomain::new().unwrap(),
        aperture: Arc::new(Mutex::new(Some(Arc::new(aperture())))),
        window: Arc::default(),
        is_handed_over: Arc::default(),
        ledger: Arc::default(),
    };
    let offer = Offer { aperture: None, ..offer() };
    let line = line.try_clone().unwrap();
    let waiting = Waiting::default();
    (Arc::new(Session::new("a", shared, offer, Arc::clone(&waiting), line)), waiting)
}

fn offer() -> Offer {
    let (config, aperture) = (CONFIG.to_vec(), Some(aperture()));
    Offer { features: 3, queues: 1, config, smallest_answer: 24, aperture, migrates: true }
}

/// A front-end whose ring runs, and which has said all that it can.
fn running(has_asked: bool, window: bool) -> HandedShell {
    let kind = features::Kind { aperture: true, migrates: true, configured: true };
    let ring = Placed {
        size: 8,
        parts: [RAM, RAM + 0x1000, RAM + 0x2000],
        is_enabled: true,
        has_kick: true,
        has_call: true,
        has_error: true,
    };
    HandedShell {
        shell: SavedShell {
            features: 3 | features::VERSION_1 | features::PROTOCOL_FEATURES,
            config: CONFIG.to_vec(),
            smallest_answer: 24,
            rings: vec![SavedRing { position: 5, was_used: true, ..SavedRing::default() }],
        },
        protocol: features::protocol(kind).bits(),
        has_asked,
        is_greeted: true,
        window: Some(window),
        has_back_channel: true,
        regions: vec![Region { guest: RAM, length: RAM, user: 0x7000_0000, offset: 0 }],
        rings: vec![ring],
    }
}

/// One that has only connected, and asked what there is.
fn new() -> HandedShell {
    let mut shell = running(true, true);
    shell.shell.features = 0;
    shell.shell.rings = vec![SavedRing::default()];
    let nothing = Placed {
        size: 1024,
        parts: [0; 3],
        is_enabled: false,
        has_kick: false,
        has_call: false,
        has_error: false,
    };
    let (regions, rings) = (Vec::new(), vec![nothing]);
    HandedShell {
        protocol: 0,
        is_greeted: false,
        window: None,
        has_back_channel: false,
        regions,
        rings,
        ..shell
    }
}

/// What the front-end of [`running`] has given, in the order in which it is handed over, and the other end of the back channel.
fn files() -> (VecDeque<OwnedFd>, UnixStream) {
    let (back_channel, other) = UnixStream::pair().unwrap();
    let event = |value| eventfd(value, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
    let mut files = VecDeque::from([back_channel.into(), create_memfd("ram", RAM).unwrap().into()]);
    files.extend([11, 12, 13].map(event));
    (files, other)
}

/// Which file, or which value of an eventfd.
fn told_apart(files: VecDeque<OwnedFd>) -> Vec<u64> {
    let number = |file: File| {
        let mut value = [0; 8];
        let read = (&file).read(&mut value);
        // Sockets are empty, and do not wait; memory has zeroes.
        if read.is_ok() && value != [0; 8] {
            u64::from_ne_bytes(value)
        } else {
            file.metadata().unwrap().ino()
        }
    };
    files
        .into_iter()
        .map(|file| {
            rustix::io::ioctl_fionbio(&file, true).unwrap();
            number(file.into())
        })
        .collect()
}

/// The session that a connection goes on with.
fn go_on(shell: &HandedShell, files: VecDeque<OwnedFd>, stream: &UnixStream) -> Arc<Session> {
    let (session, waiting) = session(stream);
    session.adopt(shell).unwrap();
    let handed = Handed { stream: stream.try_clone().unwrap(), shell: shell.clone(), files };
    resume(&session, stream, handed).unwrap();
    assert_eq!(waiting.load(Ordering::Relaxed), 0, "the front-end is asked for nothing");
    session
}

#[test]
fn cont_05_a_connection_that_goes_from_daemon_to_daemon_is_the_same_word_for_word() {
    let shells = [running(true, true), running(false, false), new()];
    for shell in shells {
        let (stream, _front_end) = UnixStream::pair().unwrap();
        let (given, _other) =
            if shell.has_back_channel { files() } else { (VecDeque::new(), UnixStream::pair().unwrap().0) };
        let mut files: VecDeque<OwnedFd> = given.iter().map(|file| file.try_clone().unwrap()).collect();
        // Three times: what is exchanged twice is where it was.
        for _ in 0..3 {
            let handed = go_on(&shell, files, &stream).hand_over().unwrap();
            assert_eq!(handed.shell, shell);
            files = handed.files;
        }
        let values = told_apart(files);
        if shell.has_back_channel {
            assert_eq!(values[2..], [11, 12, 13], "kick, call and error");
            let inode = |file: &OwnedFd| File::from(file.try_clone().unwrap()).metadata().unwrap().ino();
            assert_eq!(values[..2], [inode(&given[0]), inode(&given[1])], "back channel and memory");
        } else {
            assert!(values.is_empty(), "{values:?}");
        }
    }
}

#[test]
fn cont_05_a_guest_that_goes_on_with_another_daemon_is_no_new_one_and_has_seen_its_configuration() {
    for has_asked in [true, false] {
        let (stream, _front_end) = UnixStream::pair().unwrap();
        let (given, _other) = files();
        let session = go_on(&running(has_asked, true), given, &stream);
        assert_eq!(session.shared.counters.get(Count::Reconnects), 0, "it had no device before that is lost");
        assert!(session.negotiated().configured, "it is not advised to show what it has shown");
        assert_eq!(session.negotiated().is_fresh, has_asked);
    }
}

#[test]
fn cont_05_the_device_is_told_whether_the_window_is_shown_where_the_front_end_has_said_so() {
    for shown in [Some(true), Some(false), None] {
        let (stream, _front_end) = UnixStream::pair().unwrap();
        let (session, _) = session(&stream);
        session.adopt(&HandedShell { window: shown, ..running(true, true) }).unwrap();
        let mail = session.shared.mailbox.take();
        assert!(mail.frozen, "until its rings run");
        let told = mail.window.map(|(_, state)| match state {
            Ok(()) => true,
            Err(WindowError::Refused(_)) => false,
            Err(other) => panic!("{other}"),
        });
        assert_eq!(told, shown);
    }
}

/// A device that says what is written for a daemon after this one when it is told to go on, and waits then.
struct Thawed {
    ledger: Arc<Ledger>,
    says: Sender<Option<Vec<Key>>>,
    goes_on: Receiver<()>,
}

impl Device for Thawed {
    fn offer(&self) -> io::Result<Offer> {
        Ok(offer())
    }
    fn command(&mut self, _: u16, _: &[u8], _: Ticket, _: &mut Answers) {}
    fn malformed(&mut self, _: u16, _: MalformedChain, _: Ticket, _: &mut Answers) {}
    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    fn event(&mut self, _: &mut Answers) {}
    fn memory_changed(&mut self, _: Arc<GuestRam>, _: &mut Answers) {}
    fn window(&mut self, _: Result<(), WindowError>, _: &mut Answers) {}
    fn reset(&mut self) {}
    fn thaw(&mut self) {
        self.says.send(self.ledger.keys()).unwrap();
        self.goes_on.recv().unwrap();
    }
}

/// Serves the front-end of [`running`], with these descriptors, as one that another process has served; it hangs up when its device has gone on, if
/// it does. What is written then, names in the store by then in their order, and how the connection ends.
fn served(vgpu: &str, files: VecDeque<OwnedFd>) -> (Option<Vec<Key>>, Vec<String>, Result<Ended, String>) {
    let store = HeardStore::open();
    let (says, said) = mpsc::channel();
    let (go_on, goes_on) = mpsc::channel();
    let ledger = Arc::new(Ledger::new(vgpu));
    let device = Box::new(Thawed { ledger: Arc::clone(&ledger), says, goes_on });
    let (stream, front_end) = UnixStream::pair().unwrap();
    let handed = Handed { stream: stream.try_clone().unwrap(), shell: running(true, true), files };
    let (counters, waiting, parking) = (Arc::default(), Waiting::default(), Parking::new().unwrap());
    let place =
        Place { socket: "a", counters: &counters, waiting: &waiting, parking: &parking, ledger: &ledger };
    thread::scope(|scope| {
        let serves = scope.spawn(|| serve(place, &stream, device, Some((handed, mpsc::channel().0))));
        // None where the device ends without that.
        let keys = said.recv().ok().flatten();
        let prefix = format!("FDSTORE=1\nFDPOLL=0\nFDNAME=campanile.{vgpu}.");
        let stored = || store.heard().filter_map(|said| Some(said.strip_prefix(&prefix)?.to_owned()));
        let mut names: Vec<String> = stored().collect();
        drop(front_end);
        let _ended = go_on.send(());
        let ended = serves.join().unwrap().map_err(|error| error.to_string());
        names.extend(stored());
        (keys, names, ended)
    })
}

#[test]
fn cont_21_what_is_stored_of_a_connection_that_was_taken_over_is_whole_before_its_device_goes_on() {
    let (given, _other) = files();
    let (keys, names, ended) = served("taken-over", given);
    assert_eq!(ended, Ok(Ended::HungUp));
    let keys = keys.expect("it went on");
    assert!(keys.contains(&Key::Connection) && keys.contains(&Key::Window), "{keys:?}");
    let place = |name: &str| names.iter().position(|its| its.starts_with(name));
    let own = ["log", "words", "connection"].map(|name| place(name).expect("it is stored"));
    for before in ["call-0", "channel", "error-0", "kick-0", "ram-"] {
        let at = place(before).unwrap_or_else(|| panic!("{before} is not in {names:?}"));
        assert!(own.iter().all(|own| at < *own), "{before} comes too late: {names:?}");
    }
    assert_eq!(own[2] + 1, names.len(), "nothing follows: {names:?}");
}

#[test]
fn cont_21_a_connection_that_cannot_be_taken_over_is_stored_only_to_be_removed_at_its_end() {
    let (mut given, _other) = files();
    given.pop_back();
    let (keys, names, ended) = served("not-taken-over", given);
    let why =
        "what the predecessor has handed over cannot be used: a descriptor is missing: error".to_owned();
    assert_eq!((keys, ended), (None, Err(why)));
    assert_eq!(names.last().map(String::as_str), Some("connection"));
}
