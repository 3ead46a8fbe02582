//! House rules that clippy does not know.
//!
//! ```text
//!   tree ─┬─▶ unsafe_list   unsafe only where ci/unsafe.txt says why
//!         ├─▶ imports       one item per `use`, no globs
//!         ├─▶ todo          an issue for everything left open
//!         ├─▶ log_limits    threads of a VM log within its limit
//!         ├─▶ ids           what names one thing has a type of its own
//!         ├─▶ folders       a folder is one noun, and its mod.rs is a map
//!         ├─▶ long_tests    what ci/test leaves out are tests
//!         └─▶ places        nothing names the machine it was written on
//! ```
//!
//! Each file holds one rule: a function from the tree to findings.

pub mod folders;
pub mod ids;
pub mod imports;
pub mod log_limits;
pub mod long_tests;
pub mod places;
pub mod todo;
pub mod unsafe_list;

use std::path::Path;

use crate::finding::Finding;
use crate::tree::SourceFile;
use crate::tree::Tree;

/// Applies every rule to the checkout at `root`.
pub fn check(tree: &Tree, root: &Path) -> Vec<Finding> {
    let mut findings = unsafe_list::check(tree);
    findings.extend(imports::check(tree));
    findings.extend(todo::check(tree));
    findings.extend(log_limits::check(tree));
    findings.extend(long_tests::check(tree));
    findings.extend(folders::check(tree));
    findings.extend(ids::check(tree));
    findings.extend(places::check(tree, &places::of_this_machine(root)));
    findings.extend(unreadable(tree));
    findings.sort();
    findings
}

/// Files of which no rule sees anything.
fn unreadable(tree: &Tree) -> impl Iterator<Item = Finding> {
    let error = |file: &SourceFile| Some((file.path.clone(), file.source().error()?));
    let found = tree.rust().filter_map(error);
    found.map(|(path, line)| Finding::new(&path, line, "can't be read as Rust from here on"))
}

#[cfg(test)]
mod tests {
    use super::unreadable;
    use crate::tree::Tree;

    #[test]
    fn what_is_no_rust_is_a_finding() {
        let tree = Tree::of([("a.rs", "fn a() {}"), ("b.rs", "\nfn a() {"), ("c.txt", "{")]);
        let found: Vec<String> = unreadable(&tree).map(|found| found.to_string()).collect();
        assert_eq!(found, ["b.rs:2: can't be read as Rust from here on"]);
    }
}
