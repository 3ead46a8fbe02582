//! A failure on its way to C: its code and its words.

use std::fmt::Display;

use campanile_guest_driver::error::DriverError;
use campanile_guest_driver::transport::error::Refusal;
use campanile_guest_driver::transport::error::TransportError;
use campanile_protocol::control::status::Status;

use crate::result::CampanileResult;

/// What `campanile_result` and `campanile_last_error` will say.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) result: CampanileResult,
    pub(crate) text: String,
}

impl Failure {
    pub(crate) fn new(result: CampanileResult, text: impl Display) -> Self {
        Self { result, text: text.to_string() }
    }

    /// An argument that breaks a rule.
    pub(crate) fn argument(text: impl Display) -> Self {
        Self::new(CampanileResult::CampanileInvalidArgument, text)
    }

    /// The argument `name` is NULL.
    pub(crate) fn null(name: &str) -> Self {
        Self::argument(format_args!("{name} is NULL"))
    }
}

impl From<DriverError> for Failure {
    fn from(error: DriverError) -> Self {
        let result = match &error {
            DriverError::Transport(error) => of_transport(error),
            DriverError::Refused { status, .. } => of_status(*status),
            DriverError::Version { .. } | DriverError::Caps { .. } => {
                CampanileResult::CampanileVersionMismatch
            }
            DriverError::BadAnswer(_) => CampanileResult::CampanileFailed,
            DriverError::DeviceLost(_) | DriverError::DeviceInUse => CampanileResult::CampanileDeviceLost,
            DriverError::Range { .. } | DriverError::Commands(_) => CampanileResult::CampanileInvalidArgument,
            DriverError::AddressSpace(_) => CampanileResult::CampanileOutOfResources,
            DriverError::Timeout => CampanileResult::CampanileTimeout,
        };
        Self::new(result, error)
    }
}

impl From<TransportError> for Failure {
    fn from(error: TransportError) -> Self {
        DriverError::from(error).into()
    }
}

fn of_transport(error: &TransportError) -> CampanileResult {
    match error {
        TransportError::Connect { .. }
        | TransportError::Missing { .. }
        | TransportError::NoRenderNode { .. }
        | TransportError::NoChannel { .. }
        | TransportError::Silent { .. } => CampanileResult::CampanileNoDevice,
        TransportError::Disconnected | TransportError::DeviceReset | TransportError::BrokenRing => {
            CampanileResult::CampanileDisconnected
        }
        TransportError::OutOfGuestRam { .. }
        | TransportError::OutOfWindow { .. }
        | TransportError::Refused { refusal: Refusal::OutOfMemory, .. } => {
            CampanileResult::CampanileOutOfResources
        }
        TransportError::Size { .. } | TransportError::ChainTooLong { .. } => {
            CampanileResult::CampanileInvalidArgument
        }
        TransportError::Timeout { .. } => CampanileResult::CampanileTimeout,
        _ => CampanileResult::CampanileFailed,
    }
}

fn of_status(status: Status) -> CampanileResult {
    match status {
        Status::InvalidParameter
        | Status::InvalidHandle
        | Status::InvalidResource
        | Status::InvalidAddress
        | Status::NotResident => CampanileResult::CampanileInvalidArgument,
        Status::OutOfResources => CampanileResult::CampanileOutOfResources,
        Status::NotSupported | Status::NotPermitted => CampanileResult::CampanileNotSupported,
        Status::DeviceLost | Status::Blocked => CampanileResult::CampanileDeviceLost,
        Status::Leaving => CampanileResult::CampanileNoDevice,
        Status::VersionMismatch => CampanileResult::CampanileVersionMismatch,
        Status::KernelRefused => CampanileResult::CampanileKernelRefused,
        Status::Ok | Status::NoDevice | Status::DeviceExists | Status::UnknownMessage | Status::Busy => {
            CampanileResult::CampanileFailed
        }
    }
}
