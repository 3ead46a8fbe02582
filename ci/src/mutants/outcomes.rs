//! What became of the mutants: the lists that cargo-mutants leaves in a folder `mutants.out`.

use std::collections::BTreeMap;

use super::Mutant;

/// The lists, and what it means to be in one. A mutant whose tests never end has been noticed.
pub const LISTS: [(&str, Outcome); 4] = [
    ("caught.txt", Outcome::Killed),
    ("timeout.txt", Outcome::Killed),
    ("missed.txt", Outcome::Survived),
    ("unviable.txt", Outcome::Unviable),
];

/// What became of one mutant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A test failed, or ran without an end.
    Killed,
    /// All tests passed.
    Survived,
    /// It could not be built.
    Unviable,
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
}

impl Tally {
    /// Adds one list's entry.
    pub fn add(&mut self, outcome: Outcome) {
        *match outcome {
            Outcome::Killed => &mut self.killed,
            Outcome::Survived => &mut self.survived,
            Outcome::Unviable => &mut self.unviable,
        } += 1;
    }
}

/// All mutants that were tried.
pub type Outcomes = BTreeMap<Mutant, Tally>;

/// Adds the mutants of one list.
pub fn read(outcomes: &mut Outcomes, list: &str, outcome: Outcome) {
    for mutant in list.lines().filter_map(Mutant::parse) {
        outcomes.entry(mutant).or_default().add(outcome);
    }
}
