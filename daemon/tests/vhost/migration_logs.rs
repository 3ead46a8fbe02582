//! Claims about the dirty log of guest RAM.

use std::collections::BTreeSet;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering;

use campanile_daemon::frontend::vhost::counters::Count;
use vhost::VhostBackend;
use vhost::VhostUserDirtyLogRegion;
use vhost::vhost_user::VhostUserFrontend;
use vm_memory::Bytes;
use vm_memory::GuestAddress;

use crate::bench::Bench;
use crate::bench::Vm;
use crate::bench::eventually;
use crate::bench::region;
use crate::device;
use crate::dirty_log::Log;
use crate::guest::DATA;
use crate::guest::NEXT;
use crate::guest::RAM;
use crate::guest::WRITE;
use crate::live::SetOnDrop;
use crate::migrant::COUNT;
use crate::migrant::PARK;
use crate::migrant::SCRIBBLE;
use crate::migrant::SCRIBBLED_PAGES;
use crate::migrant::SCRIBBLES;
use crate::migrant::Script;
use crate::migrant::Seen;
use crate::rings::request;
use crate::vmm::BOTH;
use crate::vmm::Copy;
use crate::vmm::Kind;
use crate::vmm::Vmm;

pub(crate) fn bench(script: &Arc<Script>) -> Bench {
    let made = script.clone();
    Bench::serving(device::Script::new(false, true), move || made.device())
}

fn page(address: u64) -> u64 {
    address & !0xfff
}

#[test]
fn dirty_55_used_rings_and_answers_are_logged() {
    for kind in BOTH {
        let script = Script::new();
        let bench = bench(&script);
        let mut vmm = Vmm::booted(kind, &bench.path);
        vmm.vm.control.round(0, &request(COUNT));
        vmm.begin_migration();
        vmm.dirty_pages();
        vmm.vm.control.round(4, &request(COUNT));
        // The answer, the used ring; nothing else of guest memory.
        let expected =
            BTreeSet::from([page(vmm.vm.control.used_ring()), page(vmm.vm.control.place(4) + 2048)]);
        let mut seen = BTreeSet::from_iter(vmm.dirty_pages());
        // The other ring was given its address again, and looked at at some time: its event index was written.
        seen.remove(&page(vmm.vm.cursor.used_ring()));
        assert_eq!(seen, expected, "{kind:?}");
        assert!(script.count(&Seen::Log(true)) == 1);
        vmm.cancel();
        eventually("the end is told", || script.count(&Seen::Log(false)) == 1);
    }
}

#[test]
fn dirty_55_answer_over_several_pages_is_logged_with_each() {
    let script = Script::new();
    let bench = bench(&script);
    let mut vmm = Vmm::booted(Kind::Qemu, &bench.path);
    vmm.begin_migration();
    let control = &mut vmm.vm.control;
    let answer = DATA + 0x10_0800;
    control.ram.write_slice(&vec![COUNT; 10_000], GuestAddress(DATA)).unwrap();
    control.describe(0, (DATA, 10_000, NEXT, 1));
    control.describe(1, (answer, 3000, WRITE | NEXT, 2));
    control.describe(2, (answer + 0x10_0000, 7000, WRITE, 0));
    control.offer(0);
    control.kick();
    assert_eq!(control.wait(), (0, 10_000));
    let pages = BTreeSet::from_iter(vmm.dirty_pages());
    for place in [answer, answer + 2999, answer + 0x10_0000, answer + 0x10_1000, answer + 0x10_0000 + 6999] {
        assert!(pages.contains(&page(place)), "{place:#x}");
    }
    assert!(!pages.contains(&page(DATA)), "only read");
}

/// What engines wrote by themselves is in the log when the reply to the stop is out.
#[test]
fn dirty_55_what_engines_wrote_is_logged_by_the_time_of_the_stop() {
    for kind in BOTH {
        let script = Script::new();
        let bench = bench(&script);
        let mut vmm = Vmm::booted(kind, &bench.path);
        vmm.begin_migration();
        let copy = Copy::of(&vmm.vm.guest);
        vmm.vm.control.round(0, &request(SCRIBBLE));
        vmm.copy_dirty(&copy);
        vmm.blackout(&copy);
        copy.assert_same(&vmm.vm.guest, SCRIBBLES, SCRIBBLED_PAGES * 4096);
    }
}

#[test]
fn used_ring_is_logged_where_the_front_end_has_it() {
    let script = Script::new();
    let bench = bench(&script);
    let mut vmm = Vmm::booted(Kind::Qemu, &bench.path);
    vmm.begin_migration();
    let elsewhere = RAM - 8192;
    let mut addresses = Vm::addresses(&vmm.vm.control);
    (addresses.flags, addresses.log_addr) = (1, Some(elsewhere));
    vmm.vm.front.set_vring_addr(0, &addresses).unwrap();
    vmm.dirty_pages();
    vmm.vm.control.round(0, &request(COUNT));
    assert!(vmm.dirty_pages().contains(&elsewhere));
    // Without the flag, where it lies is all there is to say.
    (addresses.flags, addresses.log_addr) = (0, Some(elsewhere));
    vmm.vm.front.set_vring_addr(0, &addresses).unwrap();
    vmm.dirty_pages();
    vmm.vm.control.round(0, &request(COUNT));
    assert!(!vmm.dirty_pages().contains(&elsewhere));
}

/// The first trap of vhost-user-backend (SET_VRING_ADDR on a live ring, which front-ends send when a log begins or
/// ends, took a used entry back), with all that front-ends send then.
#[test]
fn beginning_and_ending_a_log_loses_no_used_entry() {
    let script = Script::new();
    let bench = bench(&script);
    let mut vmm = Vmm::booted(Kind::Qemu, &bench.path);
    let (front, features) = (vmm.vm.front.clone(), vmm.features);
    let addresses = Vm::addresses(&vmm.vm.control);
    let (stop, cycles) = (AtomicBool::new(false), AtomicU32::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let log = Log::new();
                front.set_log_base(0, Some(log.region())).unwrap();
                front.set_features(features | 1 << 26).unwrap();
                let mut logged = addresses;
                (logged.flags, logged.log_addr) = (1, Some(logged.used_ring_addr));
                for _ in 0..300 {
                    front.set_vring_addr(0, &logged).unwrap();
                }
                front.set_features(features).unwrap();
                for _ in 0..300 {
                    front.set_vring_addr(0, &addresses).unwrap();
                }
                cycles.fetch_add(1, Ordering::Relaxed);
            }
        });
        let _end = SetOnDrop(&stop);
        let mut turn = 0u32;
        while turn < 60_000 || cycles.load(Ordering::Relaxed) < 20 {
            turn += 1;
            let head = u16::try_from(turn % 100).unwrap() * 2;
            vmm.vm.control.round(head, &request(COUNT));
        }
    });
}

/// The second trap of vhost-user-backend: a new memory table came without the log, so that what was written after it
/// arrived stale.
#[test]
fn new_memory_tables_keep_the_log() {
    let script = Script::new();
    let bench = bench(&script);
    let mut vmm = Vmm::booted(Kind::Qemu, &bench.path);
    vmm.begin_migration();
    let (front, whole) = (vmm.vm.front.clone(), vmm.vm.region());
    let (stop, changes) = (AtomicBool::new(false), AtomicU32::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let extra = region(1 << 32, 1 << 20, 1 << 40, 0, whole.mmap_handle);
            while !stop.load(Ordering::Relaxed) {
                front.set_mem_table(&[whole, extra]).unwrap();
                front.set_mem_table(&[whole]).unwrap();
                front.clone().add_mem_region(&extra).unwrap();
                front.clone().remove_mem_region(&extra).unwrap();
                changes.fetch_add(1, Ordering::Relaxed);
            }
        });
        let _end = SetOnDrop(&stop);
        let (mut dirty, mut turn) = (BTreeSet::new(), 0u32);
        while turn < 5_000 || changes.load(Ordering::Relaxed) < 10 {
            turn += 1;
            let head = u16::try_from(turn % 100).unwrap() * 2;
            vmm.vm.control.round(head, &request(COUNT));
            dirty.extend(vmm.log.as_ref().unwrap().take());
            let place = page(vmm.vm.control.place(head) + 2048);
            assert!(dirty.remove(&place), "turn {turn}: the answer's page has no mark");
            assert!(
                dirty.remove(&page(vmm.vm.control.used_ring())),
                "turn {turn}: the used ring has no mark"
            );
        }
    });
}

#[test]
fn region_that_is_added_in_a_migration_is_logged() {
    let script = Script::new();
    let bench = bench(&script);
    let mut vmm = Vmm::booted(Kind::CloudHypervisor, &bench.path);
    let mut front = vmm.vm.front.clone();
    let half = RAM / 2;
    let fd = vmm.vm.guest.file.as_raw_fd();
    vmm.vm.front.set_mem_table(&[region(0, half, crate::guest::USER, 0, fd)]).unwrap();
    vmm.begin_migration();
    front.add_mem_region(&region(half, half, crate::guest::USER + half, half, fd)).unwrap();
    let control = &mut vmm.vm.control;
    control.request(0, &request(COUNT));
    control.describe(1, (half + 4096, 64, WRITE, 0));
    control.offer(0);
    control.kick();
    control.wait();
    assert!(vmm.dirty_pages().contains(&(half + 4096)));
}

/// A log that is taken from under writers again and again: whatever is written is in one of them, and whoever has one
/// back may read it.
#[test]
fn each_write_is_in_some_log_while_logs_are_exchanged() {
    let script = Script::new();
    let bench = bench(&script);
    let mut vmm = Vmm::booted(Kind::CloudHypervisor, &bench.path);
    vmm.begin_migration();
    let copy = Copy::of(&vmm.vm.guest);
    let front = vmm.vm.front.clone();
    let mut current = vmm.log.take().unwrap();
    let (stop, rounds) = (AtomicBool::new(false), AtomicU32::new(0));
    let file = vmm.vm.guest.file.try_clone().unwrap();
    let source = crate::guest::Guest { file, ram: vmm.vm.guest.ram.clone() };
    let control = &mut vmm.vm.control;
    std::thread::scope(|scope| {
        let last = scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let next = Log::new();
                front.set_log_base(0, Some(next.region())).unwrap();
                let old = std::mem::replace(&mut current, next);
                copy.pages(&source, old.take());
                assert!(old.take().is_empty(), "a mark came after the reply");
                rounds.fetch_add(1, Ordering::Relaxed);
            }
            current
        });
        let end = SetOnDrop(&stop);
        let mut turn = 0u32;
        while turn < 30_000 || rounds.load(Ordering::Relaxed) < 20 {
            turn += 1;
            let head = u16::try_from(turn % 100).unwrap() * 2;
            control.round(head, &request(COUNT));
        }
        drop(end);
        copy.pages(&source, last.join().unwrap().take());
    });
    let control = &vmm.vm.control;
    copy.assert_same(&vmm.vm.guest, control.used_ring(), 4 + 8 * 256);
    for head in (0..200).step_by(2) {
        copy.assert_same(&vmm.vm.guest, control.place(head) + 2048, 64);
    }
}

#[test]
fn hostile_logs_are_refused_and_cost_the_session_only() {
    let script = Script::new();
    let bench = bench(&script);
    let short = Log::of_bytes(RAM / 32768);
    let log = |mmap_size, mmap_offset| {
        let mmap_handle = short.file.as_raw_fd();
        VhostUserDirtyLogRegion { mmap_size, mmap_offset, mmap_handle }
    };
    let hostile = [
        log(short.bytes + 1, 0),
        log(short.bytes, 1),
        log(short.bytes, 4096),
        log(1 << 63, 0),
        log(u64::MAX, 0),
        log(8, u64::MAX - 4),
        log(0, 0),
        // Whole, and less than guest memory.
        log(short.bytes - 1, 0),
    ];
    for (number, log) in hostile.into_iter().enumerate() {
        let vmm = Vmm::booted(Kind::Qemu, &bench.path);
        assert!(vmm.vm.front.set_log_base(0, Some(log)).is_err(), "{number}");
        drop(vmm);
    }
    let mut vmm = Vmm::booted(Kind::Qemu, &bench.path);
    vmm.vm.front.set_log_base(0, Some(log(short.bytes, 0))).unwrap();
    vmm.vm.control.round(0, &request(COUNT));
    assert!(!short.take().is_empty());
    assert_eq!(bench.count(Count::Panics), 0);
}

/// Memory that is added past the end of the log has no bit; the guest must not lose its device for that.
#[test]
fn memory_past_the_end_of_the_log_is_served() {
    let script = Script::new();
    let bench = bench(&script);
    let mut vmm = Vmm::booted(Kind::CloudHypervisor, &bench.path);
    vmm.begin_migration();
    let far = region(1 << 40, 1 << 20, 1 << 41, 0, vmm.vm.guest.file.as_raw_fd());
    vmm.vm.front.clone().add_mem_region(&far).unwrap();
    let control = &mut vmm.vm.control;
    control.request(0, &request(COUNT));
    control.describe(1, ((1 << 40) + 8192, 64, WRITE, 0));
    control.offer(0);
    control.kick();
    assert_eq!(control.wait(), (0, 32));
}

/// A guest of cloud-hypervisor can acknowledge bit 26 itself: no log follows.
#[test]
fn log_all_without_a_log_changes_nothing() {
    let script = Script::new();
    let bench = bench(&script);
    let mut vmm = Vmm::booted(Kind::CloudHypervisor, &bench.path);
    vmm.vm.stop();
    vmm.features |= 1 << 26;
    vmm.start_driver([0, 0]);
    let answer = vmm.vm.control.round(0, &request(COUNT));
    assert_eq!(answer[8], 1);
    vmm.vm.control.request(2, &request(PARK));
    vmm.vm.control.offer(2);
    vmm.vm.control.kick();
    script.release();
    assert_eq!(vmm.vm.control.wait(), (2, 32));
    assert!(!script.seen().iter().any(|seen| matches!(seen, Seen::Log(_))));
}
