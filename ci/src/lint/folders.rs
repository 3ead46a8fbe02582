//! A folder of modules is one noun: it has a `mod.rs`, which is a short map with a head.

use std::collections::BTreeMap;

use crate::finding::Finding;
use crate::tree::SourceFile;
use crate::tree::Tree;

/// A `mod.rs` has fewer lines than this.
pub const MAP_LINES: usize = 120;

/// Checks the `mod.rs` of every folder and the head of every crate.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut folders: BTreeMap<&str, Vec<&SourceFile>> = BTreeMap::new();
    for file in tree.rust() {
        if matches!(file.name(), "mod.rs" | "lib.rs" | "main.rs") && !has_head(&file.text) {
            let message = "opens without `//!` docs: say what this is, who owns it, on which thread";
            findings.push(Finding::new(&file.path, 1, message));
        }
        let lines = file.text.lines().count();
        if file.name() == "mod.rs" && lines >= MAP_LINES {
            let message =
                format!("a map of {lines} lines; {MAP_LINES} is too long, move code into files of its own");
            findings.push(Finding::in_file(&file.path, message));
        }
        if let Some((folder, _)) = file.path.rsplit_once('/').filter(|(folder, _)| is_module_folder(folder)) {
            folders.entry(folder).or_default().push(file);
        }
    }
    for (folder, files) in folders {
        let has_map = files.iter().any(|file| file.name() == "mod.rs");
        let has_tests_only = files.iter().all(|file| file.name() == "tests.rs");
        if !has_map && !has_tests_only {
            let message = "a folder of modules without mod.rs, which is its map";
            findings.push(Finding::in_file(folder, message));
        }
    }
    findings
}

/// True for folders inside of a crate's `src`, but for that of its binaries.
fn is_module_folder(folder: &str) -> bool {
    let inside = folder.split_once("/src/").map(|(_, inside)| inside);
    inside.is_some_and(|inside| inside != "bin")
}

fn has_head(text: &str) -> bool {
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("#!["));
    lines.next().is_some_and(|line| line.starts_with("//!"))
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::tree::Tree;

    fn findings(files: &[(&str, &str)]) -> Vec<String> {
        check(&Tree::of(files.iter().copied())).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_map_needs_a_head() {
        assert_eq!(findings(&[("a/src/b/mod.rs", "mod c;")]).len(), 1);
        assert!(findings(&[("a/src/b/mod.rs", "#![no_std]\n\n//! B.\nmod c;")]).is_empty());
        assert_eq!(findings(&[("a/src/lib.rs", "mod c;")]).len(), 1);
    }

    #[test]
    fn a_map_is_short() {
        let lines = |count| "//! B.\n".repeat(count);
        assert!(findings(&[("a/src/b/mod.rs", &lines(119))]).is_empty());
        assert_eq!(findings(&[("a/src/b/mod.rs", &lines(120))]).len(), 1);
        assert!(findings(&[("a/src/b.rs", &lines(120))]).is_empty());
    }

    #[test]
    fn a_folder_has_a_map() {
        assert_eq!(
            findings(&[("a/src/b/c.rs", "")]),
            ["a/src/b: a folder of modules without mod.rs, which is its map"]
        );
        assert!(findings(&[("a/src/b/c.rs", ""), ("a/src/b/mod.rs", "//! B.")]).is_empty());
        assert!(
            findings(&[("a/src/b/tests.rs", ""), ("a/src/bin/c.rs", ""), ("a/tests/d/e.rs", "")]).is_empty()
        );
    }
}
