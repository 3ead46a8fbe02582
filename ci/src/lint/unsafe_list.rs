//! Unsafe code stands only in files that `ci/unsafe.txt` names, with the reason.

use std::collections::BTreeMap;

use crate::finding::Finding;
use crate::source::tokens::Tokens;
use crate::tree::Tree;

/// Lines of `path  reason`; `#` starts a comment line.
pub const LIST: &str = "ci/unsafe.txt";

/// Compares the list with the files that hold unsafe code or allow it.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let list = tree.file(LIST).map_or("", |file| file.text.as_str());
    let mut listed = BTreeMap::new();
    for (index, line) in list.lines().map(str::trim).enumerate() {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (path, reason) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        if reason.trim().is_empty() {
            findings.push(Finding::new(LIST, index + 1, format!("{path} is listed without a reason")));
        }
        if listed.insert(path, index + 1).is_some() {
            findings.push(Finding::new(LIST, index + 1, format!("{path} is listed twice")));
        }
    }

    for file in tree.rust() {
        let found = first_unsafe(file.source());
        match (found, listed.remove(file.path.as_str())) {
            (Some(line), None) => {
                let message = format!("unsafe code in a file that {LIST} does not list with a reason");
                findings.push(Finding::new(&file.path, line, message));
            }
            (None, Some(line)) => {
                findings.push(Finding::new(LIST, line, format!("{} has no unsafe code any more", file.path)));
            }
            _ => {}
        }
    }
    findings.extend(
        listed.into_iter().map(|(path, line)| Finding::new(LIST, line, format!("{path} does not exist"))),
    );
    findings
}

/// The line of the first `unsafe`, or of an attribute that allows it.
fn first_unsafe(tokens: &Tokens) -> Option<usize> {
    let allows = |at: usize| {
        tokens.text(at) == "["
            && matches!(tokens.text(at + 1), "allow" | "expect")
            && (at..tokens.behind(at)).any(|at| tokens.text(at) == "unsafe_code")
    };
    let found = (0..tokens.count()).find(|at| tokens.text(*at) == "unsafe" || allows(*at));
    found.map(|at| tokens.line(at))
}

#[cfg(test)]
mod tests {
    use super::LIST;
    use super::check;
    use crate::tree::Tree;

    fn findings(list: &str, files: &[(&str, &str)]) -> Vec<String> {
        let tree = Tree::of(files.iter().copied().chain([(LIST, list)]));
        check(&tree).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn unsafe_needs_an_entry() {
        for text in
            ["fn a() {\nunsafe { b() } }", "\n#![allow(unsafe_code)]", "\n#[expect(unsafe_code)]\nfn a() {}"]
        {
            let found = findings("# none", &[("a.rs", text)]);
            assert_eq!(found.len(), 1, "{text}");
            assert!(found[0].starts_with("a.rs:2: unsafe code"), "{found:?}");
            assert!(findings("a.rs  maps memory", &[("a.rs", text)]).is_empty());
        }
    }

    #[test]
    fn words_that_only_look_unsafe_need_none() {
        let text = "#![forbid(unsafe_code)]\n#![deny(unsafe_op_in_unsafe_fn)] // unsafe\nlet a = \"unsafe\";";
        assert!(findings("", &[("a.rs", text)]).is_empty());
    }

    #[test]
    fn an_entry_needs_a_reason_a_file_and_unsafe() {
        let found =
            findings("a.rs why\nb.rs why\nc.rs\nc.rs twice", &[("a.rs", "safe"), ("c.rs", "unsafe {}")]);
        let expected =
            ["a.rs has no unsafe code", "b.rs does not exist", "c.rs is listed without", "listed twice"];
        assert_eq!(found.len(), expected.len());
        for message in expected {
            assert!(found.iter().any(|finding| finding.contains(message)), "{message}: {found:?}");
        }
    }
}
