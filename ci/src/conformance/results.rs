//! What test runs said: the file to which `cargo ci record` adds the reports of nextest.
//!
//! ```text
//!   sources 91c0…                        the sources that were tested: `cargo ci results` starts the file with this
//!   run default campanile::end_to_end    one line a test binary: the mode of the run, and the binary
//!   test ums::ums_33_a ... ok            one line a test; all others are passed over
//!   test ums::ums_34_b ... left          it is left to a longer run: `cargo ci results --leave FILE`
//! ```

use std::collections::BTreeMap;

/// Where the file is, below cargo's target folder.
pub const PATH: &str = "conformance/results";

/// What runs say of the tests of one name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It ran and passed, in each mode in which it ran.
    Passed,
    /// It failed in one mode, and did not pass there afterwards.
    Failed,
    /// It did not run, since it is left to a longer run.
    Left,
}

/// The results of all test runs since the file was started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Results {
    sources: String,
    outcomes: BTreeMap<String, Outcome>,
}

/// How a file of results starts that is of these sources, where the tests of this list are left to a longer run: one a line, beside
/// comments that begin with `#`.
pub fn head(sources: &str, left: &str) -> String {
    let tests = left.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let left: String = tests.map(|test| format!("test {test} ... left\n")).collect();
    format!("sources {sources}\n{left}")
}

impl Results {
    /// Reads the file. The last result of a test counts in each mode, since tests that failed may be run once more.
    pub fn parse(text: &str) -> Self {
        let mut sources = String::new();
        let mut run = "";
        let mut last = BTreeMap::new();
        let mut outcomes = BTreeMap::new();
        let bare = |test: &str| test.rsplit("::").next().unwrap_or(test).to_owned();
        for line in text.lines() {
            if let Some(found) = line.strip_prefix("sources ") {
                sources = found.trim().to_owned();
            } else if let Some(found) = line.strip_prefix("run ") {
                run = found;
            } else if let Some((test, outcome)) = result(line) {
                if outcome == Outcome::Left {
                    outcomes.insert(bare(test), outcome);
                } else {
                    last.insert((run, test), outcome);
                }
            }
        }
        for ((_, test), outcome) in last {
            let known = outcomes.entry(bare(test)).or_insert(outcome);
            if *known != Outcome::Failed {
                *known = outcome;
            }
        }
        Self { sources, outcomes }
    }

    /// Whether these are results of the sources with this fingerprint.
    pub fn are_of(&self, sources: &str) -> bool {
        self.sources == sources
    }

    /// What was said of the tests of this name, without their modules; none if nothing was.
    pub fn of(&self, name: &str) -> Option<Outcome> {
        self.outcomes.get(name).copied()
    }
}

/// The test of a line `test a::b ... ok`, and what that says. Ignored tests and measurements are no results.
fn result(line: &str) -> Option<(&str, Outcome)> {
    let (test, said) = line.strip_prefix("test ")?.split_once(" ... ")?;
    let test = test.split(' ').next()?;
    match said.split([' ', ',']).next()? {
        "ok" => Some((test, Outcome::Passed)),
        "FAILED" => Some((test, Outcome::Failed)),
        "left" => Some((test, Outcome::Left)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::Outcome;
    use super::Results;
    use super::head;

    #[test]
    fn results_are_those_of_lines_that_say_so() {
        let results = Results::parse(
            "sources 1a\nrun default x\ntest m::a ... ok\ntest m::b - should panic ... ok\ntest c ... FAILED\n\
             test d ... ignored, why\ntest e has started\nm::f ... ok\ntest g ... ok <0.1s>",
        );
        let seen = ["a", "b", "c", "d", "e", "f", "g", "m::a"].map(|name| results.of(name));
        let (passed, failed) = (Some(Outcome::Passed), Some(Outcome::Failed));
        assert_eq!(seen, [passed, passed, failed, None, None, None, passed, None]);
    }

    #[test]
    fn a_second_try_counts_in_its_own_mode_alone() {
        let tries = |second: &str| {
            let text = format!("run default x\ntest a ... FAILED\nrun {second} x\ntest a ... ok");
            Results::parse(&text).of("a")
        };
        assert_eq!(tries("default"), Some(Outcome::Passed));
        assert_eq!(tries("global"), Some(Outcome::Failed));
        let worse = Results::parse("run default x\ntest a ... ok\nrun default x\ntest a ... FAILED");
        assert_eq!(worse.of("a"), Some(Outcome::Failed));
    }

    #[test]
    fn a_test_that_is_left_to_a_longer_run_is_so_until_it_runs() {
        let head = head("1a", "# They take long.\n\nm::a\nm::b\nm::c\n");
        let results = Results::parse(&format!("{head}run default x\ntest m::b ... ok\ntest m::c ... FAILED"));
        let seen = ["a", "b", "c", "They"].map(|name| results.of(name));
        assert_eq!(seen, [Some(Outcome::Left), Some(Outcome::Passed), Some(Outcome::Failed), None]);
    }

    #[test]
    fn results_are_of_the_sources_that_they_name() {
        assert!(Results::parse(&head("1a", "")).are_of("1a"));
        assert!(!Results::parse(&head("1a", "")).are_of("1b"));
        assert!(!Results::parse("").are_of("1a"));
    }
}
