//! Mutants that were tried, against those that may survive.

use std::collections::BTreeMap;
use std::fmt;

use super::Mutant;
use super::modules::module;
use super::outcomes::Outcomes;
use super::outcomes::Tally;
use super::survivors;
use super::survivors::Survivors;
use crate::finding::Finding;

/// So many of a hundred viable mutants have to be killed, over all modules, where all were tried.
pub const LEAST_KILLED: usize = 90;

/// The mutants of one module, or of all. Prints as the line that CI shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Count {
    /// The module.
    pub module: String,
    /// What became of its mutants.
    pub tally: Tally,
    /// So many of those that survived are listed.
    pub listed: usize,
}

impl Count {
    /// Mutants that could be built.
    fn viable(&self) -> usize {
        self.tally.killed + self.tally.survived
    }

    /// Whether enough of them were killed.
    pub fn is_enough(&self) -> bool {
        self.tally.killed * 100 >= self.viable() * LEAST_KILLED
    }
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tally { killed, survived, unviable, not_tried } = self.tally;
        let viable = self.viable();
        let tenths = (killed * 1000).checked_div(viable).unwrap_or(1000);
        write!(f, "{}: {killed} of {viable} viable mutants killed, ", self.module)?;
        write!(
            f,
            "{}.{} %; {survived} survived, {} of them listed; ",
            tenths / 10,
            tenths % 10,
            self.listed
        )?;
        write!(f, "{unviable} unviable, {not_tried} not tried")
    }
}

/// What the mutants said of the tests.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// One count a module of which mutants were tried, in the order of `modules`, then all of them.
    pub counts: Vec<Count>,
    /// Survivors that are not listed, and entries that stand for none.
    pub findings: Vec<Finding>,
}

/// Judges the mutants of these modules; those of modules that are not judged yet are counted only. Where `all` were tried, an entry
/// that no survivor matches has to go, and too few kills are a finding; in a sample, only an entry whose mutants were all killed
/// has to.
pub fn judge(modules: &[String], outcomes: &Outcomes, survivors: &Survivors, all: bool) -> Verdict {
    let mut counts: BTreeMap<&str, Count> = BTreeMap::new();
    let mut whole = Count { module: "all".to_owned(), tally: Tally::default(), listed: 0 };
    let mut findings = Vec::new();
    for (mutant, tally) in outcomes {
        let is_listed = survivors.listed.contains_key(mutant);
        let name = module(modules, &mutant.path).unwrap_or("elsewhere");
        let new = || Count { module: name.to_owned(), tally: Tally::default(), listed: 0 };
        for count in [counts.entry(name).or_insert_with(new), &mut whole] {
            count.tally.killed += tally.killed;
            count.tally.survived += tally.survived;
            count.tally.unviable += tally.unviable;
            count.tally.not_tried += tally.not_tried;
            count.listed += if is_listed { tally.survived } else { 0 };
        }
        let is_judged = !survivors.open.iter().any(|open| open == name);
        if tally.survived > 0 && !is_listed && is_judged {
            let message = format!("no test fails for: {}", mutant.change);
            findings.push(Finding::in_file(&mutant.path, message));
        }
    }
    if whole.viable() == 0 {
        findings.push(Finding::in_file(survivors::PATH, "no viable mutant was tried"));
    }
    findings.extend(survivors.listed.iter().filter_map(|(mutant, line)| stale(mutant, *line, outcomes, all)));
    if all && survivors.open.is_empty() && !whole.is_enough() {
        let message = format!("fewer than {LEAST_KILLED} % of all viable mutants were killed");
        findings.push(Finding::in_file(survivors::PATH, message));
    }
    let in_order = modules.iter().map(String::as_str).chain(["elsewhere"]);
    let mut counts: Vec<_> = in_order.filter_map(|name| counts.remove(name)).collect();
    counts.push(whole);
    Verdict { counts, findings }
}

/// A finding for an entry of the list that stands for no survivor.
fn stale(mutant: &Mutant, line: usize, outcomes: &Outcomes, all: bool) -> Option<Finding> {
    let said = match outcomes.get(mutant) {
        Some(tally) if tally.survived > 0 => return None,
        Some(tally) if tally.killed > 0 => "a test kills",
        Some(tally) if tally.not_tried > 0 => "nothing is tried of",
        _ if all => "there is no viable mutant",
        _ => return None,
    };
    Some(Finding::new(survivors::PATH, line, format!("{said} {}: {}", mutant.path, mutant.change)))
}

#[cfg(test)]
mod tests {
    use super::super::outcomes;
    use super::super::outcomes::Outcome;
    use super::Verdict;
    use super::judge;
    use super::survivors;

    fn verdict(killed: &str, survived: &str, listed: &str, all: bool) -> Verdict {
        let modules = ["a/x".to_owned(), "a/y".to_owned()];
        let others =
            [("a/x/m.rs:1:1: unviable", Outcome::Unviable), ("a/x/m.rs:1:1: constant", Outcome::NotTried)];
        let killed = killed.lines().map(|name| (name, Outcome::Killed));
        let survived = survived.lines().map(|name| (name, Outcome::Survived));
        let outcomes = outcomes::count(killed.chain(survived).chain(others));
        judge(&modules, &outcomes, &survivors::parse(listed).0, all)
    }

    fn findings(killed: &str, survived: &str, listed: &str, all: bool) -> Vec<String> {
        verdict(killed, survived, listed, all).findings.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn each_module_is_counted_and_all_of_them() {
        let killed = "a/x/m.rs:1:1: one\na/x/m.rs:2:1: one\na/y.rs:1:1: two";
        let verdict = verdict(killed, "a/x/m.rs:3:1: three", "a/x/m.rs: three\n    equal", false);
        let counts: Vec<_> = verdict.counts.iter().map(ToString::to_string).collect();
        let expected = [
            "a/x: 2 of 3 viable mutants killed, 66.6 %; 1 survived, 1 of them listed; 1 unviable, 1 not tried",
            "elsewhere: 1 of 1 viable mutants killed, 100.0 %; 0 survived, 0 of them listed; 0 unviable, 0 not tried",
            "all: 3 of 4 viable mutants killed, 75.0 %; 1 survived, 1 of them listed; 1 unviable, 1 not tried",
        ];
        assert_eq!(counts, expected);
        assert!(verdict.findings.is_empty(), "{:?}", verdict.findings);
    }

    #[test]
    fn a_survivor_that_is_not_listed_is_a_finding() {
        let found = findings("", "a/x/m.rs:3:1: three", "", false);
        assert_eq!(found, ["a/x/m.rs: no test fails for: three"]);
    }

    #[test]
    fn survivors_of_an_open_module_are_counted_only() {
        let verdict = verdict("", "a/x/m.rs:3:1: three", "open a/x\n    later", false);
        assert!(verdict.findings.is_empty(), "{:?}", verdict.findings);
        assert_eq!(verdict.counts[0].tally.survived, 1);
        assert_eq!(findings("", "a/x/m.rs:3:1: three", "open a/y\n    later", false).len(), 1);
    }

    #[test]
    fn a_run_without_mutants_shows_nothing() {
        assert_eq!(findings("", "", "", false), ["ci/mutants.txt: no viable mutant was tried"]);
    }

    #[test]
    fn an_entry_that_a_test_kills_is_a_finding() {
        let found = findings("a/x/m.rs:3:1: three", "", "a/x/m.rs: three\n    equal", false);
        assert_eq!(found, ["ci/mutants.txt:1: a test kills a/x/m.rs: three"]);
        let one_of_two =
            findings("a/x/m.rs:3:1: three", "a/x/m.rs:4:1: three", "a/x/m.rs: three\n  e", false);
        assert!(one_of_two.is_empty(), "{one_of_two:?}");
    }

    #[test]
    fn an_entry_for_a_mutant_that_cannot_be_tried_is_a_finding() {
        let found = findings("a/x/m.rs:3:1: three", "", "a/x/m.rs: constant\n    equal", false);
        assert_eq!(found, ["ci/mutants.txt:1: nothing is tried of a/x/m.rs: constant"]);
    }

    #[test]
    fn an_entry_for_a_mutant_that_was_not_tried_is_a_finding_where_all_were() {
        let killed = "a/x/m.rs:3:1: three";
        assert!(findings(killed, "", "a/x/m.rs: gone\n    equal", false).is_empty());
        let found = findings(killed, "", "a/x/m.rs: gone\n    equal", true);
        assert_eq!(found, ["ci/mutants.txt:1: there is no viable mutant a/x/m.rs: gone"]);
    }

    #[test]
    fn where_all_were_tried_nine_of_ten_have_to_be_killed() {
        let nine = (0..9).map(|line| format!("a/x/m.rs:{line}:1: one\n")).collect::<String>();
        let survived = |count| (0..count).map(|line| format!("a/x/m.rs:{line}:1: two\n")).collect::<String>();
        let listed = "a/x/m.rs: two\n    equal";
        assert!(findings(&nine, &survived(1), listed, true).is_empty());
        let found = findings(&nine, &survived(2), listed, true);
        assert_eq!(found, ["ci/mutants.txt: fewer than 90 % of all viable mutants were killed"]);
        assert!(findings(&nine, &survived(2), listed, false).is_empty());
    }
}
