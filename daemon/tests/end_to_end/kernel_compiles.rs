//! Kernels that take the driver's compiler long: nothing else waits for them.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;
use std::thread;

use campanile_guest_driver::commands::CommandBuffer;
use campanile_guest_driver::device::Device;
use campanile_guest_driver::kernel::Kernel;
use campanile_guest_driver::kernel::KernelSource;
use campanile_guest_driver::node::Node;

use crate::native_fences::process;
use crate::support::Daemon;
use crate::support::NEVER;
use crate::support::until;

/// Takes the driver's compiler some seconds.
fn long_kernel() -> String {
    let statements: String = (0..400)
        .map(|number| format!("x = fma(x, sin(x + {number}.5), exp2(y)); if (x > {number}.0) {{ y = sqrt(x) + pow(abs(y), 1.{number}); }}\n"))
        .collect();
    format!(
        "@group(0) @binding(0) var<storage, read_write> data: array<f32>;
         @compute @workgroup_size(64) fn main(@builtin(local_invocation_index) i: u32) {{
             var x = data[i]; var y = data[i + 1u];
             {statements}
             data[i] = x + y;
         }}"
    )
}

/// Stores `number`, by a kernel of its own.
fn short_kernel(device: &Device, number: u32) -> Kernel {
    let text = format!(
        "@group(0) @binding(0) var<storage, read_write> data: array<u32>;
         @compute @workgroup_size(1) fn main() {{ data[0] = {number}u; }}"
    );
    device.create_kernel(&KernelSource::wgsl(&text)).unwrap()
}

/// Does something of another process while a long kernel is compiled, before which it is done.
fn while_a_long_kernel_is_compiled(
    prepare: impl FnOnce(&Device) -> Kernel,
    act: impl FnOnce(&Device, Kernel),
) {
    let daemon = Daemon::with(&["--tdr-timeout", "600000", "--compile-timeout", "600000"]);
    let vm = daemon.vm(0);
    let (compiles, other) = (process(&vm), process(&vm));
    // The engine is there, and knows a kernel of each.
    let first = prepare(&other);
    let _warm = short_kernel(&compiles, 1);
    let (is_compiled, sent) = (AtomicBool::new(false), vm.commands_sent());
    thread::scope(|scope| {
        scope.spawn(|| {
            let kernel = compiles.create_kernel(&KernelSource::wgsl(&long_kernel())).unwrap();
            is_compiled.store(true, Ordering::Release);
            drop(kernel);
        });
        until("the kernel is on its way", || vm.commands_sent() > sent);
        act(&other, first);
        assert!(!is_compiled.load(Ordering::Acquire), "it has waited for the kernel");
    });
}

#[test]
fn memory_of_another_process_waits_for_no_kernel_that_is_compiled() {
    let act = |other: &Device, _: Kernel| {
        for _ in 0..4 {
            // Answered when each engine has mapped it.
            let buffer = other.create_guest_buffer(1 << 20).unwrap();
            let context = other.create_context(Node::Compute).unwrap();
            let mut queue = context.create_kernel_queue().unwrap();
            let mut commands = CommandBuffer::new();
            commands.signal(buffer.va(), 5).unwrap();
            let ticket = queue.submit(&commands).unwrap();
            queue.wait(ticket, Some(NEVER)).unwrap();
            assert_eq!(buffer.memory().word(0).unwrap().load(Ordering::Acquire), 5);
        }
    };
    while_a_long_kernel_is_compiled(|other| short_kernel(other, 2), act);
}

#[test]
fn a_kernel_of_another_process_waits_for_no_kernel_that_is_compiled() {
    let act = |other: &Device, _: Kernel| (10..14).for_each(|number| drop(short_kernel(other, number)));
    while_a_long_kernel_is_compiled(|other| short_kernel(other, 2), act);
}

#[test]
fn dispatches_of_another_process_wait_for_no_kernel_that_is_compiled() {
    let act = |other: &Device, kernel: Kernel| {
        // Kernels are checked in order: when this one is compiled, the driver has the long one.
        drop(short_kernel(other, 3));
        let buffer = other.create_buffer(4096).unwrap();
        let context = other.create_context(Node::Compute).unwrap();
        let mut queue = context.create_kernel_queue().unwrap();
        let mut commands = CommandBuffer::new();
        commands.dispatch(&kernel, [1; 3], &[buffer.binding(0)], &[]).unwrap();
        // Enough of them that the driver is at the part of its work which it does on a queue.
        for _ in 0..500 {
            let ticket = queue.submit(&commands).unwrap();
            queue.wait(ticket, Some(NEVER)).unwrap();
        }
        assert_eq!(buffer.memory().word32(0).unwrap().load(Ordering::Acquire), 2);
    };
    while_a_long_kernel_is_compiled(|other| short_kernel(other, 2), act);
}
