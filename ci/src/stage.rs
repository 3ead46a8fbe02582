//! The stages that `cargo ci` runs: here are the cargo calls, the printing and the verdicts.

use std::env;
use std::path::Path;
use std::process::Command;

use anyhow::Context;
use anyhow::Result;

use crate::conformance::audit;
use crate::conformance::rule_id::Group;
use crate::finding::Finding;
use crate::layers;
use crate::lint;
use crate::tree::Tree;

/// A stage without options.
type Stage = fn(&Path) -> Result<Verdict>;

/// How a stage ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Verdict {
    /// Nothing is wrong.
    Pass,
    /// Something is, and has been printed.
    Fail,
}

impl Verdict {
    fn of(is_fine: bool) -> Self {
        if is_fine { Self::Pass } else { Self::Fail }
    }

    fn and(self, other: Self) -> Self {
        Self::of(self == Self::Pass && other == Self::Pass)
    }
}

/// What `conformance` prints, and what it insists on.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// List the lines that are missing.
    pub list_missing: bool,
    /// Groups of which no line may be missing.
    pub strict: Vec<Group>,
}

/// The format of all code.
pub fn fmt(root: &Path) -> Result<Verdict> {
    cargo(root, &["fmt", "--all", "--check"])
}

/// Clippy and the house rules.
pub fn lint(root: &Path) -> Result<Verdict> {
    let house = print_findings(&lint::check(&Tree::read(root)?, root));
    let clippy = cargo(root, &["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])?;
    Ok(house.and(clippy))
}

/// The ranks of crates and modules.
pub fn layers(root: &Path) -> Result<Verdict> {
    Ok(print_findings(&layers::check(&Tree::read(root)?)))
}

/// The state of the conformance checklist.
pub fn conformance(root: &Path, wanted: &Wanted) -> Result<Verdict> {
    let audit = audit::audit(&Tree::read(root)?);
    for count in &audit.counts {
        println!("{count}");
    }
    let mut verdict = print_findings(&audit.findings);
    for count in audit.counts.iter().filter(|count| wanted.strict.contains(&count.group) && count.missing > 0)
    {
        println!("{}: {} lines are missing, and none may be", count.group.name(), count.missing);
        verdict = Verdict::Fail;
    }
    if wanted.list_missing {
        for (id, text) in &audit.missing {
            println!("{id} {text}");
        }
    }
    Ok(verdict)
}

/// All stages, each with its verdict; a failed one does not keep the next from running.
pub fn all(root: &Path) -> Result<Verdict> {
    let stages: [(&str, Stage); 4] = [
        ("fmt", fmt),
        ("lint", lint),
        ("layers", layers),
        ("conformance", |root| conformance(root, &Wanted::default())),
    ];
    let mut verdict = Verdict::Pass;
    for (name, stage) in stages {
        let own = stage(root)?;
        println!("{name}: {}", if own == Verdict::Pass { "PASS" } else { "FAIL" });
        verdict = verdict.and(own);
    }
    Ok(verdict)
}

fn print_findings(findings: &[Finding]) -> Verdict {
    for finding in findings {
        println!("{finding}");
    }
    Verdict::of(findings.is_empty())
}

fn cargo(root: &Path, arguments: &[&str]) -> Result<Verdict> {
    // Set by the cargo that runs this program, so that both are of one toolchain.
    let program = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status =
        Command::new(program).args(arguments).current_dir(root).status().context("cargo could not be run")?;
    Ok(Verdict::of(status.success()))
}
