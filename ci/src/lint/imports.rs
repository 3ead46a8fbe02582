//! One item per `use`, one `use` per line, no globs.

use crate::finding::Finding;
use crate::source::tokens::Tokens;
use crate::test_files::TestFiles;
use crate::tree::Tree;

/// Finds imports of several items at once and globs other than `use super::*` in tests.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let test_files = TestFiles::of(tree);
    let mut findings = Vec::new();
    for file in tree.rust() {
        let source = file.source();
        let mut previous_line = 0;
        // `impl Trait + use<'a>` captures a lifetime and imports nothing.
        for at in (0..source.count()).filter(|at| source.text(*at) == "use" && source.text(at + 1) != "<") {
            let is_test = test_files.contains(&file.path) || !source.is_shipped(at);
            let (line, path) = (source.line(at), imported(source, at));
            let message = if path.contains('{') {
                Some(format!("one item per `use`, without braces: `use {path}`"))
            } else if path.ends_with('*') && !(is_test && path == "super::*") {
                Some(format!("no glob imports but `use super::*` in tests: `use {path}`"))
            } else if line == previous_line {
                Some("one `use` per line".to_owned())
            } else {
                None
            };
            previous_line = line;
            findings.extend(message.map(|message| Finding::new(&file.path, line, message)));
        }
    }
    findings
}

/// What the `use` at `at` imports, without blanks other than those around `as`.
fn imported(tokens: &Tokens, at: usize) -> String {
    let inside = (at + 1..tokens.count()).map(|at| tokens.text(at)).take_while(|token| *token != ";");
    inside.map(|token| if token == "as" { " as " } else { token }).collect()
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
        let shown = findings("a.rs", "fn x() {\n    pub(crate) use c ::\n d as *; }");
        assert_eq!(shown, ["a.rs:2: no glob imports but `use super::*` in tests: `use c::d as *`"]);
        assert_eq!(findings("a.rs", "#[cfg(test)]\nmod tests {\n use a::*;\n}").len(), 1);
        assert!(findings("a.rs", "#[cfg(test)]\nmod tests {\n use super::*;\n}").is_empty());
        assert!(findings("a/tests.rs", "use super::*;").is_empty());
    }

    #[test]
    fn two_on_a_line_are_refused() {
        assert_eq!(findings("a.rs", "use a::b; use a::c;"), ["a.rs:1: one `use` per line"]);
    }
}
