//! `cargo ci`: the command line of the project's own checks.

use std::env;
use std::io;
use std::path::Path;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use anyhow::Result;
use campanile_ci::conformance::rule_id::Group;
use campanile_ci::mutants::list::Choice;
use campanile_ci::screen;
use campanile_ci::stage;
use campanile_ci::stage::Verdict;
use campanile_ci::stage::Wanted;
use clap::Args;
use clap::Parser;
use clap::Subcommand;

/// The checks of the project itself.
#[derive(Parser)]
#[command(bin_name = "cargo ci")]
struct Arguments {
    #[command(subcommand)]
    check: Check,
}

#[derive(Subcommand)]
enum Check {
    /// Is all code formatted?
    Fmt,
    /// Clippy without warnings, and the house rules: unsafe, imports, open ends, folders, places
    Lint,
    /// Do imports go down in rank only, and in no circle below the top? Does a packaged daemon link no crate of tests?
    Layers,
    /// Types by methods and fields, circles of imports, source lines: do they keep the limits of `ci/house.txt`?
    House,
    /// Does the book have every page once, and does each link lead somewhere?
    Book,
    /// Which lines of the conformance checklist do tests show?
    Conformance {
        /// List the lines that no test shows
        #[arg(long)]
        missing: bool,
        /// Fail if a line of these groups is missing, or named by a test without a result; of all groups without a name
        #[arg(long, value_name = "GROUP", num_args = 0..)]
        strict: Option<Vec<Group>>,
    },
    /// Start the file of test results that `record` adds to and `conformance` reads; prints where it is
    Results {
        /// A list of tests that are left to a longer run: a line that they alone name is none without a result
        #[arg(long, value_name = "FILE")]
        leave: Option<PathBuf>,
    },
    /// Add what nextest reported of a run to the file of test results
    Record {
        /// How the tests were run, one word: results of different modes do not stand in for one another
        mode: String,
        /// The report, in the form of JUnit
        report: PathBuf,
    },
    /// Tries mutants, and judges those that survive by `ci/mutants.txt`; `ci/mutants` calls it
    Mutants(MutantArguments),
    /// Print the screen of a terminal, which standard input has with its colours, as SVG; `ci/pictures` calls it
    Screen,
    /// fmt, lint, layers, house, book, conformance
    All,
}

#[derive(Args)]
struct MutantArguments {
    /// Where all is built; it has the list `list.json` of cargo-mutants
    #[arg(long)]
    folder: PathBuf,
    /// So many mutants of all
    #[arg(long, value_name = "N")]
    sample: Option<usize>,
    /// Which ones these are
    #[arg(long, default_value = "")]
    seed: String,
    /// Part K, from 0, of N
    #[arg(long, value_name = "K/N")]
    shard: Option<String>,
    /// Those of these files and folders; all without any of these arguments
    paths: Vec<String>,
}

impl MutantArguments {
    fn choice(&self) -> Result<Choice> {
        if let Some(count) = self.sample {
            return Ok(Choice::Sample(count, self.seed.clone()));
        }
        if let Some(shard) = &self.shard {
            let numbers = shard.split_once('/').and_then(|(part, of)| part.parse().ok().zip(of.parse().ok()));
            let (part, of) = numbers.filter(|(part, of)| part < of).context("--shard takes K/N, K from 0")?;
            return Ok(Choice::Shard(part, of));
        }
        Ok(if self.paths.is_empty() { Choice::All } else { Choice::Within(self.paths.clone()) })
    }
}

fn main() -> Result<ExitCode> {
    let arguments = Arguments::parse();
    let root = workspace_root(&env::current_dir()?)?;
    let verdict = match arguments.check {
        Check::Fmt => stage::fmt(&root),
        Check::Lint => stage::lint(&root),
        Check::Layers => stage::layers(&root),
        Check::House => stage::house(&root),
        Check::Book => stage::book(&root),
        Check::Conformance { missing, strict } => {
            let strict = strict.map(|groups| if groups.is_empty() { Group::ALL.to_vec() } else { groups });
            stage::conformance(&root, &Wanted { list_missing: missing, strict: strict.unwrap_or_default() })
        }
        Check::Results { leave } => stage::results(&root, leave.as_deref()),
        Check::Record { mode, report } => stage::record(&root, &mode, &report),
        Check::Mutants(arguments) => stage::mutants(&root, &arguments.folder, &arguments.choice()?),
        Check::Screen => {
            print!("{}", screen::svg(&io::read_to_string(io::stdin())?));
            Ok(Verdict::Pass)
        }
        Check::All => stage::all(&root),
    }?;
    Ok(if verdict == Verdict::Pass { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The checkout that `inside` belongs to.
fn workspace_root(inside: &Path) -> Result<PathBuf> {
    let mut folders = inside.ancestors();
    let root = folders.find(|folder| folder.join("ci/Cargo.toml").exists());
    root.map(Path::to_path_buf).context("run this inside of a checkout of Campanile")
}
