//! Inside of each folder imports go one way: the modules of a folder, and the `mod.rs` beside them, import each other in no circle.
//! Folders that have one are in the table as open, with the number of modules that are part of one.

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use super::table::PATH;
use super::table::Table;
use crate::finding::Finding;
use crate::members::Members;
use crate::members::Reference;
use crate::members::circles;
use crate::test_files::TestFiles;
use crate::tree::Tree;

/// The references between the modules of one folder, each with one that shows it. A module is called by its name, the
/// folder's own file by none.
type Folder<'a> = BTreeMap<(&'a str, &'a str), Reference>;

/// Checks all folders below the top of each crate; the table has ranks for the top.
pub fn check(tree: &Tree, table: &Table) -> Vec<Finding> {
    let test_files = TestFiles::of(tree);
    let mut findings = Vec::new();
    let mut with_circles = BTreeSet::new();
    for name in table.crates.keys() {
        let members = Members::of(tree, name, &test_files);
        for (path, folder) in folders(&members) {
            let circles = circles(&folder.keys().copied().collect());
            let key = (name.clone(), path.join("/"));
            let open = table.open.get(&key).map(|entry| entry.rank as usize);
            let count: usize = circles.iter().map(BTreeSet::len).sum();
            if count == 0 {
                continue;
            }
            match open {
                Some(open) if open > count => {
                    let message =
                        format!("{name} {}: {count} modules are in circles: write so, not {open}", key.1);
                    findings.push(Finding::new(PATH, table.open[&key].line, message));
                }
                Some(open) if open == count => {}
                _ => findings.extend(circles.iter().map(|circle| circle_finding(&members, &folder, circle))),
            }
            with_circles.insert(key);
        }
    }
    for (key, entry) in table.open.iter().filter(|(key, _)| !with_circles.contains(*key)) {
        findings.push(Finding::new(
            PATH,
            entry.line,
            format!("{} {} has no circle of imports", key.0, key.1),
        ));
    }
    findings
}

/// The folders below the top in which modules refer to each other.
fn folders<'a>(members: &Members<'a>) -> BTreeMap<Vec<&'a str>, Folder<'a>> {
    let mut folders: BTreeMap<Vec<&str>, Folder<'_>> = BTreeMap::new();
    for reference in members.references() {
        let (from, to) = (&members.all()[reference.from].path, &members.all()[reference.to].path);
        let common = from.iter().zip(to).take_while(|(a, b)| a == b).count();
        if common > 0 {
            let inside = |path: &[&'a str]| path.get(common).copied().unwrap_or_default();
            let folder = folders.entry(from[..common].to_vec()).or_default();
            folder.entry((inside(from), inside(to))).or_insert(reference);
        }
    }
    folders
}

/// Says where a circle is: each import from one of its modules to another.
fn circle_finding(members: &Members<'_>, folder: &Folder<'_>, circle: &BTreeSet<&str>) -> Finding {
    let inside = folder.iter().filter(|((from, to), _)| circle.contains(from) && circle.contains(to));
    let called = |name: &'_ str| if name.is_empty() { "mod.rs".to_owned() } else { name.to_owned() };
    let imports: Vec<String> = inside
        .clone()
        .map(|((_, to), found)| {
            format!("{}:{} {}", members.all()[found.from].file.path, found.line, called(to))
        })
        .collect();
    let names: Vec<String> = circle.iter().map(|name| called(name)).collect();
    let message = format!("{} import each other in a circle: {}", names.join(", "), imports.join(", "));
    let first = inside.map(|(_, found)| found).next();
    let (path, line) =
        first.map_or(("", 0), |found| (members.all()[found.from].file.path.as_str(), found.line));
    Finding::new(path, line, message)
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::layers::table::Table;
    use crate::tree::Tree;

    fn findings(table: &str, files: &[(&str, &str)]) -> Vec<String> {
        let tree = Tree::of(files.iter().copied());
        check(&tree, &Table::parse(table).0).iter().map(ToString::to_string).collect()
    }

    const CIRCLE: [(&str, &str); 4] = [
        ("c/src/a/mod.rs", "pub mod b; pub mod d; pub mod e;"),
        ("c/src/a/b.rs", "\nuse super::d::x::X;"),
        ("c/src/a/d/x.rs", "use crate::a::b::B;"),
        ("c/src/a/e.rs", "use super::b::B; use crate::a::d::x;"),
    ];

    #[test]
    fn modules_of_a_folder_import_each_other_in_no_circle() {
        let expected =
            "c/src/a/b.rs:2: b, d import each other in a circle: c/src/a/b.rs:2 d, c/src/a/d/x.rs:1 b";
        assert_eq!(findings("c 0", &CIRCLE), [expected]);
        assert!(findings("c 0", &[CIRCLE[0], CIRCLE[1], ("c/src/a/d/x.rs", ""), CIRCLE[3]]).is_empty());
    }

    #[test]
    fn the_file_of_a_folder_is_one_of_its_modules() {
        let files =
            [("c/src/a/mod.rs", "mod b; pub struct X; fn f() { b::g() }"), ("c/src/a/b.rs", "use super::X;")];
        let found = findings("c 0", &files);
        assert_eq!(found.len(), 1);
        assert!(found[0].contains("mod.rs, b import each other"), "{found:?}");
    }

    #[test]
    fn an_open_folder_has_its_number_of_modules_in_circles() {
        assert!(findings("c 0\nc a open 2", &CIRCLE).is_empty());
        assert_eq!(findings("c 0\nc a open 1", &CIRCLE).len(), 1);
        let lower = "ci/layers.txt:2: c a: 2 modules are in circles: write so, not 3";
        assert_eq!(findings("c 0\nc a open 3", &CIRCLE), [lower]);
        assert_eq!(
            findings("c 0\nc a open 2", &CIRCLE[..1]),
            ["ci/layers.txt:2: c a has no circle of imports"]
        );
    }
}
