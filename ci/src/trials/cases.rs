//! The tests, each a process of its own, and what they reach.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::process::Stdio;
use std::time::Duration;
use std::time::Instant;

use anyhow::Context;
use anyhow::Result;
use anyhow::ensure;

use super::build::Binary;

/// One test.
#[derive(Clone, Debug)]
pub struct Test {
    /// Where it is in the list of binaries.
    pub binary: usize,
    /// Its name in there.
    pub name: String,
}

/// How a test ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It passed.
    Passed,
    /// It failed.
    Failed,
    /// It took longer than it may.
    Hung,
}

/// What a test did without a mutant.
#[derive(Clone, Debug)]
pub struct Trace {
    /// How it ended.
    pub end: End,
    /// How long it took.
    pub took: Duration,
    /// The mutants that it reaches, by number.
    pub reached: BTreeSet<usize>,
}

/// A test may take so long when nothing is known of it.
const LONGEST: Duration = Duration::from_secs(120);

/// All tests of a binary that are not ignored.
pub fn list(binaries: &[Binary], binary: usize) -> Result<Vec<Test>> {
    let names = |more: &[&str]| -> Result<BTreeSet<String>> {
        let own = &binaries[binary];
        let mut command = Command::new(&own.path);
        let output =
            command.args(["--list", "--format", "terse"]).args(more).current_dir(&own.folder).output()?;
        ensure!(output.status.success(), "{} does not list its tests", own.path.display());
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        Ok(text.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect())
    };
    let (all, ignored) = (names(&[])?, names(&["--ignored"])?);
    Ok(all.difference(&ignored).map(|name| Test { binary, name: name.clone() }).collect())
}

/// Runs a test without a mutant. What it reaches is written to the file `trace` meanwhile.
pub fn trace(binaries: &[Binary], test: &Test, trace: &Path) -> Result<Trace> {
    if trace.exists() {
        fs::remove_file(trace)?;
    }
    let started = Instant::now();
    let end = run(binaries, test, LONGEST, ("CAMPANILE_MUTANTS_REACHED", &trace.to_string_lossy()))?;
    let took = started.elapsed();
    let text = fs::read_to_string(trace).unwrap_or_default();
    Ok(Trace { end, took, reached: text.lines().filter_map(|line| line.parse().ok()).collect() })
}

/// Runs a test with one variable in its environment. coreutils' `timeout` ends it, and what it has started, after `limit`.
pub fn run(binaries: &[Binary], test: &Test, limit: Duration, variable: (&str, &str)) -> Result<End> {
    let binary = &binaries[test.binary];
    let status = Command::new("timeout")
        .args(["--signal=KILL", &format!("{}", limit.as_secs_f64())])
        .arg(&binary.path)
        .args(["--exact", &test.name, "--quiet"])
        .env(variable.0, variable.1)
        .current_dir(&binary.folder)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .context("timeout, of coreutils, could not be run")?;
    // Killed by itself, `timeout` has no exit status.
    Ok(match status.code() {
        Some(0) => End::Passed,
        Some(124 | 137) | None => End::Hung,
        Some(_) => End::Failed,
    })
}
