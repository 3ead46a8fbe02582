//! Claims about files of guest memory that the front-end cuts short.

use rustix::fs::SealFlags;
use rustix::fs::fcntl_get_seals;
use vhost::VhostBackend;

use crate::bench::Bench;
use crate::bench::Vm;
use crate::bench::eventually;
use crate::device::ECHO;
use crate::device::Seen;
use campanile_daemon::frontend::vhost::counters::Count;

/// A VM of another vGPU, and the vGPU that is attacked: what ends the process fails the test.
struct Scene {
    attacked: Bench,
    _other_bench: Bench,
    other: Vm,
}

impl Scene {
    fn new() -> Self {
        let (attacked, other_bench) = (Bench::new(), Bench::new());
        let other = Vm::started(&other_bench);
        Self { attacked, _other_bench: other_bench, other }
    }

    /// The session of the attacked vGPU ends by itself, the other goes on, and the attacked one takes the next VM.
    fn only_the_session_ends(mut self) {
        self.attacked.script.await_seen(&Seen::Dropped);
        assert_eq!(self.other.control.round(0, &[ECHO; 32]), [ECHO; 32]);
        assert_eq!(self.attacked.count(Count::Panics), 0);
        let mut next = Vm::started(&self.attacked);
        assert_eq!(next.control.round(0, &[ECHO; 32]), [ECHO; 32]);
    }
}

#[test]
fn memory_that_is_cut_short_while_the_queues_run_ends_its_session_and_no_other() {
    let scene = Scene::new();
    let mut vm = Vm::started(&scene.attacked);
    assert!(!fcntl_get_seals(&vm.guest.file).unwrap().contains(SealFlags::SHRINK), "as VMMs make it");
    assert_eq!(vm.control.round(0, &[ECHO; 32]), [ECHO; 32]);
    vm.guest.file.set_len(0).unwrap();
    // The worker reads the available ring.
    vm.control.kick.write(1).unwrap();
    scene.only_the_session_ends();
}

#[test]
fn memory_that_is_cut_short_before_a_queue_starts_ends_its_session_and_no_other() {
    let scene = Scene::new();
    let vm = Vm::plain(&scene.attacked);
    vm.set_memory();
    vm.front.set_vring_num(0, vm.control.size).unwrap();
    vm.set_addresses(&vm.control);
    vm.front.set_vring_base(0, 0).unwrap();
    vm.guest.file.set_len(0).unwrap();
    // The connection's thread reads the used index.
    let _hung_up = vm.front.set_vring_kick(0, &vm.control.kick);
    scene.only_the_session_ends();
}

#[test]
fn memory_whose_end_alone_is_cut_off_does_no_harm_until_it_is_used() {
    let scene = Scene::new();
    let mut vm = Vm::started(&scene.attacked);
    vm.guest.file.set_len(16 << 20).unwrap();
    assert_eq!(vm.control.round(0, &[ECHO; 32]), [ECHO; 32]);
    // A request in the part that is gone.
    vm.control.describe(2, ((16 << 20) + 4096, 32, 0, 0));
    vm.control.offer(2);
    vm.control.kick();
    scene.only_the_session_ends();
}

#[test]
fn many_vms_in_turn_may_cut_their_memory_short() {
    let scene = Scene::new();
    for turn in 1..=20 {
        let vm = Vm::started(&scene.attacked);
        vm.guest.file.set_len(0).unwrap();
        vm.control.kick.write(1).unwrap();
        eventually("the session has ended", || scene.attacked.script.count(&Seen::Dropped) == turn);
    }
    scene.only_the_session_ends();
}
