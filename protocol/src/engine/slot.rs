//! A physical doorbell: what one slot of the watch table points to, in one word.

/// A doorbell slot (UMS-11, UMS-12).
///
/// ```text
///   63            49 48       33 32        17 16         1     0
///  +----------------+-----------+------------+------------+--------+
///  | generation (15)| cell (16) | process(16)| queue (16) | watched|
///  +----------------+-----------+------------+------------+--------+
/// ```
///
/// Swapping the word is what other systems do by rotating the guest's mapping between the doorbell and a dummy
/// page: a slot that does not watch a cell makes that cell a dummy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DoorbellSlot(pub u64);

impl DoorbellSlot {
    /// Watches nothing.
    pub const FREE: Self = Self(0);

    /// Watches `cell` of the device page of `process` for `queue`.
    pub const fn watch(queue: u16, process: u16, cell: u16, generation: u16) -> Self {
        Self(
            ((generation as u64 & 0x7fff) << 49)
                | ((cell as u64) << 33)
                | ((process as u64) << 17)
                | ((queue as u64) << 1)
                | 1,
        )
    }

    /// Whether it watches a cell.
    pub const fn is_watching(self) -> bool {
        self.0 & 1 == 1
    }

    /// The queue entry.
    pub const fn queue(self) -> u16 {
        ((self.0 >> 1) & 0xffff) as u16
    }

    /// The process entry.
    pub const fn process(self) -> u16 {
        ((self.0 >> 17) & 0xffff) as u16
    }

    /// The cell in the device page.
    pub const fn cell(self) -> u16 {
        ((self.0 >> 33) & 0xffff) as u16
    }
}

#[cfg(test)]
mod tests {
    use super::DoorbellSlot;

    #[test]
    fn a_slot_gives_back_what_it_watches() {
        let slot = DoorbellSlot::watch(1023, 255, 1000, 0x7fff);
        assert!(slot.is_watching());
        assert_eq!((slot.queue(), slot.process(), slot.cell()), (1023, 255, 1000));
        assert!(!DoorbellSlot::FREE.is_watching());
        assert_ne!(DoorbellSlot::watch(1, 1, 1, 1), DoorbellSlot::watch(1, 1, 1, 2));
    }
}
