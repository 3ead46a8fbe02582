//! Links of pages lead somewhere.

use super::page::Link;
use super::page::anchors;
use super::page::links;
use super::summary::FOLDER;
use crate::finding::Finding;
use crate::tree::SourceFile;
use crate::tree::Tree;

/// Finds links of Markdown files to files that are not there (`exists` knows), to headings that no page has, and from pages of the
/// book to files that are not in it.
pub fn check(tree: &Tree, exists: impl Fn(&str) -> bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.files().iter().filter(|file| file.path.ends_with(".md")) {
        for link in links(&file.text) {
            if let Some(message) = wrong(tree, &exists, file, &link) {
                findings.push(Finding::new(&file.path, link.line, message));
            }
        }
    }
    findings
}

fn wrong(tree: &Tree, exists: &impl Fn(&str) -> bool, file: &SourceFile, link: &Link<'_>) -> Option<String> {
    let (path, anchor) =
        link.target.split_once('#').map_or((link.target, None), |(path, name)| (path, Some(name)));
    let path = if path.is_empty() { file.path.clone() } else { resolve(&file.path, path)? };
    if !exists(&path) {
        return Some(format!("{} leads to {path}, which is not there", link.target));
    }
    if file.path.starts_with(FOLDER) && !path.starts_with(FOLDER) {
        return Some(format!("{} leads out of the book: name the file without a link", link.target));
    }
    let page = anchor.and_then(|anchor| Some((anchor, tree.file(&path)?)));
    let (anchor, page) = page?;
    (page.path.ends_with(".md") && !anchors(&page.text).contains(anchor))
        .then(|| format!("{} leads to no heading of {path}", link.target))
}

/// The path that a relative one means in a file; none where it leaves the checkout, which no check here judges.
fn resolve(from: &str, relative: &str) -> Option<String> {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in relative.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::tree::Tree;

    fn findings(text: &str) -> Vec<String> {
        let files = [("docs/book/a.md", text), ("docs/b.md", "# Head"), ("README.md", "[a](docs/b.md#head)")];
        let tree = Tree::of(files);
        let found = check(&tree, |path| tree.file(path).is_some());
        found.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn links_to_files_and_headings_of_the_book_pass() {
        assert!(findings("# Own\n[b](../b.md) [b](../b.md#head) [own](#own) [out](https://c)").is_empty());
    }

    #[test]
    fn a_link_to_nothing_out_of_the_book_or_to_no_heading_is_found() {
        for (text, message) in [
            ("[x](c.md)", "c.md leads to docs/book/c.md, which is not there"),
            ("[x](../b.md#tail)", "../b.md#tail leads to no heading of docs/b.md"),
            ("[x](#own)", "#own leads to no heading of docs/book/a.md"),
            ("[x](../../README.md)", "../../README.md leads out of the book: name the file without a link"),
        ] {
            assert_eq!(findings(text), [format!("docs/book/a.md:1: {message}")]);
        }
    }
}
