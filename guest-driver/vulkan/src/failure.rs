//! Failures of the guest driver as results of Vulkan.

use ash::vk;
use campanile_guest_driver::error::DriverError;
use campanile_guest_driver::transport::error::TransportError;
use campanile_protocol::control::status::Status;

use crate::report::report;

/// Makes a result of a failure, and says where it happened.
pub(crate) fn failed(what: &'static str) -> impl Fn(DriverError) -> vk::Result {
    move |error| {
        report!("{what}: {error}");
        result_of(&error)
    }
}

fn result_of(error: &DriverError) -> vk::Result {
    match error {
        DriverError::DeviceLost(_)
        | DriverError::Refused { status: Status::DeviceLost, .. }
        | DriverError::Transport(TransportError::Disconnected) => vk::Result::ERROR_DEVICE_LOST,
        DriverError::Transport(_) | DriverError::AddressSpace(_) => vk::Result::ERROR_OUT_OF_DEVICE_MEMORY,
        DriverError::Refused { status: Status::OutOfResources, .. } => vk::Result::ERROR_OUT_OF_DEVICE_MEMORY,
        DriverError::Refused { status: Status::Blocked, .. } => vk::Result::ERROR_INITIALIZATION_FAILED,
        DriverError::Timeout => vk::Result::TIMEOUT,
        DriverError::Version { .. } => vk::Result::ERROR_INCOMPATIBLE_DRIVER,
        _ => vk::Result::ERROR_UNKNOWN,
    }
}
