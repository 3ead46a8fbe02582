//! What `ci/test` leaves out are tests that exist.

use std::collections::BTreeSet;

use crate::finding::Finding;
use crate::source::test_fns::test_fns;
use crate::tree::Tree;

/// Lines of `module::test`; `#` starts a comment line.
pub const LIST: &str = "ci/long-tests.txt";

/// Finds names of the list that no test has, and those that stand there twice.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let tests: BTreeSet<String> =
        tree.rust().flat_map(|file| test_fns(file.source())).map(|test| test.name).collect();
    let list = tree.file(LIST).map_or("", |file| file.text.as_str());
    let mut findings = Vec::new();
    let mut seen = BTreeSet::new();
    for (index, line) in
        list.lines().enumerate().filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
    {
        if !tests.contains(line.rsplit("::").next().unwrap_or(line)) {
            findings.push(Finding::new(LIST, index + 1, format!("{line} is no test")));
        }
        if !seen.insert(line) {
            findings.push(Finding::new(LIST, index + 1, format!("{line} is listed twice")));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::LIST;
    use super::check;
    use crate::tree::Tree;

    #[test]
    fn each_name_is_that_of_a_test_and_stands_there_once() {
        let list = "# Long.\n\na::tests::one\na::tests::two\nthree\na::tests::one\n";
        let code = "#[test]\nfn one() {}\nfn two() {}\n#[test]\nfn three() {}";
        let found: Vec<String> =
            check(&Tree::of([(LIST, list), ("a.rs", code)])).iter().map(ToString::to_string).collect();
        assert_eq!(
            found,
            [
                "ci/long-tests.txt:4: a::tests::two is no test",
                "ci/long-tests.txt:6: a::tests::one is listed twice"
            ]
        );
    }
}
