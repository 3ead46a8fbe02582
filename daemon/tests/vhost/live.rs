//! Claims about a front-end that changes things under a ring that runs.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;

use vhost::VhostBackend;
use vhost::vhost_user::VhostUserFrontend;

use crate::bench::Bench;
use crate::bench::Vm;
use crate::bench::region;
use crate::device::ECHO;
use crate::device::Script;
use crate::rings::request;

/// Ends the other thread, also when this one fails.
pub(crate) struct SetOnDrop<'a>(pub(crate) &'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The trap of vhost-user-backend: the used position was read and written back in two steps.
#[test]
fn live_set_vring_addr_loses_no_used_entry() {
    let bench = Bench::with(Script::new(false, true));
    let mut vm = Vm::started(&bench);
    let front = vm.front.clone();
    let addresses = Vm::addresses(&vm.control);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let calls = scope.spawn(|| {
            let mut calls = 0;
            while !stop.load(Ordering::Relaxed) {
                front.set_vring_addr(0, &addresses).unwrap();
                calls += 1;
            }
            calls
        });
        let end = SetOnDrop(&stop);
        for turn in 0..60_000u32 {
            let head = u16::try_from(turn % 100).unwrap() * 2;
            vm.control.round(head, &request(ECHO));
        }
        drop(end);
        assert!(calls.join().unwrap() > 1000);
    });
}

#[test]
fn memory_table_may_change_under_a_live_ring() {
    let bench = Bench::with(Script::new(false, true));
    let mut vm = Vm::started(&bench);
    let front = vm.front.clone();
    let whole = vm.region();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let changes = scope.spawn(|| {
            let extra = region(1 << 32, 1 << 20, 1 << 40, 0, whole.mmap_handle);
            let mut changes = 0;
            while !stop.load(Ordering::Relaxed) {
                front.set_mem_table(&[whole, extra]).unwrap();
                front.set_mem_table(&[whole]).unwrap();
                front.clone().add_mem_region(&extra).unwrap();
                front.clone().remove_mem_region(&extra).unwrap();
                changes += 1;
            }
            changes
        });
        let end = SetOnDrop(&stop);
        for turn in 0..20_000u32 {
            let head = u16::try_from(turn % 100).unwrap() * 2;
            vm.control.round(head, &request(ECHO));
        }
        drop(end);
        assert!(changes.join().unwrap() > 10);
    });
}
