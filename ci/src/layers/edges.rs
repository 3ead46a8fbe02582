//! Which top modules of its crate a file refers to.

use std::collections::BTreeSet;

use crate::source::paths::paths;
use crate::source::shipped::Source;

/// A reference from a file to a top module of the same crate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edge {
    /// The first name behind `crate::`.
    pub target: String,
    /// The line of the reference.
    pub line: usize,
}

/// All references in the shipped code of a file that belongs to the module `path` (`["a", "b"]` for `src/a/b.rs`, nothing for
/// a root). `super::` counts where it leads out of the top module and to one of `modules`.
pub fn edges(source: &Source, path: &[&str], modules: &BTreeSet<String>) -> Vec<Edge> {
    let mut found = Vec::new();
    for reference in paths(source) {
        let supers = reference.words.iter().take_while(|word| **word == "super").count();
        let target = match reference.words[..] {
            ["crate", target, ..] => Some(target),
            _ if supers > 0 && supers >= path.len() => {
                reference.words.get(supers).copied().filter(|word| modules.contains(*word))
            }
            _ => None,
        };
        found.extend(target.map(|target| Edge { target: target.to_owned(), line: reference.line }));
    }
    found
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::edges;
    use crate::source::shipped::Source;

    fn targets(code: &str, path: &[&str]) -> Vec<String> {
        let modules = BTreeSet::from(["a".to_owned(), "b".to_owned()]);
        edges(&Source::new(code), path, &modules).into_iter().map(|edge| edge.target).collect()
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
        assert_eq!(edges(&Source::new("\n\nuse crate::a;"), &["z"], &BTreeSet::new())[0].line, 3);
    }
}
