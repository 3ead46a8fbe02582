//! What a target refuses, and that it says why.

use std::io::Read;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use campanile_daemon::migration::channel::address::Peer;
use campanile_daemon::migration::channel::frame;
use campanile_daemon::migration::channel::frame::HEADER;
use campanile_daemon::migration::channel::frame::Kind;
use campanile_daemon::migration::channel::message::Hello;
use campanile_daemon::migration::channel::message::Message;
use campanile_daemon::migration::channel::message::VERSION;
use campanile_daemon::migration::channel::record::RecordWriter;
use campanile_daemon::migration::id::BundleId;
use campanile_daemon::migration::memory::Memory;
use campanile_daemon::migration::pages::PAGE;
use proptest::collection::vec;
use proptest::prelude::ProptestConfig;
use proptest::prelude::any;
use proptest::proptest;

use crate::pair::EVICTED_PAGES;
use crate::pair::IMMUTABLE;
use crate::pair::LONG;
use crate::pair::NAME;
use crate::pair::SHORT;
use crate::pair::Source;
use crate::pair::Target;
use crate::pair::VRAM_PAGES;
use crate::pair::arriving;
use crate::pair::eventually;
use crate::pair::settings;

fn hello() -> Hello {
    Hello {
        version: VERSION,
        oldest: 1,
        vgpu: NAME.to_owned(),
        bundle: BundleId::random().unwrap(),
        streams: 1,
        memories: [VRAM_PAGES * PAGE, EVICTED_PAGES * PAGE],
        immutable: IMMUTABLE.to_vec(),
    }
}

/// A peer that says what it likes.
struct Liar {
    stream: UnixStream,
    sequence: u64,
}

impl Liar {
    fn new(target: &Target) -> Self {
        let Peer::Unix(path) = target.peer() else { panic!() };
        let stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        Self { stream, sequence: 0 }
    }

    fn greeted(target: &Target, hello: &Hello) -> Self {
        let mut liar = Self::new(target);
        liar.say(&Message::Hello(hello.clone()));
        assert_eq!(liar.hear(), Some(Message::Accept { version: VERSION }));
        liar
    }

    fn say(&mut self, message: &Message) {
        let bytes = frame::framed(Kind::Message, self.sequence, &message.encode().unwrap());
        self.sequence += 1;
        let _gone = self.stream.write_all(&bytes);
    }

    fn pages(&mut self, memory: Memory, page: u64, count: usize) {
        let mut writer = RecordWriter::default();
        let length = count * usize::try_from(PAGE).unwrap();
        writer.room(length).fill(0xee);
        let (bytes, _) = writer.finish(memory, &[(page * PAGE, length)], None, self.sequence);
        self.sequence += 1;
        let _gone = self.stream.write_all(bytes);
    }

    fn hear(&mut self) -> Option<Message> {
        let mut header = [0; HEADER];
        self.stream.read_exact(&mut header).ok()?;
        let mut body =
            vec![0; usize::try_from(u32::from_le_bytes(header[8..12].try_into().unwrap())).unwrap()];
        self.stream.read_exact(&mut body).ok()?;
        Some(Message::decode(&body).unwrap())
    }

    fn reason(&mut self) -> String {
        match self.hear() {
            Some(Message::Refused { reason } | Message::GiveUp { reason }) => reason,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn lm_30_lm_33_a_source_that_does_not_fit_is_told_which_check_failed_before_any_page() {
    let target = Target::new(LONG);
    type Change = fn(&mut Hello);
    let wrong: [(Change, &str); 9] = [
        (|hello| hello.vgpu = "other".to_owned(), "no vGPU \"other\""),
        (|hello| (hello.version, hello.oldest) = (9, 8), "versions 8 to 9"),
        (|hello| hello.oldest = 5, "versions 5 to 2"),
        (|hello| hello.version = 0, "versions 1 to 0"),
        (|hello| hello.streams = 0, "0 lines"),
        (|hello| hello.streams = 200, "200 lines"),
        (|hello| hello.memories[0] *= 2, "video memory here"),
        (|hello| hello.memories[1] = u64::MAX, "evicted memory here"),
        (|hello| hello.immutable.clear(), "the driver is another one"),
    ];
    for (change, expected) in wrong {
        let mut hello = hello();
        change(&mut hello);
        let mut liar = Liar::new(&target);
        liar.say(&Message::Hello(hello));
        let reason = liar.reason();
        assert!(reason.contains(expected), "{reason}");
        assert!(liar.hear().is_none(), "and the line ends");
    }
    assert!(target.is_clean());
}

#[test]
fn the_source_learns_the_reason_and_goes_on() {
    let target = Target::new(LONG);
    let source = Source::new(settings(target.peer(), LONG));
    source.departure.detach();
    source.attach(b"another");
    let error = source.departure.finish().unwrap_err().to_string();
    assert!(error.contains("the driver is another one"), "{error}");
    assert_eq!(source.departure.thaw(), campanile_daemon::migration::source::departure::Thaw::Run);
}

#[test]
fn a_bundle_that_was_here_or_a_second_one_of_a_vgpu_is_refused() {
    let target = Target::new(LONG);
    let first = hello();
    let mut liar = Liar::greeted(&target, &first);
    let mut second = Liar::new(&target);
    second.say(&Message::Hello(hello()));
    assert!(second.reason().contains("already has bundle"));
    let mut replay = Liar::new(&target);
    replay.say(&Message::Hello(first.clone()));
    assert!(replay.reason().contains("was here already"));
    liar.say(&Message::GiveUp { reason: "no more".to_owned() });
    eventually("it is forgotten", || target.is_clean());
    let mut replay = Liar::new(&target);
    replay.say(&Message::Hello(first));
    assert!(replay.reason().contains("was here already"));
}

#[test]
fn further_lines_are_as_many_as_were_announced() {
    let target = Target::new(LONG);
    let hello = Hello { streams: 2, ..hello() };
    let _first = Liar::greeted(&target, &hello);
    let join = |bundle| {
        let mut liar = Liar::new(&target);
        liar.say(&Message::Join { bundle });
        (liar.hear(), liar)
    };
    let (accepted, _line) = join(hello.bundle);
    assert_eq!(accepted, Some(Message::Accept { version: VERSION }));
    for bundle in [hello.bundle, BundleId([1; 16])] {
        assert!(matches!(join(bundle).0, Some(Message::Refused { .. })));
    }
}

#[test]
fn lm_40_what_cannot_be_said_now_ends_the_migration() {
    let said: [fn(&mut Liar); 9] = [
        |liar| liar.say(&Message::Complete { records: 0, bytes: 0 }),
        |liar| liar.say(&Message::PassEnd { pass: 7 }),
        |liar| liar.say(&Message::Revoke),
        |liar| liar.say(&Message::Granted),
        |liar| liar.say(&Message::Hello(hello())),
        |liar| liar.pages(Memory::Vram, VRAM_PAGES, 1),
        |liar| liar.pages(Memory::Vram, u64::MAX / PAGE - 1, 1),
        |liar| (0..EVICTED_PAGES).for_each(|page| liar.pages(Memory::Evicted, page, 1)),
        |liar| {
            liar.say(&Message::PassEnd { pass: 1 });
            assert_eq!(liar.hear(), Some(Message::PassDone { pass: 1 }));
            liar.say(&Message::Complete { records: 3, bytes: 5 });
        },
    ];
    for say in said {
        let target = Target::new(LONG);
        let mut liar = Liar::greeted(&target, &hello());
        say(&mut liar);
        let reason = liar.reason();
        assert!(!reason.is_empty());
        eventually("it is forgotten", || target.is_clean());
    }
}

#[test]
fn a_peer_that_says_nothing_or_trickles_holds_no_bundle() {
    let target = Target::new(SHORT);
    let _silent = Liar::new(&target);
    let liar = Liar::greeted(&target, &hello());
    let trickle = Liar::new(&target);
    let bytes = frame::framed(Kind::Message, 0, &Message::Hello(hello()).encode().unwrap());
    eventually("both are given up", || {
        // A byte now and then keeps no line.
        let sent = bytes.iter().take(HEADER - 1).try_for_each(|byte| {
            std::thread::sleep(Duration::from_millis(60));
            (&trickle.stream).write_all(&[*byte])
        });
        target.is_clean() && sent.is_err()
    });
    drop(liar);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn lm_40_no_stream_of_bytes_stops_a_target(
        noise in vec(any::<u8>(), 0..400), greeted in any::<bool>(), framed in any::<bool>(), kind in 0u16..4,
    ) {
        let target = Target::new(LONG);
        let mut liar = if greeted { Liar::greeted(&target, &hello()) } else { Liar::new(&target) };
        if framed {
            let kind = [Kind::Message, Kind::Pages, Kind::State, Kind::Pages][usize::from(kind)];
            let bytes = frame::framed(kind, liar.sequence, &noise);
            let _gone = liar.stream.write_all(&bytes);
        } else {
            let _gone = liar.stream.write_all(&noise);
        }
        drop(liar);
        eventually("nothing is left", || target.is_clean());
        // And it still serves.
        Liar::greeted(&target, &hello());
    }
}

#[test]
fn a_vgpu_that_comes_later_is_taken_and_one_that_goes_loses_what_was_on_its_way() {
    let target = Target::new(LONG);
    target.arrivals.forget(NAME);
    let refused = |source: &Source| source.departure.finish().unwrap_err().to_string();
    let source = Source::new(settings(target.peer(), LONG));
    assert!(refused(&source).contains("there is no vGPU"), "it went");
    target.arrivals.add(Arc::new(arriving(NAME)));
    assert!(!target.arrivals.awaits(NAME));
    let _liar = Liar::greeted(&target, &hello());
    assert!(target.arrivals.awaits(NAME));
    target.arrivals.forget(NAME);
    assert!(!target.arrivals.awaits(NAME) && target.is_clean(), "{:?}", target.bundles());
    target.arrivals.add(Arc::new(arriving(NAME)));
    let source = Source::new(settings(target.peer(), LONG));
    source.departure.finish().unwrap();
}
