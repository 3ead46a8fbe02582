//! Ids of the checklist.

use std::fmt;
use std::str::FromStr;

/// A part of the checklist.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Group {
    /// User-mode submission.
    Ums,
    /// Timeout detection and recovery.
    Tdr,
    /// Preemption.
    Pre,
    /// The compute driver model.
    Mcdm,
    /// Dirty tracking.
    Dirty,
    /// Live migration.
    Lm,
    /// Continuity.
    Cont,
}

impl Group {
    /// All groups, in the order of the checklist.
    pub const ALL: [Self; 7] =
        [Self::Ums, Self::Tdr, Self::Pre, Self::Mcdm, Self::Dirty, Self::Lm, Self::Cont];

    /// The name, as in ids.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ums => "UMS",
            Self::Tdr => "TDR",
            Self::Pre => "PRE",
            Self::Mcdm => "MCDM",
            Self::Dirty => "DIRTY",
            Self::Lm => "LM",
            Self::Cont => "CONT",
        }
    }
}

/// A text that names no group, or no line of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoSuchId(String);

impl fmt::Display for NoSuchId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = Group::ALL.map(Group::name).join(", ");
        write!(f, "`{}` is no id of the checklist; its groups are {names}", self.0)
    }
}

impl std::error::Error for NoSuchId {}

impl FromStr for Group {
    type Err = NoSuchId;

    /// Upper or lower case: test names have the latter.
    fn from_str(text: &str) -> Result<Self, NoSuchId> {
        let named = |group: &Self| group.name().eq_ignore_ascii_case(text);
        Self::ALL.into_iter().find(named).ok_or_else(|| NoSuchId(text.to_owned()))
    }
}

/// One line of the checklist, such as `UMS-33`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RuleId {
    /// Its group.
    pub group: Group,
    /// Its number in the group.
    pub number: u32,
}

impl fmt::Display for RuleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{:02}", self.group.name(), self.number)
    }
}

impl FromStr for RuleId {
    type Err = NoSuchId;

    /// With or without leading zeros.
    fn from_str(text: &str) -> Result<Self, NoSuchId> {
        let refused = || NoSuchId(text.to_owned());
        let (group, number) = text.split_once('-').ok_or_else(refused)?;
        Ok(Self {
            group: group.parse().map_err(|_| refused())?,
            number: number.parse().map_err(|_| refused())?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Group;
    use super::RuleId;

    #[test]
    fn ids_read_with_and_without_zeros_and_print_as_in_the_checklist() {
        let id = RuleId { group: Group::Ums, number: 1 };
        assert_eq!(("UMS-01".parse(), "ums-1".parse()), (Ok(id), Ok(id)));
        assert_eq!(id.to_string(), "UMS-01");
        assert_eq!(RuleId { group: Group::Lm, number: 112 }.to_string(), "LM-112");
    }

    #[test]
    fn other_texts_are_refused() {
        for text in ["UMS", "UMS-", "UMS-x", "ABC-1", ""] {
            assert!(text.parse::<RuleId>().is_err(), "{text}");
        }
    }
}
