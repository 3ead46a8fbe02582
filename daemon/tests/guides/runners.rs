//! The scripts that run blocks which cannot run beside a daemon alone.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use crate::blocks::Block;
use crate::blocks::checkout;
use crate::blocks::lines;

/// Whether a script runs a block of a page: the `number`th that has its mark, from 1. An error says which one it does not.
pub(crate) fn runs(script: &str, page: &str, mark: &str, number: usize) -> Result<(), String> {
    let text = fs::read_to_string(checkout().join(script)).unwrap();
    if names(&text, page, mark, number) {
        Ok(())
    } else {
        Err(format!("{script} does not run block {number} of run={mark} in {page}"))
    }
}

/// A script names a page, the mark, and then the number, or none for all blocks of that mark.
fn names(script: &str, page: &str, mark: &str, number: usize) -> bool {
    let named = format!("{page} run={mark}");
    script.match_indices(&named).any(|(at, _)| {
        let mut rest = script[at + named.len()..].split([' ', ';', ')', '\n']);
        let is_whole = rest.next() == Some("") && script[..at].ends_with([' ', '/']);
        let next = rest.next().unwrap_or_default();
        is_whole && next.parse::<usize>().map_or(true, |only| only == number)
    })
}

/// Each command is a script in `ci` that can be run, and that `ci/full` runs, unless it is of the tests themselves.
pub(crate) fn are_scripts_of_ci(at: &str, block: &Block) {
    let full = fs::read_to_string(checkout().join("ci/full")).unwrap();
    for line in lines(block) {
        let script = line.split_whitespace().next().unwrap_or_default().trim_start_matches("./").to_owned();
        assert!(script.starts_with("ci/"), "{at}: {script} is no script of ci");
        let file =
            fs::metadata(checkout().join(&script)).unwrap_or_else(|error| panic!("{at}: {script}: {error}"));
        assert_ne!(file.permissions().mode() & 0o111, 0, "{at}: {script} cannot be run");
        let is_run = full
            .lines()
            .any(|line| !line.starts_with('#') && line.split([' ', '|']).any(|word| word == script));
        assert!(
            is_run || matches!(script.as_str(), "ci/full" | "ci/test"),
            "{at}: ci/full does not run {script}"
        );
    }
}

#[test]
fn a_script_names_all_blocks_of_a_page_or_some_by_number() {
    let script = "blocks docs/a.md run=vm || exit\nx=$(blocks docs/b.md run=vm 2)\n";
    assert!(
        names(script, "a.md", "vm", 1) && names(script, "a.md", "vm", 7) && names(script, "b.md", "vm", 2)
    );
    assert!(!names(script, "b.md", "vm", 1), "of that page it takes the second alone");
    assert!(!names(script, "a.md", "guest", 1) && !names(script, "c.md", "vm", 1));
}
