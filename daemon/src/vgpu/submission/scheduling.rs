//! How contexts are scheduled: what guests ask for, as far as the operator grants it (PRE-61 to PRE-70).

use campanile_host_gpu::adapter::Adapter;
use campanile_host_gpu::engine::address::EngineAddress;
use campanile_host_gpu::engine::properties::time;
use campanile_host_gpu::ids::ContextIndex;
use campanile_host_gpu::sched::parameters::Band;
use campanile_host_gpu::sched::parameters::Parameters;
use campanile_protocol::control::scheduling;
use campanile_protocol::control::scheduling::SetProcessClass;
use campanile_protocol::control::scheduling::SetSchedulingProperties;
use campanile_protocol::control::status::Status;
use std::time::Duration;

use crate::ids::GuestProcess;
use crate::vgpu::objects::class::ProcessClass;
use crate::vgpu::objects::ids::ContextHandle;
use crate::vgpu::objects::message::Checked;
use crate::vgpu::objects::message::Handled;
use crate::vgpu::objects::message::Origin;
use crate::vgpu::objects::message::Outcome;
use crate::vgpu::objects::message::Refused;
use crate::vgpu::submission::buffers::Submission;

/// What a message says of a context, checked.
fn parameters(message: &SetSchedulingProperties) -> Result<Parameters, Refused> {
    let wrong = |text: String| Refused { status: Status::InvalidParameter, text };
    let band = Band::from_number(message.band).ok_or_else(|| {
        wrong(format!(
            "band {}; {} to {} are possible",
            message.band,
            scheduling::BAND_IDLE,
            scheduling::BAND_REALTIME
        ))
    })?;
    // Outside of REALTIME the level is ignored (PRE-63).
    let level = if band == Band::Realtime { message.realtime_level } else { 0 };
    if level > scheduling::MAX_REALTIME_LEVEL {
        return Err(wrong(format!(
            "realtime level {level}; 0 to {} are possible",
            scheduling::MAX_REALTIME_LEVEL
        )));
    }
    let (priority, most) = (message.in_process_priority, scheduling::MAX_IN_PROCESS_PRIORITY);
    if !(-most..=most).contains(&priority) {
        return Err(wrong(format!("in-process priority {priority}; -{most} to {most} are possible")));
    }
    let time_of = |name: &str, units: u32, default: Duration| {
        if units > scheduling::MAX_TIME {
            return Err(wrong(format!(
                "{name} of {units} times 100 ns; {} are possible",
                scheduling::MAX_TIME
            )));
        }
        Ok(if units == 0 { default } else { time(units) })
    };
    let defaults = Parameters::default();
    Ok(Parameters {
        band,
        level: u8::try_from(level).unwrap_or(0),
        priority: i8::try_from(priority).unwrap_or(0),
        quantum: time_of("quantum", message.quantum, defaults.quantum)?,
        grace_same: time_of("grace period", message.grace_same, defaults.grace_same)?,
        grace_lower: time_of("grace period", message.grace_lower, defaults.grace_lower)?,
        ..defaults
    })
}

impl Submission<'_> {
    /// SET_SCHEDULING_PROPERTIES.
    pub(in crate::vgpu) fn set_scheduling(
        &mut self,
        origin: Origin,
        message: &SetSchedulingProperties,
    ) -> Outcome {
        let handle = ContextHandle::new(message.context);
        self.vm.objects.device(origin.context)?.contexts.get(handle).ok_or(Status::InvalidHandle)?;
        let parameters = parameters(message)?;
        self.check_granted(parameters.band)?;
        let context = self.vm.objects.device_mut(origin.context)?.contexts.get_mut(handle);
        context.ok_or(Status::InvalidHandle)?.scheduling = Some(parameters);
        self.reschedule(origin.context, handle);
        Ok(Handled::done())
    }

    /// SET_PROCESS_CLASS.
    pub(in crate::vgpu) fn set_process_class(
        &mut self,
        origin: Origin,
        message: &SetProcessClass,
    ) -> Outcome {
        (message.reserved == 0).or(Status::InvalidParameter)?;
        let class = ProcessClass::from_number(message.class).ok_or_else(|| Refused {
            status: Status::InvalidParameter,
            text: format!(
                "process class {}; 0 to {} are possible",
                message.class,
                scheduling::CLASS_REALTIME
            ),
        })?;
        self.check_granted(class.band())?;
        let device = self.vm.objects.device_mut(origin.context)?;
        device.class = class;
        for handle in device.contexts.handles() {
            self.reschedule(origin.context, handle);
        }
        Ok(Handled::done())
    }

    /// Refuses a band that the operator has not granted (PRE-65).
    fn check_granted(&self, band: Band) -> Result<(), Refused> {
        if band <= self.vm.config.share.highest_band {
            return Ok(());
        }
        let text = format!("the band {band:?} was not granted to this vGPU; the operator can (bands=…)");
        Err(Refused { status: Status::NotPermitted, text })
    }

    /// How a context is scheduled now.
    fn parameters_of(&self, of: GuestProcess, handle: ContextHandle) -> Option<Parameters> {
        let device = self.vm.objects.device(of).ok()?;
        let context = device.contexts.get(handle)?;
        let of_class = Parameters { band: device.class.band(), ..Parameters::default() };
        let own = context.scheduling.unwrap_or(of_class);
        Some(Parameters { group: u64::from(of.get()), weight: device.class.weight(), ..own })
    }

    /// Tells the engine of a new context how it is scheduled, before it has any work (PRE-70).
    pub(in crate::vgpu) fn introduce_context(
        &mut self,
        at: EngineAddress,
        entry: ContextIndex,
        owner: (GuestProcess, ContextHandle),
    ) {
        let now = self.vm.engines.now();
        let Some(parameters) = self.parameters_of(owner.0, owner.1) else { return };
        let slot = &mut self.vm.engines[at.index()];
        let Some(process) = slot.process_mut() else { return };
        process.set_scheduling_properties(entry, &parameters);
        let used = process.contexts.used(entry);
        slot.run_list.add(entry, owner, parameters, used, now);
    }

    /// It is scheduled otherwise from now on (PRE-69).
    fn reschedule(&mut self, of: GuestProcess, handle: ContextHandle) {
        let now = self.vm.engines.now();
        let Some(parameters) = self.parameters_of(of, handle) else { return };
        let context = self.vm.objects.device(of).ok().and_then(|device| device.contexts.get(handle));
        let Some((at, entry)) = context.and_then(|context| Some((context.at, context.entry?))) else {
            return;
        };
        let slot = &mut self.vm.engines[at.index()];
        slot.run_list.change(entry, parameters, now);
        if let Some(process) = slot.process_mut() {
            process.set_scheduling_properties(entry, &parameters);
        }
        self.fill_hw_queue(at);
    }
}
