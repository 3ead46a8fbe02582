//! Points in a user-mode queue's progress.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;

use campanile_guest_driver::error::DriverError;
use campanile_guest_driver::fence::FencePoint;

use crate::boundary::given;
use crate::boundary::guarded;
use crate::boundary::release;
use crate::boundary::timeout;
use crate::result::CampanileResult;

/// As a timeout: however long it takes.
pub const CAMPANILE_NO_TIMEOUT: u64 = 0xFFFF_FFFF_FFFF_FFFF;

/// A point that a user-mode queue will reach.
#[derive(Debug)]
pub struct CampanileFencePoint(pub(crate) FencePoint);

/// Gives a fence point back; NULL is nothing. What it stands for goes on.
#[unsafe(no_mangle)]
pub extern "C" fn campanile_fence_point_destroy(point: Option<Box<CampanileFencePoint>>) {
    release("campanile_fence_point_destroy", point);
}

/// How many submissions of its queue have come when it is reached; 0 for NULL.
#[unsafe(no_mangle)]
pub extern "C" fn campanile_fence_point_value(point: Option<&CampanileFencePoint>) -> u64 {
    point.map_or(0, |point| point.0.value())
}

/// Whether it is reached: one load from memory. A lost device never reaches it, see `campanile_device_check`.
#[unsafe(no_mangle)]
pub extern "C" fn campanile_fence_point_poll(
    point: Option<&CampanileFencePoint>,
    reached: Option<&mut MaybeUninit<bool>>,
) -> CampanileResult {
    guarded("campanile_fence_point_poll", || {
        let point = given(point, "point")?;
        given(reached, "reached")?.write(point.0.is_reached());
        Ok(())
    })
}

/// Polls until it is reached, and keeps a CPU busy meanwhile: the shortest wait. `CAMPANILE_DEVICE_LOST` or
/// `CAMPANILE_DISCONNECTED` where it never will be.
#[unsafe(no_mangle)]
pub extern "C" fn campanile_fence_point_spin(point: Option<&CampanileFencePoint>) -> CampanileResult {
    guarded("campanile_fence_point_spin", || Ok(given(point, "point")?.0.spin()?))
}

/// Waits until it is reached: polls for 50 µs and then sleeps. `timeout_ns` is in nanoseconds, or
/// `CAMPANILE_NO_TIMEOUT`; 0 only looks. `CAMPANILE_TIMEOUT` when the time was over first; `CAMPANILE_DEVICE_LOST` or
/// `CAMPANILE_DISCONNECTED` where it never will be reached.
#[unsafe(no_mangle)]
pub extern "C" fn campanile_fence_point_wait(
    point: Option<&CampanileFencePoint>,
    timeout_ns: u64,
) -> CampanileResult {
    guarded("campanile_fence_point_wait", || {
        let point = &given(point, "point")?.0;
        if timeout_ns == 0 && !point.is_reached() {
            return Err(DriverError::Timeout.into());
        }
        Ok(point.wait(timeout(timeout_ns))?)
    })
}
