//! Why a reset took place, as it is recorded (TDR-74).

use serde::Serialize;

use crate::vgpu::measures::CAUSES;

/// The recorded types that can come up here: no display (3, 13), no reset for a page fault (10, 12), and every node
/// can be reset by itself (2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(into = "u32")]
#[repr(u32)]
pub enum Reason {
    /// The operator asked for it (TDR-29).
    Forced = 1,
    /// An engine hung or died.
    EngineTimeout = 6,
    /// An engine hung or died, and resetting it alone was not possible or not enough (TDR-73).
    PromotedToAdapter = 9,
    /// An engine reported a fence that cannot be (TDR-41).
    InvalidFence = 11,
}

impl From<Reason> for u32 {
    fn from(reason: Reason) -> Self {
        reason as Self
    }
}

impl Reason {
    /// All of them.
    pub const ALL: [Self; CAUSES] =
        [Self::Forced, Self::EngineTimeout, Self::PromotedToAdapter, Self::InvalidFence];

    /// Its place in [`Self::ALL`].
    pub fn index(self) -> usize {
        Self::ALL.iter().position(|reason| *reason == self).unwrap_or(0)
    }

    /// The code of the matching report (TDR-81): one engine or the whole adapter.
    pub const fn report_code(self, is_adapter: bool) -> u32 {
        match (self, is_adapter) {
            (Self::PromotedToAdapter, _) | (_, true) => 0x117,
            _ => 0x141,
        }
    }

    /// In words.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Forced => "forced",
            Self::EngineTimeout => "engine timeout",
            Self::PromotedToAdapter => "engine timeout promoted to adapter reset",
            Self::InvalidFence => "invalid fence",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Reason;

    #[test]
    fn tdr_74_tdr_81_reasons_have_their_recorded_numbers() {
        let numbers =
            [Reason::Forced, Reason::EngineTimeout, Reason::PromotedToAdapter, Reason::InvalidFence]
                .map(u32::from);
        assert_eq!(numbers, [1, 6, 9, 11]);
        assert_eq!(Reason::EngineTimeout.report_code(false), 0x141);
        assert_eq!(Reason::PromotedToAdapter.report_code(false), 0x117);
        assert_eq!(Reason::Forced.report_code(true), 0x117);
    }

    #[test]
    fn tdr_74_each_reason_is_counted_at_a_place_of_its_own() {
        for (place, reason) in Reason::ALL.into_iter().enumerate() {
            assert_eq!(reason.index(), place, "{reason:?}");
        }
    }

    #[test]
    fn tdr_74_each_reason_is_told_in_words() {
        let names = [Reason::Forced, Reason::EngineTimeout, Reason::PromotedToAdapter, Reason::InvalidFence];
        let words = ["forced", "engine timeout", "engine timeout promoted to adapter reset", "invalid fence"];
        assert_eq!(names.map(Reason::name), words);
    }
}
