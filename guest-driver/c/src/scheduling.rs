//! How contexts and processes are scheduled.
#![allow(unsafe_code)]

use std::time::Duration;

use campanile_guest_driver::scheduling::Band;
use campanile_guest_driver::scheduling::ProcessClass;
use campanile_guest_driver::scheduling::Properties;

use crate::boundary::given;
use crate::boundary::guarded;
use crate::context::CampanileContext;
use crate::device::CampanileDevice;
use crate::failure::Failure;
use crate::result::CampanileResult;

/// Scheduling band: runs when nothing else has work.
pub const CAMPANILE_BAND_IDLE: u32 = 0;
/// Scheduling band: where contexts begin.
pub const CAMPANILE_BAND_NORMAL: u32 = 1;
/// Scheduling band: what a user looks at. The operator grants it.
pub const CAMPANILE_BAND_FOCUS: u32 = 2;
/// Scheduling band: before all others, higher levels first. The operator grants it.
pub const CAMPANILE_BAND_REALTIME: u32 = 3;

/// Priority class of a process: its contexts are in the idle band.
pub const CAMPANILE_CLASS_IDLE: u32 = 0;
/// Priority class of a process: half the weight of others.
pub const CAMPANILE_CLASS_BELOW_NORMAL: u32 = 1;
/// Priority class of a process: where processes begin.
pub const CAMPANILE_CLASS_NORMAL: u32 = 2;
/// Priority class of a process: twice the weight of others.
pub const CAMPANILE_CLASS_ABOVE_NORMAL: u32 = 3;
/// Priority class of a process: four times the weight of others.
pub const CAMPANILE_CLASS_HIGH: u32 = 4;
/// Priority class of a process: its contexts are in the realtime band at level 0. The operator grants it.
pub const CAMPANILE_CLASS_REALTIME: u32 = 5;

const _: () = {
    use campanile_protocol::control::scheduling;
    assert!(CAMPANILE_BAND_IDLE == scheduling::BAND_IDLE, "one set of bands");
    assert!(CAMPANILE_BAND_NORMAL == scheduling::BAND_NORMAL, "one set of bands");
    assert!(CAMPANILE_BAND_FOCUS == scheduling::BAND_FOCUS, "one set of bands");
    assert!(CAMPANILE_BAND_REALTIME == scheduling::BAND_REALTIME, "one set of bands");
    assert!(CAMPANILE_CLASS_IDLE == scheduling::CLASS_IDLE, "one set of classes");
    assert!(CAMPANILE_CLASS_BELOW_NORMAL == scheduling::CLASS_BELOW_NORMAL, "one set of classes");
    assert!(CAMPANILE_CLASS_NORMAL == scheduling::CLASS_NORMAL, "one set of classes");
    assert!(CAMPANILE_CLASS_ABOVE_NORMAL == scheduling::CLASS_ABOVE_NORMAL, "one set of classes");
    assert!(CAMPANILE_CLASS_HIGH == scheduling::CLASS_HIGH, "one set of classes");
    assert!(CAMPANILE_CLASS_REALTIME == scheduling::CLASS_REALTIME, "one set of classes");
};

/// How a context is scheduled. Times in nanoseconds, at most one second, counted in units of 100; a time that is 0 means
/// its default.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct CampanileScheduling {
    /// A `CAMPANILE_BAND_…`.
    pub band: u32,
    /// Level in the realtime band, 0 to 31; else 0.
    pub realtime_level: u32,
    /// Orders the contexts of one process, -7 to 7, higher first.
    pub in_process_priority: i32,
    /// Zero.
    pub reserved: u32,
    /// How long it runs on while others wait.
    pub quantum: u64,
    /// How long the running context may go on when this one, of the same priority, wakes.
    pub grace_same: u64,
    /// The same against lower priority.
    pub grace_lower: u64,
}

fn properties(from: &CampanileScheduling) -> Result<Properties, Failure> {
    let refused = |what: &str, value: i64| Failure::argument(format_args!("scheduling->{what} is {value}"));
    let level = u8::try_from(from.realtime_level);
    let band = match from.band {
        CAMPANILE_BAND_IDLE => Band::Idle,
        CAMPANILE_BAND_NORMAL => Band::Normal,
        CAMPANILE_BAND_FOCUS => Band::Focus,
        CAMPANILE_BAND_REALTIME => {
            Band::Realtime(level.map_err(|_| refused("realtime_level", from.realtime_level.into()))?)
        }
        band => return Err(refused("band", band.into())),
    };
    if from.realtime_level != 0 && !matches!(band, Band::Realtime(_)) {
        return Err(refused("realtime_level", from.realtime_level.into()));
    }
    if from.reserved != 0 {
        return Err(refused("reserved", from.reserved.into()));
    }
    let priority = i8::try_from(from.in_process_priority);
    let time = |nanoseconds: u64| (nanoseconds != 0).then(|| Duration::from_nanos(nanoseconds));
    Ok(Properties {
        band,
        in_process_priority: priority
            .map_err(|_| refused("in_process_priority", from.in_process_priority.into()))?,
        quantum: time(from.quantum),
        grace_same: time(from.grace_same),
        grace_lower: time(from.grace_lower),
    })
}

/// Has a context scheduled so from the next scheduling decision on. `CAMPANILE_NOT_SUPPORTED`, with the reason, for a band that
/// the operator has not granted.
#[unsafe(no_mangle)]
pub extern "C" fn campanile_context_set_scheduling(
    context: Option<&CampanileContext>,
    scheduling: Option<&CampanileScheduling>,
) -> CampanileResult {
    guarded("campanile_context_set_scheduling", || {
        let context = given(context, "context")?;
        Ok(context.0.set_scheduling(&properties(given(scheduling, "scheduling")?)?)?)
    })
}

/// Sets the priority class of this process, a `CAMPANILE_CLASS_…`: for its contexts whose band was never set.
/// `CAMPANILE_NOT_SUPPORTED`, with the reason, for one that the operator has not granted.
#[unsafe(no_mangle)]
pub extern "C" fn campanile_device_set_process_class(
    device: Option<&CampanileDevice>,
    process_class: u32,
) -> CampanileResult {
    guarded("campanile_device_set_process_class", || {
        let device = given(device, "device")?;
        let class = match process_class {
            CAMPANILE_CLASS_IDLE => ProcessClass::Idle,
            CAMPANILE_CLASS_BELOW_NORMAL => ProcessClass::BelowNormal,
            CAMPANILE_CLASS_NORMAL => ProcessClass::Normal,
            CAMPANILE_CLASS_ABOVE_NORMAL => ProcessClass::AboveNormal,
            CAMPANILE_CLASS_HIGH => ProcessClass::High,
            CAMPANILE_CLASS_REALTIME => ProcessClass::Realtime,
            other => {
                return Err(Failure::argument(format_args!("class {other} is no CAMPANILE_CLASS_…")));
            }
        };
        Ok(device.0.set_process_class(class)?)
    })
}
