//! Trials of mutants: all of them in one build, and each against the tests that reach it.
//!
//! ```text
//!   list of cargo-mutants ──▶ sources   a copy of the checkout in which all mutants are; what the compiler refuses leaves it again
//!                               └──▶ build    test binaries
//!                                      └──▶ cases   which test reaches which mutants, in what time
//!                                             └──▶ trial    each mutant: does one of these tests fail?
//! ```
//!
//! Everything is in one folder, `target/mutants`; the checkout itself stays as it is.

pub mod build;
pub mod cases;
pub mod sources;
pub mod trial;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::thread;
use std::time::Instant;

use anyhow::Result;

use self::sources::Sources;
use crate::mutants::list::Listed;
use crate::mutants::outcomes;
use crate::mutants::outcomes::Outcomes;

/// Tries these mutants of the checkout at `root`. What is built, and the log `outcomes.txt`, are in `folder`.
pub fn run(root: &Path, folder: &Path, mutants: &[Listed]) -> Result<Outcomes> {
    let started = Instant::now();
    let minutes = |what: &str| println!("-- {what}: {:.1} minutes", started.elapsed().as_secs_f64() / 60.0);
    let packages: BTreeSet<&str> = mutants.iter().map(|mutant| mutant.package.as_str()).collect();
    let mut sources = Sources::copy(root, &folder.join("sources"), mutants)?;
    let binaries = build::build(&mut sources, &folder.join("build"), &packages)?;
    minutes("built");
    // Some mutants only wait for the end of their time.
    let workers = thread::available_parallelism().map_or(2, usize::from) * 2;
    fs::create_dir_all(folder)?;
    let traced = trial::trace(binaries, workers, folder)?;
    minutes(&format!("{} tests traced", traced.tests()));
    let ended = traced.try_all(mutants, &sources.states(), workers, &folder.join("outcomes.txt"))?;
    minutes("tried");
    Ok(outcomes::count(mutants.iter().map(|mutant| mutant.name.as_str()).zip(ended)))
}
