//! What drivers have compiled for a VM outlives the daemon under it, and is no other VM's.

use std::sync::Arc;

use campanile_guest_driver::device::Device;
use campanile_guest_driver::kernel::KernelSource;
use campanile_test_vmm::vm::LoopbackVm;

use crate::killed::Kept;
use crate::served::Served;
use crate::served::until;
use crate::upgrade::Line;
use crate::upgrade::connect;
use crate::upgrade::table;

/// Kernels, each of which is code of its own; more than a driver compiles for itself.
const KERNELS: u64 = 12;

/// Entries that the log of a vGPU's compute engine has.
fn entries(served: &Served) -> u64 {
    served.ask(&["status"])["vgpus"][0]["session"]["engines"][0]["code_entries"].as_u64().unwrap()
}

/// Has kernels compiled, and destroys them: an engine that comes later has nothing to compile. Entries of the log.
fn compile(served: &Served, vm: &Arc<LoopbackVm>) -> (Device, u64) {
    let device = Device::open(vm.open("test").unwrap()).unwrap();
    for number in 0..KERNELS {
        let text = format!(
            "@group(0) @binding(0) var<storage, read_write> data: array<u32>;
             @compute @workgroup_size(1) fn main() {{ data[0] = {number}u; }}"
        );
        drop(device.create_kernel(&KernelSource::wgsl(&text)).unwrap());
    }
    until("the code of all kernels", || entries(served) >= KERNELS);
    let kept = entries(served);
    (device, kept)
}

#[test]
fn cont_01_what_was_compiled_for_a_vm_goes_to_the_next_daemon_and_not_to_the_next_vm() {
    let mut line = Line::begin(&table("a", ""));
    let vm = connect(&line.served, "a");
    let (device, kept) = compile(&line.served, &vm);
    for _ in 0..2 {
        line.upgrade();
        assert!(entries(&line.served) >= kept);
    }
    drop((device, vm));
    let _other = connect(&line.served, "a");
    until("a VM that nothing was compiled for", || entries(&line.served) == 0);
}

#[test]
fn cont_12_what_was_compiled_for_a_vm_outlives_a_daemon_that_is_killed() {
    let kept = Kept::begin(&table("a", ""));
    let vm = kept.connect("a");
    let (device, entries_then) = compile(&kept.0, &vm);
    for _ in 0..2 {
        kept.kill();
        until("the VM's session", || {
            kept.0.ask(&["status"])["vgpus"][0]["session"]["engines"][0].is_object()
        });
        assert!(entries(&kept.0) >= entries_then);
    }
    // A guest that begins anew has a session of its own, with a log of its own.
    drop((device, vm));
    let _other = kept.connect("a");
    until("a VM that nothing was compiled for", || entries(&kept.0) == 0);
}
