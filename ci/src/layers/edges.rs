//! Which top modules of its crate a file refers to.

use std::collections::BTreeSet;

use crate::source::words::line_of;
use crate::source::words::words;

/// A reference from a file to a top module of the same crate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edge {
    /// The first name behind `crate::`.
    pub target: String,
    /// The line of the reference.
    pub line: usize,
}

/// All references in `code`, which is masked, without tests, and belongs to the module `path`
/// (`["a", "b"]` for `src/a/b.rs`, nothing for a root). `super::` counts where it leads out of the top
/// module and to one of `modules`.
pub fn edges(code: &str, path: &[&str], modules: &BTreeSet<String>) -> Vec<Edge> {
    let mut found = Vec::new();
    let mut supers = 0;
    let mut behind = 0;
    for (offset, word) in words(code) {
        let continues = code[behind..offset].trim() == "::" && behind > 0;
        behind = offset + word.len();
        match word {
            "super" => {
                supers = if continues { supers + 1 } else { 1 };
                continue;
            }
            _ if continues && supers >= path.len() && supers > 0 && modules.contains(word) => {
                found.push(Edge { target: word.to_owned(), line: line_of(code, offset) });
            }
            "crate" => found.extend(
                behind_crate(&code[behind..])
                    .map(|target| Edge { target: target.to_owned(), line: line_of(code, offset) }),
            ),
            _ => {}
        }
        supers = 0;
    }
    found
}

/// The name in `::name`, given what stands behind `crate`.
fn behind_crate(rest: &str) -> Option<&str> {
    let rest = rest.trim_start().strip_prefix("::")?;
    let (offset, name) = words(rest).next()?;
    rest[..offset].trim().is_empty().then_some(name)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::edges;

    fn targets(code: &str, path: &[&str]) -> Vec<String> {
        let modules = BTreeSet::from(["a".to_owned(), "b".to_owned()]);
        edges(code, path, &modules).into_iter().map(|edge| edge.target).collect()
    }

    #[test]
    fn references_by_crate_are_edges_wherever_they_stand() {
        assert_eq!(
            targets("use crate::a::X; fn f() { crate::b::g(); $crate::c!() }", &["z"]),
            ["a", "b", "c"]
        );
        assert!(targets("pub(crate) fn f() {} pub(in crate) x; extern crate y;", &["z"]).is_empty());
    }

    #[test]
    fn super_is_an_edge_where_it_leads_out() {
        assert_eq!(targets("use super::a::X;", &["z"]), ["a"]);
        assert_eq!(targets("use super::super::b;", &["z", "y"]), ["b"]);
        assert!(targets("use super::a::X; use self::b;", &["z", "y"]).is_empty());
        assert!(targets("use super::X;", &["z"]).is_empty());
    }

    #[test]
    fn an_edge_knows_its_line() {
        assert_eq!(edges("\n\nuse crate::a;", &["z"], &BTreeSet::new())[0].line, 3);
    }
}
