//! The decisions that deviations name: headings `## 5. Title`.

use std::collections::BTreeSet;

/// Where the decisions are.
pub const PATH: &str = "docs/decisions.md";

/// The numbers of all decisions.
pub fn parse(text: &str) -> BTreeSet<u32> {
    let heading = |line: &str| line.strip_prefix("## ")?.split_once(". ")?.0.parse().ok();
    text.lines().filter_map(heading).collect()
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn headings_with_a_number_are_decisions() {
        let found = parse("# 1. Top\n## 5. Status words\n## Notes\n### 6. Part\n## 42. Unmaps\n## 7\n");
        assert_eq!(found.into_iter().collect::<Vec<_>>(), [5, 42]);
    }
}
