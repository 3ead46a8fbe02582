//! A device whose memory a neighbour has taken: what cannot be allocated is said in words, others go on, and what was refused works when
//! there is memory again.

use campanile_guest_driver::device::Device;
use campanile_guest_driver::error::DriverError;
use campanile_guest_driver::node::Node;

use crate::driver_faults::Layered;
use crate::driver_faults::worked;
use crate::local_memory::Guest;
use crate::local_memory::add;
use crate::operator::Operated;
use crate::raw_queue::copy;
use crate::support::Daemon;
use crate::support::NEVER;
use crate::support::until;

const MIB: u64 = 1 << 20;
/// A daemon whose engines have the layer, and no sandbox: in it the layer would not see what the test says later.
const OPEN: [&str; 3] = ["--no-sandbox", "--spin", "600000000"];

fn operated(layered: &Layered, specs: &[&str], local_memory: &str) -> Operated {
    let arguments = [&OPEN[..], &["--local-memory", local_memory]].concat();
    Operated::start(&arguments, |all| Daemon::changed(specs, all, |command| layered.under(command)))
}

#[test]
fn a_vgpu_for_whose_local_memory_a_neighbour_leaves_no_room_is_refused_by_name_and_comes_when_there_is_some()
{
    for (hidden, why) in [
        (&[][..], "its budget is "),
        (&["VK_EXT_memory_budget"], "vkAllocateMemory says A device memory allocation has failed"),
    ] {
        let layered = Layered::new();
        layered.faults.hide(hidden).unwrap();
        let operated = operated(&layered, &["vram=64M"], "device");
        let mut neighbour = worked(&operated.daemon.vm(0)).unwrap();
        // All that is not local memory of the next one has room.
        layered.faults.leave(Some(48 * MIB));
        let spec = format!("name=v1,socket={},vram=128M", operated.daemon.socket(1).display());
        let said = operated.refusal(&["vgpu", "add", &spec]);
        for part in ["vGPU v1", "the device gives no 64 MiB of its memory", "llvmpipe", why] {
            assert!(said.contains(part), "{part} is missing: {said}");
        }
        assert_eq!(operated.ask(&["status"])["vgpus"].as_array().unwrap().len(), 1);
        neighbour.work().unwrap();
        assert!(neighbour.is_right());

        layered.faults.leave(None);
        operated.ask(&["vgpu", "add", &spec]);
        let mut late = worked(&operated.daemon.vm(1)).unwrap();
        late.work().unwrap();
        neighbour.work().unwrap();
        assert!(late.is_right() && neighbour.is_right());
    }
}

#[test]
fn local_memory_that_is_longer_than_a_driver_promises_is_tried_and_refused_with_the_limit_where_it_gives_none()
 {
    let layered = Layered::new();
    layered.faults.hide(&["maxMemoryAllocationSize", "VK_EXT_memory_budget"]).unwrap();
    let operated = operated(&layered, &["vram=64M"], "device");
    // 256 MiB of them are the window.
    let spec = format!("name=v1,socket={},vram=1281M", operated.daemon.socket(1).display());
    layered.faults.leave(Some(1024 * MIB));
    let said = operated.refusal(&["vgpu", "add", &spec]);
    for part in ["no 1025 MiB", "one allocation has at most 1024 MiB", "maxMemoryAllocationSize"] {
        assert!(said.contains(part), "{part} is missing: {said}");
    }
    layered.faults.leave(None);
    operated.ask(&["vgpu", "add", &spec]);
    for vm in [0, 1] {
        worked(&operated.daemon.vm(vm)).unwrap();
    }
}

/// Where the device imports no host memory, it has a copy of what guests bind in memory of its own.
#[test]
fn work_for_which_a_device_has_no_memory_loses_its_own_device_and_no_other_and_the_next_works_when_there_is_some()
 {
    for place in ["host", "device"] {
        let layered = Layered::new();
        layered.faults.hide(&["VK_EXT_external_memory_host"]).unwrap();
        let operated = operated(&layered, &["vram=64M", "vram=64M"], place);
        let vms = [0, 1].map(|index| operated.daemon.vm(index));
        let [mut neighbour, mut before] = [0, 1].map(|index| worked(&vms[index]).unwrap());

        layered.faults.leave(Some(0));
        let mut short = Guest::on(Device::open(vms[1].open("short").unwrap()).unwrap(), Node::Compute);
        let ram = short.device.create_guest_buffer(MIB).unwrap();
        let kernel = short.device.create_kernel(&add()).unwrap();
        let mut commands = copy(ram.va(), short.staging.va(), 4096);
        commands.dispatch(&kernel, [1; 3], &[ram.binding(0)], &[]).unwrap();
        let outcome = short.queue.submit(&commands).and_then(|end| end.wait(Some(NEVER)));
        assert!(matches!(outcome, Err(DriverError::DeviceLost(_))), "{place}: {outcome:?}");
        let is_said = |line: &str| {
            ["v1: ", "the driver cannot use segment", "A device memory allocation has failed"]
                .iter()
                .all(|part| line.contains(part))
        };
        until("why, in the log", || layered.said().lines().any(is_said));
        // What needs no more memory goes on, of this VM and of the other.
        for worker in [&mut neighbour, &mut before] {
            worker.work().unwrap();
            assert!(worker.is_right(), "{place}");
        }

        layered.faults.leave(None);
        let mut next = worked(&vms[1]).unwrap();
        next.work().unwrap();
        neighbour.work().unwrap();
        assert!(next.is_right() && neighbour.is_right(), "{place}");
    }
}

#[test]
fn a_vgpu_whose_engine_finds_no_memory_at_its_start_has_one_when_there_is_some() {
    for place in ["host", "device"] {
        let layered = Layered::new();
        layered.faults.hide(&["VK_EXT_external_memory_host"]).unwrap();
        let operated = operated(&layered, &["vram=64M", "vram=64M"], place);
        let mut neighbour = worked(&operated.daemon.vm(0)).unwrap();
        layered.faults.leave(Some(0));
        let vm = operated.daemon.vm(1);
        let refused = worked(&vm).map(drop);
        assert!(refused.is_err(), "{place}");
        let is_said = |line: &str| {
            line.contains("v1: ") && line.contains("bytes of the device's own memory cannot be allocated")
        };
        until("why, in the log", || layered.said().lines().any(is_said));
        neighbour.work().unwrap();
        assert!(neighbour.is_right(), "{place}");

        layered.faults.leave(None);
        // What the engine left undone is done first, and may be in the way of a process meanwhile.
        let mut next = None;
        until("a process that works", || {
            next = worked(&vm).inspect_err(|error| eprintln!("{place}: {error}")).ok();
            next.is_some()
        });
        let mut next = next.unwrap();
        next.work().unwrap();
        neighbour.work().unwrap();
        assert!(next.is_right() && neighbour.is_right(), "{place}");
    }
}
