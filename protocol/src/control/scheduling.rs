//! Messages about scheduling: how a guest wants its contexts to run.
//!
//! What a guest asks for orders its own work. FOCUS and REALTIME, which put it before other VMs too, are the
//! operator's to grant (PRE-65).

use zerocopy::FromBytes;
use zerocopy::Immutable;
use zerocopy::IntoBytes;
use zerocopy::KnownLayout;

use crate::handle::Handle;

/// [`SetSchedulingProperties`]; in force at the next scheduling decision (PRE-69).
pub const SET_SCHEDULING_PROPERTIES: u32 = 26;
/// [`SetProcessClass`]; for all contexts of the process that have no band of their own.
pub const SET_PROCESS_CLASS: u32 = 27;

/// Band IDLE (PRE-62).
pub const BAND_IDLE: u32 = 0;
/// Band NORMAL, in which contexts begin.
pub const BAND_NORMAL: u32 = 1;
/// Band FOCUS; granted by the operator.
pub const BAND_FOCUS: u32 = 2;
/// Band REALTIME; granted by the operator.
pub const BAND_REALTIME: u32 = 3;

/// Highest level in [`BAND_REALTIME`] (PRE-63).
pub const MAX_REALTIME_LEVEL: u32 = 31;
/// In-process priorities go from minus this to this (PRE-64).
pub const MAX_IN_PROCESS_PRIORITY: i32 = 7;
/// Longest quantum or grace period, 100 ns units: one second.
pub const MAX_TIME: u32 = 10_000_000;

/// Process class IDLE: contexts in [`BAND_IDLE`] (PRE-61).
pub const CLASS_IDLE: u32 = 0;
/// Process class BELOW_NORMAL: half the weight.
pub const CLASS_BELOW_NORMAL: u32 = 1;
/// Process class NORMAL, in which processes begin.
pub const CLASS_NORMAL: u32 = 2;
/// Process class ABOVE_NORMAL: twice the weight.
pub const CLASS_ABOVE_NORMAL: u32 = 3;
/// Process class HIGH: four times the weight.
pub const CLASS_HIGH: u32 = 4;
/// Process class REALTIME: contexts in [`BAND_REALTIME`], level 0; granted by the operator.
pub const CLASS_REALTIME: u32 = 5;

/// How a context is scheduled. Times are in units of 100 ns, at most [`MAX_TIME`]; 0 for the default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SetSchedulingProperties {
    /// The context.
    pub context: Handle,
    /// `BAND_*`.
    pub band: u32,
    /// 0 to [`MAX_REALTIME_LEVEL`]; ignored outside of [`BAND_REALTIME`] (PRE-63).
    pub realtime_level: u32,
    /// In-process priority, minus to plus [`MAX_IN_PROCESS_PRIORITY`] (PRE-64).
    pub in_process_priority: i32,
    /// How long it runs on while others wait (PRE-66).
    pub quantum: u32,
    /// How long the running context may go on when this one, of the same priority, wakes (PRE-66).
    pub grace_same: u32,
    /// The same against lower priority (PRE-66).
    pub grace_lower: u32,
}

/// Sets the priority class of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SetProcessClass {
    /// `CLASS_*`.
    pub class: u32,
    /// Zero.
    pub reserved: u32,
}
