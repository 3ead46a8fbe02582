//! The checklist: lines `- **UMS-01** [S] text`.

use std::collections::BTreeMap;

use super::rule_id::RuleId;
use crate::finding::Finding;

/// Where the checklist is: that of the design's sources, and our own.
pub const PATHS: [&str; 2] = ["docs/conformance.md", "docs/conformance-continuity.md"];

/// All lines by id.
pub type Checklist = BTreeMap<RuleId, String>;

/// Reads the checklist: a path and a text for each of its files. An id that stands twice is a finding.
pub fn parse<'a>(files: impl IntoIterator<Item = (&'a str, &'a str)>) -> (Checklist, Vec<Finding>) {
    let mut checklist = Checklist::new();
    let mut findings = Vec::new();
    for (path, text) in files {
        for (index, line) in text.lines().enumerate() {
            let Some((id, rest)) = line.strip_prefix("- **").and_then(|line| line.split_once("**")) else {
                continue;
            };
            let Ok(id) = id.parse::<RuleId>() else { continue };
            if checklist.insert(id, rest.trim().to_owned()).is_some() {
                findings.push(Finding::new(path, index + 1, format!("{id} stands here a second time")));
            }
        }
    }
    (checklist, findings)
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn lines_with_an_id_are_rules() {
        let (checklist, findings) = parse([(
            "docs/conformance.md",
            "# Head\n- **UMS-01** [S] One.\n- other\n- **LM-2** [I] Two.\nUMS-01",
        )]);
        assert!(findings.is_empty());
        let lines: Vec<String> = checklist.iter().map(|(id, text)| format!("{id} {text}")).collect();
        assert_eq!(lines, ["UMS-01 [S] One.", "LM-02 [I] Two."]);
    }

    #[test]
    fn an_id_stands_once() {
        let (_, findings) = parse([("docs/conformance.md", "- **UMS-1** [S] a\n- **UMS-01** [S] b")]);
        assert_eq!(findings[0].to_string(), "docs/conformance.md:2: UMS-01 stands here a second time");
    }
}
