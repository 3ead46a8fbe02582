//! The eventfds between a ring's driver and its device.

use std::io;

use vmm_sys_util::eventfd::EventFd;

use super::interrupt::Interrupt;
use campanile_guest_driver::transport::error::TransportError;

/// `eventfd` flags EFD_CLOEXEC and EFD_NONBLOCK.
const EFD_CLOEXEC: i32 = 0o2_000_000;
const EFD_NONBLOCK: i32 = 0o4_000;

/// Kick, call and error of one ring, for as long as one device has it.
#[derive(Debug)]
pub(crate) struct RingEvents {
    kick: EventFd,
    error: EventFd,
    interrupt: Interrupt,
}

impl RingEvents {
    pub(crate) fn new() -> Result<Self, TransportError> {
        let refused =
            |source: io::Error| TransportError::System { what: "an eventfd", source: source.into() };
        Ok(Self {
            kick: EventFd::new(EFD_CLOEXEC | EFD_NONBLOCK).map_err(refused)?,
            error: EventFd::new(EFD_CLOEXEC | EFD_NONBLOCK).map_err(refused)?,
            interrupt: Interrupt::new().map_err(refused)?,
        })
    }

    pub(crate) fn interrupt(&self) -> &Interrupt {
        &self.interrupt
    }

    /// Written when the driver wants the device to look.
    pub(crate) fn kick(&self) -> &EventFd {
        &self.kick
    }

    /// Written by the device when it finds the ring broken. As in QEMU, it is not read.
    pub(crate) fn error(&self) -> &EventFd {
        &self.error
    }

    /// Written when the device wants the driver to look.
    pub(crate) fn call(&self) -> &EventFd {
        self.interrupt.event()
    }
}
