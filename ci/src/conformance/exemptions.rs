//! Lines of the checklist that no test shows: not for this device, otherwise by decision, or not met.

use std::collections::BTreeMap;

use super::rule_id::RuleId;
use crate::finding::Finding;

/// Where the exemptions are.
pub const PATH: &str = "docs/conformance-na.txt";

/// Why no test shows a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It says nothing about this device.
    NotApplicable,
    /// The device does otherwise, by this decision of `docs/decisions`.
    Deviates(u32),
    /// The device does not do it, or nothing shows that it does.
    Unmet,
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

/// Reads `UMS-55 na reason`, `UMS-48 deviates 5 reason` and `LM-61 unmet reason`; `#` starts a comment line.
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
        "unmet" => (Kind::Unmet, rest),
        "deviates" => {
            let (number, reason) = cut(rest);
            let number = number.parse().map_err(|_| {
                format!("{id} deviates without a decision's number: `{id} deviates 5 reason`")
            })?;
            (Kind::Deviates(number), reason)
        }
        _ => return Err(format!("{id} is none of `na`, `deviates 5` and `unmet`")),
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
    fn all_kinds_are_read() {
        let (exemptions, findings) = parse(
            "# why\n\nUMS-55 na  not offered\nums-48 deviates 5 read-write\nLM-61 unmet 0.15 of the bus",
        );
        assert!(findings.is_empty(), "{findings:?}");
        let kinds: Vec<_> =
            exemptions.into_iter().map(|(id, found)| (id.to_string(), found.kind, found.line)).collect();
        let expected = [
            ("UMS-48".to_owned(), Kind::Deviates(5), 4),
            ("UMS-55".to_owned(), Kind::NotApplicable, 3),
            ("LM-61".to_owned(), Kind::Unmet, 5),
        ];
        assert_eq!(kinds, expected);
    }

    #[test]
    fn an_exemption_needs_id_kind_decision_and_reason() {
        for line in [
            "X-1 na why",
            "UMS-1",
            "UMS-1 later why",
            "UMS-1 deferred #6 why",
            "UMS-1 na",
            "UMS-1 unmet",
            "UMS-1 deviates why",
            "UMS-1 deviates 5",
        ] {
            let (exemptions, findings) = parse(line);
            assert!(exemptions.is_empty(), "{line}");
            assert_eq!(findings.len(), 1, "{line}");
        }
    }

    #[test]
    fn an_exemption_stands_once() {
        let (_, findings) = parse("UMS-1 na a\nUMS-01 unmet b");
        assert_eq!(findings[0].to_string(), "docs/conformance-na.txt:2: UMS-01 is exempt already in line 1");
    }
}
