//! Tests that say by their name which lines of the checklist they show.

use super::rule_id::Group;
use super::rule_id::RuleId;
use crate::source::masked::Masked;
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
    /// Whether the test runs.
    pub runs: bool,
}

/// All claims of all tests.
pub fn claims(tree: &Tree) -> Vec<Claim> {
    let mut found = Vec::new();
    for file in tree.rust() {
        for test in test_fns(&Masked::new(&file.text).code) {
            let claim = |id| Claim { id, path: file.path.clone(), line: test.line, runs: !test.ignored };
            found.extend(leading_ids(&test.name).into_iter().map(claim));
        }
    }
    found
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
    fn claims_know_their_place_and_whether_they_run() {
        let text =
            "#[test]\nfn tdr_2_a() {}\n#[ignore = \"slow\"]\n#[test]\nfn tdr_3_b() {}\nfn tdr_4_c() {}";
        let found = claims(&Tree::of([("a/tests/x.rs", text), ("a.txt", "#[test]\nfn ums_1_a() {}")]));
        let seen: Vec<_> = found.iter().map(|claim| (claim.id.to_string(), claim.line, claim.runs)).collect();
        assert_eq!(seen, [("TDR-02".to_owned(), 2, true), ("TDR-03".to_owned(), 5, false)]);
    }
}
