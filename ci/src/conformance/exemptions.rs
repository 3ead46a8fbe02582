//! Lines of the checklist that no test shows: not for this device, or not yet.

use std::collections::BTreeMap;

use super::rule_id::RuleId;
use crate::finding::Finding;

/// Where the exemptions are.
pub const PATH: &str = "docs/conformance-na.txt";

/// Why a line needs no test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It says nothing about this device.
    NotApplicable,
    /// It needs what this issue brings.
    Deferred(u32),
}

/// One exemption.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exemption {
    /// Its kind.
    pub kind: Kind,
    /// Its line in the file.
    pub line: usize,
}

/// All exemptions by id.
pub type Exemptions = BTreeMap<RuleId, Exemption>;

/// Reads `UMS-48 na reason` and `UMS-112 deferred #6 reason`; `#` starts a comment line.
pub fn parse(text: &str) -> (Exemptions, Vec<Finding>) {
    let mut exemptions = Exemptions::new();
    let mut findings = Vec::new();
    for (index, line) in text.lines().map(str::trim).enumerate() {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let line_number = index + 1;
        match entry(line) {
            Err(message) => findings.push(Finding::new(PATH, line_number, message)),
            Ok((id, kind)) => {
                if let Some(before) = exemptions.insert(id, Exemption { kind, line: line_number }) {
                    let message = format!("{id} is exempt already in line {}", before.line);
                    findings.push(Finding::new(PATH, line_number, message));
                }
            }
        }
    }
    (exemptions, findings)
}

fn entry(line: &str) -> Result<(RuleId, Kind), String> {
    let (id, rest) = cut(line);
    let id: RuleId = id.parse().map_err(|error| format!("{error}"))?;
    let (kind, rest) = cut(rest);
    let (kind, reason) = match kind {
        "na" => (Kind::NotApplicable, rest),
        "deferred" => {
            let (issue, reason) = cut(rest);
            let issue = issue.strip_prefix('#').and_then(|number| number.parse().ok());
            (
                Kind::Deferred(
                    issue.ok_or(format!("{id} is deferred without an issue: `{id} deferred #6 reason`"))?,
                ),
                reason,
            )
        }
        _ => return Err(format!("{id} is neither `na` nor `deferred #6`")),
    };
    if reason.is_empty() { Err(format!("{id} is exempt without a reason")) } else { Ok((id, kind)) }
}

/// The first word and what follows it.
fn cut(text: &str) -> (&str, &str) {
    text.split_once(char::is_whitespace).map_or((text, ""), |(word, rest)| (word, rest.trim()))
}

#[cfg(test)]
mod tests {
    use super::Kind;
    use super::parse;

    #[test]
    fn both_kinds_are_read() {
        let (exemptions, findings) =
            parse("# why\n\nUMS-48 na  the window is read-write\nums-112 deferred #6 no peer");
        assert!(findings.is_empty(), "{findings:?}");
        let kinds: Vec<_> =
            exemptions.into_iter().map(|(id, found)| (id.to_string(), found.kind, found.line)).collect();
        let expected =
            [("UMS-48".to_owned(), Kind::NotApplicable, 3), ("UMS-112".to_owned(), Kind::Deferred(6), 4)];
        assert_eq!(kinds, expected);
    }

    #[test]
    fn an_exemption_needs_id_kind_issue_and_reason() {
        for line in
            ["X-1 na why", "UMS-1", "UMS-1 later why", "UMS-1 na", "UMS-1 deferred why", "UMS-1 deferred #6"]
        {
            let (exemptions, findings) = parse(line);
            assert!(exemptions.is_empty(), "{line}");
            assert_eq!(findings.len(), 1, "{line}");
        }
    }

    #[test]
    fn an_exemption_stands_once() {
        let (_, findings) = parse("UMS-1 na a\nUMS-01 deferred #2 b");
        assert_eq!(findings[0].to_string(), "docs/conformance-na.txt:2: UMS-01 is exempt already in line 1");
    }
}
