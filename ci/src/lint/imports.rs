//! One item per `use`, one `use` per line, no globs.

use crate::finding::Finding;
use crate::source::masked::Masked;
use crate::source::shipped::Shipped;
use crate::source::testing::TestFiles;
use crate::source::uses::use_statements;
use crate::tree::Tree;

/// Finds imports of several items at once and globs other than `use super::*` in tests.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let test_files = TestFiles::of(tree);
    let mut findings = Vec::new();
    for file in tree.rust() {
        let code = Masked::new(&file.text).code;
        let shipped = Shipped::new(&code).code;
        let mut previous_line = 0;
        for found in use_statements(&code) {
            let is_test = test_files.contains(&file.path) || !shipped[found.offset..].starts_with("use");
            let message = if found.path.contains('{') {
                Some(format!("one item per `use`, without braces: `use {}`", found.path))
            } else if found.path.ends_with('*') && !(is_test && found.path == "super::*") {
                Some(format!("no glob imports but `use super::*` in tests: `use {}`", found.path))
            } else if found.line == previous_line {
                Some("one `use` per line".to_owned())
            } else {
                None
            };
            previous_line = found.line;
            findings.extend(message.map(|message| Finding::new(&file.path, found.line, message)));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::tree::Tree;

    fn findings(path: &str, text: &str) -> Vec<String> {
        check(&Tree::of([(path, text)])).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn plain_imports_pass() {
        let text = "use a::b;\npub use c::d as e;\nfn f() -> impl X + use<> {}\n// use a::*;\n";
        assert!(findings("a.rs", text).is_empty());
    }

    #[test]
    fn braces_are_refused() {
        for text in ["use a::{b, c};", "use a::{\n b,\n c::{d, e},\n};", "use a::{self};"] {
            assert_eq!(findings("a.rs", text).len(), 1, "{text}");
        }
        assert_eq!(
            findings("a.rs", "\nuse a::{b, c};"),
            ["a.rs:2: one item per `use`, without braces: `use a::{b,c}`"]
        );
    }

    #[test]
    fn globs_are_refused_but_for_super_in_tests() {
        assert_eq!(findings("a.rs", "use a::*;").len(), 1);
        assert_eq!(findings("a.rs", "use super::*;").len(), 1);
        assert_eq!(findings("a.rs", "#[cfg(test)]\nmod tests {\n use a::*;\n}").len(), 1);
        assert!(findings("a.rs", "#[cfg(test)]\nmod tests {\n use super::*;\n}").is_empty());
        assert!(findings("a/tests.rs", "use super::*;").is_empty());
    }

    #[test]
    fn two_on_a_line_are_refused() {
        assert_eq!(findings("a.rs", "use a::b; use a::c;"), ["a.rs:1: one `use` per line"]);
    }
}
