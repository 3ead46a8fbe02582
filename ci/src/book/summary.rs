//! The order of pages has them all.

use super::page::links;
use crate::finding::Finding;
use crate::tree::Tree;

/// Where pages lie.
pub const FOLDER: &str = "docs/";
/// Their order.
pub const PATH: &str = "docs/SUMMARY.md";

/// Finds pages that the order does not name, or twice. That what it names is there is for links to say.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let Some(summary) = tree.file(PATH) else {
        return vec![Finding::in_file(PATH, "is not there: it has the order of the book's pages")];
    };
    let named: Vec<String> =
        links(&summary.text).iter().map(|link| format!("{FOLDER}{}", link.target)).collect();
    let is_page = |path: &str| path.starts_with(FOLDER) && path.ends_with(".md") && path != PATH;
    let pages = tree.files().iter().map(|file| file.path.as_str()).filter(|path| is_page(path));
    let found = pages.filter_map(|page| match named.iter().filter(|named| *named == page).count() {
        1 => None,
        0 => Some(Finding::in_file(page, format!("is not in the book: {PATH} does not name it"))),
        times => Some(Finding::in_file(page, format!("stands in {PATH} {times} times"))),
    });
    found.collect()
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::tree::Tree;

    fn findings(summary: &str) -> Vec<String> {
        let tree = Tree::of([("docs/SUMMARY.md", summary), ("docs/a.md", ""), ("docs/book/b.md", "")]);
        check(&tree).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn each_page_stands_in_the_order_once() {
        assert!(findings("- [a](a.md)\n- [b](book/b.md)").is_empty());
        assert_eq!(
            findings("- [a](a.md)"),
            ["docs/book/b.md: is not in the book: docs/SUMMARY.md does not name it"]
        );
        assert_eq!(
            findings("- [a](a.md)\n- [b](book/b.md)\n- [b](book/b.md)"),
            ["docs/book/b.md: stands in docs/SUMMARY.md 2 times"]
        );
        assert_eq!(check(&Tree::default()).len(), 1);
    }
}
