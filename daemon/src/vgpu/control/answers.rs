//! What an operator that asks is told of a vGPU.

use std::time::Duration;

use campanile_host_gpu::adapter::process::EngineProcess;
use campanile_host_gpu::adapter::process::Spare;
use campanile_host_gpu::engine::address::EngineAddress;
use campanile_host_gpu::engine::address::node_name;
use campanile_host_gpu::node::clock::nanoseconds;
use campanile_protocol::device_page;
use serde::Serialize;

use super::orders::Answer;
use super::orders::OrderError;
use crate::ids::GuestProcess;
use crate::vgpu::doorbells::room::connected_on;
use crate::vgpu::engines::kept_code::KeptCode;
use crate::vgpu::engines::slot::EngineSlot;
use crate::vgpu::memory::occupancy::describe_memory;
use crate::vgpu::objects::process::Device;
use crate::vgpu::objects::process::Process;
use crate::vgpu::vm::Vm;

#[derive(Debug, Serialize)]
struct Description {
    power: &'static str,
    blobs: usize,
    memory: serde_json::Value,
    dirty_tracking: serde_json::Value,
    engines: Vec<EngineDescription>,
    processes: Vec<ProcessDescription>,
}

#[derive(Debug, Serialize)]
struct EngineDescription {
    node: &'static str,
    /// EngineOrdinal.
    engine: u8,
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<u32>,
    /// The process that takes its place when it is reset.
    spare: &'static str,
    /// Kernels that it was asked to compile ahead.
    spare_kernels: usize,
    /// Entries that its processes have put into the log of compiled code, and bytes of those that are there; the engine's own word.
    code_entries: u64,
    code_bytes: u64,
    /// Those that are connected, in either model, polled or notified.
    doorbells_in_use: usize,
    buffers_in_flight: usize,
    last_submitted_fence: u64,
    last_completed_fence: u64,
    /// How long it has had its node, as it is charged for it: up to the last decision.
    held_ns: u64,
    /// Slices of dispatches, and the time that they took; the engine's own word.
    slices: u64,
    slices_ns: u64,
    /// What the newest of them was to take.
    slice_target_ns: u64,
}

#[derive(Debug, Serialize)]
struct ProcessDescription {
    context: GuestProcess,
    device: &'static str,
    blocked: bool,
    contexts: usize,
    queues: usize,
    kernels: usize,
    mapped_bytes: u64,
}

/// A device status (TDR-66) in words.
pub const fn status_name(status: u64) -> &'static str {
    match status {
        device_page::DEVICE_ACTIVE => "active",
        device_page::DEVICE_RESET => "lost: reset",
        device_page::DEVICE_HUNG => "lost: hung",
        device_page::DEVICE_STOPPED => "lost: stopped",
        device_page::DEVICE_DMA_FAULT => "lost: bad buffer",
        device_page::DEVICE_PAGE_FAULT => "lost: page fault",
        _ => "lost",
    }
}

fn describe_engine(
    at: EngineAddress,
    slot: &EngineSlot,
    doorbells_in_use: usize,
    held: Duration,
) -> EngineDescription {
    let state = match slot.process() {
        None => "off",
        Some(_) if slot.is_parked() => "ended",
        Some(_) if slot.is_held => "held",
        Some(_) if !slot.has_begun() => "starting",
        Some(process) if process.power.is_asleep() => "asleep",
        Some(_) => "running",
    };
    let spare = match slot.process().map_or(Spare::Missing, EngineProcess::spare) {
        Spare::Missing => "none",
        Spare::Starting => "starting",
        Spare::Ready => "ready",
    };
    let slices = slot.process().map(|process| process.schedule.slices()).unwrap_or_default();
    let code = slot.kept.as_ref().map(KeptCode::claims).unwrap_or_default();
    EngineDescription {
        node: node_name(at.node),
        engine: at.engine,
        state,
        pid: slot.process().filter(|_| slot.hears()).map(|process| process.pid()),
        spare,
        spare_kernels: slot.process().map_or(0, |process| process.compiled_ahead().len()),
        code_entries: code.added,
        code_bytes: code.bytes,
        doorbells_in_use,
        buffers_in_flight: slot.in_flight.len(),
        last_submitted_fence: slot.fences.submitted(),
        last_completed_fence: slot.fences.completed(),
        held_ns: nanoseconds(held),
        slices: slices.done,
        slices_ns: nanoseconds(slices.took),
        slice_target_ns: nanoseconds(slices.target),
    }
}

fn describe_process(context: GuestProcess, process: &Process) -> ProcessDescription {
    let device = process.device.as_ref();
    let count = |count: fn(&Device) -> usize| device.map_or(0, count);
    ProcessDescription {
        context,
        device: device.map_or("none", |device| status_name(device.status)),
        blocked: process.blocked.is_some(),
        contexts: count(|device| device.contexts.iter().count()),
        queues: count(|device| device.queues.iter().count()),
        kernels: count(|device| device.kernels.iter().count()),
        mapped_bytes: device.map_or(0, |device| device.mappings.values().map(|mapping| mapping.size).sum()),
    }
}

pub(in crate::vgpu) fn as_answer(what: &impl Serialize) -> Answer {
    serde_json::to_value(what).map_err(|error| OrderError::Refused(error.to_string()))
}

/// The places of engines that have a process, which does not end by itself.
pub(in crate::vgpu) fn engines_that_hear(vm: &Vm) -> Vec<usize> {
    let hears = |at: &EngineAddress| vm.engines[at.index()].hears();
    vm.engines.addresses().filter(hears).map(EngineAddress::index).collect()
}

/// All of it.
pub(in crate::vgpu) fn describe(vm: &Vm, power: &'static str) -> Answer {
    let engines = vm
        .engines
        .addresses()
        .map(|at| {
            let doorbells_in_use = connected_on(&vm.objects, at).len();
            let slot = &vm.engines[at.index()];
            let held = slot.supervised.map_or(Duration::ZERO, |id| vm.config.schedule.held(id));
            describe_engine(at, slot, doorbells_in_use, held)
        })
        .collect();
    let processes =
        vm.objects.processes.iter().map(|(context, process)| describe_process(*context, process)).collect();
    let description = Description {
        power,
        blobs: vm.memory.blobs.len(),
        memory: describe_memory(&vm.memory, &vm.config.account, &vm.counters),
        dirty_tracking: vm.memory.describe_tracking(),
        engines,
        processes,
    };
    as_answer(&description)
}
