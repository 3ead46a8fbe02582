//! Imports go down in rank only.
//!
//! ```text
//!   ci/layers.txt ──table──▶ rank of each crate, rank of each top module of a crate
//!                              │
//!                              ├─ crates   [dependencies] of every Cargo.toml point to lower crates
//!                              ├─ modules  every module is in the table, under a name that says something
//!                              ├─ edges    `crate::x` and `super::x` in shipped code lead to lower modules
//!                              └─ folders  below the top, the modules of each folder import each other in no circle
//! ```
//!
//! A crate's root (`lib.rs`, `main.rs`, `bin/`) stands above all its modules. Test code may look anywhere.

pub mod crates;
pub mod edges;
pub mod folders;
pub mod modules;
pub mod table;

use crate::finding::Finding;
use crate::tree::Tree;

/// Checks all crates of the workspace against the table.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let text = tree.file(table::PATH).map_or("", |file| file.text.as_str());
    let (table, mut findings) = table::Table::parse(text);
    findings.extend(crates::check(tree, &table));
    findings.extend(modules::check(tree, &table));
    findings.extend(folders::check(tree, &table));
    findings.sort();
    findings
}
