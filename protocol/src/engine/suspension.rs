//! Whether a context may run: its suspends, counted (UMS-102 to UMS-114).
//!
//! ```text
//!                 daemon: suspend, fence n + 1             engine: nothing of it runs, nothing is held
//!   RESUMED (n) ───────────────────────────▶ PENDING (n + 1) ──────────────────────────▶ SUSPENDED (n + 1)
//!     ▲  ▲                                       │                                            │
//!     │  └────────────── daemon: resume ─────────┘                                            │
//!     └───────────────────────────────────── daemon: resume ──────────────────────────────────┘
//! ```
//!
//! An engine reports every fence that it sees; one whose suspend is over by then says nothing about the context, and
//! nobody waits for it.
//!
//! The daemon alone stores the request word, the engine alone the report word. Each suspend has a fence of its own, so
//! that the report of one never passes for that of a later one (UMS-111).

/// A context's request word ([`super::block::CONTEXT_REQUEST`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Suspension {
    /// Suspends so far: the fence of the last one. A context begins with none, resumed (UMS-114).
    pub fence: u64,
    /// Whether the last one still holds.
    pub is_suspended: bool,
}

impl Suspension {
    /// Decodes.
    pub const fn from_word(word: u64) -> Self {
        Self { fence: word >> 1, is_suspended: word & 1 == 1 }
    }

    /// Encodes.
    pub const fn word(self) -> u64 {
        self.fence << 1 | self.is_suspended as u64
    }

    /// One suspend more.
    #[must_use]
    pub const fn suspend(self) -> Self {
        Self { fence: self.fence + 1, is_suspended: true }
    }

    /// May run again.
    #[must_use]
    pub const fn resume(self) -> Self {
        Self { fence: self.fence, is_suspended: false }
    }
}

#[cfg(test)]
mod tests {
    use super::Suspension;

    #[test]
    fn ums_109_fences_rise_with_every_suspend_and_with_nothing_else() {
        let mut suspension = Suspension::default();
        for fence in 1..100 {
            suspension = suspension.suspend();
            assert_eq!(Suspension::from_word(suspension.word()), Suspension { fence, is_suspended: true });
            suspension = suspension.resume();
            assert_eq!(Suspension::from_word(suspension.word()), Suspension { fence, is_suspended: false });
        }
    }

    #[test]
    fn ums_114_a_context_begins_resumed() {
        assert_eq!(Suspension::from_word(0), Suspension { fence: 0, is_suspended: false });
    }
}
