//! Claims about the device's state: when it may be asked for, what fits, and what becomes of requests in flight.

use std::time::Duration;

use campanile_daemon::frontend::vhost::counters::Count;
use campanile_daemon::frontend::vhost::saved::SavedShell;
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

pub(crate) const SAVE: VhostTransferStateDirection = VhostTransferStateDirection::SAVE;
pub(crate) const LOAD: VhostTransferStateDirection = VhostTransferStateDirection::LOAD;

pub(crate) fn stopped(vmm: &mut Vmm) -> [u16; 2] {
    vmm.pause();
    vmm.stop_rings()
}

/// Goes away, so that the socket is free.
pub(crate) fn leave(vmm: &mut Vmm) {
    drop(std::mem::replace(&mut vmm.vm.front, crate::vmm::nobody()));
}

/// A VM with one parked request, its state, and a copy of its memory.
pub(crate) fn saved(bench: &Bench) -> (Vmm, [u16; 2], Vec<u8>, Copy) {
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

pub(crate) fn checksum(vmm: &Vmm) -> u64 {
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
