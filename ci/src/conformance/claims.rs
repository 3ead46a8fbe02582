//! Tests that say by their name which lines of the checklist they show.

use super::rule_id::Group;
use super::rule_id::RuleId;
use crate::source::test_fns::test_fns;
use crate::tree::Tree;

/// One test that shows one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The line.
    pub id: RuleId,
    /// File of the test.
    pub path: String,
    /// Its line there.
    pub line: usize,
    /// Name of the test, without its modules.
    pub test: String,
    /// How many lines the test shows at once.
    pub ids: usize,
    /// Whether a comment before the test says why it shows so many: `// conformance: REASON`.
    pub explained: bool,
    /// Whether the test runs.
    pub runs: bool,
}

/// All claims of all tests.
pub fn claims(tree: &Tree) -> Vec<Claim> {
    let mut found = Vec::new();
    for file in tree.rust() {
        let lines: Vec<&str> = file.text.lines().collect();
        for test in test_fns(file.source()) {
            let ids = leading_ids(&test.name);
            let before = lines.get(..test.start.saturating_sub(1)).unwrap_or_default();
            let claim = |id: &RuleId| Claim {
                id: *id,
                path: file.path.clone(),
                line: test.line,
                test: test.name.clone(),
                ids: ids.len(),
                explained: is_explained(before),
                runs: !test.ignored,
            };
            found.extend(ids.iter().map(claim));
        }
    }
    found
}

/// True if the comment at the end of these lines has one that gives a reason.
fn is_explained(before: &[&str]) -> bool {
    let comment = before.iter().rev().map(|line| line.trim()).take_while(|line| line.starts_with("//"));
    comment.filter_map(|line| line.strip_prefix("// conformance:")).any(|reason| !reason.trim().is_empty())
}

/// The ids that a name starts with: `ums_13_ums_14_victim_is_lru` has two.
fn leading_ids(name: &str) -> Vec<RuleId> {
    let parts: Vec<&str> = name.split('_').collect();
    parts.chunks_exact(2).map_while(|pair| id(pair[0], pair[1])).collect()
}

fn id(group: &str, number: &str) -> Option<RuleId> {
    Some(RuleId { group: group.parse::<Group>().ok()?, number: number.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::claims;
    use super::leading_ids;
    use crate::tree::Tree;

    fn ids(name: &str) -> Vec<String> {
        leading_ids(name).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_name_starts_with_its_ids() {
        assert_eq!(ids("ums_1_work_runs"), ["UMS-01"]);
        assert_eq!(ids("ums_01_work_runs"), ["UMS-01"]);
        assert_eq!(ids("ums_13_ums_14_victim_is_lru"), ["UMS-13", "UMS-14"]);
        assert_eq!(ids("dirty_7_lm_112"), ["DIRTY-07", "LM-112"]);
    }

    #[test]
    fn other_names_claim_nothing() {
        for name in ["tail_beyond_ums_1", "lm_target_waits", "ums", "pre_3rd_try"] {
            assert!(ids(name).is_empty(), "{name}");
        }
    }

    #[test]
    fn a_reason_stands_in_the_comment_before_the_attributes() {
        let explained = |before: &str| {
            let text = format!("fn a() {{}}\n{before}\n#[test]\n#[should_panic]\nfn ums_1_ums_2_b() {{}}");
            let found = claims(&Tree::of([("x.rs", text)]));
            assert!(found.iter().all(|claim| claim.ids == 2 && claim.test == "ums_1_ums_2_b"), "{found:?}");
            found[0].explained
        };
        assert!(explained("// conformance: one table"));
        assert!(explained("    // conformance: one table\n    /// What it does."));
        for before in [
            "",
            "// conformance: ",
            "// one table",
            "// conformance: one table\nfn c() {}",
            "/// conformance: x",
        ] {
            assert!(!explained(before), "{before}");
        }
    }

    #[test]
    fn claims_know_their_place_and_whether_they_run() {
        let text =
            "#[test]\nfn tdr_2_a() {}\n#[ignore = \"slow\"]\n#[test]\nfn tdr_3_b() {}\nfn tdr_4_c() {}";
        let found = claims(&Tree::of([("a/tests/x.rs", text), ("a.txt", "#[test]\nfn ums_1_a() {}")]));
        let seen: Vec<_> = found.iter().map(|claim| (claim.id.to_string(), claim.line, claim.runs)).collect();
        assert_eq!(seen, [("TDR-02".to_owned(), 2, true), ("TDR-03".to_owned(), 5, false)]);
    }
}
