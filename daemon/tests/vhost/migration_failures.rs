//! States that cannot be taken, and guests that reset meanwhile.

use std::fs::File;
use std::io::Write;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

use campanile_daemon::frontend::vhost::counters::Count;
use campanile_daemon::frontend::vhost::malformed::MalformedChain;
use campanile_daemon::frontend::vhost::saved::SavedShell;
use rustix::event::PollFd;
use rustix::event::PollFlags;
use rustix::event::poll;
use rustix::pipe::pipe;
use vhost::VhostBackend;
use vhost::vhost_user::Frontend;
use vhost::vhost_user::VhostUserFrontend;

use crate::guest::RAM;
use crate::guest::WRITE;
use crate::migrant::COUNT;
use crate::migrant::SCRIBBLE;
use crate::migrant::Script;
use crate::migrant::Seen;
use crate::migration_logs::bench;
use crate::migration_state::LOAD;
use crate::migration_state::SAVE;
use crate::migration_state::leave;
use crate::migration_state::saved;
use crate::migration_state::stopped;
use crate::rings::request;
use crate::vmm::BOTH;
use crate::vmm::Copy;
use crate::vmm::Kind;
use crate::vmm::Vmm;

/// What fails on the way is told by CHECK_DEVICE_STATE, and the source goes on (QEMU) or not at all as its VMM likes.
#[test]
fn failures_of_the_device_are_told() {
    for kind in BOTH {
        let script = Script::new();
        let bench = bench(&script);
        let mut vmm = Vmm::booted(kind, &bench.path);
        vmm.vm.control.round(0, &request(COUNT));
        script.faults.lock().unwrap().save = Some("the peer has gone".into());
        let bases = stopped(&mut vmm);
        assert!(vmm.save().is_err());
        // Too long.
        {
            let mut faults = script.faults.lock().unwrap();
            (faults.save, faults.ballast) = (None, 5 << 20);
        }
        assert!(vmm.save().is_err());
        vmm.start_driver(bases);
        assert_eq!(vmm.vm.control.round(0, &request(COUNT))[8], 2);
        assert_eq!(bench.count(Count::Saves), 0);
    }
}

#[test]
fn device_that_cannot_be_loaded_starts_no_ring() {
    let (here, there) = (Script::new(), Script::new());
    let (source, target) = (bench(&here), bench(&there));
    let (vmm, bases, state, _) = saved(&source);
    there.faults.lock().unwrap().load = Some("not enough memory".into());
    let mut vm = Vmm::connected(Kind::CloudHypervisor, &target.path);
    assert!(vm.load(&state).is_err());
    // A front-end that goes on all the same must not give the guest an empty device.
    vm.vm.front.set_features(vm.features).unwrap();
    vm.vm.set_memory();
    vm.vm.front.set_vring_base(0, bases[0]).unwrap();
    assert!(vm.vm.front.set_vring_kick(0, &vm.vm.control.kick).is_err());
    leave(&mut vm);
    // And one that never asks, too.
    there.faults.lock().unwrap().load = None;
    let mut vm = Vmm::connected(Kind::CloudHypervisor, &target.path);
    let (reader, writer) = pipe().unwrap();
    vm.transfer(LOAD, reader).unwrap();
    assert!(vm.transfer(LOAD, pipe().unwrap().0).is_err(), "one at a time");
    drop(writer);
    vm.vm.front.set_features(vm.features).unwrap();
    assert!(vm.vm.front.set_vring_kick(0, &vm.vm.control.kick).is_err());
    leave(&mut vm);
    assert_eq!(there.count(&Seen::Started), 0);
    drop(vmm);
}

/// The device may not run when it comes to it: another has it.
#[test]
fn device_that_may_not_start_ends_the_session() {
    let (here, there) = (Script::new(), Script::new());
    let (source, target) = (bench(&here), bench(&there));
    let (vmm, bases, state, copy) = saved(&source);
    there.faults.lock().unwrap().start = Some("the source goes on".into());
    let vm = vmm.target(&target.path, copy, &state).unwrap();
    vm.vm.front.set_features(vm.features).unwrap();
    vm.vm.set_memory();
    vm.vm.front.set_vring_num(0, 256).unwrap();
    vm.vm.set_addresses(&vm.vm.control);
    vm.vm.front.set_vring_base(0, bases[0]).unwrap();
    vm.vm.front.set_vring_kick(0, &vm.vm.control.kick).unwrap();
    let _ = vm.vm.front.clone().set_vring_enable(0, true);
    there.await_seen(&Seen::Dropped);
    assert!(!there.seen().iter().any(|seen| matches!(seen, Seen::Thaw | Seen::Restored(..))));
    assert_eq!(vm.vm.control.used_index(), 1, "nothing was answered");
}

/// A chain that is another one by the time of the target: an error for that request, and nobody else is hurt.
#[test]
fn lm_58_request_whose_chain_has_changed_is_failed() {
    let (here, there) = (Script::new(), Script::new());
    let (source, target) = (bench(&here), bench(&there));
    let (vmm, bases, state, copy) = saved(&source);
    let control = vmm.vm.control.moved_to(&copy.guest);
    control.describe(1, (control.place(0) + 2048, 48, WRITE, 0));
    let mut vm = vmm.target(&target.path, copy, &state).unwrap();
    vm.go_on(bases);
    assert_eq!(vm.vm.control.wait(), (0, 24));
    assert_eq!(vm.vm.control.response(0, 24), [b'F'; 24]);
    there.await_seen(&Seen::Restored(0, 0, Err(MalformedChain::Changed)));
    assert_eq!(vm.vm.control.round(0, &request(COUNT))[8], 2);

    // And one that is none any more.
    let there = Script::new();
    let target = bench(&there);
    let copy = Copy::of(&vmm.vm.guest);
    let control = vmm.vm.control.moved_to(&copy.guest);
    control.describe(0, (RAM - 8, 64, 1, 1));
    let mut vm = vmm.target(&target.path, copy, &state).unwrap();
    vm.go_on(bases);
    assert_eq!(vm.vm.control.wait().0, 0);
    there.await_seen(&Seen::Restored(0, 0, Err(MalformedChain::BadAddress(RAM - 8))));
    assert_eq!(vm.vm.control.round(0, &request(COUNT))[8], 2);
    assert_eq!(target.count(Count::Panics), 0);
}

/// A head past the end of the ring, which a hostile state may name, has no chain at all.
#[test]
fn head_past_the_ring_is_passed_over() {
    let (here, there) = (Script::new(), Script::new());
    let (source, target) = (bench(&here), bench(&there));
    let (vmm, bases, state, copy) = saved(&source);
    let (mut shell, device) = SavedShell::decode(&state).unwrap();
    shell.rings[0].in_flight[0].head = 1000;
    let mut vm = vmm.target(&target.path, copy, &shell.encode(device).unwrap()).unwrap();
    vm.go_on(bases);
    there.await_seen(&Seen::Restored(0, 1000, Err(MalformedChain::HeadOutOfRange(1000))));
    assert_eq!(vm.vm.control.round(4, &request(COUNT))[8], 2);
}

/// ENABLE 0 and GET_VRING_BASE, then rings from 0 on: without a state between, the guest has begun anew.
#[test]
fn reset_of_a_restored_guest_is_seen() {
    for kind in BOTH {
        let (here, there) = (Script::new(), Script::new());
        let (source, target) = (bench(&here), bench(&there));
        let (vmm, bases, state, copy) = saved(&source);
        let mut vm = Vmm { kind, ..vmm }.target(&target.path, copy, &state).unwrap();
        vm.go_on(bases);
        there.await_seen(&Seen::Started);
        // Nothing was taken on the target itself.
        stopped(&mut vm);
        vm.vm.control.clear();
        vm.start_driver([0, 0]);
        assert_eq!(vm.vm.control.round(0, &request(COUNT))[8], 1, "{kind:?}");
        assert_eq!((there.count(&Seen::Reset), target.count(Count::Resets)), (1, 1));
        // The request of before is void.
        there.release();
        vm.vm.control.assert_silent();
    }
}

/// The guest wraps its rings around: position 0 after a state is where it was, and no new beginning.
#[test]
fn resume_at_position_zero_after_a_save_is_no_reset() {
    let script = Script::new();
    let bench = bench(&script);
    let mut vmm = Vmm::booted(Kind::CloudHypervisor, &bench.path);
    vmm.vm.control.request(0, &request(b'e'));
    for _ in 0..65_536 {
        vmm.vm.control.offer(0);
        vmm.vm.control.kick();
        vmm.vm.control.wait();
    }
    let bases = stopped(&mut vmm);
    assert_eq!(bases, [0, 0]);
    vmm.save().unwrap();
    vmm.resume(bases);
    vmm.vm.control.round(0, &request(COUNT));
    assert_eq!(script.count(&Seen::Reset), 0);
}

#[test]
fn reset_while_frozen_leaves_a_device_that_runs() {
    let script = Script::new();
    let bench = bench(&script);
    let mut vmm = Vmm::booted(Kind::Qemu, &bench.path);
    for turn in 1..=3 {
        vmm.vm.control.round(0, &request(SCRIBBLE));
        stopped(&mut vmm);
        vmm.vm.front.clone().reset_device().unwrap();
        vmm.vm.control.clear();
        vmm.start_driver([0, 0]);
        assert_eq!(vmm.vm.control.round(0, &request(COUNT))[8], 1);
        assert_eq!(script.count(&Seen::Reset), turn);
    }
}

/// A state that arrives where there was another: what was there is replaced.
#[test]
fn load_into_a_device_that_ran_replaces_it() {
    let (here, there) = (Script::new(), Script::new());
    let (source, target) = (bench(&here), bench(&there));
    let (vmm, bases, state, copy) = saved(&source);
    let mut vm = Vmm::booted(Kind::Qemu, &target.path);
    for _ in 0..5 {
        vm.vm.control.round(0, &request(COUNT));
    }
    stopped(&mut vm);
    vm.load(&state).unwrap();
    vm.vm.control = vmm.vm.control.moved_to(&copy.guest);
    vm.vm.cursor = vmm.vm.cursor.moved_to(&copy.guest);
    vm.vm.guest = copy.guest;
    vm.go_on(bases);
    assert_eq!(vm.vm.control.round(4, &request(COUNT))[8], 2);
    there.release();
    assert_eq!(vm.vm.control.wait(), (0, 32));
    assert_eq!(there.count(&Seen::Reset), 1);
}

/// A reset between a state and the question after it: the state belongs to nobody any more.
#[test]
fn reset_during_a_load_leaves_an_empty_device() {
    let (here, there) = (Script::new(), Script::new());
    let (source, target) = (bench(&here), bench(&there));
    let (_, _, state, _) = saved(&source);
    let mut vm = Vmm::connected(Kind::Qemu, &target.path);
    let (reader, writer) = pipe().unwrap();
    vm.transfer(LOAD, reader).unwrap();
    vm.vm.front.clone().reset_device().unwrap();
    File::from(writer).write_all(&state).unwrap();
    assert!(vm.vm.front.check_device_state().is_err());
    vm.start_driver([0, 0]);
    assert_eq!(vm.vm.control.round(0, &request(COUNT))[8], 1);
    assert!(!there.seen().iter().any(|seen| matches!(seen, Seen::Load(_) | Seen::Started)));
}

/// A device that does not come to rest loses its session: nothing may be said of memory that still changes.
#[test]
fn device_that_never_freezes_is_lost() {
    let script = Script::new();
    let bench = bench(&script);
    let mut vmm = Vmm::booted(Kind::CloudHypervisor, &bench.path);
    vmm.vm.control.round(0, &request(COUNT));
    script.faults.lock().unwrap().never_freezes = true;
    vmm.vm.front.clone().set_vring_enable(0, false).unwrap();
    assert!(vmm.vm.front.clone().set_vring_enable(1, false).is_err());
    script.await_seen(&Seen::Dropped);
    script.faults.lock().unwrap().never_freezes = false;
    leave(&mut vmm);
    let mut next = Vmm::booted(Kind::CloudHypervisor, &bench.path);
    assert_eq!(next.vm.control.round(0, &request(COUNT))[8], 1);
}

/// A front-end that takes no state, and hangs up while it asks after it: the session ends, whatever its thread does.
#[test]
fn hang_up_during_a_transfer_frees_the_session() {
    let script = Script::new();
    let bench = bench(&script);
    script.faults.lock().unwrap().ballast = 1 << 20;
    let line = UnixStream::connect(&bench.path).unwrap();
    let front = Frontend::from_stream(line.try_clone().unwrap(), 2);
    let mut vmm = Vmm::over(Kind::Qemu, front);
    vmm.start_driver([0, 0]);
    stopped(&mut vmm);
    let (reader, writer) = pipe().unwrap();
    vmm.transfer(SAVE, writer).unwrap();
    std::thread::scope(|scope| {
        let check = scope.spawn(|| vmm.vm.front.check_device_state());
        // It has been asked when the device has been.
        script.await_seen(&Seen::Save);
        line.shutdown(Shutdown::Both).unwrap();
        assert!(check.join().unwrap().is_err());
    });
    script.await_seen(&Seen::Dropped);
    let mut pipe = [PollFd::new(&reader, PollFlags::IN)];
    poll(&mut pipe, None).unwrap();
    assert!(!pipe[0].revents().contains(PollFlags::HUP), "the thread has the pipe still");
}

/// cloud-hypervisor comes back after a crash of the daemon: no GET_PROTOCOL_FEATURES, no LOAD, rings in the middle.
#[test]
fn reconnect_is_told_from_boot_and_restore() {
    let script = Script::new();
    let bench = bench(&script);
    let mut vmm = Vmm::booted(Kind::CloudHypervisor, &bench.path);
    vmm.vm.control.round(0, &request(COUNT));
    leave(&mut vmm);
    vmm.reconnect(&bench.path);
    vmm.start_driver([1, 0]);
    assert_eq!(vmm.vm.control.round(2, &request(COUNT))[8], 1, "a new device");
    assert_eq!((bench.count(Count::Reconnects), bench.count(Count::Restores)), (1, 0));
    let bases = stopped(&mut vmm);
    let state = vmm.save().unwrap();
    leave(&mut vmm);
    let mut target = vmm.target(&bench.path, Copy::of(&vmm.vm.guest), &state).unwrap();
    target.go_on(bases);
    target.vm.control.round(0, &request(COUNT));
    assert_eq!((bench.count(Count::Reconnects), bench.count(Count::Restores)), (1, 1));
}
