//! Time: the ACPI timer, which every machine here has at the same port.

use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering;

use crate::ports;

const PORT: u16 = 0x608;
const TICKS_A_MILLISECOND: u32 = 3580;
/// The timer may have 24 bits only.
const MASK: u32 = 0xff_ffff;
/// The longest step that is believed: the machine may have been paused, or moved to where the timer starts anew.
const LONGEST_STEP: u32 = 20 * TICKS_A_MILLISECOND;

/// The timer as it was last seen.
static SEEN: AtomicU32 = AtomicU32::new(0);

/// Begins to take time.
pub(crate) fn begin() {
    SEEN.store(ports::read32(PORT), Ordering::Relaxed);
}

/// Time that the machine ran: what passed while it was paused, or gone, counts for next to nothing.
pub(crate) struct Patience {
    left: u64,
}

impl Patience {
    /// For so many milliseconds.
    pub(crate) fn new(milliseconds: u32) -> Self {
        begin();
        Self { left: u64::from(milliseconds) * u64::from(TICKS_A_MILLISECOND) }
    }

    /// Whether it is over.
    pub(crate) fn is_over(&mut self) -> bool {
        let now = ports::read32(PORT);
        let before = SEEN.swap(now, Ordering::Relaxed);
        let passed = (now.wrapping_sub(before) & MASK).min(LONGEST_STEP);
        self.left = self.left.saturating_sub(u64::from(passed));
        self.left == 0
    }
}
