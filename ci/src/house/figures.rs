//! All figures, measured, printed, and compared.

use std::collections::BTreeMap;

use super::limits;
use super::limits::Figure;
use super::limits::Kind;
use super::types;
use super::types::Type;
use crate::finding::Finding;
use crate::layers::table;
use crate::members::Members;
use crate::members::circles;
use crate::test_files::TestFiles;
use crate::tree::SourceFile;
use crate::tree::Tree;

/// How many types are printed.
const LARGEST: usize = 20;

/// Everything that is measured.
#[derive(Clone, Debug, Default)]
pub struct House {
    types: Vec<(String, Type)>,
    circles: Vec<(String, Vec<String>)>,
    lines: BTreeMap<String, usize>,
}

impl House {
    /// Measures the crates that have a rank.
    pub fn of(tree: &Tree) -> Self {
        let text = tree.file(table::PATH).map_or("", |file| file.text.as_str());
        let test_files = TestFiles::of(tree);
        let mut house = Self::default();
        for name in table::Table::parse(text).0.crates.into_keys() {
            let members = Members::of(tree, &name, &test_files);
            house
                .lines
                .insert(name.clone(), members.all().iter().map(|member| shipped_lines(member.file)).sum());
            house.types.extend(types::types(&members).into_iter().map(|found| (name.clone(), found)));
            let edges = members.references().into_iter().map(|found| (found.from, found.to)).collect();
            for circle in circles(&edges) {
                let files = circle.into_iter().map(|index| members.all()[index].file.path.clone());
                house.circles.push((name.clone(), files.collect()));
            }
        }
        house.types.sort_by_key(|(_, found)| std::cmp::Reverse((found.methods, found.fields)));
        house
    }

    /// All that has a limit.
    pub fn figures(&self) -> Vec<Figure> {
        let mut figures = Vec::new();
        for (name, found) in &self.types {
            let subject = format!("{name} {}", found.name);
            figures.push(Figure { kind: Kind::Methods, subject: subject.clone(), value: found.methods });
            figures.push(Figure { kind: Kind::Fields, subject, value: found.fields });
        }
        for (name, lines) in &self.lines {
            let own = self.circles.iter().filter(|(other, _)| other == name);
            let value = own.map(|(_, files)| files.len()).sum();
            figures.push(Figure { kind: Kind::Circles, subject: name.clone(), value });
            figures.push(Figure { kind: Kind::Lines, subject: name.clone(), value: *lines });
        }
        figures
    }

    /// The figures against the limits of `ci/house.txt`.
    pub fn check(&self, tree: &Tree) -> Vec<Finding> {
        limits::check(tree.file(limits::PATH).map_or("", |file| file.text.as_str()), &self.figures())
    }

    /// The figures for people.
    pub fn report(&self) -> String {
        let mut report = String::from("types by methods (methods, files with them, fields)\n");
        let mut line = |text: String| report.extend([text.as_str(), "\n"]);
        for (name, found) in self.types.iter().take(LARGEST) {
            line(format!(
                "{:6} {:6} {:6}  {name} {}",
                found.methods,
                found.files.len(),
                found.fields,
                found.name
            ));
        }
        line("types by fields".to_owned());
        let mut by_fields: Vec<&(String, Type)> = self.types.iter().collect();
        by_fields.sort_by_key(|(_, found)| std::cmp::Reverse(found.fields));
        for (name, found) in by_fields.into_iter().take(LARGEST / 2) {
            line(format!("{:6}  {name} {}", found.fields, found.name));
        }
        let files: usize = self.circles.iter().map(|(_, files)| files.len()).sum();
        line(format!("circles of files by their imports: {}, with {files} files", self.circles.len()));
        for (_, files) in &self.circles {
            line(format!("{:6}  {}", files.len(), files.join(" ")));
        }
        line("shipped source lines".to_owned());
        for (name, lines) in &self.lines {
            line(format!("{lines:6}  {name}"));
        }
        line(format!("{:6}  in all", self.lines.values().sum::<usize>()));
        report
    }
}

/// The number of lines outside of test items.
fn shipped_lines(file: &SourceFile) -> usize {
    file.text.lines().count() - file.source().test_lines().len()
}

#[cfg(test)]
mod tests {
    use super::House;
    use crate::tree::Tree;

    fn tree(limits: &str) -> Tree {
        Tree::of([
            ("ci/layers.txt", "c 0"),
            ("ci/house.txt", limits),
            ("c/src/lib.rs", "//! C.\nmod a;\nmod b;\n#[cfg(test)]\nmod kit;\n"),
            ("c/src/a.rs", "use crate::b::B;\npub struct A { x: u8, y: u8 }\nimpl A { fn f(&self) {} }\n"),
            (
                "c/src/b.rs",
                "use crate::a::A;\npub struct B;\nimpl A {\n fn g() {}\n}\n#[cfg(test)]\nmod tests {\n}\n",
            ),
            ("c/src/kit.rs", "use crate::a::A;\nimpl A { fn h() {} }"),
        ])
    }

    #[test]
    fn types_circles_and_lines_are_measured_without_tests() {
        let report = House::of(&tree("")).report();
        for line in [
            "     2      2      2  c a::A",
            "     2  c a::A",
            "circles of files by their imports: 1, with 2 files",
            "     2  c/src/a.rs c/src/b.rs",
            "    11  c",
            "    11  in all",
        ] {
            assert!(report.lines().any(|found| found == line), "{line}: {report}");
        }
    }

    #[test]
    fn a_figure_above_its_limit_is_a_finding() {
        let check = |limits: &str| {
            let tree = tree(limits);
            House::of(&tree).check(&tree).iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert!(check("methods 2\nfields 2\ncircles c 2\nlines c 11").is_empty());
        let expected = [
            "ci/house.txt:2: fields of c a::A: 2, and the limit is 1",
            "ci/house.txt:3: circles of c: 2, and the limit is 1",
            "ci/house.txt:4: lines of c: 11, and the limit is 10",
            "ci/house.txt:1: methods of c a::A: 2, and the limit is 1",
        ];
        let mut found = check("methods 1\nfields 1\ncircles c 1\nlines c 10");
        found.sort();
        let mut expected = expected.map(str::to_owned);
        expected.sort();
        assert_eq!(found, expected);
    }
}
