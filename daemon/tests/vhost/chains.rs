//! Claims about chains that a hostile or broken guest makes. Each is answered and counted, and the ring goes on.

use campanile_daemon::frontend::vhost::MAX_REQUEST;
use campanile_daemon::frontend::vhost::counters::Count;
use campanile_daemon::frontend::vhost::malformed::MalformedChain;
use vhost::VhostBackend;
use vhost::vhost_user::message::VhostUserProtocolFeatures;

use crate::bench::Bench;
use crate::bench::Vm;
use crate::device::ECHO;
use crate::device::Seen;
use crate::guest::DATA;
use crate::guest::Desc;
use crate::guest::INDIRECT;
use crate::guest::NEXT;
use crate::guest::RAM;
use crate::guest::WRITE;

/// Where the test's indirect tables are.
const TABLE: u64 = 0x8_0000;
/// A page for answers.
const ROOM: u64 = 0x9_0000;

/// Offers one bad chain at head 0, and then a good one: what the bad one is found to be, and how many bytes of
/// an answer it takes.
fn judged(describe: impl FnOnce(&Vm)) -> (MalformedChain, u32) {
    let bench = Bench::new();
    let mut vm = Vm::started(&bench);
    describe(&vm);
    vm.control.offer(0);
    vm.control.kick();
    let (head, length) = vm.control.wait();
    assert_eq!(head, 0);
    assert_eq!(bench.count(Count::Malformed), 1);
    assert_eq!(bench.count(Count::Commands), 0);
    let good = [ECHO; 32];
    assert_eq!(vm.control.round(100, &good), good);
    let reason = bench.script.seen().into_iter().find_map(|seen| match seen {
        Seen::Malformed(reason) => Some(reason),
        _ => None,
    });
    (reason.unwrap(), length)
}

fn chain(descs: &[Desc]) -> (MalformedChain, u32) {
    judged(|vm| {
        for (index, desc) in descs.iter().enumerate() {
            vm.control.describe(u16::try_from(index).unwrap(), *desc);
        }
    })
}

#[test]
fn loop_is_endless() {
    let found = chain(&[(DATA, 32, NEXT, 1), (ROOM, 64, WRITE | NEXT, 1)]);
    assert_eq!(found.0, MalformedChain::Endless);
    assert_eq!(found.1, 24);
}

#[test]
fn loop_without_room_is_given_back_empty() {
    assert_eq!(chain(&[(DATA, 32, NEXT, 0)]), (MalformedChain::Endless, 0));
}

#[test]
fn link_past_the_table_is_truncated() {
    let found = chain(&[(ROOM, 64, WRITE | NEXT, 256)]);
    assert_eq!(found, (MalformedChain::NextOutOfRange(256), 24));
}

#[test]
fn request_outside_memory_is_refused_and_the_answer_finds_its_place() {
    let found = chain(&[(RAM - 8, 32, NEXT, 1), (ROOM, 64, WRITE, 0)]);
    assert_eq!(found, (MalformedChain::BadAddress(RAM - 8), 24));
    let top = chain(&[(u64::MAX - 4, 32, NEXT, 1), (ROOM, 64, WRITE, 0)]);
    assert_eq!(top, (MalformedChain::BadAddress(u64::MAX - 4), 24));
}

#[test]
fn answer_outside_memory_is_given_back_empty() {
    let found = chain(&[(DATA, 32, NEXT, 1), (1 << 40, 64, WRITE, 0)]);
    assert_eq!(found, (MalformedChain::BadAddress(1 << 40), 0));
}

#[test]
fn buffer_of_no_bytes_is_refused() {
    let found = chain(&[(DATA, 0, NEXT, 1), (ROOM, 64, WRITE, 0)]);
    assert_eq!(found, (MalformedChain::ZeroLength, 24));
}

#[test]
fn readable_after_writable_is_refused() {
    let found = chain(&[(ROOM, 64, WRITE | NEXT, 1), (DATA, 32, 0, 0)]);
    assert_eq!(found, (MalformedChain::ReadableAfterWritable, 24));
}

#[test]
fn chain_without_a_request_is_refused() {
    assert_eq!(chain(&[(ROOM, 64, WRITE, 0)]), (MalformedChain::NoRequest, 24));
}

#[test]
fn chain_without_room_for_a_header_is_refused() {
    assert_eq!(chain(&[(DATA, 32, NEXT, 1), (ROOM, 23, WRITE, 0)]), (MalformedChain::NoRoom, 23));
    assert_eq!(chain(&[(DATA, 32, 0, 0)]), (MalformedChain::NoRoom, 0));
}

#[test]
fn request_beyond_the_limit_is_refused() {
    let long = u32::try_from(MAX_REQUEST).unwrap() + 1;
    assert_eq!(chain(&[(DATA, long, NEXT, 1), (ROOM, 64, WRITE, 0)]), (MalformedChain::TooLong, 24));
    let bench = Bench::new();
    let mut vm = Vm::started(&bench);
    vm.control.describe(0, (DATA, long - 1, NEXT, 1));
    vm.control.describe(1, (ROOM, 64, WRITE, 0));
    vm.control.offer(0);
    vm.control.kick();
    assert_eq!(vm.control.wait(), (0, 64));
    assert_eq!(bench.count(Count::Commands), 1);
}

#[test]
fn bad_indirect_tables_are_refused() {
    let indirect = |length, flags| {
        judged(|vm| {
            vm.control.describe(0, (TABLE, length, INDIRECT | flags, 1));
            vm.control.describe(1, (ROOM, 64, WRITE, 0));
            vm.control.describe_at(TABLE, 0, (TABLE, 16, INDIRECT, 0));
        })
    };
    assert_eq!(indirect(0, 0).0, MalformedChain::IndirectTable);
    assert_eq!(indirect(17, 0).0, MalformedChain::IndirectTable);
    assert_eq!(indirect(4097 * 16, 0).0, MalformedChain::IndirectTable);
    assert_eq!(indirect(!15, 0).0, MalformedChain::IndirectTable);
    assert_eq!(indirect(16, NEXT).0, MalformedChain::IndirectTable);
    assert_eq!(indirect(16, 0).0, MalformedChain::IndirectTable, "nested");
}

#[test]
fn indirect_table_outside_memory_is_refused() {
    assert_eq!(chain(&[(RAM, 32, INDIRECT, 0)]), (MalformedChain::BadAddress(RAM), 0));
}

#[test]
fn indirect_table_may_be_longer_than_the_queue() {
    let bench = Bench::new();
    let mut vm = Vm::started(&bench);
    for index in 0..2096 {
        vm.control.describe_at(TABLE, index, (DATA, 4096, NEXT, index + 1));
    }
    vm.control.describe_at(TABLE, 2096, (ROOM, 64, WRITE, 0));
    vm.control.describe(0, (TABLE, 2097 * 16, INDIRECT, 0));
    vm.control.offer(0);
    vm.control.kick();
    assert_eq!(vm.control.wait(), (0, 64));
    assert_eq!(bench.count(Count::Malformed), 0);
}

#[test]
fn indirect_table_is_refused_when_not_negotiated() {
    let bench = Bench::new();
    let mut vm = Vm::with(bench.front_end(VhostUserProtocolFeatures::SHMEM, 1 << 28), 256, true);
    vm.start([0, 0]);
    vm.control.describe_at(TABLE, 0, (DATA, 32, NEXT, 1));
    vm.control.describe_at(TABLE, 1, (ROOM, 64, WRITE, 0));
    vm.control.describe(0, (TABLE, 32, INDIRECT, 0));
    vm.control.offer(0);
    vm.control.kick();
    vm.control.wait();
    assert_eq!(bench.count(Count::Malformed), 1);
}

#[test]
fn answer_may_be_scattered() {
    let bench = Bench::new();
    let mut vm = Vm::started(&bench);
    vm.control.request(0, &[ECHO; 32]);
    vm.control.describe(1, (ROOM, 10, WRITE | NEXT, 2));
    vm.control.describe(2, (ROOM + 100, 10, WRITE | NEXT, 3));
    vm.control.describe(3, (ROOM + 200, 10, WRITE, 0));
    vm.control.offer(0);
    vm.control.kick();
    assert_eq!(vm.control.wait(), (0, 30));
    let mut end = [0; 11];
    vm_memory::Bytes::read_slice(&vm.guest.ram, &mut end, vm_memory::GuestAddress(ROOM + 200)).unwrap();
    assert_eq!(end, *b"eeeeeeeeee\0");
}

#[test]
fn head_past_the_table_is_counted_and_skipped() {
    let bench = Bench::new();
    let mut vm = Vm::started(&bench);
    vm.control.offer(256);
    vm.control.offer(u16::MAX);
    assert_eq!(vm.control.round(0, &[ECHO; 32]), [ECHO; 32]);
    assert_eq!(bench.count(Count::Malformed), 2);
}

/// Ring memory filled with what a hostile guest might write. Whatever comes of it, the next start works.
#[test]
fn garbage_in_the_rings_does_no_harm() {
    let bench = Bench::with(crate::device::Script::new(false, true));
    let mut vm = Vm::started(&bench);
    let mut seed = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = move || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    for _ in 0..300 {
        for index in 0..256 {
            let address = [DATA, ROOM, TABLE, RAM - 16, RAM, u64::MAX, random() & !0xff]
                [usize::try_from(random() % 7).unwrap()];
            let length = [0, 1, 16, 64, 4096, 1 << 24, u32::MAX][usize::try_from(random() % 7).unwrap()];
            let flags = u16::try_from(random() & 7).unwrap();
            let next = u16::try_from(random() % 260).unwrap();
            vm.control.describe(index, (address, length, flags, next));
            vm.control.describe_at(TABLE, index, (address, length, flags, next));
        }
        for _ in 0..random() % 300 {
            vm.control.offer(u16::try_from(random() % 260).unwrap());
        }
        vm.control.kick.write(1).unwrap();
        if random() % 2 == 0 {
            std::thread::sleep(std::time::Duration::from_micros(300));
        }
        vm.stop();
        vm.front.set_features(vm.front.get_features().unwrap()).unwrap();
        vm.control.clear();
        vm.start([0, 0]);
    }
    // A chain may read the test's own pages as a request; what counts is that the session lives.
    vm.stop();
    vm.front.set_features(vm.front.get_features().unwrap()).unwrap();
    vm.control.clear();
    vm.start([0, 0]);
    assert_eq!(vm.control.round(0, &[ECHO; 32]), [ECHO; 32]);
    assert!(bench.count(Count::Malformed) > 1000);
    assert_eq!(bench.count(Count::Panics), 0);
}
