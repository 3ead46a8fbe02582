//! Commands in flight.

use std::sync::Arc;
use std::sync::Barrier;
use std::time::Duration;

use campanile_guest_driver::transport::Transport;
use campanile_guest_driver::transport::blob::BlobMemory;
use campanile_guest_driver::transport::error::Refusal;
use campanile_guest_driver::transport::error::TransportError;
use campanile_test_vmm::options::PageLayout;
use campanile_test_vmm::options::VmOptions;

use crate::bench;
use crate::fake_device::FakeDevice;
use crate::plain;

const TIMEOUT: Option<Duration> = Some(Duration::from_secs(20));

fn frames(tag: &[u8; 4]) -> Vec<u8> {
    [tag.as_slice(), &[0; 60]].concat()
}

#[test]
fn many_threads_share_the_ring_in_every_mode() {
    for event_idx in [true, false] {
        for indirect in [true, false] {
            for queue_size in [4, 256] {
                let options = VmOptions { event_idx, indirect, queue_size, ..VmOptions::default() };
                let bench = bench(FakeDevice::new(), &options);
                let context = bench.vm.open("test").unwrap();
                std::thread::scope(|scope| {
                    for thread in 0..8_u8 {
                        let context = &context;
                        scope.spawn(move || {
                            for round in 0..300 {
                                let fence = (round % 2 == 0).then_some(thread);
                                context.submit(&frames(b"WORK"), fence).unwrap().wait(TIMEOUT).unwrap();
                            }
                        });
                    }
                });
                assert_eq!(bench.vm.free_descriptors(), usize::from(queue_size));
                assert_eq!(context.commands_sent(), 1 + 8 * 300);
            }
        }
    }
}

#[test]
fn answers_come_in_any_order() {
    let bench = plain();
    let context = bench.vm.open("test").unwrap();
    let held: Vec<_> = (0..20_u8).map(|ring| context.submit(&frames(b"HOLD"), Some(ring)).unwrap()).collect();
    std::thread::scope(|scope| {
        for submission in &held {
            scope.spawn(move || submission.wait(TIMEOUT).unwrap());
        }
        std::thread::sleep(Duration::from_millis(20));
        assert!(held.iter().all(|submission| !submission.is_done()));
        context.submit(&frames(b"FREE"), None).unwrap().wait(TIMEOUT).unwrap();
    });
    assert!(held.iter().all(|submission| submission.is_done()));
    held[3].wait(None).unwrap();
}

#[test]
fn who_sleeps_for_long_wakes_the_others() {
    let bench = plain();
    let context = bench.vm.open("test").unwrap();
    let held = context.submit(&frames(b"HOLD"), Some(0)).unwrap();
    std::thread::scope(|scope| {
        // The first to wait sleeps on the interrupt, and its own answer comes last.
        scope.spawn(|| held.wait(None).unwrap());
        std::thread::sleep(Duration::from_millis(20));
        for _ in 0..200 {
            context.submit(&frames(b"WORK"), None).unwrap().wait(TIMEOUT).unwrap();
        }
        assert!(!held.is_done());
        context.submit(&frames(b"FREE"), None).unwrap().wait(TIMEOUT).unwrap();
    });
}

#[test]
fn what_is_done_is_seen_without_waiting() {
    let bench = plain();
    let context = bench.vm.open("test").unwrap();
    let submission = context.submit(&frames(b"WORK"), None).unwrap();
    while !submission.is_done() {
        std::thread::yield_now();
    }
    submission.wait(Some(Duration::ZERO)).unwrap();
}

#[test]
fn a_wait_ends_in_time_and_can_be_taken_up_again() {
    let bench = plain();
    let context = bench.vm.open("test").unwrap();
    let held = context.submit(&frames(b"HOLD"), Some(0)).unwrap();
    let all_early = Barrier::new(5);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let early = held.wait(Some(Duration::from_millis(30)));
                assert!(matches!(early, Err(TransportError::Timeout { what: "SUBMIT_3D", .. })), "{early:?}");
                all_early.wait();
                held.wait(TIMEOUT).unwrap();
            });
        }
        all_early.wait();
        // Nobody waits for this one: the leader takes it off the ring.
        drop(context.submit(&frames(b"FREE"), None).unwrap());
    });
}

#[test]
fn a_full_ring_is_waited_for() {
    let options =
        VmOptions { queue_size: 4, command_timeout: Duration::from_millis(50), ..VmOptions::default() };
    let bench = bench(FakeDevice::new(), &options);
    let context = bench.vm.open("test").unwrap();
    let held: Vec<_> = (0..3).map(|_| context.submit(&frames(b"HOLD"), None).unwrap()).collect();
    let last = context.submit(&frames(b"MUTE"), None).unwrap();
    let full = context.submit(&frames(b"WORK"), None);
    assert!(matches!(full, Err(TransportError::Timeout { what: "room on the ring", .. })), "{full:?}");
    assert!(!last.is_done() && held.iter().all(|submission| !submission.is_done()));
}

#[test]
fn refusals_carry_command_and_reason() {
    let bench = plain();
    let context = bench.vm.open("test").unwrap();
    let failed = context.submit(&frames(b"FAIL"), Some(5)).unwrap();
    for _ in 0..2 {
        let error = failed.wait(TIMEOUT).unwrap_err();
        assert_eq!(error.to_string(), "SUBMIT_3D was refused: invalid parameter");
        assert!(matches!(error, TransportError::Refused { refusal: Refusal::InvalidParameter, .. }));
    }
}

#[test]
fn frames_have_a_longest_length_and_timelines_an_end() {
    let bench = bench(
        FakeDevice::new(),
        &VmOptions { pages: PageLayout::Scattered { run_pages: 1 }, ..VmOptions::default() },
    );
    let context = bench.vm.open("test").unwrap();
    context.submit(&vec![1; 128 * 1024], Some(63)).unwrap().wait(TIMEOUT).unwrap();
    assert!(matches!(context.submit(&vec![1; 128 * 1024 + 1], None), Err(TransportError::Size { .. })));
    assert!(matches!(context.submit(&[], None), Err(TransportError::Size { .. })));
    assert!(matches!(context.submit(b"WORK", Some(64)), Err(TransportError::RingIndex { .. })));
}

#[test]
fn a_chain_that_can_never_fit_is_refused() {
    let options = VmOptions {
        pages: PageLayout::Scattered { run_pages: 1 },
        indirect: false,
        queue_size: 8,
        ..VmOptions::default()
    };
    let bench = bench(FakeDevice::new(), &options);
    let context = bench.vm.open("test").unwrap();
    let error = context.submit(&vec![1; 128 * 1024], None).unwrap_err();
    assert!(matches!(error, TransportError::ChainTooLong { descriptors: 34, ring_size: 8 }), "{error:?}");
}

#[test]
fn a_hundred_thousand_commands_leave_nothing_behind() {
    let bench = plain();
    let context = Arc::new(bench.vm.open("test").unwrap());
    let before = (bench.vm.free_descriptors(), bench.vm.free_ram_pages(), open_files());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for round in 0..25_000 {
                    let submission = context.submit(&frames(b"WORK"), Some(1)).unwrap();
                    // Most are not waited for: the next command takes them off the ring.
                    if round % 8 == 0 {
                        submission.wait(TIMEOUT).unwrap();
                    }
                    if round % 1000 == 0 {
                        let blob = context.create_blob(BlobMemory::Vram, 4096).unwrap();
                        context.map(&blob).unwrap();
                        context.destroy_blob(blob).unwrap();
                    }
                }
            });
        }
    });
    context.submit(&frames(b"WORK"), None).unwrap().wait(TIMEOUT).unwrap();
    assert_eq!((bench.vm.free_descriptors(), bench.vm.free_ram_pages(), open_files()), before);
    assert!(context.commands_sent() > 100_000);
}

/// Files open in this process; other tests of the binary run beside this one, so only a leak of many shows.
fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count() / 1000
}
