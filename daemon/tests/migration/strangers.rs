//! Connections of strangers, and peers that may not bring a vGPU.

use std::io::Read;
use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use campanile_daemon::migration::channel::address::Peer;
use campanile_daemon::migration::channel::connect::Door;
use campanile_daemon::migration::channel::frame;
use campanile_daemon::migration::channel::frame::HEADER;
use campanile_daemon::migration::channel::frame::Kind;
use campanile_daemon::migration::channel::message::Hello;
use campanile_daemon::migration::channel::message::Message;
use campanile_daemon::migration::channel::message::VERSION;
use campanile_daemon::migration::channel::tls::Identity;
use campanile_daemon::migration::id::BundleId;
use campanile_daemon::migration::pages::PAGE;
use campanile_daemon::migration::settings::Settings;
use campanile_daemon::migration::settings::Timeouts;
use campanile_daemon::migration::target::arrivals::Arrivals;
use campanile_daemon::migration::target::arriving::Arriving;
use tempfile::TempDir;

use crate::pair::EVICTED_PAGES;
use crate::pair::IMMUTABLE;
use crate::pair::LONG;
use crate::pair::NAME;
use crate::pair::Source;
use crate::pair::Target;
use crate::pair::VRAM_PAGES;
use crate::pair::arriving;
use crate::pair::assert_same;
use crate::pair::eventually;
use crate::pair::settings;
use crate::tls::Authority;

fn tcp() -> Peer {
    "tcp:127.0.0.1:0".parse().unwrap()
}

fn connect(target: &Target) -> TcpStream {
    let (Peer::Tcp(address) | Peer::Tls(address)) = target.peer() else { panic!("no TCP") };
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream
}

/// Whether the daemon has hung up: waits for it.
fn hangs_up(stream: &mut TcpStream) -> bool {
    match stream.read(&mut [0; 64]) {
        Ok(count) => count == 0,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

fn moves(source: &Source, target: &Target) {
    source.scribble();
    let bundle = source.departure.finish().unwrap();
    let (claim, staged) = target.claim(bundle);
    assert_same(&source.memories, &staged);
    claim.start().unwrap();
}

#[test]
fn lm_30_silent_connections_shut_no_migration_out() {
    let authority = Authority::new();
    let identity = authority.identity("127.0.0.1", &authority);
    for (peer, identity) in [(tcp(), None), ("tls:127.0.0.1:0".parse().unwrap(), Some(identity))] {
        let target = Target::on(&peer, identity.as_ref(), LONG);
        // Far more than are served, from the address that the source comes from too.
        let mut silent: Vec<_> = (0..200).map(|_| connect(&target)).collect();
        assert!(hangs_up(&mut silent[0]), "the oldest makes room");
        let source = Source::new(Settings { identity, streams: 4, ..settings(target.peer(), LONG) });
        moves(&source, &target);
        drop(silent);
    }
}

/// The first message of a migration that is allowed.
fn hello() -> Vec<u8> {
    let hello = Message::Hello(Hello {
        version: VERSION,
        oldest: 1,
        vgpu: NAME.to_owned(),
        bundle: BundleId::random().unwrap(),
        streams: 1,
        memories: [VRAM_PAGES * PAGE, EVICTED_PAGES * PAGE],
        immutable: IMMUTABLE.to_vec(),
    });
    frame::framed(Kind::Message, 0, &hello.encode().unwrap())
}

#[test]
fn a_migration_that_was_accepted_is_displaced_by_no_stranger() {
    let target = Target::on(&tcp(), None, LONG);
    let mut accepted = connect(&target);
    accepted.write_all(&hello()).unwrap();
    let mut answer = [0; HEADER];
    accepted.read_exact(&mut answer).unwrap();
    eventually("it is accepted", || target.bundles().len() == 1);
    let mut silent: Vec<_> = (0..200).map(|_| connect(&target)).collect();
    assert!(hangs_up(&mut silent[100]));
    assert_eq!(target.bundles().len(), 1, "it is on its way still");
    drop(accepted);
    eventually("its line was open until now", || target.is_clean());
}

#[test]
fn a_stranger_that_says_its_hello_byte_by_byte_is_hung_up_on() {
    let timeouts = Timeouts { message: Duration::from_millis(300), ..LONG };
    let target = Target::on(&tcp(), None, timeouts);
    let mut stranger = connect(&target);
    stranger.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    // Each byte comes in time for a read, and all of them in 20 seconds at the earliest.
    let mut bytes = frame::framed(Kind::Message, 0, &[b' '; 1000]).into_iter();
    let gone = bytes.any(|byte| {
        let sent = stranger.write_all(&[byte]);
        let heard = stranger.read(&mut [0; 1]);
        let is_reset = |error: std::io::Error| error.kind() == std::io::ErrorKind::ConnectionReset;
        sent.is_err() || matches!(heard, Ok(0)) || heard.is_err_and(is_reset)
    });
    assert!(gone, "it was heard to the end");
}

/// A target whose vGPU may come from `names`.
fn choosy(at: &Peer, identity: Option<&Identity>, names: &[&str]) -> Target {
    let peers = names.iter().map(|name| name.parse().unwrap()).collect();
    let vgpu = Arriving { peers, ..arriving(NAME) };
    let door = Door::open(at, identity).unwrap();
    Target {
        arrivals: Arrivals::serve(door, vec![Arc::new(vgpu)], LONG, Arc::default()).unwrap(),
        _folder: TempDir::new().unwrap(),
    }
}

#[test]
fn lm_30_a_vgpu_comes_only_from_peers_whose_certificates_have_an_allowed_name() {
    let authority = Authority::new();
    let identity = |names: &[&str]| Some(authority.identity_of(names, &authority));
    let here = identity(&["127.0.0.1"]);
    let at = "tls:127.0.0.1:0".parse().unwrap();
    let target = choosy(&at, here.as_ref(), &["host-a.example", "host-b.example"]);
    for names in [&["host-c.example"][..], &["host-a.example.com", "127.0.0.1"]] {
        let stranger = Source::new(Settings { identity: identity(names), ..settings(target.peer(), LONG) });
        let refused = stranger.departure.finish().unwrap_err().to_string();
        assert!(refused.contains("migrate-from"), "{refused}");
        assert!(target.is_clean());
    }
    for names in [&["host-b.example"][..], &["other.example", "host-a.example"]] {
        let source = Source::new(Settings { identity: identity(names), ..settings(target.peer(), LONG) });
        moves(&source, &target);
    }
}

#[test]
fn a_vgpu_comes_only_from_users_that_are_allowed_over_a_unix_socket() {
    let user = rustix::process::geteuid().as_raw();
    let folder = TempDir::new().unwrap();
    for (name, is_allowed) in [(format!("uid:{user}"), true), (format!("uid:{}", user + 1), false)] {
        let target = choosy(&Peer::Unix(folder.path().join(&name)), None, &[&name]);
        let source = Source::new(settings(target.peer(), LONG));
        if is_allowed {
            moves(&source, &target);
        } else {
            let refused = source.departure.finish().unwrap_err().to_string();
            assert!(refused.contains("migrate-from") && refused.contains(&user.to_string()), "{refused}");
        }
    }
}

#[test]
fn a_vgpu_with_a_list_of_peers_comes_from_none_without_credentials() {
    let target = choosy(&tcp(), None, &["localhost"]);
    let source = Source::new(settings(target.peer(), LONG));
    let refused = source.departure.finish().unwrap_err().to_string();
    assert!(refused.contains("migrate-from"), "{refused}");
}
