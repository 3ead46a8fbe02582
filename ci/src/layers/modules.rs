//! The top modules of each crate: their names, their ranks, and what they import.

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use super::edges::Edge;
use super::edges::edges;
use super::table::PATH;
use super::table::Rank;
use super::table::Table;
use crate::finding::Finding;
use crate::members::Member;
use crate::members::Members;
use crate::test_files::TestFiles;
use crate::tree::Tree;

/// Names that say nothing about what is inside.
const EMPTY_NAMES: [&str; 6] = ["common", "util", "utils", "helper", "helpers", "misc"];

/// How far apart suggested ranks are.
const STEP: Rank = 10;

/// Checks every crate that the table ranks.
pub fn check(tree: &Tree, table: &Table) -> Vec<Finding> {
    let test_files = TestFiles::of(tree);
    let mut findings = Vec::new();
    let mut all_modules = BTreeSet::new();
    for name in table.crates.keys() {
        let members = Members::of(tree, name, &test_files);
        let modules: BTreeSet<String> = members
            .all()
            .iter()
            .filter_map(|member| member.path.first())
            .map(|module| (*module).to_owned())
            .collect();
        let mut targets: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
        for member in members.all() {
            findings.extend(empty_name(member));
            let Some(own) = member.path.first() else { continue };
            let found = edges(member.file.source(), &member.path, &modules);
            for edge in found.into_iter().filter(|edge| edge.target != *own) {
                findings.extend(upward(table, name, own, &edge, &modules, &member.file.path));
                targets.entry(own).or_default().insert(edge.target);
            }
        }
        for (module, rank) in suggestions(table, name, &modules, &targets) {
            let message = format!("module without a rank; add to {PATH}: `{name} {module} {rank}`");
            findings.push(Finding::in_file(&format!("{name}/src/{module}"), message));
        }
        all_modules.extend(modules.into_iter().map(|module| (name.clone(), module)));
    }
    for (key, entry) in table.modules.iter().filter(|(key, _)| !all_modules.contains(*key)) {
        findings.push(Finding::new(PATH, entry.line, format!("crate {} has no module {}", key.0, key.1)));
    }
    findings
}

/// Ranks for the modules that have none, each a step above what it imports. Where modules import each other
/// no rank would do; one that comes out is refused once it is in the table.
fn suggestions<'a>(
    table: &Table,
    name: &str,
    modules: &'a BTreeSet<String>,
    targets: &BTreeMap<&str, BTreeSet<String>>,
) -> BTreeMap<&'a str, Rank> {
    let unranked = modules.iter().map(String::as_str).filter(|module| table.module(name, module).is_none());
    let mut suggested: BTreeMap<&str, Rank> = unranked.map(|module| (module, 0)).collect();
    for _ in 0..suggested.len() {
        let before = suggested.clone();
        for (module, rank) in &mut suggested {
            let below = targets.get(module).into_iter().flatten();
            let ranks = below.filter_map(|target| {
                table.module(name, target).or_else(|| before.get(target.as_str()).copied())
            });
            *rank = ranks.max().map_or(0, |highest| highest + STEP);
        }
    }
    suggested
}

fn empty_name(member: &Member<'_>) -> Option<Finding> {
    let name = member.path.iter().find(|name| EMPTY_NAMES.contains(name))?;
    Some(Finding::in_file(
        &member.file.path,
        format!("a module called {name} has no subject: name what it is for"),
    ))
}

/// The finding for an edge that does not lead down, if both ends are known.
fn upward(
    table: &Table,
    name: &str,
    own: &str,
    edge: &Edge,
    modules: &BTreeSet<String>,
    path: &str,
) -> Option<Finding> {
    let target = &edge.target;
    if !modules.contains(target) {
        let message = format!("imports {target} from the crate's root, which stands above every module");
        return Some(Finding::new(path, edge.line, message));
    }
    let (rank, other) = (table.module(name, own)?, table.module(name, target)?);
    let message = format!("{own} (rank {rank}) must not import from {target} (rank {other})");
    (other >= rank).then(|| Finding::new(path, edge.line, message))
}

#[cfg(test)]
mod tests;
