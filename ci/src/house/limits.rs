//! The table of limits.

use std::collections::BTreeMap;
use std::fmt;

use crate::finding::Finding;

/// Where the table is.
pub const PATH: &str = "ci/house.txt";

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Functions in the `impl` blocks of a type, but for those of traits.
    Methods,
    /// Fields of a struct.
    Fields,
    /// Files of a crate that are part of a circle of imports.
    Circles,
    /// Shipped source lines of a crate.
    Lines,
}

impl Kind {
    const ALL: [Self; 4] = [Self::Methods, Self::Fields, Self::Circles, Self::Lines];

    fn name(self) -> &'static str {
        match self {
            Self::Methods => "methods",
            Self::Fields => "fields",
            Self::Circles => "circles",
            Self::Lines => "lines",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One thing that was counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Figure {
    /// What was counted.
    pub kind: Kind,
    /// A crate, or a crate and a type.
    pub subject: String,
    /// How many there are.
    pub value: usize,
}

#[derive(Clone, Copy)]
struct Limit {
    most: usize,
    line: usize,
}

/// Lines `kind limit`, for all that have none of their own, and `kind subject limit`.
type Limits = BTreeMap<(Kind, String), Limit>;

/// Compares figures with the table. A figure without a limit is a finding; so is a limit of its own that a figure does not
/// need, or that is of nothing.
pub fn check(text: &str, figures: &[Figure]) -> Vec<Finding> {
    let (limits, mut findings) = parse(text);
    let general = |kind: Kind| limits.get(&(kind, String::new()));
    for Figure { kind, subject, value } in figures {
        let own = limits.get(&(*kind, subject.clone()));
        let message = match own.or(general(*kind)) {
            None => Finding::in_file(PATH, format!("add the limit of {kind}: `{kind} {subject} {value}`")),
            Some(limit) if *value > limit.most => Finding::new(
                PATH,
                limit.line,
                format!("{kind} of {subject}: {value}, and the limit is {}", limit.most),
            ),
            Some(limit) if own.is_some() && general(*kind).is_some_and(|general| *value <= general.most) => {
                Finding::new(PATH, limit.line, format!("{subject} needs no limit of its own any more"))
            }
            Some(_) => continue,
        };
        findings.push(message);
    }
    for ((kind, subject), limit) in &limits {
        let is_it = |figure: &Figure| figure.kind == *kind && figure.subject == *subject;
        if !subject.is_empty() && !figures.iter().any(is_it) {
            findings.push(Finding::new(PATH, limit.line, format!("there is no {subject} that has {kind}")));
        }
    }
    findings
}

fn parse(text: &str) -> (Limits, Vec<Finding>) {
    let mut limits = Limits::new();
    let mut findings = Vec::new();
    for (index, text) in text.lines().enumerate() {
        let line = index + 1;
        let words: Vec<&str> = text.split('#').next().unwrap_or_default().split_whitespace().collect();
        let read = match words[..] {
            [] => continue,
            [kind, ref subject @ .., most] => {
                let kind = Kind::ALL.into_iter().find(|known| known.name() == kind);
                kind.zip(most.parse().ok())
                    .map(|(kind, most)| ((kind, subject.join(" ")), Limit { most, line }))
            }
            [_] => None,
        };
        match read {
            None => findings.push(Finding::new(
                PATH,
                line,
                "is none of `kind limit`, `kind crate limit`, `kind crate type limit`",
            )),
            Some((key, limit)) => {
                if let Some(before) = limits.insert(key, limit) {
                    findings.push(Finding::new(
                        PATH,
                        line,
                        format!("stands here already, in line {}", before.line),
                    ));
                }
            }
        }
    }
    (limits, findings)
}

#[cfg(test)]
mod tests {
    use super::Figure;
    use super::Kind;
    use super::check;

    fn findings(text: &str, value: usize) -> Vec<String> {
        let figures = [Figure { kind: Kind::Methods, subject: "c a::A".to_owned(), value }];
        check(text, &figures).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_figure_keeps_its_own_limit_or_that_of_all() {
        assert!(findings("# all\nmethods 40", 40).is_empty());
        assert_eq!(
            findings("methods 40", 41),
            ["ci/house.txt:1: methods of c a::A: 41, and the limit is 40"]
        );
        assert!(findings("methods 40\nmethods c a::A 50 # still", 50).is_empty());
        let own = "ci/house.txt:2: methods of c a::A: 51, and the limit is 50";
        assert_eq!(findings("methods 40\nmethods c a::A 50", 51), [own]);
    }

    #[test]
    fn limits_are_those_that_are_needed() {
        assert_eq!(findings("", 1), ["ci/house.txt: add the limit of methods: `methods c a::A 1`"]);
        let fallen = "ci/house.txt:2: c a::A needs no limit of its own any more";
        assert_eq!(findings("methods 40\nmethods c a::A 50", 40), [fallen]);
        let gone = "ci/house.txt:2: there is no c a::B that has methods";
        assert_eq!(findings("methods 40\nmethods c a::B 50", 40), [gone]);
    }

    #[test]
    fn lines_that_are_no_limits_and_such_twice_are_findings() {
        for line in ["methods", "methods many", "colours 3", "methods c a::A x"] {
            assert_eq!(findings(&format!("methods 40\n{line}"), 1).len(), 1, "{line}");
        }
        assert_eq!(findings("methods 40\nmethods 50", 1), ["ci/house.txt:2: stands here already, in line 1"]);
    }
}
