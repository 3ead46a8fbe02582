//! The mutants that may survive, with reasons: a line each, and an indented reason below those for which it stands. A line
//! `open MODULE` says that a module's survivors are counted and not judged yet.

use std::collections::BTreeMap;

use super::Mutant;
use crate::finding::Finding;

/// Where the list is.
pub const PATH: &str = "ci/mutants.txt";

/// What may survive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Survivors {
    /// All mutants that may, with their lines in the file.
    pub listed: BTreeMap<Mutant, usize>,
    /// Modules that are not judged yet.
    pub open: Vec<String>,
}

/// Reads the list. `#` starts a comment line. An entry without a reason, or a second time, is a finding.
pub fn parse(text: &str) -> (Survivors, Vec<Finding>) {
    let mut survivors = Survivors::default();
    let mut findings = Vec::new();
    let mut unexplained = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let number = index + 1;
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        if line.starts_with(char::is_whitespace) {
            unexplained.clear();
            continue;
        }
        if let Some(module) = line.strip_prefix("open ") {
            unexplained.push(number);
            survivors.open.push(module.trim().to_owned());
            continue;
        }
        match Mutant::parse(line) {
            None => findings.push(Finding::new(PATH, number, "is not `path.rs: change`")),
            Some(mutant) => {
                unexplained.push(number);
                if let Some(before) = survivors.listed.insert(mutant, number) {
                    findings.push(Finding::new(PATH, number, format!("stands already in line {before}")));
                }
            }
        }
    }
    let without = |line| Finding::new(PATH, line, "is listed without a reason, indented, below it");
    findings.extend(unexplained.into_iter().map(without));
    (survivors, findings)
}

#[cfg(test)]
mod tests {
    use super::Mutant;
    use super::parse;

    #[test]
    fn a_reason_stands_for_the_mutants_above_it() {
        let (survivors, findings) =
            parse("# head\na.rs: one\na.rs: two\n    equal\nb.rs: three\n    never read\n");
        assert!(findings.is_empty(), "{findings:?}");
        assert_eq!(survivors.listed.len(), 3);
        assert_eq!(survivors.listed[&Mutant { path: "b.rs".to_owned(), change: "three".to_owned() }], 5);
    }

    #[test]
    fn an_open_module_has_a_reason_too() {
        let (survivors, findings) = parse("open a/b\n    later\nopen a/c\n");
        assert_eq!(survivors.open, ["a/b", "a/c"]);
        assert_eq!(findings.len(), 1, "{findings:?}");
    }

    #[test]
    fn what_is_wrong_with_the_list_is_found() {
        let (_, findings) = parse("a.rs: one\n    equal\na.rs: one\n    equal\nwords\nb.rs: two\n");
        let found: Vec<_> = findings.iter().map(ToString::to_string).collect();
        let expected = [
            "ci/mutants.txt:3: stands already in line 1",
            "ci/mutants.txt:5: is not `path.rs: change`",
            "ci/mutants.txt:6: is listed without a reason, indented, below it",
        ];
        assert_eq!(found, expected);
    }
}
