//! What is left open has an issue, `TODO(#12)`.

use crate::finding::Finding;
use crate::tree::SourceFile;
use crate::tree::Tree;

/// Finds marks without an issue number, in comments of Rust files, manifests and scripts.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.files() {
        for (index, comment) in comments(file).lines().enumerate() {
            for word in ["TODO", "FIXME"] {
                for _ in behind(comment, word).filter(|rest| !names_issue(rest)) {
                    let message = format!("{word} without an issue: write `{word}(#12)`");
                    findings.push(Finding::new(&file.path, index + 1, message));
                }
            }
        }
    }
    findings
}

/// What stands behind each place where `word` is a word of its own.
fn behind<'a>(text: &'a str, word: &'a str) -> impl Iterator<Item = &'a str> {
    let is_part = |c: char| c == '_' || c.is_alphanumeric();
    let sides = text.match_indices(word).map(|(at, word)| (&text[..at], &text[at + word.len()..]));
    sides
        .filter(move |(before, rest)| !before.ends_with(is_part) && !rest.starts_with(is_part))
        .map(|(_, rest)| rest)
}

/// The comments of a file, on their own lines.
fn comments(file: &SourceFile) -> String {
    if file.is_rust() {
        return file.source().comments();
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
