//! The shipped files of a crate, and which of them refer to which.

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use crate::source::paths::paths;
use crate::test_files::TestFiles;
use crate::tree::SourceFile;
use crate::tree::Tree;

/// One shipped file, and the module path that it defines: `["a", "b"]` for `src/a/b.rs`, nothing for a root.
#[derive(Clone, Debug)]
pub struct Member<'a> {
    /// The module path.
    pub path: Vec<&'a str>,
    /// The file.
    pub file: &'a SourceFile,
}

/// The shipped files of the crate in the folder `name`.
#[derive(Clone, Debug)]
pub struct Members<'a> {
    all: Vec<Member<'a>>,
    by_path: BTreeMap<Vec<&'a str>, usize>,
}

/// A reference from a file to another of the crate, both by their index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reference {
    /// The file that refers.
    pub from: usize,
    /// The file that is referred to.
    pub to: usize,
    /// The line of the first such reference.
    pub line: usize,
}

impl<'a> Members<'a> {
    /// Finds the files of the crate.
    pub fn of(tree: &'a Tree, name: &str, test_files: &TestFiles) -> Self {
        let source = format!("{name}/src/");
        let shipped = tree.rust().filter(|file| !test_files.contains(&file.path));
        let inside =
            shipped.filter_map(|file| Some((file, file.path.strip_prefix(&source)?.strip_suffix(".rs")?)));
        let all: Vec<Member<'a>> = inside
            .map(|(file, inside)| {
                let mut path: Vec<&str> = inside.split('/').collect();
                if matches!(path[..], ["lib" | "main"] | ["bin", ..]) {
                    path.clear();
                } else if path.last() == Some(&"mod") {
                    path.pop();
                }
                Member { path, file }
            })
            .collect();
        let modules = all.iter().enumerate().filter(|(_, member)| !member.path.is_empty());
        let by_path = modules.map(|(index, member)| (member.path.clone(), index)).collect();
        Self { all, by_path }
    }

    /// The files, ordered by path.
    pub fn all(&self) -> &[Member<'a>] {
        &self.all
    }

    /// The file of the module that a path leads into, where `words` stand in the file `from`; none where that is a root, or
    /// something outside of the crate.
    pub fn resolve(&self, from: usize, words: &[&'a str]) -> Option<usize> {
        let own = &self.all.get(from)?.path;
        let supers = words.iter().take_while(|word| **word == "super").count();
        let (start, rest) = match words {
            ["crate", rest @ ..] => (&own[..0], rest),
            ["self", rest @ ..] => (&own[..], rest),
            _ if supers > 0 => (own.get(..own.len().checked_sub(supers)?)?, &words[supers..]),
            _ => (&own[..], words),
        };
        let mut path = [start, rest].concat();
        // What starts with a plain name leads to a module below this one, or is of no interest here.
        let least =
            if start.len() == own.len() && words.first() != Some(&"self") { own.len() + 1 } else { 1 };
        while path.len() >= least.max(1) {
            if let Some(index) = self.by_path.get(&path) {
                return Some(*index);
            }
            path.pop();
        }
        None
    }

    /// Which files refer to which others, each pair once. Roots refer to everything and are left out.
    pub fn references(&self) -> BTreeSet<Reference> {
        let mut lines: BTreeMap<(usize, usize), usize> = BTreeMap::new();
        for from in self.by_path.values().copied() {
            for path in paths(self.all[from].file.source()) {
                if let Some(to) = self.resolve(from, &path.words).filter(|to| *to != from) {
                    lines.entry((from, to)).or_insert(path.line);
                }
            }
        }
        lines.into_iter().map(|((from, to), line)| Reference { from, to, line }).collect()
    }
}

/// Groups of nodes, each of which can be reached from each other of its group: the strongly connected components with more
/// than one node, ordered, of the graph with these edges.
pub fn circles<N: Copy + Ord>(edges: &BTreeSet<(N, N)>) -> Vec<BTreeSet<N>> {
    let reachable = |start: N| {
        let mut seen = BTreeSet::new();
        let mut open = vec![start];
        while let Some(node) = open.pop() {
            let next = edges.iter().filter(|(from, _)| *from == node).map(|(_, to)| *to);
            open.extend(next.filter(|to| seen.insert(*to)));
        }
        seen
    };
    let nodes: BTreeSet<N> = edges.iter().map(|(from, _)| *from).collect();
    let reached: BTreeMap<N, BTreeSet<N>> = nodes.into_iter().map(|node| (node, reachable(node))).collect();
    let both_ways =
        |a: &N, b: &N| reached[a].contains(b) && reached.get(b).is_some_and(|back| back.contains(a));
    let mut found: Vec<BTreeSet<N>> = Vec::new();
    for node in reached.keys() {
        if !found.iter().any(|circle| circle.contains(node)) {
            let circle: BTreeSet<N> =
                reached.keys().filter(|other| both_ways(node, other)).copied().collect();
            found.extend((circle.len() > 1).then_some(circle));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::Members;
    use super::circles;
    use crate::test_files::TestFiles;
    use crate::tree::Tree;

    fn references(files: &[(&str, &str)]) -> Vec<String> {
        let tree = Tree::of(files.iter().copied());
        let members = Members::of(&tree, "c", &TestFiles::of(&tree));
        let name = |index: usize| members.all()[index].path.join("::");
        let found = members.references();
        found.iter().map(|found| format!("{}:{} {}", name(found.from), found.line, name(found.to))).collect()
    }

    #[test]
    fn a_reference_leads_to_the_innermost_module_of_its_path() {
        let files = [
            ("c/src/lib.rs", "use crate::a::X;"),
            ("c/src/a/mod.rs", "mod b; pub use b::Y; fn f() { std::x(); Y::new(); }"),
            (
                "c/src/a/b.rs",
                "\nuse super::c::Z; use crate::d::e::W; use crate::Root; use super::super::d::f;",
            ),
            ("c/src/a/c.rs", "use super::X; use self::c::V; #[cfg(test)] mod tests { use crate::d::U; }"),
            ("c/src/d.rs", "use crate::a::c; use crate::a::b;"),
        ];
        assert_eq!(
            references(&files),
            ["a::b:2 a::c", "a::b:2 d", "a::c:1 a", "a:1 a::b", "d:1 a::b", "d:1 a::c"]
        );
    }

    #[test]
    fn a_circle_is_all_that_lead_to_each_other() {
        let edges = [(1, 2), (2, 3), (3, 1), (3, 4), (4, 5), (6, 4), (7, 8), (8, 7), (9, 9)];
        let expected = [BTreeSet::from([1, 2, 3]), BTreeSet::from([7, 8])];
        assert_eq!(circles(&BTreeSet::from(edges)), expected);
        assert!(circles(&BTreeSet::from([(1, 2), (1, 3), (2, 3)])).is_empty());
    }
}
