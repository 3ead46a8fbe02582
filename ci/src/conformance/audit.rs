//! The checklist against tests, their results and exemptions.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::fmt;

use super::checklist;
use super::checklist::Checklist;
use super::claims::Claim;
use super::claims::claims;
use super::decisions;
use super::exemptions;
use super::exemptions::Exemptions;
use super::exemptions::Kind;
use super::results::Outcome;
use super::results::Results;
use super::rule_id::Group;
use super::rule_id::RuleId;
use crate::finding::Finding;
use crate::tree::Tree;

/// How many lines a test shows at once without a comment that says why.
const MOST_IDS: usize = 3;

/// How many lines of a group are in which state. Prints as the line that CI shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count {
    /// The group.
    pub group: Group,
    /// Shown by a test that ran and passed; other tests of the line may not have run, but none failed.
    pub covered: usize,
    /// A test has the line in its name, and there is no result of it.
    pub named: usize,
    /// A test has the line in its name that is left to a longer run, and no other that ran.
    pub left: usize,
    /// A test of the line failed.
    pub failed: usize,
    /// Not applicable.
    pub na: usize,
    /// Done otherwise, by a decision.
    pub deviates: usize,
    /// Not met, or not shown, and the exemptions say so.
    pub unmet: usize,
    /// None of these.
    pub missing: usize,
}

impl Count {
    fn new(group: Group) -> Self {
        Self { group, covered: 0, named: 0, left: 0, failed: 0, na: 0, deviates: 0, unmet: 0, missing: 0 }
    }

    /// What keeps the group from being shown as a whole. `by_results` also asks for results of all tests that name lines.
    pub fn complaints(&self, by_results: bool) -> Vec<String> {
        let all = [
            (self.missing, "have neither test nor exemption"),
            (self.failed, "have a test that failed"),
            (if by_results { self.named } else { 0 }, "have a test by name, and no result of it"),
        ];
        let found = all.into_iter().filter(|(lines, _)| *lines > 0);
        found.map(|(lines, what)| format!("{}: {lines} lines {what}", self.group.name())).collect()
    }
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { group, covered, named, left, failed, na, deviates, unmet, missing } = self;
        write!(f, "{} covered={covered} named={named} ", group.name())?;
        if *left > 0 {
            write!(f, "left={left} ")?;
        }
        write!(f, "failed={failed} na={na} deviates={deviates} unmet={unmet} missing={missing}")
    }
}

/// What an audit found.
#[derive(Clone, Debug)]
pub struct Audit {
    /// One count a group, in the order of the checklist.
    pub counts: Vec<Count>,
    /// Lines without test and without exemption, with their texts.
    pub missing: Checklist,
    /// Lines that tests name of which no result says that they passed: of the first such test, the place and the name.
    pub not_shown: BTreeMap<RuleId, String>,
    /// Contradictions between checklist, tests and exemptions.
    pub findings: Vec<Finding>,
}

/// Audits a checkout. Without `results` no line is covered.
pub fn audit(tree: &Tree, results: Option<&Results>) -> Audit {
    let text = |path| tree.file(path).map_or("", |file| file.text.as_str());
    let (checklist, mut findings) = checklist::parse(checklist::PATHS.map(|path| (path, text(path))));
    let (exemptions, more) = exemptions::parse(text(exemptions::PATH));
    findings.extend(more);
    if checklist.is_empty() {
        findings.push(Finding::in_file(checklist::PATHS[0], "holds no lines `- **UMS-01** [S] text`"));
    }
    let (decisions, more) = decisions::read(tree);
    findings.extend(more);
    findings.extend(deviations(&exemptions, &decisions));
    let claims = claims(tree);
    findings.extend(names(&claims));
    let mut audit = compare(checklist, &exemptions, &claims, results);
    findings.append(&mut audit.findings);
    Audit { findings, ..audit }
}

/// Deviations by decisions that there are not.
fn deviations(exemptions: &Exemptions, decisions: &BTreeSet<u32>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (id, exemption) in exemptions {
        if let Kind::Deviates(number) = exemption.kind
            && !decisions.contains(&number)
        {
            let message =
                format!("{id} deviates by decision {number}, which {} does not have", decisions::FOLDER);
            findings.push(Finding::new(exemptions::PATH, exemption.line, message));
        }
    }
    findings
}

/// Tests that show too much at once, and such of the same name: results do not tell those apart.
fn names(claims: &[Claim]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut places = BTreeMap::new();
    for claim in claims {
        let place = (&claim.path, claim.line);
        let first = *places.entry(&claim.test).or_insert(place);
        if first != place {
            let message = format!("{} is also the name of the test in {}:{}", claim.test, first.0, first.1);
            findings.push(Finding::new(&claim.path, claim.line, message));
        }
        if claim.ids > MOST_IDS && !claim.explained {
            let message = format!(
                "{} shows {} lines at once: split it, or say why before its attributes: `// conformance: REASON`",
                claim.test, claim.ids
            );
            findings.push(Finding::new(&claim.path, claim.line, message));
        }
    }
    findings.dedup();
    findings
}

/// What is known of a line that tests name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum State {
    Named,
    Left,
    Covered,
    Failed,
}

fn state(claims: &[&Claim], results: Option<&Results>) -> State {
    let of = |claim: &&Claim| match results.and_then(|results| results.of(&claim.test)) {
        None => State::Named,
        Some(Outcome::Left) => State::Left,
        Some(Outcome::Passed) => State::Covered,
        Some(Outcome::Failed) => State::Failed,
    };
    claims.iter().map(of).max().unwrap_or(State::Named)
}

fn compare(
    checklist: Checklist,
    exemptions: &Exemptions,
    claims: &[Claim],
    results: Option<&Results>,
) -> Audit {
    let mut findings = Vec::new();
    for claim in claims.iter().filter(|claim| !checklist.contains_key(&claim.id)) {
        let message = format!("a test names {}, which the checklist does not have", claim.id);
        findings.push(Finding::new(&claim.path, claim.line, message));
    }
    let mut running: BTreeMap<RuleId, Vec<&Claim>> = BTreeMap::new();
    for claim in claims.iter().filter(|claim| claim.runs) {
        running.entry(claim.id).or_default().push(claim);
    }
    for (id, exemption) in exemptions {
        let message = match running.get(id).and_then(|claims| claims.first()) {
            _ if !checklist.contains_key(id) => format!("the checklist has no {id}"),
            Some(claim) => format!("{id} is exempt, but a test shows it: {}:{}", claim.path, claim.line),
            None => continue,
        };
        findings.push(Finding::new(exemptions::PATH, exemption.line, message));
    }

    let mut counts = Group::ALL.map(Count::new).to_vec();
    let mut missing = Checklist::new();
    let mut not_shown = BTreeMap::new();
    for (id, text) in checklist {
        let Some(count) = counts.iter_mut().find(|count| count.group == id.group) else { continue };
        if let Some(claims) = running.get(&id) {
            let state = state(claims, results);
            *match state {
                State::Named => &mut count.named,
                State::Left => &mut count.left,
                State::Covered => &mut count.covered,
                State::Failed => &mut count.failed,
            } += 1;
            let is_it = |claim: &&&Claim| self::state(&[**claim], results) == state;
            if matches!(state, State::Named | State::Failed)
                && let Some(claim) = claims.iter().find(is_it)
            {
                let said = if state == State::Failed { "failed" } else { "has no result" };
                not_shown.insert(id, format!("{}:{}: {} {said}", claim.path, claim.line, claim.test));
            }
            continue;
        }
        match exemptions.get(&id).map(|exemption| exemption.kind) {
            Some(Kind::NotApplicable) => count.na += 1,
            Some(Kind::Deviates(_)) => count.deviates += 1,
            Some(Kind::Unmet) => count.unmet += 1,
            None => {
                count.missing += 1;
                missing.insert(id, text);
            }
        }
    }
    Audit { counts, missing, not_shown, findings }
}

#[cfg(test)]
mod tests {
    use super::Audit;
    use super::Count;
    use super::Group;
    use super::audit;
    use crate::conformance::results::Results;
    use crate::tree::Tree;

    const CHECKLIST: &str =
        "- **UMS-01** [S] one\n- **UMS-02** [S] two\n- **UMS-03** [S] three\n- **LM-01** [S] four";

    fn audited(exemptions: &str, tests: &str, results: Option<&str>) -> Audit {
        let tree = Tree::of([
            ("docs/conformance.md", CHECKLIST),
            ("docs/conformance-na.txt", exemptions),
            ("docs/decisions/README.md", "[5](005-status-words.md)"),
            ("docs/decisions/005-status-words.md", "# 5. Status words"),
            ("a/src/tests.rs", tests),
        ]);
        audit(&tree, results.map(Results::parse).as_ref())
    }

    fn run(exemptions: &str, tests: &str, results: Option<&str>) -> (Vec<String>, Vec<String>) {
        let audit = audited(exemptions, tests, results);
        let counts = audit.counts.iter().filter(|count| **count != Count::new(count.group));
        (counts.map(ToString::to_string).collect(), audit.findings.iter().map(ToString::to_string).collect())
    }

    const PASSED: Option<&str> = Some("test m::ums_1_a ... ok");

    #[test]
    fn every_line_is_in_one_state() {
        let exemptions = "UMS-02 na no\nUMS-03 deviates 5 otherwise\nLM-01 unmet not yet";
        let (counts, findings) = run(exemptions, "#[test]\nfn ums_1_a() {}", PASSED);
        assert!(findings.is_empty(), "{findings:?}");
        let expected = [
            "UMS covered=1 named=0 failed=0 na=1 deviates=1 unmet=0 missing=0",
            "LM covered=0 named=0 failed=0 na=0 deviates=0 unmet=1 missing=0",
        ];
        assert_eq!(counts, expected);
    }

    #[test]
    fn a_line_is_covered_by_a_test_that_ran_and_passed_alone() {
        let first = |results| {
            let test = "#[test]\nfn ums_1_a() {}\n#[test]\nfn ums_1_b() {}";
            run("", test, results).0.remove(0)
        };
        let expected = |covered, named, failed| {
            format!("UMS covered={covered} named={named} failed={failed} na=0 deviates=0 unmet=0 missing=2")
        };
        assert_eq!(first(None), expected(0, 1, 0));
        assert_eq!(first(Some("test other ... ok")), expected(0, 1, 0));
        assert_eq!(first(Some("test m::ums_1_a ... ignored")), expected(0, 1, 0));
        assert_eq!(first(PASSED), expected(1, 0, 0));
        assert_eq!(first(Some("test ums_1_a ... ok\ntest ums_1_b ... FAILED")), expected(0, 0, 1));
        let left = "UMS covered=0 named=0 left=1 failed=0 na=0 deviates=0 unmet=0 missing=2";
        assert_eq!(first(Some("test ums_1_a ... left")), left);
        assert_eq!(first(Some("test ums_1_a ... left\ntest ums_1_b ... ok")), expected(1, 0, 0));
    }

    #[test]
    fn lines_that_are_not_shown_are_named_with_their_test() {
        let shown = |results| {
            let test = "#[test]\nfn ums_1_a() {}\n#[test]\nfn ums_1_b() {}";
            audited("", test, results).not_shown.into_values().collect::<Vec<_>>()
        };
        assert_eq!(shown(None), ["a/src/tests.rs:2: ums_1_a has no result"]);
        assert_eq!(shown(PASSED), Vec::<String>::new());
        let failed = Some("test ums_1_a ... ok\ntest ums_1_b ... FAILED");
        assert_eq!(shown(failed), ["a/src/tests.rs:4: ums_1_b failed"]);
    }

    #[test]
    fn a_group_is_strict_about_missing_failed_and_named_lines() {
        let count = Count { covered: 1, na: 1, deviates: 1, unmet: 1, ..Count::new(Group::Ums) };
        assert!(count.complaints(true).is_empty());
        let missing = Count { missing: 2, ..count };
        assert_eq!(missing.complaints(false), ["UMS: 2 lines have neither test nor exemption"]);
        assert_eq!(Count { failed: 1, ..count }.complaints(false).len(), 1);
        assert!(Count { left: 1, ..count }.complaints(true).is_empty());
        let named = Count { named: 3, ..count };
        assert!(named.complaints(false).is_empty());
        assert_eq!(named.complaints(true), ["UMS: 3 lines have a test by name, and no result of it"]);
    }

    #[test]
    fn ignored_tests_cover_nothing() {
        let (counts, _) = run("", "#[test]\n#[ignore]\nfn ums_1_a() {}", PASSED);
        assert_eq!(counts[0], "UMS covered=0 named=0 failed=0 na=0 deviates=0 unmet=0 missing=3");
    }

    #[test]
    fn a_deviation_names_a_decision_that_there_is() {
        let (_, findings) = run("UMS-01 deviates 5 a\nUMS-02 deviates 6 b", "", None);
        let expected =
            "docs/conformance-na.txt:2: UMS-02 deviates by decision 6, which docs/decisions does not have";
        assert_eq!(findings, [expected]);
    }

    #[test]
    fn a_test_of_more_than_three_lines_says_why() {
        let findings =
            |before: &str, name: &str| run("", &format!("{before}#[test]\nfn {name}() {{}}"), None).1.len();
        assert_eq!(findings("", "ums_1_ums_2_ums_3_a"), 0);
        assert_eq!(findings("", "ums_1_ums_2_ums_3_lm_1_a"), 1);
        assert_eq!(findings("// conformance: one table\n", "ums_1_ums_2_ums_3_lm_1_a"), 0);
    }

    #[test]
    fn two_tests_of_one_name_are_a_finding() {
        let (_, findings) = run("", "#[test]\nfn ums_1_a() {}\nmod m {\n#[test]\nfn ums_1_a() {} }", None);
        assert_eq!(findings, ["a/src/tests.rs:5: ums_1_a is also the name of the test in a/src/tests.rs:2"]);
    }

    #[test]
    fn contradictions_are_findings() {
        let (_, findings) =
            run("UMS-01 na no\nUMS-09 na no", "#[test]\nfn ums_1_a() {}\n#[test]\nfn ums_8_b() {}", None);
        let expected = [
            "a/src/tests.rs:4: a test names UMS-08, which the checklist does not have",
            "docs/conformance-na.txt:1: UMS-01 is exempt, but a test shows it: a/src/tests.rs:2",
            "docs/conformance-na.txt:2: the checklist has no UMS-09",
        ];
        assert_eq!(findings, expected);
    }

    #[test]
    fn a_checklist_that_is_gone_is_a_finding() {
        assert_eq!(audit(&Tree::default(), None).findings.len(), 1);
    }
}
