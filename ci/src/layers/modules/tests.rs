//! Each test is a crate of a few lines and a table.

use super::check;
use crate::layers::table::Table;
use crate::tree::Tree;

fn findings(table: &str, files: &[(&str, &str)]) -> Vec<String> {
    let tree = Tree::of(files.iter().copied());
    check(&tree, &Table::parse(table).0).iter().map(ToString::to_string).collect()
}

const TABLE: &str = "c 0\nc low 0\nc high 10\n";

#[test]
fn imports_that_go_down_or_stay_inside_pass() {
    let files = [
        ("c/src/lib.rs", "pub mod low; pub mod high; use crate::high::X;"),
        ("c/src/low.rs", "use std::fmt;"),
        ("c/src/high/mod.rs", "use crate::low::Y;"),
        ("c/src/high/inner.rs", "use crate::high::X; use super::other;"),
    ];
    assert!(findings(TABLE, &files).is_empty());
}

#[test]
fn imports_that_go_up_are_findings() {
    let files = [("c/src/low.rs", "\nuse crate::high::X;"), ("c/src/high.rs", "")];
    let expected = ["c/src/low.rs:2: low (rank 0) must not import from high (rank 10)"];
    assert_eq!(findings(TABLE, &files), expected);
    let files = [("c/src/low.rs", "\nuse super::high::X;"), ("c/src/high.rs", "")];
    assert_eq!(findings(TABLE, &files), expected);
}

#[test]
fn equals_may_not_import_each_other() {
    let files = [("c/src/low.rs", ""), ("c/src/high.rs", "use crate::low::X;")];
    assert_eq!(findings("c 0\nc low 5\nc high 5", &files).len(), 1);
}

#[test]
fn test_code_may_look_anywhere() {
    let files = [
        ("c/src/low.rs", "#[cfg(test)] mod tests { use crate::high::X; } #[cfg(test)] mod kit;"),
        ("c/src/low/kit.rs", "use crate::high::X;"),
        ("c/src/low/tests.rs", "use crate::high::X;"),
        ("c/src/high.rs", ""),
    ];
    assert!(findings(TABLE, &files).is_empty());
}

#[test]
fn the_root_is_above_everything() {
    let files = [("c/src/lib.rs", "pub struct X;"), ("c/src/low.rs", "use crate::X;"), ("c/src/high.rs", "")];
    let expected = "c/src/low.rs:1: imports X from the crate's root, which stands above every module";
    assert_eq!(findings(TABLE, &files), [expected]);
}

#[test]
fn modules_and_table_agree() {
    let files = [("c/src/low.rs", ""), ("c/src/new/mod.rs", "use crate::low::X;")];
    let expected = [
        "c/src/new: module without a rank; add to ci/layers.txt: `c new 10`",
        "ci/layers.txt:3: crate c has no module high",
    ];
    assert_eq!(findings(TABLE, &files), expected);
}

#[test]
fn suggested_ranks_build_on_each_other() {
    let files = [
        ("c/src/a.rs", "use crate::b::X;"),
        ("c/src/b.rs", "use crate::low::X;"),
        ("c/src/low.rs", ""),
        ("c/src/high.rs", ""),
    ];
    let found = findings(TABLE, &files);
    assert!(found[0].ends_with("`c a 20`"), "{found:?}");
    assert!(found[1].ends_with("`c b 10`"), "{found:?}");
}

#[test]
fn names_without_a_subject_are_refused() {
    let files = [("c/src/low/utils.rs", ""), ("c/src/low/mod.rs", ""), ("c/src/high.rs", "")];
    let found = findings(TABLE, &files);
    assert_eq!(found.len(), 1);
    assert!(found[0].starts_with("c/src/low/utils.rs: a module called utils"));
}
