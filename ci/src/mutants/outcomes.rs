//! What became of the mutants.

use std::collections::BTreeMap;

use super::Mutant;

/// What became of one mutant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A test failed, or ran without an end.
    Killed,
    /// All tests passed.
    Survived,
    /// It could not be built.
    Unviable,
    /// It cannot be chosen at run time.
    NotTried,
}

/// How many mutants of one file and change ended how: one line of code may have several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// So many were killed.
    pub killed: usize,
    /// So many survived.
    pub survived: usize,
    /// So many could not be built.
    pub unviable: usize,
    /// So many could not be chosen at run time.
    pub not_tried: usize,
}

impl Tally {
    /// Adds one mutant.
    pub fn add(&mut self, outcome: Outcome) {
        *match outcome {
            Outcome::Killed => &mut self.killed,
            Outcome::Survived => &mut self.survived,
            Outcome::Unviable => &mut self.unviable,
            Outcome::NotTried => &mut self.not_tried,
        } += 1;
    }
}

/// All mutants that were tried.
pub type Outcomes = BTreeMap<Mutant, Tally>;

/// Counts mutants, each by the name that cargo-mutants gave it.
pub fn count<'a>(ended: impl IntoIterator<Item = (&'a str, Outcome)>) -> Outcomes {
    let mut outcomes = Outcomes::new();
    for (name, outcome) in ended {
        if let Some(mutant) = Mutant::parse(name) {
            outcomes.entry(mutant).or_default().add(outcome);
        }
    }
    outcomes
}
