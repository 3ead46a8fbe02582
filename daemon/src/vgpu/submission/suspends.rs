//! Suspend and resume of contexts, as messages ask for them and engines report them: see [`crate::vgpu::engines::suspends`].

use crate::vgpu::engines::suspending::Suspending;
use crate::vgpu::objects::budget::Kind;
use crate::vgpu::objects::ids::ContextHandle;
use crate::vgpu::objects::message::Checked;
use crate::vgpu::objects::message::Handled;
use crate::vgpu::objects::message::Origin;
use crate::vgpu::objects::message::Outcome;
use crate::vgpu::objects::message::Refused;
use crate::vgpu::objects::message::WORK_BYTES;
use crate::vgpu::objects::process::MAX_WAITS;
use crate::vgpu::submission::buffers::Submission;
use crate::vgpu::submission::reports::EngineReports;
use crate::vgpu::submission::waits::Waits;
use campanile_host_gpu::engine::address::EngineAddress;
use campanile_protocol::control::message::Named;
use campanile_protocol::control::reply::Suspended;
use campanile_protocol::control::status::Status;
use zerocopy::IntoBytes;

impl EngineReports<'_> {
    /// Looks at what an engine has reported, and answers what waited for it.
    pub(in crate::vgpu) fn collect_suspends(&mut self, at: EngineAddress) {
        if self.vm.engines[at.index()].process().is_none() {
            return;
        }
        let reported = match self.vm.engines.take_reported(at) {
            Ok(reported) => reported,
            Err(text) => return self.vm.engines.condemn(at, &text),
        };
        for (origin, suspended) in reported {
            if let Some(origin) = origin {
                self.vm.answer(origin, Ok(suspended.as_bytes().to_vec()));
            }
        }
    }

    /// SUSPEND_CONTEXT, when what engines had reported before it is known. One that is suspended already is not suspended again
    /// (UMS-109).
    pub(in crate::vgpu) fn suspend_context(&mut self, origin: Origin, message: &Named) -> Outcome {
        let handle = ContextHandle::new(message.handle);
        let device = self.vm.objects.device(origin.context)?;
        device.contexts.get(handle).ok_or(Status::InvalidHandle)?;
        let waiting = self.vm.engines.suspending.iter().filter(|of| of.context == origin.context).count();
        (waiting < MAX_WAITS).or(Status::OutOfResources)?;
        let charge = self.vm.objects.charge(origin.context, Kind::Work, WORK_BYTES)?;
        let suspending = self
            .vm
            .engines
            .hold(&mut self.vm.objects, &*self.vm.config.schedule, origin.context, handle, |held| {
                held.by_guest = true
            })
            .ok_or(Status::DeviceLost)?;
        if self.vm.engines.is_reported(&suspending) {
            return Ok(Handled::with(&Suspended { fence: suspending.fence }));
        }
        let origin = self.vm.objects.park_charged(origin, Some(charge));
        self.vm.engines.suspending.push(Suspending { origin: Some(origin), ..suspending });
        Ok(Handled::Parked)
    }
}

impl Waits<'_> {
    /// RESUME_CONTEXT. Suspends that are not through yet are answered BUSY: the context may never have stopped.
    pub(in crate::vgpu) fn resume_context(&mut self, origin: Origin, message: &Named) -> Outcome {
        let handle = ContextHandle::new(message.handle);
        self.vm.objects.device(origin.context)?.contexts.get(handle).ok_or(Status::InvalidHandle)?;
        self.refuse_suspends(Status::Busy, |of| of.context == origin.context && of.handle == handle);
        Submission::of(self.vm).unhold(origin.context, handle, |held| held.by_guest = false);
        Ok(Handled::done())
    }

    /// Answers messages whose suspend comes to nothing.
    pub(in crate::vgpu) fn refuse_suspends(&mut self, status: Status, which: impl Fn(&Suspending) -> bool) {
        let refused: Vec<Suspending> =
            self.vm.engines.suspending.extract_if(.., |of| of.origin.is_some() && which(of)).collect();
        for origin in refused.into_iter().filter_map(|of| of.origin) {
            let text = "the context was resumed or ended before it was off the GPU".to_owned();
            self.vm.answer(origin, Err(Refused { status, text }));
        }
    }
}
