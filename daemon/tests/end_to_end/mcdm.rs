//! Contexts, software queues and hardware queues, as guests see them.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use std::time::Instant;

use campanile_guest_driver::commands::CommandBuffer;
use campanile_guest_driver::device::Device;
use campanile_guest_driver::kernel::KernelSource;
use campanile_guest_driver::node::Node;
use campanile_protocol::capset;
use campanile_protocol::control::message::SUBMIT;
use campanile_protocol::control::message::Submit;
use campanile_protocol::control::status::Status;
use campanile_protocol::device_page::DEVICE_ACTIVE;
use campanile_test_vmm::vm::LoopbackVm;

use crate::native_fences::process;
use crate::operator::Operated;
use crate::raw::RawGuest;
use crate::raw_queue::copy_guest;
use crate::raw_queue::wait_for;
use crate::support::Daemon;
use crate::support::NEVER;
use crate::support::until;

#[test]
fn mcdm_01_mcdm_02_mcdm_07_a_driver_decides_how_many_contexts_stand_behind_its_queues_and_each_is_of_one_node()
 {
    let daemon = Daemon::start();
    let vm = daemon.vm(0);
    let device = process(&vm);
    let words = device.create_buffer(4096).unwrap();
    let word = |index: u64| words.memory().word(8 * index).unwrap().load(Ordering::Acquire);
    // One queue over two contexts of two nodes, as the driver likes it; and two queues over one.
    let (copy, compute) =
        (device.create_context(Node::Copy).unwrap(), device.create_context(Node::Compute).unwrap());
    let mut queues = [
        copy.create_kernel_queue().unwrap(),
        copy.create_kernel_queue().unwrap(),
        compute.create_kernel_queue().unwrap(),
    ];
    for (index, queue) in (0..).zip(&mut queues) {
        let mut commands = CommandBuffer::new();
        commands.fill(words.va() + 8 * index, 8, 5).unwrap();
        let ticket = queue.submit(&commands).unwrap();
        queue.wait(ticket, Some(NEVER)).unwrap();
        assert_eq!(word(index), 0x5_0000_0005);
    }
    // State of its own: one that is suspended holds up no other of its process.
    copy.suspend().unwrap();
    let mut commands = CommandBuffer::new();
    commands.fill(words.va() + 64, 8, 6).unwrap();
    let held = queues[0].submit(&commands).unwrap();
    let ticket = queues[2].submit(&commands).unwrap();
    queues[2].wait(ticket, Some(NEVER)).unwrap();
    assert!(!queues[0].is_done(held));
    copy.resume().unwrap();
    queues[0].wait(held, Some(NEVER)).unwrap();
    // Aimed at one node: kernels are not for the other.
    let kernel =
        device.create_kernel(&KernelSource::wgsl("@compute @workgroup_size(1) fn main() {}")).unwrap();
    let mut commands = CommandBuffer::new();
    commands.dispatch(&kernel, [1; 3], &[], &[]).unwrap();
    let ticket = queues[2].submit(&commands).unwrap();
    queues[2].wait(ticket, Some(NEVER)).unwrap();
    let ticket = queues[0].submit(&commands).unwrap();
    assert!(queues[0].wait(ticket, Some(NEVER)).is_err() || device.check().is_err());
    until("the fault", || device.check().is_err());
}

/// A raw process with one ordinary queue, and memory for packets.
fn raw_queue(vm: &Arc<LoopbackVm>) -> (Arc<RawGuest>, campanile_protocol::control::reply::QueueCreated) {
    let (guest, context) = copy_guest(vm);
    let created = guest.queue(context, 0).unwrap();
    (guest, created)
}

#[test]
fn mcdm_03_mcdm_56_a_context_takes_dma_buffers_and_only_the_engine_reads_them() {
    let daemon = Daemon::start();
    let vm = daemon.vm(0);
    let (guest, created) = raw_queue(&vm);
    let packets = guest.vram(4096);
    let buffer = |buffer_va, length| Submit { queue: created.queue, buffer_va, length, flags: 0 };
    // Not a buffer: refused, and nothing is lost by it.
    for wrong in [buffer(packets.va + 1, 8), buffer(packets.va, 7), buffer(packets.va, u32::MAX - 7)] {
        assert_eq!(guest.call(SUBMIT, &wrong), Err(Status::InvalidParameter), "{wrong:?}");
    }
    assert_eq!(guest.device_status(), DEVICE_ACTIVE);
    // A buffer of nonsense is taken like any other, and what is wrong shows when its turn has come.
    packets.memory.write(0, &[0xff; 64]).unwrap();
    let (gate, wait) = (guest.vram(4096), guest.vram(4096));
    let commands = wait_for(gate.va, 1);
    wait.memory.write(0, commands.bytes()).unwrap();
    let first = guest.send(1, SUBMIT, &buffer(wait.va, u32::try_from(commands.bytes().len()).unwrap()));
    let nonsense = guest.send(2, SUBMIT, &buffer(packets.va, 64));
    guest.round_trip();
    assert_eq!(guest.device_status(), DEVICE_ACTIVE, "its turn has not come");
    gate.word(0).store(1, Ordering::Release);
    assert!(first.finish().is_ok() && nonsense.finish().is_ok(), "both were taken");
    until("the fault", || guest.device_status() != DEVICE_ACTIVE);
}

#[test]
fn mcdm_16_mcdm_17_every_buffer_is_indicated_by_itself_and_in_order() {
    let daemon = Daemon::start();
    let vm = daemon.vm(0);
    let devices = [process(&vm), process(&vm)];
    let mut queues = Vec::new();
    for device in &devices {
        let gate = device.create_buffer(4096).unwrap();
        queues.push((device.create_context(Node::Copy).unwrap().create_kernel_queue().unwrap(), gate));
    }
    let mut tickets = [Vec::new(), Vec::new()];
    for step in 1..=8_u64 {
        for ((queue, gate), tickets) in queues.iter_mut().zip(&mut tickets) {
            let mut commands = CommandBuffer::new();
            commands.wait(gate.va(), step).unwrap();
            tickets.push(queue.submit(&commands).unwrap());
        }
    }
    for step in 0..8 {
        for ((queue, gate), tickets) in queues.iter_mut().zip(&tickets) {
            assert!(tickets[step..].iter().all(|ticket| !queue.is_done(*ticket)), "not before its gate");
            gate.memory().word(0).unwrap().store(step as u64 + 1, Ordering::Release);
            queue.wait(tickets[step], Some(NEVER)).unwrap();
            assert!(tickets[..=step].iter().all(|ticket| queue.is_done(*ticket)), "in order");
        }
    }
}

#[test]
fn mcdm_15_mcdm_36_a_buffer_runs_in_the_address_space_of_its_own_process() {
    let daemon = Daemon::start();
    let vm = daemon.vm(0);
    let devices: Vec<Device> = (0..4).map(|_| process(&vm)).collect();
    let memory: Vec<_> = devices.iter().map(|device| device.create_buffer(4096).unwrap()).collect();
    assert!(memory.iter().all(|buffer| buffer.va() == memory[0].va()), "one address, four memories");
    let mut queues: Vec<_> = devices
        .iter()
        .map(|device| device.create_context(Node::Copy).unwrap().create_kernel_queue().unwrap())
        .collect();
    for round in 0..50_u32 {
        let mut tickets = Vec::new();
        for (index, queue) in (0_u32..).zip(&mut queues) {
            let mut commands = CommandBuffer::new();
            commands.fill(memory[0].va(), 8, round * 4 + index).unwrap();
            tickets.push(queue.submit(&commands).unwrap());
        }
        for (queue, ticket) in queues.iter_mut().zip(tickets) {
            queue.wait(ticket, Some(NEVER)).unwrap();
        }
        for (index, buffer) in (0_u32..).zip(&memory) {
            let word = buffer.memory().word(0).unwrap().load(Ordering::Acquire);
            assert_eq!(word & 0xffff_ffff, u64::from(round * 4 + index));
        }
    }
}

#[test]
fn mcdm_23_every_engine_has_a_hardware_queue_of_its_own() {
    let daemon = Daemon::start();
    let vm = daemon.vm(0);
    let device = process(&vm);
    let gate = device.create_buffer(4096).unwrap();
    let mut blocked = device.create_context(Node::Compute).unwrap().create_kernel_queue().unwrap();
    let mut free = device.create_context(Node::Copy).unwrap().create_kernel_queue().unwrap();
    let mut commands = CommandBuffer::new();
    commands.wait(gate.va(), 1).unwrap();
    // More than one holds.
    let tickets: Vec<_> = (0..4).map(|_| blocked.submit(&commands).unwrap()).collect();
    for _ in 0..20 {
        let ticket = free.submit(&CommandBuffer::new()).unwrap();
        free.wait(ticket, Some(NEVER)).unwrap();
    }
    assert!(!blocked.is_done(tickets[0]));
    gate.memory().word(0).unwrap().store(1, Ordering::Release);
    blocked.wait(tickets[3], Some(NEVER)).unwrap();
}

#[test]
fn pre_57_who_waits_for_a_fence_longer_than_the_timeout_is_no_hang() {
    let operated = Operated::with(1, &["--tdr-timeout", "50"]);
    let vm = operated.daemon.vm(0);
    let (waits, works) = (process(&vm), process(&vm));
    let gate = waits.create_buffer(4096).unwrap();
    let mut blocked = waits.create_context(Node::Copy).unwrap().create_kernel_queue().unwrap();
    let mut free = works.create_context(Node::Copy).unwrap().create_kernel_queue().unwrap();
    let mut commands = CommandBuffer::new();
    commands.wait(gate.va(), 1).unwrap();
    let ticket = blocked.submit(&commands).unwrap();
    let begun = Instant::now();
    // Work of others goes on for many timeouts.
    while begun.elapsed() < Duration::from_millis(500) {
        let ticket = free.submit(&CommandBuffer::new()).unwrap();
        free.wait(ticket, Some(NEVER)).unwrap();
    }
    assert!(!blocked.is_done(ticket));
    gate.memory().word(0).unwrap().store(1, Ordering::Release);
    blocked.wait(ticket, Some(NEVER)).unwrap();
    assert!(waits.check().is_ok());
    let counters = operated.ask(&["metrics"])["vgpus"][0]["counters"].clone();
    assert_eq!((&counters["engines_reset"], &counters["timeouts_in_vain"]), (&0.into(), &0.into()));
}

// conformance: one declaration is read, and each line is a field or flag of it
#[test]
fn pre_07_pre_10_pre_11_pre_12_pre_18_pre_54_pre_73_mcdm_22_mcdm_29_a_guest_reads_how_nodes_are_preempted() {
    let daemon = Daemon::start();
    let (_vm, device) = daemon.device();
    let caps = device.capset();
    let both = capset::SCHEDULING_MULTI_ENGINE_AWARE | capset::SCHEDULING_PREEMPTION_AWARE;
    assert_eq!((both, caps.scheduling_caps & both), (0x5, 0x5));
    assert_ne!(caps.scheduling_caps & capset::SCHEDULING_LOW_IRQL_PREEMPT_COMMAND, 0);
    assert_ne!(caps.scheduling_caps & capset::SCHEDULING_PER_ENGINE_TDR, 0);
    assert_eq!(caps.scheduling_caps & capset::SCHEDULING_NO_DMA_PATCHING, 0);
    assert_eq!(caps.node_count, 2, "NbAsymetricProcessingNodes");
    let [compute, copy] = [caps.nodes[0], caps.nodes[1]];
    assert_eq!((compute.graphics_preemption, copy.graphics_preemption), (capset::GRANULARITY_NONE, 0));
    assert_eq!(compute.compute_preemption, capset::GRANULARITY_THREAD_GROUP);
    assert_eq!(caps.compute_preemption(), 300);
    assert!(caps.compute_preemption() >= capset::GRANULARITY_DMA_BUFFER);
    assert_eq!(caps.driver.hw_queue_packet_cap, 0);
    let numbers = [
        capset::GRANULARITY_NONE,
        capset::GRANULARITY_DMA_BUFFER,
        capset::GRANULARITY_DISPATCH,
        capset::GRANULARITY_THREAD_GROUP,
        capset::GRANULARITY_THREAD,
        capset::GRANULARITY_SHADER,
    ];
    assert_eq!(numbers, [0, 100, 200, 300, 400, 500]);
    // An engine that is not to slice says so.
    let daemon = Daemon::with(&["--slice", "0"]);
    let (_vm, device) = daemon.device();
    assert_eq!(device.capset().compute_preemption(), capset::GRANULARITY_DISPATCH);
}

#[test]
fn pre_53_no_binding_outlives_its_packet() {
    let daemon = Daemon::start();
    let (_vm, device) = daemon.device();
    let text = "@group(0) @binding(0) var<storage, read_write> data: array<u32>;
                @compute @workgroup_size(1) fn main() { data[0] = data[0] + 1u; }";
    let kernel = device.create_kernel(&KernelSource::wgsl(text)).unwrap();
    let memory = device.create_buffer(4096).unwrap();
    let mut queue = device.create_context(Node::Compute).unwrap().create_kernel_queue().unwrap();
    let mut commands = CommandBuffer::new();
    commands.dispatch(&kernel, [1; 3], &[memory.binding(0)], &[]).unwrap();
    let ticket = queue.submit(&commands).unwrap();
    queue.wait(ticket, Some(NEVER)).unwrap();
    // The next one binds nothing: what the last one bound must not stand in.
    let mut commands = CommandBuffer::new();
    commands.dispatch(&kernel, [1; 3], &[], &[]).unwrap();
    let _refused = queue.submit(&commands).unwrap();
    until("the fault", || device.check().is_err());
    assert_eq!(memory.memory().word(0).unwrap().load(Ordering::Acquire), 1, "it ran once");
}
