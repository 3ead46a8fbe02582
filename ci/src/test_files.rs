//! Which files hold nothing but tests.

use std::collections::BTreeSet;

use crate::tree::SourceFile;
use crate::tree::Tree;

/// The files that are no part of what is shipped: `tests.rs`, what lies under `tests/` and `benches/`, and
/// modules declared with `#[cfg(test)]`.
#[derive(Clone, Debug, Default)]
pub struct TestFiles {
    declared: BTreeSet<String>,
}

impl TestFiles {
    /// Finds the modules that the files of `tree` declare for tests only.
    pub fn of(tree: &Tree) -> Self {
        let mut declared = BTreeSet::new();
        for file in tree.rust() {
            for module in file.source().test_modules() {
                declared.insert(format!("{}/{module}", folder_of_children(file)));
            }
        }
        Self { declared }
    }

    /// True if `path` holds nothing but tests.
    pub fn contains(&self, path: &str) -> bool {
        let module = path.strip_suffix(".rs").unwrap_or(path);
        let mut parts = module.split('/');
        parts.any(|part| part == "tests" || part == "benches")
            || module.match_indices('/').any(|(end, _)| self.declared.contains(&module[..end]))
            || self.declared.contains(module)
    }
}

/// The folder in which the modules lie that `file` declares.
fn folder_of_children(file: &SourceFile) -> &str {
    let own = file.path.strip_suffix(".rs").unwrap_or(&file.path);
    match file.name() {
        "mod.rs" | "lib.rs" | "main.rs" => own.rsplit_once('/').map_or("", |(folder, _)| folder),
        _ => own,
    }
}

#[cfg(test)]
mod tests {
    use super::TestFiles;
    use crate::tree::Tree;

    #[test]
    fn declared_and_conventional_test_files_are_known() {
        let tree = Tree::of([
            ("a/src/lib.rs", "#[cfg(test)] mod kit; mod x;"),
            ("a/src/x.rs", "#[cfg(all(test, loom))] mod model;"),
        ]);
        let files = TestFiles::of(&tree);
        for path in ["a/src/kit.rs", "a/src/kit/y.rs", "a/src/x/model.rs", "a/src/x/tests.rs", "a/tests/z.rs"]
        {
            assert!(files.contains(path), "{path}");
        }
        for path in ["a/src/x.rs", "a/src/model.rs", "a/src/kitchen.rs"] {
            assert!(!files.contains(path), "{path}");
        }
    }
}
