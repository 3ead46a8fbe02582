//! The book: mdBook's order of pages in `docs/SUMMARY.md`, its configuration in `docs/book/book.toml`.
//!
//! ```text
//!   tree ──▶ page (headings, links) ─┬─▶ summary   each page stands in the order once, and the order names no other
//!                                    └─▶ links     each link leads to a file and a heading that are there
//! ```
//!
//! mdBook itself says nothing of a link that leads nowhere.

pub mod links;
pub mod page;
pub mod summary;

use std::path::Path;

use crate::finding::Finding;
use crate::tree::Tree;

/// Lines of the longest README: what a reader takes in before the book.
const README_LINES: usize = 150;

/// Looks at the pages of the checkout at `root`.
pub fn check(tree: &Tree, root: &Path) -> Vec<Finding> {
    let mut findings = summary::check(tree);
    findings.extend(links::check(tree, |path| root.join(path).exists()));
    findings.extend(readme(tree));
    findings.sort();
    findings
}

fn readme(tree: &Tree) -> Option<Finding> {
    let lines = tree.file("README.md")?.text.lines().count();
    (lines > README_LINES).then(|| {
        Finding::in_file(
            "README.md",
            format!("{lines} lines; what is beyond {README_LINES} belongs in the book"),
        )
    })
}
