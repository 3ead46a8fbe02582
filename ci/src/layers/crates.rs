//! Dependencies between the crates of the workspace.

use std::collections::BTreeMap;

use super::table::PATH;
use super::table::Table;
use crate::finding::Finding;
use crate::tree::Tree;

/// A dependency in a manifest: the package's name and its line.
type Dependency = (String, usize);

/// Checks every crate's manifest against the ranks of crates, and that each crate has one.
pub fn check(tree: &Tree, table: &Table) -> Vec<Finding> {
    let manifests: Vec<(&str, &str)> = tree
        .files()
        .iter()
        .filter_map(|file| Some((file.path.strip_suffix("/Cargo.toml")?, file.text.as_str())))
        .filter(|(_, manifest)| package_name(manifest).is_some())
        .collect();
    let folder_of: BTreeMap<&str, &str> =
        manifests.iter().filter_map(|(folder, manifest)| Some((package_name(manifest)?, *folder))).collect();

    let mut findings = Vec::new();
    for (folder, manifest) in &manifests {
        let path = format!("{folder}/Cargo.toml");
        let Some(own) = table.crates.get(*folder) else {
            findings.push(Finding::in_file(&path, format!("add its rank to {PATH}: `{folder} <rank>`")));
            continue;
        };
        for (name, line) in dependencies(manifest) {
            let Some(other) = folder_of.get(name.as_str()) else { continue };
            let Some(rank) = table.crates.get(*other).map(|entry| entry.rank) else { continue };
            if rank >= own.rank {
                let message =
                    format!("{folder} (rank {}) must not depend on {other} (rank {rank})", own.rank);
                findings.push(Finding::new(&path, line, message));
            }
        }
    }
    for (name, entry) in &table.crates {
        if !manifests.iter().any(|(folder, _)| folder == name) {
            findings.push(Finding::new(PATH, entry.line, format!("there is no crate {name}")));
        }
    }
    findings
}

/// The package's name in a manifest; none in one that is only a workspace.
fn package_name(manifest: &str) -> Option<&str> {
    let mut lines = manifest.lines().skip_while(|line| line.trim() != "[package]").skip(1);
    let name = lines.find_map(|line| line.strip_prefix("name")?.trim_start().strip_prefix('='))?;
    Some(name.trim().trim_matches('"'))
}

/// All dependencies of shipped code, those for builds and single platforms included. A test, or an example that
/// runs, may use the whole.
fn dependencies(manifest: &str) -> Vec<Dependency> {
    let mut found = Vec::new();
    let mut in_dependencies = false;
    for (index, line) in manifest.lines().map(str::trim).enumerate() {
        if let Some(section) = line.strip_prefix('[') {
            let section = section.trim_end_matches(']');
            let ships = |kind: &str| kind.ends_with("dependencies") && !kind.ends_with("dev-dependencies");
            in_dependencies = ships(section);
            let table = section.rsplit_once('.').filter(|(kind, _)| ships(kind));
            found.extend(table.map(|(_, name)| (name.to_owned(), index + 1)));
        } else if in_dependencies && !line.starts_with('#') {
            let name = line.split(['.', '=', ' ']).next().unwrap_or_default();
            found.push((name.trim_matches('"').to_owned(), index + 1));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::layers::table::Table;
    use crate::tree::Tree;

    fn findings(table: &str, manifests: &[(&str, &str)]) -> Vec<String> {
        let tree = Tree::of(manifests.iter().copied());
        check(&tree, &Table::parse(table).0).iter().map(ToString::to_string).collect()
    }

    const LOW: (&str, &str) = ("low/Cargo.toml", "[package]\nname = \"p-low\"\n");

    #[test]
    fn dependencies_go_down() {
        let high = (
            "high/Cargo.toml",
            "[package]\nname = \"p-high\"\n[dependencies]\np-low.workspace = true\nserde = \"1\"",
        );
        assert!(findings("low 0\nhigh 10", &[LOW, high]).is_empty());
        assert_eq!(
            findings("low 10\nhigh 10", &[LOW, high]),
            ["high/Cargo.toml:4: high (rank 10) must not depend on low (rank 10)"]
        );
    }

    #[test]
    fn every_kind_of_dependency_counts_but_those_of_tests() {
        let high = ("high/Cargo.toml", "[package]\nname = \"p-high\"\n[dev-dependencies]\np-low = 1");
        assert!(findings("low 2\nhigh 1", &[LOW, high]).is_empty());
        for section in ["[target.'cfg(x)'.dependencies]\np-low = 1", "[build-dependencies.p-low]"] {
            let high = ("high/Cargo.toml", format!("[package]\nname = \"p-high\"\n{section}\n"));
            assert_eq!(findings("low 2\nhigh 1", &[LOW, (high.0, &high.1)]).len(), 1, "{section}");
        }
    }

    #[test]
    fn every_crate_has_a_rank_and_every_rank_a_crate() {
        let found = findings("gone 1", &[LOW, ("Cargo.toml", "[workspace]")]);
        assert_eq!(
            found,
            [
                "low/Cargo.toml: add its rank to ci/layers.txt: `low <rank>`",
                "ci/layers.txt:1: there is no crate gone"
            ]
        );
    }
}
