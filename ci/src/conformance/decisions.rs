//! The decisions, one a page: `docs/decisions/005-status-words.md` begins with `# 5. Status words`, and the page of all of them leads to it.

use std::collections::BTreeSet;

use crate::book::page::links;
use crate::finding::Finding;
use crate::tree::Tree;

/// Where the decisions are.
pub const FOLDER: &str = "docs/decisions";
/// The page of all of them.
const INDEX: &str = "README.md";

/// The numbers of all decisions, and pages that are not as they should be.
pub fn read(tree: &Tree) -> (BTreeSet<u32>, Vec<Finding>) {
    let (mut numbers, mut findings) = (BTreeSet::new(), Vec::new());
    let index = tree.file(&format!("{FOLDER}/{INDEX}")).map_or("", |file| file.text.as_str());
    let named: BTreeSet<&str> = links(index).iter().map(|link| link.target).collect();
    for file in tree.files() {
        let name = file.path.strip_prefix(FOLDER).and_then(|rest| rest.strip_prefix('/'));
        let Some(name) = name.filter(|name| name.ends_with(".md") && *name != INDEX) else { continue };
        let heading = file.text.lines().next().and_then(|line| line.strip_prefix("# ")?.split_once(". "));
        let number = heading.and_then(|(number, _)| number.parse().ok());
        let Some(number) = number.filter(|number| name.starts_with(&format!("{number:03}-"))) else {
            let message = "begins with no `# NUMBER. TITLE` of the number of its name, as in 005-name.md";
            findings.push(Finding::new(&file.path, 1, message));
            continue;
        };
        if !numbers.insert(number) {
            findings.push(Finding::new(&file.path, 1, format!("another page has decision {number}")));
        }
        if !named.contains(name) {
            findings.push(Finding::new(&file.path, 1, format!("{FOLDER}/{INDEX} does not lead to it")));
        }
    }
    (numbers, findings)
}

#[cfg(test)]
mod tests {
    use super::read;
    use crate::tree::Tree;

    fn said(files: &[(&str, &str)]) -> (Vec<u32>, Vec<String>) {
        let (numbers, findings) = read(&Tree::of(files.iter().copied()));
        (numbers.into_iter().collect(), findings.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn a_page_with_the_number_of_its_name_is_a_decision() {
        let index = ("docs/decisions/README.md", "# Decisions\n[5](005-status.md) [102](102-chains.md)");
        let five = ("docs/decisions/005-status.md", "# 5. Status words\n## 7. Part");
        let (numbers, findings) = said(&[index, five, ("docs/decisions/102-chains.md", "# 102. Chains\n")]);
        assert_eq!((numbers, findings), (vec![5, 102], Vec::new()));
    }

    #[test]
    fn a_page_of_another_number_or_none_twice_or_that_the_index_lacks_is_found() {
        let index = ("docs/decisions/README.md", "[5](005-a.md) [5](005-b.md) [6](006-a.md) [7](007-a.md)");
        for (path, text, message) in [
            ("docs/decisions/006-a.md", "# 5. Other", "006-a.md:1: begins with no"),
            ("docs/decisions/007-a.md", "Text", "007-a.md:1: begins with no"),
            ("docs/decisions/005-b.md", "# 5. Again", "005-b.md:1: another page has decision 5"),
            (
                "docs/decisions/008-a.md",
                "# 8. New",
                "008-a.md:1: docs/decisions/README.md does not lead to it",
            ),
        ] {
            let findings = said(&[index, ("docs/decisions/005-a.md", "# 5. A"), (path, text)]).1;
            assert!(matches!(&findings[..], [one] if one.contains(message)), "{path}: {findings:?}");
        }
    }
}
