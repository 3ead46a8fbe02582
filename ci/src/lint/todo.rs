//! What is left open has an issue, `TODO(#12)`.

use crate::finding::Finding;
use crate::source::masked::Masked;
use crate::source::words::words;
use crate::tree::SourceFile;
use crate::tree::Tree;

/// Finds marks without an issue number, in comments of Rust files, manifests and scripts.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.files() {
        for (index, comment) in comments(file).lines().enumerate() {
            for (offset, word) in words(comment) {
                if matches!(word, "TODO" | "FIXME") && !names_issue(&comment[offset + word.len()..]) {
                    let message = format!("{word} without an issue: write `{word}(#12)`");
                    findings.push(Finding::new(&file.path, index + 1, message));
                }
            }
        }
    }
    findings
}

/// The comments of a file, on their own lines.
fn comments(file: &SourceFile) -> String {
    if file.is_rust() {
        return Masked::new(&file.text).comments;
    }
    if file.path.ends_with(".toml") || file.text.starts_with("#!") {
        return file
            .text
            .lines()
            .map(|line| line.find('#').map_or("", |at| &line[at..]))
            .collect::<Vec<_>>()
            .join("\n");
    }
    String::new()
}

/// True for `(#12)`, with or without more behind it.
fn names_issue(rest: &str) -> bool {
    let number = rest.strip_prefix("(#").and_then(|rest| rest.split_once(')'));
    number.is_some_and(|(number, _)| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::tree::Tree;

    fn findings(path: &str, text: &str) -> Vec<String> {
        check(&Tree::of([(path, text)])).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_mark_needs_an_issue() {
        assert_eq!(findings("a.rs", "a\n// TODO: b"), ["a.rs:2: TODO without an issue: write `TODO(#12)`"]);
        assert_eq!(findings("a.rs", "/* FIXME(me) */").len(), 1);
        assert_eq!(findings("run", "#!/bin/sh\n# TODO").len(), 1);
        assert_eq!(findings("Cargo.toml", "a = 1 # FIXME(#)").len(), 1);
    }

    #[test]
    fn marks_with_an_issue_and_other_words_pass() {
        assert!(findings("a.rs", "// TODO(#12): b, TODOS\nlet a = \"TODO\";").is_empty());
        assert!(findings("a.md", "TODO needs an issue").is_empty());
    }
}
