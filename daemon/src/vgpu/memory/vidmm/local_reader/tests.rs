use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::mpsc;
use std::thread;

use campanile_host_gpu::adapter::stand_in::StandIn;
use campanile_host_gpu::engine::channel::Channel;
use campanile_host_gpu::engine::message::Request;
use campanile_host_gpu::engine::message::Response;
use campanile_host_gpu::engine::message::Start;
use campanile_host_gpu::memory::local::Passport;

use super::*;

const PAGE: u64 = PAGE_SIZE;
/// Bytes of local memory, behind as many that are visible.
const LOCAL: u64 = 64 << 20;

fn device() -> Arc<DeviceLocal> {
    let descriptor = create_memfd("opaque", LOCAL).unwrap().into();
    Arc::new(DeviceLocal::new(descriptor, Passport { length: LOCAL, ..Passport::default() }))
}

/// A reader of it whose processes are played by a test, which gets their channels.
fn reader(device: &Arc<DeviceLocal>) -> (Arc<LocalReader>, mpsc::Receiver<Channel>) {
    let (stand_in, starts) = mpsc::channel();
    let local = LocalMemory { start: LOCAL, bytes: LOCAL, evicted_bytes: PAGE, ..LocalMemory::default() };
    let options = CopyOptions { local, vulkan_device: None, sandbox: true, policy: "fair".to_owned() };
    let port = LocalPort { device: Arc::clone(device), launcher: Arc::new(StandIn(stand_in)), options };
    (Arc::new(LocalReader::new(port).unwrap()), starts)
}

/// The next process, and the staging that it copies to.
fn start(starts: &mpsc::Receiver<Channel>) -> (Channel, File) {
    let channel = starts.recv().unwrap();
    let mut start = channel.receive::<Start>(true).unwrap().unwrap();
    let staging = File::from(start.descriptors.remove(1));
    let started = Response::Started { device: "a device".to_owned(), is_cpu: true, vram: 0, profile: None };
    channel.send(&started, &[], &[], true).unwrap();
    (channel, staging)
}

/// What a page of local memory holds: the low byte of its number, and one more.
fn content(page: u64) -> u8 {
    u8::try_from(page % 255).unwrap() + 1
}

/// Plays a process until it is ended; `answer` says what becomes of a move, before which the bytes are there.
fn play(channel: &Channel, staging: &File, answer: impl Fn(u64, u64) -> Response) {
    while let Ok(Some(request)) = channel.receive::<Request>(true) {
        let Request::Move { serial, from, to, bytes } = request.message else { continue };
        let (MoveSide::Local(from), MoveSide::Visible(to)) = (from, to) else { panic!("{from:?} to {to:?}") };
        for at in (0..bytes).step_by(4096) {
            staging.write_all_at(&[content((from + at) / PAGE); 4096], to + at).unwrap();
        }
        // It may have been ended by now.
        let _gone = channel.send(&answer(serial, from), &[], &[], true);
    }
}

fn moved(serial: u64, _from: u64) -> Response {
    Response::Moved { serial }
}

fn refused(serial: u64, _from: u64) -> Response {
    Response::MoveRefused { serial, reason: "it is broken".to_owned() }
}

/// Reads `pages` from page `first` on.
fn read(reader: &LocalReader, first: u64, pages: u64) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0xee; usize::try_from(pages * PAGE).unwrap()];
    reader.read(first * PAGE, &mut bytes).map(|()| bytes)
}

/// The first byte of each page, all of whose bytes are alike.
fn pages(bytes: &[u8]) -> Vec<u8> {
    let all_alike = |page: &[u8]| page.iter().all(|byte| *byte == page[0]);
    assert!(bytes.chunks(4096).all(all_alike));
    bytes.chunks(4096).map(|page| page[0]).collect()
}

#[test]
fn dirty_52_many_threads_read_many_pieces_at_a_time_and_each_has_what_it_asked_for() {
    let (reader, starts) = reader(&device());
    thread::scope(|scope| {
        scope.spawn(move || {
            let (channel, staging) = start(&starts);
            play(&channel, &staging, moved);
            assert!(starts.try_recv().is_err(), "one process does it all");
        });
        let reader = &reader;
        let threads: Vec<_> = (0..6)
            .map(|index| {
                let first = LOCAL / PAGE + index * 700;
                (first, scope.spawn(move || read(reader, first, 600).unwrap()))
            })
            .collect();
        let found: Vec<_> = threads.into_iter().map(|(first, thread)| (first, thread.join())).collect();
        // Now the process ends, whatever comes of the rest.
        reader.rest();
        for (first, found) in found {
            let expected: Vec<u8> = (first..first + 600).map(content).collect();
            assert_eq!(pages(&found.unwrap()), expected, "from {first}");
        }
        // No more than there are pieces, and all come back.
        assert_eq!(reader.free().slots.len() as u64, SLOTS);
    });
}

#[test]
fn lm_65_a_process_that_fails_is_replaced_and_the_third_time_the_read_fails_in_words() {
    let (reader, starts) = reader(&device());
    let first = LOCAL / PAGE;
    // It ends with the closure, and its processes with it, also by a panic.
    thread::scope(move |scope| {
        scope.spawn(move || {
            for answer in [refused, refused, moved, refused, refused, refused, moved] {
                let (channel, staging) = start(&starts);
                // One that is of no more use is ended by the daemon, and one that works by `rest`.
                play(&channel, &staging, answer);
            }
            assert!(starts.recv().is_err(), "no other is started");
        });
        assert_eq!(pages(&read(&reader, first, 1).unwrap()), [content(first)]);
        reader.rest();
        let text = read(&reader, first, 1).unwrap_err().to_string();
        assert!(
            text.contains("reading local memory of the device") && text.contains("it is broken"),
            "{text}"
        );
        assert_eq!(pages(&read(&reader, first, 1).unwrap()), [content(first)]);
        assert_eq!(reader.free().slots.len() as u64, SLOTS, "what failed keeps no piece");
        drop(reader);
    });
}

#[test]
fn the_process_ends_when_nothing_is_read_for_now_and_another_comes_with_the_next_read() {
    let (reader, starts) = reader(&device());
    let first = LOCAL / PAGE;
    thread::scope(|scope| {
        let plays = scope.spawn(move || {
            for _ in 0..2 {
                let (channel, staging) = start(&starts);
                play(&channel, &staging, moved);
            }
        });
        for _ in 0..2 {
            read(&reader, first, 1).unwrap();
            reader.rest();
        }
        plays.join().unwrap();
    });
}

#[test]
fn what_an_earlier_session_left_reads_zero_also_where_it_is_zeroed_meanwhile() {
    let device = device();
    let (first, all) = (LOCAL / PAGE, Ranges::new(LOCAL, LOCAL));
    assert!(device.begin_session(&all) && !device.begin_session(&all));
    // Of twelve pages, these are this session's.
    device.is_not_stale(LOCAL, 2 * PAGE);
    device.is_not_stale(LOCAL + 5 * PAGE, PAGE);
    let (reader, starts) = reader(&device);
    thread::scope(|scope| {
        let device = &device;
        scope.spawn(move || {
            let (channel, staging) = start(&starts);
            play(&channel, &staging, |serial, from| {
                // Its bytes were copied before.
                device.is_not_stale(from + 8 * PAGE, PAGE);
                moved(serial, from)
            });
        });
        let found = [(first, 12), (first + 4, 5)].map(|(first, pages)| read(&reader, first, pages));
        reader.rest();
        let [found, again] = found.map(|bytes| pages(&bytes.unwrap()));
        let is_own = |page: u64| page < 2 || page == 5;
        let expected: Vec<u8> = (0..12).map(|at| if is_own(at) { content(first + at) } else { 0 }).collect();
        assert_eq!(found, expected);
        assert_eq!(again, [0, content(first + 5), 0, 0, content(first + 8)]);
    });
}

#[test]
fn pieces_that_are_read_ahead_and_follow_one_another_are_copied_together() {
    let (reader, starts) = reader(&device());
    let ahead = |piece: u64| {
        let read = Arc::clone(&reader).read_ahead(LOCAL + piece * PIECE, PIECE);
        read.unwrap_or_else(|| panic!("piece {piece}"))
    };
    let asked: Vec<_> = (0..8).map(ahead).collect();
    let moves = thread::scope(|scope| {
        let plays = scope.spawn(move || {
            let (moves, (channel, staging)) = (mpsc::channel(), start(&starts));
            play(&channel, &staging, |serial, from| {
                moves.0.send(from).unwrap();
                moved(serial, from)
            });
            moves.1.try_iter().collect::<Vec<u64>>()
        });
        for (piece, read) in (0..).zip(asked) {
            let mut bytes = vec![0; usize::try_from(PIECE).unwrap()];
            read(&mut bytes).unwrap();
            let first = (LOCAL + piece * PIECE) / PAGE;
            assert_eq!(pages(&bytes), (first..first + PIECE / PAGE).map(content).collect::<Vec<u8>>());
        }
        reader.rest();
        plays.join().unwrap()
    });
    // The first may have gone before the others came, which waited for its process.
    assert!(moves.len() <= 2 && moves[0] == LOCAL, "{moves:x?}");
    assert_eq!(reader.free().slots.len() as u64, SLOTS);
}

#[test]
fn what_is_read_ahead_leaves_room_for_others_and_gives_back_what_it_gives_up() {
    let (reader, starts) = reader(&device());
    let ahead = |piece: u64| Arc::clone(&reader).read_ahead(LOCAL + piece * PIECE, PIECE);
    let first = LOCAL / PAGE;
    thread::scope(|scope| {
        scope.spawn(move || {
            let (channel, staging) = start(&starts);
            play(&channel, &staging, moved);
        });
        let most = SLOTS - RESERVED as u64;
        let held: Vec<_> = (0..most).map(|piece| ahead(piece).unwrap()).collect();
        assert!(ahead(most).is_none(), "the rest is left to others");
        assert_eq!(pages(&read(&reader, first + 5, 1).unwrap()), [content(first + 5)]);
        let free = || reader.free().slots.len() as u64;
        assert_eq!(free(), SLOTS - most);
        drop(held);
        assert_eq!(free(), SLOTS, "none was read");
        // A piece is used again behind what was given up.
        let mut bytes = vec![0; 4096];
        Arc::clone(&reader).read_ahead((first + 9) * PAGE, PAGE).unwrap()(&mut bytes).unwrap();
        assert_eq!(pages(&bytes), [content(first + 9)]);
        let wrong = Arc::clone(&reader).read_ahead(LOCAL, PAGE).unwrap()(&mut [0; 8]);
        assert!(wrong.unwrap_err().to_string().contains("another length"));
        assert!(Arc::clone(&reader).read_ahead(LOCAL, PIECE + PAGE).is_none(), "it is more than a piece");
        assert_eq!(free(), SLOTS);
        reader.rest();
    });
}

#[test]
fn what_is_read_ahead_fails_in_words_where_the_device_does() {
    let (reader, starts) = reader(&device());
    thread::scope(move |scope| {
        scope.spawn(move || {
            while let Ok(channel) = starts.recv() {
                let _started = channel.receive::<Start>(true).unwrap();
                let told = Response::Refused { reason: "there is no device".to_owned() };
                channel.send(&told, &[], &[], true).unwrap();
            }
        });
        let reads = [0, 1].map(|piece| Arc::clone(&reader).read_ahead(LOCAL + piece * PIECE, PIECE).unwrap());
        for read in reads {
            let error = read(&mut vec![0; usize::try_from(PIECE).unwrap()]).unwrap_err().to_string();
            assert!(
                error.contains("reading local memory of the device") && error.contains("no device"),
                "{error}"
            );
        }
        drop(reader);
    });
}

#[test]
fn what_an_earlier_session_left_is_not_read_ahead_either() {
    let device = device();
    let all = Ranges::new(LOCAL, LOCAL);
    assert!(device.begin_session(&all) && !device.begin_session(&all));
    device.is_not_stale(LOCAL, 2 * PAGE);
    let (reader, starts) = reader(&device);
    thread::scope(|scope| {
        scope.spawn(move || {
            let (channel, staging) = start(&starts);
            play(&channel, &staging, moved);
        });
        let read = Arc::clone(&reader).read_ahead(LOCAL, 4 * PAGE).unwrap();
        // Too late for what is on its way.
        device.is_not_stale(LOCAL + 2 * PAGE, PAGE);
        let mut bytes = vec![0xee; 4 * 4096];
        read(&mut bytes).unwrap();
        let first = LOCAL / PAGE;
        assert_eq!(pages(&bytes), [content(first), content(first + 1), 0, 0]);
        reader.rest();
    });
}
