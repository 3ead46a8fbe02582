//! How a call ended.

/// How a call ended. Of anything but `CAMPANILE_OK`, `campanile_last_error` has the words.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum CampanileResult {
    /// Done.
    CampanileOk = 0,
    /// The time was over first. What was waited for goes on.
    CampanileTimeout = 1,
    /// A NULL where there must be something, or a value or range that breaks a rule. Nothing was changed.
    CampanileInvalidArgument = 2,
    /// This device, node or library does not have that.
    CampanileNotSupported = 3,
    /// Memory, addresses, or another of the documented limits is used up.
    CampanileOutOfResources = 4,
    /// There is no device: no daemon answers there, or it is no Campanile.
    CampanileNoDevice = 5,
    /// The daemon hung up, or the device was reset. Destroy everything and open the device again.
    CampanileDisconnected = 6,
    /// The device is in error. Destroy everything made from it and open it again.
    CampanileDeviceLost = 7,
    /// Daemon and library do not speak the same version of the protocol.
    CampanileVersionMismatch = 8,
    /// The kernel was refused; the message says why.
    CampanileKernelRefused = 9,
    /// The system or the daemon refused something for another reason, or answered nonsense.
    CampanileFailed = 10,
    /// A defect of this library. Destroy the objects of the call, and report it.
    CampanileInternal = 11,
}
