//! What the operator asks of a vGPU, done.

use super::session::Session;
use crate::vgpu::control::answers::as_answer;
use crate::vgpu::control::answers::describe;
use crate::vgpu::control::answers::engines_that_hear;
use crate::vgpu::control::history::history;
use crate::vgpu::control::orders::Answer;
#[cfg(debug_assertions)]
use crate::vgpu::control::orders::Fault;
use crate::vgpu::control::orders::Order;
#[cfg(debug_assertions)]
use crate::vgpu::control::orders::OrderError;
use crate::vgpu::control::orders::PendingOrder;
use crate::vgpu::control::tuning::Tuning;
use crate::vgpu::power::freeze::standing_still;
use crate::vgpu::tdr::liveness_checks::Watch;
use crate::vgpu::tdr::reason::Reason;
use crate::vgpu::tdr::recovery::Recovery;
use campanile_host_gpu::engine::address::EngineAddress;
use campanile_host_gpu::engine::message::NodeKind;
#[cfg(debug_assertions)]
use rustix::process::Resource;
#[cfg(debug_assertions)]
use rustix::process::getrlimit;
use serde_json::json;
use std::sync::Arc;

/// The operator has changed what can be changed. What was measured by old timeouts goes on by the new ones.
fn tune(session: &mut Session, tuning: Tuning) -> Answer {
    session.vm.config = Arc::new(session.vm.config.tuned(tuning));
    let config = &session.vm.config;
    for at in session.vm.engines.addresses() {
        if let Some(id) = session.vm.engines[at.index()].supervised {
            config.schedule.retune(id, config.watched_timeout(at.node), config.share);
        }
    }
    session.look_at = Watch::default();
    session.look_at.keep_looking(&mut session.vm);
    Ok(json!({ "weight": tuning.share.weight, "cap_percent": tuning.share.cap / 10 }))
}

/// Fails, as the operator wants it.
#[cfg(debug_assertions)]
#[expect(clippy::panic, reason = "that is what it is for")]
fn fail(fault: Fault) -> Answer {
    match fault {
        Fault::Panic => panic!("the operator asked for it"),
        Fault::Memory if getrlimit(Resource::Data).current.is_none() => {
            Err(OrderError::Refused("its process has no limit of memory".to_owned()))
        }
        Fault::Memory => {
            let mut all = Vec::new();
            loop {
                all.push(vec![1u8; 1 << 20]);
            }
        }
    }
}

impl Session {
    /// The operator has asked for something.
    pub(super) fn run_orders(&mut self) {
        for pending in self.vm.config.orders.take() {
            self.obey(pending);
        }
    }

    fn obey(&mut self, pending: PendingOrder) {
        let only_looks =
            matches!(pending.order, Order::Describe | Order::Engines | Order::History(_) | Order::Tune(_));
        if self.vm.freeze.is_stopping() && !only_looks {
            return pending.answer(Err(standing_still()));
        }
        let answer = match pending.order {
            // Answered when it is there.
            Order::EnterD3 => return self.power().enter_d3(Some(pending)),
            Order::Leave(limit) => return self.hotplug().leave(pending, limit),
            Order::Stay => self.hotplug().stay(),
            Order::Describe => describe(&self.vm, self.power.name()),
            Order::Engines => as_answer(&engines_that_hear(&self.vm)),
            Order::History(last) => as_answer(&history(&self.vm, last)),
            Order::Tune(tuning) => tune(self, tuning),
            #[cfg(debug_assertions)]
            Order::Fault(fault) => fail(fault),
            Order::ResetEngine(at) => Recovery::of(&mut self.vm).reset_by_order(at),
            Order::ResetAdapter => {
                let text = "the operator asked for it";
                let case = Recovery::of(&mut self.vm).open_case(
                    EngineAddress::new(0, NodeKind::Compute),
                    Reason::Forced,
                    text,
                    None,
                );
                Ok(
                    json!({ "report": case.number, "devices_lost": Recovery::of(&mut self.vm).reset_adapter(case) }),
                )
            }
            Order::EnterD0 => {
                if self.power().leave_d3() {
                    self.power().resume_from_d3();
                }
                Ok(json!({ "power": self.power.name() }))
            }
        };
        pending.answer(answer);
    }
}
