//! Outcome of a control message.

/// What a control message came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Status {
    /// Done.
    Ok = 0,
    /// A field breaks a rule; nothing was changed.
    InvalidParameter = 1,
    /// A handle that names nothing of that kind in this process.
    InvalidHandle = 2,
    /// A resource that this context has not attached, or a range outside it.
    InvalidResource = 3,
    /// An address range that is misaligned, overlaps another, or is not mapped.
    InvalidAddress = 4,
    /// A documented bound is reached (MCDM-06).
    OutOfResources = 5,
    /// This node or device does not have that.
    NotSupported = 6,
    /// The device is in error; destroy and recreate it (UMS-100).
    DeviceLost = 7,
    /// The first message of a context must create its device.
    NoDevice = 8,
    /// The context has its device already.
    DeviceExists = 9,
    /// The guest speaks another protocol version.
    VersionMismatch = 10,
    /// The kernel was refused; the payload says why, in words.
    KernelRefused = 11,
    /// The message code does not exist.
    UnknownMessage = 12,
    /// The object is still in use.
    Busy = 13,
    /// This process, or the whole vGPU, may not use the GPU any more: it hung too often (TDR-21). The payload says so.
    Blocked = 14,
    /// The operator has not granted that; the payload says what (PRE-65).
    NotPermitted = 15,
    /// It has to be resident (UMS-38): make it so, and try again.
    NotResident = 16,
    /// The device is about to be taken away from the VM: open the one that comes.
    Leaving = 17,
}

impl Status {
    /// Decodes a status word.
    pub const fn from_word(word: u32) -> Option<Self> {
        Some(match word {
            0 => Self::Ok,
            1 => Self::InvalidParameter,
            2 => Self::InvalidHandle,
            3 => Self::InvalidResource,
            4 => Self::InvalidAddress,
            5 => Self::OutOfResources,
            6 => Self::NotSupported,
            7 => Self::DeviceLost,
            8 => Self::NoDevice,
            9 => Self::DeviceExists,
            10 => Self::VersionMismatch,
            11 => Self::KernelRefused,
            12 => Self::UnknownMessage,
            13 => Self::Busy,
            14 => Self::Blocked,
            15 => Self::NotPermitted,
            16 => Self::NotResident,
            17 => Self::Leaving,
            _ => return None,
        })
    }

    /// The word on the wire.
    pub const fn word(self) -> u32 {
        self as u32
    }
}
