//! What no daemon of good faith does.

use super::super::message::HangReport;
use super::super::message::ToBroker;
use super::super::message::ToDaemon;
use super::super::message::Tuning;
use super::super::message::VERSION;
use super::puppet::Puppet;
use super::puppet::add;
use super::puppet::hello;
use super::world::COMPUTE;
use super::world::Engine;
use super::world::Host;
use super::world::NEVER;
use super::world::until;
use crate::sched::record::RECORD_BYTES;
use crate::sched::share::Share;
use campanile_host_gpu::event::Event;
use campanile_host_gpu::memory::vram::create_memfd;
use campanile_protocol::engine::block::BLOCK_BYTES;
use campanile_protocol::engine::block::GRANT;
use campanile_protocol::handshake::grant::Grant;
use campanile_protocol::handshake::grant::Phase;
use rustix::event::PollFlags;
use rustix::process::Resource;
use rustix::process::Rlimit;
use rustix::process::getrlimit;
use rustix::process::setrlimit;
use std::os::fd::AsFd;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

#[test]
fn cont_20_what_no_daemon_of_good_faith_says_closes_its_line_and_no_other() {
    type Says = Box<dyn Fn(&Puppet)>;
    let host = Host::new();
    let _broker = host.broker();
    let member = host.member(&["gpu#0"]);
    let says = |message: ToBroker| -> Says {
        Box::new(move |puppet| {
            puppet.greets(0, 0);
            puppet.says(&message);
        })
    };
    let adds = |message: ToBroker, change: fn(&mut Vec<OwnedFd>)| -> Says {
        Box::new(move |puppet| {
            puppet.greets(0, 0);
            puppet.adds_with(&message, change);
        })
    };
    let own = |fd: &dyn AsFd| fd.as_fd().try_clone_to_owned().unwrap();
    let tuning = Tuning { weight: 0, ..Tuning::new(None, Share::default()) };
    let hello = |version, devices: usize| ToBroker::Hello {
        version,
        devices: vec!["x".to_owned(); devices],
        peers: 0,
        engines: 0,
    };
    let adapter = |adapter| ToBroker::Add {
        engine: 1,
        vgpu: String::new(),
        adapter,
        is_copy: true,
        tuning: Tuning::new(None, Share::default()),
    };
    let light = ToBroker::Add { engine: 1, vgpu: String::new(), adapter: 0, is_copy: false, tuning };
    let wrong: Vec<(&str, Says)> = vec![
        ("Hello is the first message", Box::new(|puppet| puppet.says(&ToBroker::Remove { engine: 1 }))),
        ("Hello is the first message", says(hello(VERSION, 1))),
        ("version 99", Box::new(move |puppet| puppet.says(&hello(99, 1)))),
        ("0 devices", Box::new(move |puppet| puppet.says(&hello(VERSION, 0)))),
        ("adapter 1, which it has not", adds(adapter(1), |_| {})),
        ("weight 0", adds(light, |_| {})),
        ("3 descriptors", adds(add(1), |files| files.truncate(3))),
        ("the shared block has", adds(add(1), |files| files[0] = create_memfd("x", 4096).unwrap().into())),
        (
            "the shared block is no memory",
            adds(add(1), |files| {
                let file = tempfile::tempfile().unwrap();
                file.set_len(BLOCK_BYTES).unwrap();
                files[0] = file.into();
            }),
        ),
        (
            "what wakes it: an eventfd is expected",
            adds(add(1), |files| files[1] = create_memfd("x", 4096).unwrap().into()),
        ),
        (
            "what it asks by: an eventfd is expected",
            adds(add(1), |files| files[2] = create_memfd("x", 4096).unwrap().into()),
        ),
        (
            "the record has",
            adds(add(1), |files| {
                files[3] = create_memfd("x", RECORD_BYTES * 2).unwrap().into();
            }),
        ),
        ("a suspend of context 4096", says(ToBroker::ExpectSuspend { engine: 1, entry: 4096, fence: 1 })),
        (
            "a second engine 1",
            Box::new(|puppet| {
                puppet.greets(0, 0);
                puppet.adds(1);
                puppet.adds(1);
            }),
        ),
        (
            "weight 0",
            Box::new(move |puppet| {
                puppet.greets(0, 0);
                puppet.adds(1);
                puppet.says(&ToBroker::Retune { engine: 1, tuning });
            }),
        ),
        (
            "1 descriptors beside a message without any",
            Box::new(move |puppet| {
                puppet.greets(0, 0);
                let event = Event::new().unwrap();
                puppet.line.send(&ToBroker::Remove { engine: 1 }, &[own(&event).as_fd()]).unwrap();
            }),
        ),
        (
            "breaks the protocol",
            Box::new(|puppet| {
                puppet.greets(0, 0);
                puppet.handle.shared.word(GRANT).unwrap().store(7, Ordering::Release);
                puppet.adds(1);
            }),
        ),
        ("unknown variant", Box::new(|puppet| puppet.line.send(&"hello", &[]).unwrap())),
    ];
    for (why, says) in wrong {
        let puppet = Puppet::new(&host);
        says(&puppet);
        let found = puppet.refused();
        assert!(found.contains(why), "{found}, and not: {why}");
        assert!(puppet.hears(Some).is_none(), "its line stays open: {why}");
    }
    // What is no engine of it changes nothing, and is no breach: it may have gone meanwhile.
    let puppet = Puppet::new(&host);
    puppet.greets(0, 0);
    puppet.says(&ToBroker::Remove { engine: 9 });
    puppet.says(&ToBroker::Retune { engine: 9, tuning: Tuning::new(None, Share::default()) });
    puppet.says(&ToBroker::ExpectSuspend { engine: 9, entry: 1, fence: 1 });
    let engine = Engine::at(&member, COMPUTE);
    engine.gets_node();
    assert_eq!(engine.alarm.take(), None);
}

#[test]
fn cont_20_a_daemon_that_claims_a_node_that_another_one_has_does_not_get_it() {
    let host = Host::new();
    let _broker = host.broker();
    let member = host.member(&["gpu#0"]);
    let has = Engine::at(&member, COMPUTE);
    has.gets_node();
    let puppet = Puppet::new(&host);
    let claim = Grant { phase: Phase::Granted, generation: 40 }.word();
    puppet.handle.shared.word(GRANT).unwrap().store(claim, Ordering::Release);
    puppet.greets(0, 0);
    puppet.adds(3);
    let hang =
        |message| if let ToDaemon::Hang { engine, hang, .. } = message { Some((engine, hang)) } else { None };
    let (engine, hang) = puppet.hears(hang).unwrap();
    assert!(matches!(hang, HangReport::BrokenProtocol { word, .. } if word == claim), "{hang:?}");
    assert_eq!((engine, has.word().phase, has.alarm.take()), (3, Phase::Granted, None));
    let waits = Engine::at(&member, COMPUTE);
    waits.ask();
    has.until(Phase::Revoking);
    has.gives_node_back();
    waits.until(Phase::Granted);
    // It has had no time of the node, and so would be the next each time.
    for _ in 0..3 {
        waits.gives_node_back();
        waits.gets_node();
    }
}

#[test]
fn cont_20_a_daemon_has_so_many_engines_and_no_more() {
    let files = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: files, maximum: files }).unwrap();
    let host = Host::new();
    let _broker = host.broker();
    let puppet = Puppet::new(&host);
    puppet.greets(0, 0);
    for engine in 0..=512 {
        // What the broker has not read yet is in the way of the next.
        while !puppet.tries_to_add(engine) {
            assert!(puppet.line.wait(PollFlags::OUT, NEVER), "the broker does not read");
        }
    }
    assert!(puppet.refused().contains("more than 512 engines"));
}

#[test]
fn cont_20_so_many_daemons_take_part_and_no_more() {
    let files = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: files, maximum: files }).unwrap();
    let host = Host::new();
    let _broker = host.broker();
    let welcome = |message| matches!(message, ToDaemon::Welcome).then_some(());
    let mut puppets: Vec<Puppet> = (0..256)
        .map(|_| {
            let puppet = Puppet::new(&host);
            puppet.greets(0, 0);
            puppet.hears(welcome).expect("it may take part");
            puppet
        })
        .collect();
    assert!(Puppet::new(&host).refused().contains("256 daemons take part"));
    // One that goes leaves its place to another.
    drop(puppets.pop());
    until(
        || {
            let next = Puppet::new(&host);
            next.line.send(&hello(), &[]).is_ok() && next.hears(welcome).is_some()
        },
        "the place of a daemon that has gone is not free",
    );
}
