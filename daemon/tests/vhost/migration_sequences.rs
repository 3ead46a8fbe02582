//! Whole migrations, as QEMU and cloud-hypervisor do them: success, failure, cancel, and the same again.

use std::time::Duration;

use campanile_daemon::frontend::vhost::counters::Count;
use vhost::vhost_user::VhostUserFrontend;

use crate::bench::Bench;
use crate::bench::eventually;
use crate::migrant::COUNT;
use crate::migrant::PARK;
use crate::migrant::SCRIBBLE;
use crate::migrant::SCRIBBLED_PAGES;
use crate::migrant::SCRIBBLES;
use crate::migrant::Script;
use crate::migrant::Seen;
use crate::migration_logs::bench;
use crate::rings::request;
use crate::vmm::BOTH;
use crate::vmm::Copy;
use crate::vmm::Kind;
use crate::vmm::Vmm;

fn number(answer: &[u8]) -> u64 {
    u64::from_le_bytes(answer[8..16].try_into().unwrap())
}

/// Two requests parked, one answered, and a log under way.
fn with_parked(kind: Kind, bench: &Bench) -> Vmm {
    let mut vmm = Vmm::booted(kind, &bench.path);
    for head in [0, 6] {
        vmm.vm.control.request(head, &request(PARK));
        vmm.vm.control.offer(head);
    }
    assert_eq!(number(&vmm.vm.control.round(2, &request(COUNT))), 1);
    vmm
}

/// Everything but the guest's own writes has been copied by the log; KVM does those.
fn finish_copy(vmm: &Vmm, copy: &Copy) {
    let control = &vmm.vm.control;
    copy.assert_same(&vmm.vm.guest, control.used_ring(), 4 + 8 * 256);
    for head in (0..100).step_by(2) {
        copy.assert_same(&vmm.vm.guest, control.place(head) + 2048, 64);
    }
    copy.assert_same(&vmm.vm.guest, SCRIBBLES, SCRIBBLED_PAGES * 4096);
    copy.pages(&vmm.vm.guest, (0..crate::guest::RAM).step_by(4096));
}

/// Answered once, on the target alone.
fn assert_parked_come_once(target: &mut Vmm, script: &Script) {
    script.release();
    let mut heads = [target.vm.control.wait().0, target.vm.control.wait().0];
    heads.sort_unstable();
    assert_eq!(heads, [0, 6]);
    for head in heads {
        assert_eq!(target.vm.control.response(head, 32), request(PARK));
    }
    target.vm.control.assert_silent();
}

#[test]
fn lm_58_migration_loses_and_doubles_nothing() {
    for kind in BOTH {
        let (here, there) = (Script::new(), Script::new());
        let (source_bench, target_bench) = (bench(&here), bench(&there));
        let mut source = with_parked(kind, &source_bench);
        source.begin_migration();
        let copy = Copy::of(&source.vm.guest);
        source.vm.control.round(8, &request(SCRIBBLE));
        for turn in 0..40u16 {
            assert_eq!(number(&source.vm.control.round(10 + 2 * turn, &request(COUNT))), u64::from(turn) + 2);
            if turn % 8 == 0 {
                source.copy_dirty(&copy);
            }
        }
        let (bases, state) = source.blackout(&copy);
        assert_eq!(bases, [44, 0]);
        finish_copy(&source, &copy);
        let mut target = if kind == Kind::CloudHypervisor {
            // The source has gone before the target is there.
            let front = std::mem::replace(&mut source.vm.front, crate::vmm::nobody());
            drop(front);
            here.await_seen(&Seen::Dropped);
            source.target(&target_bench.path, copy, &state).unwrap()
        } else {
            source.target(&target_bench.path, copy, &state).unwrap()
        };
        assert_eq!(there.count(&Seen::Started), 0, "no ring runs yet");
        target.go_on(bases);
        there.await_seen(&Seen::Started);
        assert_eq!(number(&target.vm.control.round(4, &request(COUNT))), 42);
        assert_parked_come_once(&mut target, &there);
        assert_eq!(target.vm.control.used_index(), 45);
        // The source keeps its peace, whatever its device has to say.
        here.release();
        std::thread::sleep(Duration::from_millis(30));
        assert_eq!(source.vm.control.used_index(), 42, "{kind:?}");
        assert_eq!((here.count(&Seen::Save), there.count(&Seen::Reset)), (1, 0));
        eventually("counted", || target_bench.count(Count::Restores) == 1);
        assert_eq!(source_bench.count(Count::Saves), 1);
        assert_eq!(target_bench.count(Count::Reconnects) + target_bench.count(Count::Void), 0);
    }
}

/// There and back again, with the parked requests of the first host.
#[test]
fn lm_58_requests_may_travel_several_times() {
    for kind in BOTH {
        let scripts = [Script::new(), Script::new()];
        let benches = [bench(&scripts[0]), bench(&scripts[1])];
        let mut vmm = with_parked(kind, &benches[0]);
        for hop in 1..=5 {
            vmm.begin_migration();
            let copy = Copy::of(&vmm.vm.guest);
            assert_eq!(number(&vmm.vm.control.round(4, &request(COUNT))), hop + 1);
            let (bases, state) = vmm.blackout(&copy);
            finish_copy(&vmm, &copy);
            let next = usize::from(hop % 2 == 1);
            // One front-end at a time is served.
            drop(std::mem::replace(&mut vmm.vm.front, crate::vmm::nobody()));
            let mut target = vmm.target(&benches[next].path, copy, &state).unwrap();
            target.go_on(bases);
            vmm = target;
        }
        assert_eq!(number(&vmm.vm.control.round(4, &request(COUNT))), 7);
        assert_parked_come_once(&mut vmm, &scripts[1]);
    }
}

/// A migration fails after the state was made, or a snapshot was taken: the source goes on where it was.
#[test]
fn lm_58_source_that_resumes_after_a_save_answers_itself() {
    for kind in BOTH {
        let script = Script::new();
        let bench = bench(&script);
        let mut vmm = with_parked(kind, &bench);
        for turn in 0..3 {
            let bases = if kind == Kind::Qemu {
                vmm.begin_migration();
                let copy = Copy::of(&vmm.vm.guest);
                vmm.blackout(&copy).0
            } else {
                vmm.pause();
                let bases = vmm.stop_rings();
                vmm.save().unwrap();
                bases
            };
            vmm.resume(bases);
            assert_eq!(number(&vmm.vm.control.round(2, &request(COUNT))), turn + 2);
        }
        assert_parked_come_once(&mut vmm, &script);
        assert_eq!((script.count(&Seen::Reset), script.count(&Seen::Started)), (0, 0));
        assert_eq!(bench.count(Count::Resets), 0);
    }
}

/// cloud-hypervisor's connection is as new after a migration that failed before the state; QEMU's rings start again.
#[test]
fn migration_that_is_cancelled_while_the_guest_runs_leaves_no_trace() {
    for kind in BOTH {
        let script = Script::new();
        let bench = bench(&script);
        let mut vmm = with_parked(kind, &bench);
        for turn in 0..5 {
            vmm.begin_migration();
            assert_eq!(number(&vmm.vm.control.round(2, &request(COUNT))), 2 * turn + 2);
            assert!(!vmm.dirty_pages().is_empty());
            vmm.cancel();
            assert_eq!(number(&vmm.vm.control.round(2, &request(COUNT))), 2 * turn + 3);
        }
        assert_parked_come_once(&mut vmm, &script);
        assert!(!script.seen().contains(&Seen::Freeze), "nothing stopped");
    }
}

/// cloud-hypervisor's `local=on`: no log at all, and the same memory.
#[test]
fn local_migration_needs_no_log() {
    let (here, there) = (Script::new(), Script::new());
    let (source_bench, target_bench) = (bench(&here), bench(&there));
    let mut source = with_parked(Kind::CloudHypervisor, &source_bench);
    source.pause();
    let bases = source.stop_rings();
    let state = source.save().unwrap();
    drop(std::mem::replace(&mut source.vm.front, crate::vmm::nobody()));
    let copy = Copy::of(&source.vm.guest);
    let mut target = source.target(&target_bench.path, copy, &state).unwrap();
    target.go_on(bases);
    assert_eq!(number(&target.vm.control.round(2, &request(COUNT))), 2);
    assert_parked_come_once(&mut target, &there);
}

/// The target is the process that the source was: the same socket, one connection after the other.
#[test]
fn target_may_be_the_process_that_was_the_source() {
    let script = Script::new();
    let bench = bench(&script);
    let mut source = with_parked(Kind::CloudHypervisor, &bench);
    source.begin_migration();
    let copy = Copy::of(&source.vm.guest);
    let (bases, state) = source.blackout(&copy);
    finish_copy(&source, &copy);
    drop(std::mem::replace(&mut source.vm.front, crate::vmm::nobody()));
    let mut target = source.target(&bench.path, copy, &state).unwrap();
    target.go_on(bases);
    assert_eq!(number(&target.vm.control.round(2, &request(COUNT))), 2);
    assert_parked_come_once(&mut target, &script);
}

/// Pause and resume alone: every ring disabled, then enabled.
#[test]
fn pause_freezes_the_device_and_resume_thaws_it() {
    let script = Script::new();
    let bench = bench(&script);
    let mut vmm = with_parked(Kind::CloudHypervisor, &bench);
    vmm.vm.front.clone().set_vring_enable(0, false).unwrap();
    assert_eq!(script.count(&Seen::Freeze), 0, "a ring runs still");
    vmm.vm.front.clone().set_vring_enable(1, false).unwrap();
    assert_eq!(script.count(&Seen::Freeze), 1);
    vmm.vm.control.request(4, &request(COUNT));
    vmm.vm.control.offer(4);
    vmm.vm.control.kick();
    vmm.vm.control.assert_silent();
    vmm.vm.enable(true);
    assert_eq!(vmm.vm.control.wait(), (4, 32));
    assert_eq!((script.count(&Seen::Freeze), script.count(&Seen::Thaw)), (1, 1));
    // At power-off: twice, on rings that run.
    vmm.vm.enable(true);
    vmm.vm.enable(true);
    assert_eq!(number(&vmm.vm.control.round(4, &request(COUNT))), 3);
}

/// The target cannot use the state. QEMU's guest goes on at its source; cloud-hypervisor has hung up there, so that a new device is all
/// that its guest can have.
#[test]
fn unusable_state_becomes_a_new_device_where_the_source_has_none_any_more() {
    for kind in BOTH {
        let (here, there) = (Script::new(), Script::new());
        let (source_bench, target_bench) = (bench(&here), bench(&there));
        let mut source = with_parked(kind, &source_bench);
        source.pause();
        let bases = source.stop_rings();
        let state = source.save().unwrap();
        there.faults.lock().unwrap().load = Some("the memories are not here".into());
        let copy = Copy::of(&source.vm.guest);
        if kind == Kind::Qemu {
            assert!(source.target(&target_bench.path, copy, &state).is_err());
            source.resume(bases);
            assert_eq!(number(&source.vm.control.round(2, &request(COUNT))), 2);
            assert_parked_come_once(&mut source, &here);
            continue;
        }
        drop(std::mem::replace(&mut source.vm.front, crate::vmm::nobody()));
        let mut target = source.target(&target_bench.path, copy, &state).unwrap();
        assert_eq!(
            (there.count(&Seen::Reset), there.count(&Seen::Thaw)),
            (1, 0),
            "nothing of the state is left"
        );
        target.go_on(bases);
        let mut heads = [target.vm.control.wait().0, target.vm.control.wait().0];
        heads.sort_unstable();
        assert_eq!(heads, [0, 6], "what was in flight is refused");
        for head in heads {
            assert_eq!(target.vm.control.response(head, 24), [b'F'; 24]);
        }
        assert_eq!(number(&target.vm.control.round(4, &request(COUNT))), 1, "the device is new");
        assert_eq!(there.count(&Seen::Started), 0);
        assert_eq!((target_bench.count(Count::Restores), target_bench.count(Count::Reconnects)), (0, 1));
    }
}
