//! What the operator asks of a session.

use std::sync::Arc;
use std::time::Duration;

use campanile_host_gpu::adapter::process::EngineProcess;
use campanile_host_gpu::adapter::process::Spare;
use campanile_host_gpu::engine::address::EngineAddress;
use campanile_host_gpu::engine::address::node_name;
use campanile_host_gpu::engine::message::NodeKind;
use campanile_host_gpu::node::clock::nanoseconds;
use campanile_protocol::device_page;
use serde::Serialize;
use serde_json::json;

use super::orders::Answer;
use super::orders::Errand;
use super::orders::Order;
use super::orders::OrderError;
use super::tuning::Tuning;
use crate::vgpu::doorbells::room::connected_on;
use crate::vgpu::engines::slot::EngineSlot;
use crate::vgpu::memory::occupancy::describe_memory;
use crate::vgpu::objects::process::Device;
use crate::vgpu::objects::process::Process;
use crate::vgpu::power::quiesce::standing_still;
use crate::vgpu::session::Session;
use crate::vgpu::tdr::reason::Reason;
use crate::vgpu::tdr::recovery::Recovery;

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
    context: u32,
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
    EngineDescription {
        node: node_name(at.node),
        engine: at.engine,
        state,
        pid: slot.process().filter(|_| slot.hears()).map(|process| process.pid()),
        spare,
        spare_kernels: slot.process().map_or(0, |process| process.compiled_ahead().len()),
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

fn describe_process(context: u32, process: &Process) -> ProcessDescription {
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

fn as_answer(what: &impl Serialize) -> Answer {
    serde_json::to_value(what).map_err(|error| OrderError::Refused(error.to_string()))
}

/// The operator has changed what can be changed. What was measured by old timeouts goes on by the new ones.
fn tune(session: &mut Session, tuning: Tuning) -> Answer {
    session.rooms.config = Arc::new(session.rooms.config.tuned(tuning));
    let config = &session.rooms.config;
    for at in session.rooms.engines.addresses() {
        if let Some(id) = session.rooms.engines[at.index()].supervised {
            config.supervisor.retune(id, config.watched_timeout(at.node), config.share);
        }
    }
    session.look_at = None;
    session.keep_looking();
    Ok(json!({ "weight": tuning.share.weight, "cap_percent": tuning.share.cap / 10 }))
}

impl Session {
    /// The operator has asked for something.
    pub(in crate::vgpu) fn run_errands(&mut self) {
        for errand in self.rooms.config.orders.take() {
            self.obey(errand);
        }
    }

    fn obey(&mut self, errand: Errand) {
        let only_looks = matches!(errand.order, Order::Describe | Order::History(_) | Order::Tune(_));
        if self.rooms.freeze.is_stopping() && !only_looks {
            return errand.answer(Err(standing_still()));
        }
        let answer = match errand.order {
            // Answered when it is there.
            Order::EnterD3 => return self.enter_d3(Some(errand)),
            Order::Leave(limit) => return self.leave(errand, limit),
            Order::Stay => self.stay(),
            Order::Describe => self.describe(),
            Order::History(last) => as_answer(&self.history(last)),
            Order::Tune(tuning) => tune(self, tuning),
            Order::ResetEngine(at) => Recovery::of(&mut self.rooms).reset_by_order(at),
            Order::ResetAdapter => {
                let text = "the operator asked for it";
                let case = Recovery::of(&mut self.rooms).open_case(
                    EngineAddress::new(0, NodeKind::Compute),
                    Reason::Forced,
                    text,
                    None,
                );
                Ok(
                    json!({ "report": case.number, "devices_lost": Recovery::of(&mut self.rooms).reset_adapter(case) }),
                )
            }
            Order::EnterD0 => {
                if self.leave_d3() {
                    self.resume_from_d3();
                }
                Ok(json!({ "power": self.power.name() }))
            }
        };
        errand.answer(answer);
    }

    fn describe(&self) -> Answer {
        let engines = self
            .rooms
            .engines
            .addresses()
            .map(|at| {
                let doorbells_in_use = connected_on(&self.rooms.objects, at).len();
                let slot = &self.rooms.engines[at.index()];
                let held = slot.supervised.map_or(Duration::ZERO, |id| self.rooms.config.supervisor.held(id));
                describe_engine(at, slot, doorbells_in_use, held)
            })
            .collect();
        let processes = self
            .rooms
            .objects
            .processes
            .iter()
            .map(|(context, process)| describe_process(*context, process))
            .collect();
        let description = Description {
            power: self.power.name(),
            blobs: self.rooms.memory.blobs.len(),
            memory: describe_memory(&self.rooms.memory, &self.rooms.config.account, &self.rooms.counters),
            dirty_tracking: self.rooms.memory.describe_tracking(),
            engines,
            processes,
        };
        as_answer(&description)
    }
}
