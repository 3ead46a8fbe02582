//! What `cargo nextest` reports of a run, in the form of JUnit.

use std::fmt::Write;

use anyhow::Context;
use anyhow::Result;
use quick_junit::Report;
use quick_junit::TestCaseStatus;

/// Tests that may fail at first and pass when they are run again, in one run. Some have real timeouts of 50 to 300 ms, and on a
/// machine that stands still for so long a healthy engine looks hung; where more of them fail, something is wrong.
pub const MAX_FLAKY: usize = 3;

/// One run of tests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Run {
    /// For the file of results: the mode and the binary of each suite, and a line for each of its tests.
    pub lines: String,
    /// How many tests passed, those among them that failed at first.
    pub passed: usize,
    /// The tests that failed, each by its binary and its path.
    pub failed: Vec<String>,
    /// The tests that failed at first and passed when they were run again.
    pub flaky: Vec<String>,
}

impl Run {
    /// Reads a report; `mode` is one word, which says how the tests were run.
    ///
    /// # Errors
    /// The text is no JUnit report.
    pub fn read(mode: &str, xml: &str) -> Result<Self> {
        let report = Report::deserialize_from_str(xml).context("this is no JUnit report")?;
        let mut run = Self::default();
        for suite in &report.test_suites {
            writeln!(run.lines, "run {mode} {}", suite.name.as_str())?;
            for case in &suite.test_cases {
                let name = || format!("{} {}", suite.name.as_str(), case.name.as_str());
                let said = match &case.status {
                    TestCaseStatus::Success { flaky_runs } => {
                        run.passed += 1;
                        run.flaky.extend((!flaky_runs.is_empty()).then(name));
                        "ok"
                    }
                    TestCaseStatus::NonSuccess { .. } => {
                        run.failed.push(name());
                        "FAILED"
                    }
                    TestCaseStatus::Skipped { .. } => continue,
                };
                writeln!(run.lines, "test {} ... {said}", case.name.as_str())?;
            }
        }
        Ok(run)
    }

    /// Whether all that ran is well.
    pub fn is_fine(&self) -> bool {
        self.passed > 0 && self.failed.is_empty() && self.flaky.len() <= MAX_FLAKY
    }
}

#[cfg(test)]
mod tests {
    use super::MAX_FLAKY;
    use super::Run;

    fn report(cases: &str) -> String {
        format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"n\" tests=\"1\" failures=\"0\" errors=\"0\">\
             <testsuite name=\"campanile::vhost\" tests=\"1\" disabled=\"0\" errors=\"0\" failures=\"0\">{cases}</testsuite></testsuites>"
        )
    }

    const FAILED_AT_FIRST: &str =
        "<testcase name=\"b::c\"><flakyFailure type=\"t\">x</flakyFailure></testcase>";

    #[test]
    fn a_report_becomes_lines_of_the_file_of_results() {
        let cases = format!(
            "<testcase name=\"a\"/>{FAILED_AT_FIRST}<testcase name=\"d\"><failure type=\"t\">x</failure></testcase>\
                             <testcase name=\"e\"><skipped/></testcase>"
        );
        let run = Run::read("global", &report(&cases)).unwrap();
        assert_eq!(
            run.lines,
            "run global campanile::vhost\ntest a ... ok\ntest b::c ... ok\ntest d ... FAILED\n"
        );
        assert_eq!((run.passed, run.failed.as_slice()), (2, &["campanile::vhost d".to_owned()][..]));
        assert_eq!(run.flaky, ["campanile::vhost b::c"]);
        assert!(!run.is_fine());
    }

    #[test]
    fn a_few_tests_may_pass_at_the_second_try_and_a_run_of_none_is_no_pass() {
        let many = |count: usize| Run::read("default", &report(&FAILED_AT_FIRST.repeat(count))).unwrap();
        assert!(many(MAX_FLAKY).is_fine());
        assert!(!many(MAX_FLAKY + 1).is_fine());
        assert!(!many(0).is_fine());
        assert!(Run::read("default", "test a ... ok").is_err());
    }
}
