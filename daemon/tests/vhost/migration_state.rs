//! Claims about the device's state: when it may be asked for, what fits, and what becomes of requests in flight.

use std::fs::File;
use std::io::Write;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use campanile_daemon::vhost::counters::Count;
use campanile_daemon::vhost::malformed::MalformedChain;
use campanile_daemon::vhost::saved::SavedShell;
use rustix::event::PollFd;
use rustix::event::PollFlags;
use rustix::event::poll;
use rustix::pipe::pipe;
use vhost::VhostBackend;
use vhost::vhost_user::Frontend;
use vhost::vhost_user::VhostUserFrontend;
use vhost::vhost_user::message::VhostTransferStateDirection;
use vhost::vhost_user::message::VhostUserProtocolFeatures;
use vm_memory::Bytes;
use vm_memory::GuestAddress;

use crate::bench::Bench;
use crate::bench::eventually;
use crate::guest::RAM;
use crate::guest::WRITE;
use crate::migrant::COUNT;
use crate::migrant::PARK;
use crate::migrant::SCRIBBLE;
use crate::migrant::SCRIBBLES;
use crate::migrant::Script;
use crate::migrant::Seen;
use crate::migration_logs::bench;
use crate::rings::request;
use crate::vmm::BOTH;
use crate::vmm::Copy;
use crate::vmm::Kind;
use crate::vmm::Vmm;

const SAVE: VhostTransferStateDirection = VhostTransferStateDirection::SAVE;
const LOAD: VhostTransferStateDirection = VhostTransferStateDirection::LOAD;

fn stopped(vmm: &mut Vmm) -> [u16; 2] {
    vmm.pause();
    vmm.stop_rings()
}

/// Goes away, so that the socket is free.
fn leave(vmm: &mut Vmm) {
    drop(std::mem::replace(&mut vmm.vm.front, crate::vmm::nobody()));
}

/// A VM with one parked request, its state, and a copy of its memory.
fn saved(bench: &Bench) -> (Vmm, [u16; 2], Vec<u8>, Copy) {
    let mut vmm = Vmm::booted(Kind::CloudHypervisor, &bench.path);
    vmm.vm.control.request(0, &request(PARK));
    vmm.vm.control.offer(0);
    vmm.vm.control.round(2, &request(COUNT));
    let bases = stopped(&mut vmm);
    let state = vmm.save().unwrap();
    leave(&mut vmm);
    let copy = Copy::of(&vmm.vm.guest);
    (vmm, bases, state, copy)
}

fn checksum(vmm: &Vmm) -> u64 {
    let mut bytes = vec![0; usize::try_from(RAM).unwrap()];
    vmm.vm.guest.ram.read_slice(&mut bytes, GuestAddress(0)).unwrap();
    bytes.chunks(8).fold(0, |sum: u64, word| {
        sum.rotate_left(1) ^ u64::from_ne_bytes(word.try_into().unwrap()).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    })
}

#[test]
fn lm_23_guest_ram_stands_still_from_the_reply_on() {
    for kind in BOTH {
        for by_pause in [true, false] {
            let script = Script::new();
            let bench = bench(&script);
            let mut vmm = Vmm::booted(kind, &bench.path);
            vmm.vm.control.round(0, &request(SCRIBBLE));
            vmm.vm.control.request(2, &request(PARK));
            vmm.vm.control.offer(2);
            vmm.vm.control.kick();
            if by_pause {
                vmm.pause();
            } else {
                // Without ENABLE, the first ring that stops is the barrier.
                vmm.vm.front.get_vring_base(0).unwrap();
            }
            let before = checksum(&vmm);
            // Answers and kicks that come meanwhile, too.
            script.release();
            vmm.vm.control.request(4, &request(COUNT));
            let offered = checksum(&vmm);
            assert_ne!(before, offered, "the request itself is seen");
            vmm.vm.control.kick.write(1).unwrap();
            std::thread::sleep(Duration::from_millis(60));
            assert_eq!(checksum(&vmm), offered, "{kind:?} {by_pause}");
            let mut first = [0; 4096];
            vmm.vm.guest.ram.read_slice(&mut first, GuestAddress(SCRIBBLES)).unwrap();
            assert_ne!(first, [0; 4096], "the engine wrote before");
        }
    }
}

/// And changes again when the VM goes on.
#[test]
fn lm_23_engine_goes_on_after_a_resume() {
    let script = Script::new();
    let bench = bench(&script);
    let mut vmm = Vmm::booted(Kind::CloudHypervisor, &bench.path);
    vmm.vm.control.round(0, &request(SCRIBBLE));
    vmm.pause();
    let still = checksum(&vmm);
    vmm.vm.enable(true);
    eventually("writes", || checksum(&vmm) != still);
}

#[test]
fn lm_25_state_of_a_device_that_runs_is_refused() {
    for kind in BOTH {
        let script = Script::new();
        let bench = bench(&script);
        let mut vmm = Vmm::booted(kind, &bench.path);
        vmm.vm.control.round(0, &request(COUNT));
        let transfer = |vmm: &Vmm| vmm.transfer(SAVE, pipe().unwrap().1);
        assert!(transfer(&vmm).is_err(), "runs");
        assert!(vmm.vm.front.check_device_state().is_err(), "nothing was begun");
        vmm.pause();
        assert!(transfer(&vmm).is_err(), "rings are started still");
        vmm.vm.front.get_vring_base(0).unwrap();
        assert!(transfer(&vmm).is_err(), "one ring is");
        let base = vmm.vm.front.get_vring_base(1).unwrap();
        assert_eq!((base, script.count(&Seen::Save)), (0, 0));
        vmm.save().unwrap();
        assert_eq!(script.count(&Seen::Save), 1);
        vmm.start_driver([1, 0]);
        assert!(transfer(&vmm).is_err(), "runs again");
        assert_eq!(vmm.vm.control.round(0, &request(COUNT))[8], 2);
    }
}

#[test]
fn lm_25_device_that_never_started_can_be_saved() {
    let (here, there) = (Script::new(), Script::new());
    let (source, target) = (bench(&here), bench(&there));
    let front = |bench: &Bench| bench.front_end(VhostUserProtocolFeatures::empty(), 0);
    let mut vmm = Vmm::booted(Kind::Qemu, &source.path);
    leave(&mut vmm);
    vmm.vm.front = front(&source);
    let state = vmm.save().unwrap();
    vmm.vm.front = front(&target);
    vmm.load(&state).unwrap();
    vmm.start_driver([0, 0]);
    assert_eq!(vmm.vm.control.round(0, &request(COUNT))[8], 1);
}

#[test]
fn lm_31_restored_device_stands_still_until_its_rings_start() {
    for kind in BOTH {
        let (here, there) = (Script::new(), Script::new());
        let (source, target) = (bench(&here), bench(&there));
        let mut running = Vmm::booted(kind, &target.path);
        assert!(running.transfer(LOAD, pipe().unwrap().0).is_err(), "runs");
        assert_eq!(running.vm.control.round(0, &request(COUNT))[8], 1);
        leave(&mut running);
        there.await_seen(&Seen::Dropped);
        let before = there.seen().len();
        let (vmm, bases, state, copy) = saved(&source);
        let mut vm = Vmm { kind, ..vmm }.target(&target.path, copy, &state).unwrap();
        let seen = there.seen()[before..].to_vec();
        assert!(matches!(&seen[..], [Seen::Freeze, Seen::Load(_)]), "{seen:?}");
        vm.vm.front.set_features(vm.features).unwrap();
        vm.vm.set_memory();
        assert_eq!(there.seen().len(), before + 2, "still");
        vm.go_on(bases);
        there.await_seen(&Seen::Restored(0, 0, Ok(request(PARK))));
        let seen = there.seen()[before + 2..].to_vec();
        assert_eq!(seen[..2], [Seen::Started, Seen::Thaw]);
    }
}

/// The descriptors of the source are gone; the target has its own, and the guest sees one interrupt, not none and not two.
#[test]
fn lm_44_interrupt_that_is_due_at_the_pause_comes_once_on_the_target() {
    for kind in BOTH {
        let (here, there) = (Script::new(), Script::new());
        let (source_bench, target_bench) = (bench(&here), bench(&there));
        let mut source = Vmm::booted(kind, &source_bench.path);
        source.vm.control.request(0, &request(PARK));
        source.vm.control.offer(0);
        source.vm.control.kick();
        eventually("parked", || source_bench.count(Count::Commands) == 1);
        source.vm.control.want_interrupt(1);
        // The answer comes while the guest is paused: it is due, and neither it nor its interrupt can be given.
        source.pause();
        here.release();
        eventually("answered", || source_bench.count(Count::Answers) == 1);
        let bases = source.stop_rings();
        let state = source.save().unwrap();
        leave(&mut source);
        assert!(!source.vm.control.interrupted(Duration::from_millis(30)));
        let copy = Copy::of(&source.vm.guest);
        let mut target = source.target(&target_bench.path, copy, &state).unwrap();
        assert!(!target.vm.control.interrupted(Duration::from_millis(30)), "not before it runs");
        target.go_on(bases);
        assert!(target.vm.control.interrupted(Duration::from_secs(10)));
        assert_eq!(target.vm.control.used(), Some((0, 32)));
        assert_eq!(target.vm.control.response(0, 32), request(PARK));
        assert!(!target.vm.control.interrupted(Duration::from_millis(50)), "once");
        target.vm.control.assert_silent();
        assert!(
            !there.seen().iter().any(|seen| matches!(seen, Seen::Restored(..))),
            "the source's device had done it"
        );
    }
}

/// An answer that is there, whose interrupt found no descriptor: it is the target's to send.
#[test]
fn lm_44_interrupt_that_found_no_descriptor_travels() {
    let (here, there) = (Script::new(), Script::new());
    let (source_bench, target_bench) = (bench(&here), bench(&there));
    let mut source = Vmm::connected(Kind::CloudHypervisor, &source_bench.path);
    source.is_polled = true;
    source.start_driver([0, 0]);
    source.vm.control.want_interrupt(1);
    source.vm.control.request(0, &request(COUNT));
    source.vm.control.offer(0);
    source.vm.control.kick();
    eventually("answer", || source.vm.control.used_index() == 1);
    let bases = stopped(&mut source);
    let state = source.save().unwrap();
    let copy = Copy::of(&source.vm.guest);
    let mut target = source.target(&target_bench.path, copy, &state).unwrap();
    target.go_on(bases);
    assert!(target.vm.control.interrupted(Duration::from_secs(10)));
    assert!(!target.vm.control.interrupted(Duration::from_millis(50)), "once");
    assert_eq!(target.vm.control.used(), Some((0, 32)));
}

/// The shell adds its own data, judges it first, and offers all this only for a device that migrates.
#[test]
fn lm_67_only_a_device_that_migrates_is_offered_for_it() {
    let script = Script::new();
    let with = bench(&script);
    let mut front = Frontend::connect(&with.path, 2).unwrap();
    let needed = VhostUserProtocolFeatures::LOG_SHMFD | VhostUserProtocolFeatures::DEVICE_STATE;
    assert_ne!(front.get_features().unwrap() & 1 << 26, 0);
    assert!(front.get_protocol_features().unwrap().contains(needed));
    drop(front);
    script.offer.lock().unwrap().migrates = false;
    let mut vmm = Vmm::booted(Kind::Qemu, &with.path);
    assert_eq!(vmm.vm.front.get_features().unwrap() & 1 << 26, 0);
    assert!(!vmm.protocol.intersects(needed));
    stopped(&mut vmm);
    assert!(vmm.transfer(SAVE, pipe().unwrap().1).is_err());
    assert!(vmm.transfer(LOAD, pipe().unwrap().0).is_err());
}

/// Each thing that must fit, and does not: the load fails, nothing is applied, and the same state fits its like.
#[test]
fn lm_67_state_of_another_device_is_refused() {
    let here = Script::new();
    let source = bench(&here);
    let (vmm, bases, state, copy) = saved(&source);
    let mut copy = Some(copy);
    for change in 0..4 {
        let there = Script::new();
        {
            let mut offer = there.offer.lock().unwrap();
            match change {
                0 => offer.features = 0,
                1 => offer.config[12] ^= 1,
                2 => offer.smallest_answer = 25,
                _ => offer.queues = 3,
            }
        }
        let bench = bench(&there);
        assert!(vmm.target(&bench.path, Copy::of(&vmm.vm.guest), &state).is_err(), "{change}");
        assert!(
            !there.seen().iter().any(|seen| matches!(seen, Seen::Load(_))),
            "{change}: the device saw it"
        );
    }
    let there = Script::new();
    let bench = bench(&there);
    let mut target = vmm.target(&bench.path, copy.take().unwrap(), &state).unwrap();
    target.go_on(bases);
    assert_eq!(target.vm.control.round(4, &request(COUNT))[8], 2);
}

/// Every byte of a state that is cut off, or another: an error or a device, never a crash.
#[test]
fn lm_40_hostile_states_are_refused() {
    let here = Script::new();
    let source = bench(&here);
    let (vmm, _, state, _) = saved(&source);
    let there = Script::new();
    let target = bench(&there);
    let (shell, device) = SavedShell::decode(&state).unwrap();
    let with = |change: &dyn Fn(&mut SavedShell)| {
        let mut other = shell.clone();
        change(&mut other);
        other.encode(device).unwrap()
    };
    let parked = shell.rings[0].in_flight[0].clone();
    let mut hostile: Vec<Vec<u8>> = vec![
        Vec::new(),
        vec![0; 4096],
        state[..19].to_vec(),
        state[..60].to_vec(),
        with(&|shell| shell.rings.clear()),
        with(&|shell| shell.rings[0].in_flight.push(parked.clone())),
        with(&|shell| shell.rings[0].in_flight[0].head = 1024),
        with(&|shell| shell.rings[0].in_flight[0].head = u16::MAX),
        with(&|shell| shell.features |= 1 << 40),
    ];
    for (at, value) in
        [(0, b'X'), (12, 2), (12, 0xff), (15, 0xff), (16, 0xff), (19, 0xff), (20, b'['), (21, 0)]
    {
        let mut other = state.clone();
        other[at] = value;
        hostile.push(other);
    }
    // More than can be.
    hostile.push([&state[..], &vec![0; 6 << 20]].concat());
    for (number, bytes) in hostile.iter().enumerate() {
        assert!(vmm.target(&target.path, Copy::of(&vmm.vm.guest), bytes).is_err(), "{number}");
    }
    assert_eq!(target.count(Count::Panics), 0);
    assert!(!there.seen().iter().any(|seen| matches!(seen, Seen::Load(_) | Seen::Started)));
    // A field that a later version has is passed over.
    let mut text = serde_json::to_value(&shell).unwrap();
    text["later"] = serde_json::json!({ "more": [1, 2, 3] });
    let text = serde_json::to_vec(&text).unwrap();
    let mut later = state[..16].to_vec();
    later[8] = 9;
    later.extend_from_slice(&u32::try_from(text.len()).unwrap().to_le_bytes());
    later.extend_from_slice(&text);
    later.extend_from_slice(device);
    vmm.target(&target.path, Copy::of(&vmm.vm.guest), &later).unwrap();
}

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
