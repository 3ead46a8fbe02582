//! The policies, by name. A new one is a file beside this, and a line here.

use std::fmt;
use std::str::FromStr;

use super::fair::Fair;
use super::policy::Policy;
use super::strict_priority::StrictPriority;

/// A policy to choose.
#[derive(Clone, Copy)]
pub struct Choice {
    make: fn() -> Box<dyn Policy>,
}

/// All there are; the first one is the default.
pub const ALL: &[Choice] =
    &[Choice { make: || Box::new(Fair::default()) }, Choice { make: || Box::new(StrictPriority::default()) }];

impl Choice {
    /// Its name in the configuration.
    pub fn name(self) -> &'static str {
        self.make().name()
    }

    /// A policy of this kind, of which nothing is known yet.
    pub fn make(self) -> Box<dyn Policy> {
        (self.make)()
    }
}

impl Default for Choice {
    fn default() -> Self {
        ALL[0]
    }
}

impl PartialEq for Choice {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl Eq for Choice {}

impl fmt::Debug for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// No policy has that name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no scheduling policy {name:?}; there are: {}", names().join(", "))]
pub struct NoSuchPolicy {
    name: String,
}

/// The names of all policies.
pub fn names() -> Vec<&'static str> {
    ALL.iter().map(|choice| choice.name()).collect()
}

impl FromStr for Choice {
    type Err = NoSuchPolicy;

    fn from_str(name: &str) -> Result<Self, NoSuchPolicy> {
        let known = ALL.iter().find(|choice| choice.name() == name);
        known.copied().ok_or_else(|| NoSuchPolicy { name: name.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::ALL;
    use super::Choice;

    #[test]
    fn a_policy_is_chosen_by_its_name() {
        for choice in ALL {
            assert_eq!(choice.to_string().parse(), Ok(*choice));
        }
        assert_eq!(Choice::default().name(), "fair");
        assert_ne!(ALL[0], ALL[1]);
    }

    #[test]
    fn a_wrong_name_is_answered_with_the_right_ones() {
        let error = "fairy".parse::<Choice>().unwrap_err().to_string();
        assert_eq!(error, "there is no scheduling policy \"fairy\"; there are: fair, strict-priority");
    }
}
