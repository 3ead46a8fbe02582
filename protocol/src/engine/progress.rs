//! What an engine runs and how far it is: progress as TDR sees it, in one word.

/// What an engine works on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// Nothing, or only what waits for a fence or for memory.
    Nothing,
    /// The hardware queue's oldest buffer.
    HwQueue,
    /// A user-mode queue, by its entry.
    UserQueue(u16),
}

/// The progress word ([`super::block::PROGRESS`]).
///
/// ```text
///   63                32 31      30        17 16                 0
///  +--------------------+--------+------------+------------------+
///  | steps              | exempt | zero       | work             |
///  +--------------------+--------+------------+------------------+
///                                  work: 0 nothing, 1 the hardware queue, 2 + n user-mode queue n
/// ```
///
/// A word that does not change while there is work is an engine that makes no progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Rises (and wraps) with every packet, and every chunk of a long one.
    pub steps: u32,
    /// Whether no timeout holds for the work (UMS-27).
    pub is_exempt: bool,
    /// The work.
    pub work: Work,
}

const EXEMPT: u64 = 1 << 31;

impl Progress {
    /// Decodes any word; unknown work is nothing.
    pub const fn from_word(word: u64) -> Self {
        let work = match word & 0x1_ffff {
            0 => Work::Nothing,
            1 => Work::HwQueue,
            queue @ 2..0x1_0002 => Work::UserQueue(((queue - 2) & 0xffff) as u16),
            _ => Work::Nothing,
        };
        Self { steps: (word >> 32) as u32, is_exempt: word & EXEMPT != 0, work }
    }

    /// As a word.
    pub const fn word(self) -> u64 {
        let work = match self.work {
            Work::Nothing => 0,
            Work::HwQueue => 1,
            Work::UserQueue(queue) => 2 + queue as u64,
        };
        (self.steps as u64) << 32 | if self.is_exempt { EXEMPT } else { 0 } | work
    }

    /// One step on, at other work.
    pub const fn next(self, work: Work, is_exempt: bool) -> Self {
        Self { steps: self.steps.wrapping_add(1), is_exempt, work }
    }
}

#[cfg(test)]
mod tests {
    use super::Progress;
    use super::Work;

    #[test]
    fn a_word_says_what_was_put_in() {
        for work in [Work::Nothing, Work::HwQueue, Work::UserQueue(0), Work::UserQueue(u16::MAX)] {
            for is_exempt in [false, true] {
                let progress = Progress { steps: 0xfedc_ba98, is_exempt, work };
                assert_eq!(Progress::from_word(progress.word()), progress);
                assert_ne!(progress.next(work, is_exempt).word(), progress.word());
            }
        }
        assert_eq!(Progress::from_word(u64::MAX).work, Work::Nothing);
    }
}
