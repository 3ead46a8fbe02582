//! A connection that goes from session to session is the same.

use std::collections::VecDeque;
use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::Ordering;

use campanile_host_gpu::memory::truncation::domain::FaultDomain;
use campanile_host_gpu::memory::vram::create_memfd;
use rustix::event::EventfdFlags;
use rustix::event::eventfd;

use super::resume;
use crate::frontend::vhost::counters::Count;
use crate::frontend::vhost::counters::Counters;
use crate::frontend::vhost::device::Aperture;
use crate::frontend::vhost::device::Offer;
use crate::frontend::vhost::device::WindowError;
use crate::frontend::vhost::features;
use crate::frontend::vhost::gate::Gate;
use crate::frontend::vhost::handed::Handed;
use crate::frontend::vhost::handed::HandedShell;
use crate::frontend::vhost::handed::Placed;
use crate::frontend::vhost::handed::Region;
use crate::frontend::vhost::mailbox::Mailbox;
use crate::frontend::vhost::ring::Rings;
use crate::frontend::vhost::saved::SavedRing;
use crate::frontend::vhost::saved::SavedShell;
use crate::frontend::vhost::session::Session;
use crate::frontend::vhost::session::Shared;
use crate::frontend::vhost::window::Waiting;
use crate::guest_ram::dirty_log::DirtyLog;
use crate::poller::Poller;

const CONFIG: [u8; 2] = [7, 8];
const RAM: u64 = 0x10000;

/// A session with a window, of which nothing is known yet, and how many requests for the window front-ends have not answered.
fn session(line: &UnixStream) -> (Arc<Session>, Waiting) {
    let log = Arc::new(DirtyLog::default());
    let aperture = || {
        let file = create_memfd("aperture", RAM).unwrap();
        Aperture { region: 1, file, offset: 0, length: RAM }
    };
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
    let (config, migrates) = (CONFIG.to_vec(), true);
    let offer = Offer { features: 3, queues: 1, config, smallest_answer: 24, aperture: None, migrates };
    let line = line.try_clone().unwrap();
    let waiting = Waiting::default();
    (Arc::new(Session::new("a", shared, offer, Arc::clone(&waiting), line)), waiting)
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
