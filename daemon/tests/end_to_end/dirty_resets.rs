//! What is known to be written when work is put aside, reset or ends.

use std::sync::atomic::Ordering;
use std::time::Duration;

use campanile_guest_driver::commands::CommandBuffer;
use campanile_guest_driver::device::Device;
use campanile_guest_driver::node::Node;
use campanile_guest_driver::user_queue::QueueOptions;
use campanile_host_gpu::dirty::method::Method;

use crate::dirty::MIB;
use crate::dirty::PAGE;
use crate::dirty::VRAM;
use crate::dirty::Watched;
use crate::dirty::methods;
use crate::dirty::run;
use crate::operator::Operated;
use crate::processes::engines_of;
use crate::raw_queue::fill;
use crate::signals::kill_at_rest;
use crate::support::NEVER;
use crate::support::until;
use crate::tdr_support::hang;

#[test]
fn dirty_53_dirty_56_pre_31_what_is_put_aside_in_a_save_area_is_found() {
    for method in methods() {
        let watched = Watched::start(method);
        let device = watched.device();
        let [mut vram, _] = watched.readers(0);
        // Save areas lie behind all else.
        let of_areas = |pages: Vec<usize>| pages.into_iter().any(|page| page as u64 * PAGE >= VRAM);
        let room = device.create_buffer(4 * MIB).unwrap();
        let context = device.create_context(Node::Copy).unwrap();
        assert!(of_areas(vram.dirty(true)), "{method:?}: they are initialised");
        let mut queue = context.create_kernel_queue().unwrap();
        let mut commands = CommandBuffer::new();
        for value in 0..200 {
            commands.fill(room.va(), room.size(), value).unwrap();
        }
        // On a busy machine a buffer may be done before it can be put aside: then once more.
        until("a buffer that is put aside", || {
            let ticket = queue.submit(&commands).unwrap();
            context.suspend().unwrap();
            let is_half_run =
                !queue.is_done(ticket) && room.memory().word(0).unwrap().load(Ordering::Acquire) != 0;
            let is_found = of_areas(vram.dirty(true));
            context.resume().unwrap();
            queue.wait(ticket, Some(NEVER)).unwrap();
            room.write(0, &[0; 8]).unwrap();
            assert!(is_found || !is_half_run, "{method:?}");
            is_half_run
        });
        vram.pull();
    }
}

#[test]
fn dirty_56_what_a_kernel_wrote_before_its_engine_was_reset_counts() {
    for method in methods() {
        for spares in [false, true] {
            let watched = Watched::with(method, 1, |options| {
                options.engines.spares = spares;
                options.timeouts = [Duration::from_millis(300); 2];
            });
            let vm = watched.vm(0);
            let [mut vram, _] = watched.readers(0);
            for _ in 0..2 {
                vram.catches_up();
                let device = Device::open(vm.open("test").unwrap()).unwrap();
                let _loss = hang(&device);
            }
            vram.catches_up();
            let is_all = vram.tracker.pages_written() == vram.tracker.length() / PAGE;
            assert!(!is_all, "{method}: a stopped engine is asked, and nothing else counts");
        }
    }
}

#[test]
fn dirty_50_dirty_56_an_engine_that_dies_by_itself_has_written_all_that_it_could() {
    for method in methods() {
        let watched = Watched::start(method);
        let device = watched.device();
        let context = device.create_context(Node::Copy).unwrap();
        let mut queue = context.create_user_queue(&QueueOptions::default()).unwrap();
        let local = device.create_local_buffer(MIB).unwrap();
        let [mut vram, _] = watched.readers(0);
        run(&mut queue, &fill(local.va(), MIB, 3));
        engines_of(&watched.host.vgpus[0].orders).into_iter().for_each(kill_at_rest);
        run(&mut queue, &fill(local.va(), 64, 4));
        vram.catches_up();
        let is_all = vram.tracker.pages_written() == vram.tracker.length() / PAGE;
        // Planes survive a process; what the kernel noted of it does not.
        assert_eq!(is_all, method == Method::WriteProtect, "{method}");
    }
}

#[test]
fn the_operator_chooses_how_writes_are_tracked_and_sees_it() {
    for method in methods().into_iter().chain([Method::Off]) {
        let operated = Operated::with(1, &["--dirty-tracking", method.name()]);
        let _vm = operated.daemon.vm(0);
        let status = operated.ask(&["status"]);
        let said = status.to_string();
        assert!(said.contains(&format!("\"method\":\"{method}\"")), "{said}");
    }
}

#[test]
fn dirty_46_each_vgpu_is_asked_by_itself() {
    for method in methods() {
        let watched = Watched::with(method, 2, |options| options.engines.count = 2);
        let vms = [0, 1].map(|index| watched.vm(index));
        let [mut one, _] = watched.readers(0);
        let [mut other, _] = watched.readers(1);
        // Where contents are compared, what is freed and zeroed is clean again.
        let devices = [0, 1].map(|index: usize| Device::open(vms[index].open("test").unwrap()).unwrap());
        let mut kept = Vec::new();
        for (device, value) in devices.iter().zip([1, 2]) {
            for engine in 0..2 {
                let context = device.create_context_on(Node::Copy, engine).unwrap();
                let mut queue = context.create_user_queue(&QueueOptions::default()).unwrap();
                let local = device.create_local_buffer(MIB).unwrap();
                run(&mut queue, &fill(local.va(), MIB, value));
                kept.push(local);
            }
        }
        one.catches_up();
        assert!(
            other.dirty(false).len() >= 256,
            "what was asked of one is still there to be asked of the other"
        );
        other.catches_up();
        assert!(one.copy != other.copy);
    }
}
