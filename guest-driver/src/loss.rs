//! Why a device is lost.

use std::fmt;

use campanile_protocol::device_page;

/// What the daemon says of the loss of a device. The words lie in memory of the guest: they are for people and for
/// retry logic, and nothing is proven by them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceLoss {
    /// `DEVICE_*` of the protocol: what happened to the device (TDR-66).
    pub status: u64,
    /// Why the GPU was reset (TDR-74), or 0 where no reset was the cause.
    pub reason: u32,
    /// Whether other work was the cause.
    pub is_collateral: bool,
    /// Number of the daemon's report, for the operator of the host to find; 0 where there is none.
    pub report: u64,
}

impl DeviceLoss {
    /// From the words of the device page.
    pub const fn from_words(status: u64, loss: u64, report: u64) -> Self {
        let reason = (loss & 0xffff_ffff) as u32;
        Self { status, reason, is_collateral: loss >> 32 == device_page::LOSS_COLLATERAL, report }
    }

    /// A loss of which nothing but its status is known.
    pub const fn of_status(status: u64) -> Self {
        Self { status, reason: 0, is_collateral: false, report: 0 }
    }

    const fn what(self) -> &'static str {
        match self.status {
            device_page::DEVICE_RESET => "the GPU was reset",
            device_page::DEVICE_HUNG => "its work hung the GPU, or crashed its driver",
            device_page::DEVICE_STOPPED => "it was ended",
            device_page::DEVICE_OUT_OF_MEMORY => "the host has no memory for it",
            device_page::DEVICE_DMA_FAULT => "it submitted a packet or ring entry that breaks a rule",
            device_page::DEVICE_PAGE_FAULT => "it used an address that is not mapped",
            0 => "it was unplugged",
            _ => "for no stated reason",
        }
    }

    const fn why(self) -> &'static str {
        match self.reason {
            1 => "the operator asked for it",
            6 => "engine timeout",
            9 => "engine timeout, promoted to a reset of everything",
            11 => "the engine reported an impossible fence",
            _ => "",
        }
    }
}

impl fmt::Display for DeviceLoss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.what())?;
        if self.reason != 0 {
            let why = self.why();
            let whose = if self.is_collateral { ", through no fault of its own" } else { "" };
            write!(f, " ({why}{whose}; report {} on the host)", self.report)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use campanile_protocol::device_page;

    use super::DeviceLoss;

    #[test]
    fn a_loss_says_what_why_and_through_whom() {
        let own = DeviceLoss::from_words(device_page::DEVICE_HUNG, 6, 12);
        assert_eq!(own, DeviceLoss { status: 3, reason: 6, is_collateral: false, report: 12 });
        assert_eq!(
            own.to_string(),
            "its work hung the GPU, or crashed its driver (engine timeout; report 12 on the host)"
        );
        let others = DeviceLoss::from_words(device_page::DEVICE_RESET, 1 << 32 | 9, 7);
        assert!(others.is_collateral);
        assert!(others.to_string().contains("through no fault of its own; report 7"));
        let fault = DeviceLoss::from_words(device_page::DEVICE_PAGE_FAULT, 0, 0);
        assert_eq!(fault.to_string(), "it used an address that is not mapped");
    }
}
