//! The table of ranks.

use std::collections::BTreeMap;

use crate::finding::Finding;

/// Where the table is.
pub const PATH: &str = "ci/layers.txt";

/// How high something stands; it may use what stands lower.
pub type Rank = u32;

/// A rank and the line that gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The rank.
    pub rank: Rank,
    /// Line in the table.
    pub line: usize,
}

/// Ranks of crates, `crate rank`, and of their modules, `crate module rank`, and folders with circles of imports,
/// `crate folder open count`. A crate is called by its folder.
#[derive(Clone, Debug, Default)]
pub struct Table {
    /// Crate to rank.
    pub crates: BTreeMap<String, Entry>,
    /// Crate and top module to rank.
    pub modules: BTreeMap<(String, String), Entry>,
    /// Crate and folder to the number of modules in circles.
    pub open: BTreeMap<(String, String), Entry>,
}

impl Table {
    /// Reads the table; lines that can't be read become findings.
    pub fn parse(text: &str) -> (Self, Vec<Finding>) {
        let mut table = Self::default();
        let mut findings = Vec::new();
        for (index, text) in text.lines().enumerate() {
            let line = index + 1;
            let fields: Vec<&str> = text.split('#').next().unwrap_or_default().split_whitespace().collect();
            let entry = |rank: &str| rank.parse().ok().map(|rank| Entry { rank, line });
            let replaced =
                match fields[..] {
                    [] => continue,
                    [name, rank] => entry(rank).map(|entry| table.crates.insert(name.to_owned(), entry)),
                    [name, module, rank] => entry(rank)
                        .map(|entry| table.modules.insert((name.to_owned(), module.to_owned()), entry)),
                    [name, folder, "open", count] => entry(count)
                        .map(|entry| table.open.insert((name.to_owned(), folder.to_owned()), entry)),
                    _ => None,
                };
            match replaced {
                None => findings.push(Finding::new(
                    PATH,
                    line,
                    "is none of `crate rank`, `crate module rank`, `crate folder open count`",
                )),
                Some(Some(before)) => {
                    findings.push(Finding::new(
                        PATH,
                        line,
                        format!("stands here already, in line {}", before.line),
                    ));
                }
                Some(None) => {}
            }
        }
        (table, findings)
    }

    /// The rank of a module.
    pub fn module(&self, name: &str, module: &str) -> Option<Rank> {
        self.modules.get(&(name.to_owned(), module.to_owned())).map(|entry| entry.rank)
    }
}

#[cfg(test)]
mod tests {
    use super::Table;

    #[test]
    fn crates_and_modules_have_ranks() {
        let (table, findings) = Table::parse("# ranks\na 0\n\na x 10 # why\na x/y open 3\n");
        assert!(findings.is_empty());
        assert_eq!(table.crates["a"].rank, 0);
        assert_eq!(table.open[&("a".to_owned(), "x/y".to_owned())].rank, 3);
        assert_eq!((table.module("a", "x"), table.module("a", "y")), (Some(10), None));
    }

    #[test]
    fn bad_and_double_lines_are_findings() {
        let (_, findings) = Table::parse("a\na x high\na x 1\na x 2\na x y 1");
        let lines: Vec<usize> = findings.iter().map(|finding| finding.line).collect();
        assert_eq!(lines, [1, 2, 4, 5]);
    }
}
