//! What the operator sets reaches the engines that run.

use campanile_guest_driver::commands::CommandBuffer;

use crate::processes::EngineView;
use crate::processes::engine;
use crate::processes::kill_engine_at_rest;
use crate::raw_queue::RawQueue;
use crate::raw_queue::copy_guest;
use crate::support::Daemon;
use crate::support::until;

#[test]
fn pre_68_pre_69_the_share_of_the_band_normal_reaches_first_engines_and_those_that_replace_them() {
    for (percent, arguments) in [(37, &["--normal-share", "37"][..]), (10, &[])] {
        let daemon = Daemon::with(&[&["--spin", "600000000"], arguments].concat());
        let vm = daemon.vm(0);
        let (guest, context) = copy_guest(&vm);
        let mut queue = RawQueue::new(&guest, context);
        queue.connect().unwrap();
        queue.run(&CommandBuffer::new());
        assert_eq!(EngineView::of(&daemon).bands().normal_share, percent, "the first");
        let first = kill_engine_at_rest(&daemon);
        until("another engine", || engine(&daemon) != first);
        queue.run(&CommandBuffer::new());
        assert_eq!(EngineView::of(&daemon).bands().normal_share, percent, "its successor");
    }
}
