//! The checklist against tests and exemptions.

use std::collections::BTreeMap;
use std::fmt;

use super::checklist;
use super::checklist::Checklist;
use super::claims::Claim;
use super::claims::claims;
use super::exemptions;
use super::exemptions::Exemptions;
use super::exemptions::Kind;
use super::rule_id::Group;
use super::rule_id::RuleId;
use crate::finding::Finding;
use crate::tree::Tree;

/// How many lines of a group are in which state. Prints as the line that CI shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count {
    /// The group.
    pub group: Group,
    /// Shown by a test that runs.
    pub covered: usize,
    /// Not applicable.
    pub na: usize,
    /// Deferred to an issue.
    pub deferred: usize,
    /// None of these.
    pub missing: usize,
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { group, covered, na, deferred, missing } = self;
        write!(f, "{} covered={covered} na={na} deferred={deferred} missing={missing}", group.name())
    }
}

/// What an audit found.
#[derive(Clone, Debug)]
pub struct Audit {
    /// One count a group, in the order of the checklist.
    pub counts: Vec<Count>,
    /// Lines without test and without exemption, with their texts.
    pub missing: Checklist,
    /// Contradictions between checklist, tests and exemptions.
    pub findings: Vec<Finding>,
}

/// Audits a checkout.
pub fn audit(tree: &Tree) -> Audit {
    let text = |path| tree.file(path).map_or("", |file| file.text.as_str());
    let (checklist, mut findings) = checklist::parse(text(checklist::PATH));
    let (exemptions, more) = exemptions::parse(text(exemptions::PATH));
    findings.extend(more);
    if checklist.is_empty() {
        findings.push(Finding::in_file(checklist::PATH, "holds no lines `- **UMS-01** [S] text`"));
    }
    let mut audit = compare(checklist, &exemptions, &claims(tree));
    findings.append(&mut audit.findings);
    Audit { findings, ..audit }
}

fn compare(checklist: Checklist, exemptions: &Exemptions, claims: &[Claim]) -> Audit {
    let mut findings = Vec::new();
    for claim in claims.iter().filter(|claim| !checklist.contains_key(&claim.id)) {
        let message = format!("a test names {}, which the checklist does not have", claim.id);
        findings.push(Finding::new(&claim.path, claim.line, message));
    }
    let running: BTreeMap<RuleId, &Claim> =
        claims.iter().filter(|claim| claim.runs).map(|claim| (claim.id, claim)).collect();
    for (id, exemption) in exemptions {
        let message = match running.get(id) {
            _ if !checklist.contains_key(id) => format!("the checklist has no {id}"),
            Some(claim) => format!("{id} is exempt, but a test shows it: {}:{}", claim.path, claim.line),
            None => continue,
        };
        findings.push(Finding::new(exemptions::PATH, exemption.line, message));
    }

    let mut counts =
        Group::ALL.map(|group| Count { group, covered: 0, na: 0, deferred: 0, missing: 0 }).to_vec();
    let mut missing = Checklist::new();
    for (id, text) in checklist {
        let Some(count) = counts.iter_mut().find(|count| count.group == id.group) else { continue };
        match exemptions.get(&id).map(|exemption| &exemption.kind) {
            _ if running.contains_key(&id) => count.covered += 1,
            Some(Kind::NotApplicable) => count.na += 1,
            Some(Kind::Deferred(_)) => count.deferred += 1,
            None => {
                count.missing += 1;
                missing.insert(id, text);
            }
        }
    }
    Audit { counts, missing, findings }
}

#[cfg(test)]
mod tests {
    use super::audit;
    use crate::tree::Tree;

    const CHECKLIST: &str =
        "- **UMS-01** [S] one\n- **UMS-02** [S] two\n- **UMS-03** [S] three\n- **LM-01** [S] four";

    fn run(exemptions: &str, tests: &str) -> (Vec<String>, Vec<String>) {
        let tree = Tree::of([
            ("docs/conformance.md", CHECKLIST),
            ("docs/conformance-na.txt", exemptions),
            ("a/src/tests.rs", tests),
        ]);
        let audit = audit(&tree);
        let counts = audit.counts.iter().filter(|count| count.missing + count.covered + count.na > 0);
        (counts.map(ToString::to_string).collect(), audit.findings.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn every_line_is_in_one_state() {
        let (counts, findings) = run("UMS-02 na no\nUMS-03 deferred #4 later", "#[test]\nfn ums_1_a() {}");
        assert!(findings.is_empty(), "{findings:?}");
        assert_eq!(
            counts,
            ["UMS covered=1 na=1 deferred=1 missing=0", "LM covered=0 na=0 deferred=0 missing=1"]
        );
    }

    #[test]
    fn ignored_tests_cover_nothing() {
        let (counts, _) = run("", "#[test]\n#[ignore]\nfn ums_1_a() {}");
        assert_eq!(counts[0], "UMS covered=0 na=0 deferred=0 missing=3");
    }

    #[test]
    fn contradictions_are_findings() {
        let (_, findings) =
            run("UMS-01 na no\nUMS-09 na no", "#[test]\nfn ums_1_a() {}\n#[test]\nfn ums_8_b() {}");
        let expected = [
            "a/src/tests.rs:4: a test names UMS-08, which the checklist does not have",
            "docs/conformance-na.txt:1: UMS-01 is exempt, but a test shows it: a/src/tests.rs:2",
            "docs/conformance-na.txt:2: the checklist has no UMS-09",
        ];
        assert_eq!(findings, expected);
    }

    #[test]
    fn a_checklist_that_is_gone_is_a_finding() {
        assert_eq!(audit(&Tree::default()).findings.len(), 1);
    }
}
