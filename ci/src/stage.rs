//! The stages that `cargo ci` runs: here are the cargo calls, the printing and the verdicts.

use std::env;
use std::fs;
use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::io::Write;
use std::path::Path;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Context;
use anyhow::Result;

use crate::book;
use crate::conformance::audit;
use crate::conformance::junit::Run;
use crate::conformance::results;
use crate::conformance::results::Results;
use crate::conformance::rule_id::Group;
use crate::finding::Finding;
use crate::house::figures::House;
use crate::layers;
use crate::lint;
use crate::mutants::judge::judge;
use crate::mutants::list;
use crate::mutants::list::Choice;
use crate::mutants::modules;
use crate::mutants::survivors;
use crate::packaged;
use crate::tree::Tree;
use crate::trials;

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
    /// List the lines that no test shows, or of which no result says so.
    pub list_missing: bool,
    /// Groups of which each line must be exempt, or be named by tests that ran, of which none failed.
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

/// The ranks of crates and modules, and what a packaged daemon links.
pub fn layers(root: &Path) -> Result<Verdict> {
    let ranks = print_findings(&layers::check(&Tree::read(root)?));
    let linked = cargo_command(root, &packaged::TREE).output().context("cargo could not be run")?;
    if !linked.status.success() {
        print!("{}", String::from_utf8_lossy(&linked.stderr));
    }
    Ok(ranks.and(print_findings(&packaged::check(&String::from_utf8_lossy(&linked.stdout)))))
}

/// The figures of the house, and their limits.
pub fn house(root: &Path) -> Result<Verdict> {
    let tree = Tree::read(root)?;
    let house = House::of(&tree);
    print!("{}", house.report());
    Ok(print_findings(&house.check(&tree)))
}

/// The limits alone.
fn house_limits(root: &Path) -> Result<Verdict> {
    let tree = Tree::read(root)?;
    Ok(print_findings(&House::of(&tree).check(&tree)))
}

/// The order of the book's pages, and their links.
pub fn book(root: &Path) -> Result<Verdict> {
    Ok(print_findings(&book::check(&Tree::read(root)?, root)))
}

/// The state of the conformance checklist.
pub fn conformance(root: &Path, wanted: &Wanted) -> Result<Verdict> {
    let tree = Tree::read(root)?;
    let results = read_results(root, &tree)?;
    checklist(&tree, results.as_ref(), wanted, true)
}

/// Starts the file of test results anew, for a run that leaves the tests of this list to a longer one.
pub fn results(root: &Path, left: Option<&Path>) -> Result<Verdict> {
    let path = results_path(root);
    let left = left.map_or(Ok(String::new()), |list| {
        fs::read_to_string(list).with_context(|| format!("{} could not be read", list.display()))
    })?;
    let write = |folder: &Path| {
        fs::create_dir_all(folder)?;
        fs::write(&path, results::head(Tree::read(root)?.sources(), &left))?;
        Ok::<(), anyhow::Error>(())
    };
    write(path.parent().unwrap_or(root))
        .with_context(|| format!("{} could not be started", path.display()))?;
    println!("{}", path.display());
    Ok(Verdict::Pass)
}

/// Adds what nextest reported of a run to the file of test results, prints how many tests passed and failed, as libtest counts them,
/// and names those that failed, be it at first only.
pub fn record(root: &Path, mode: &str, report: &Path) -> Result<Verdict> {
    let xml =
        fs::read_to_string(report).with_context(|| format!("{} could not be read", report.display()))?;
    let run = Run::read(mode, &xml).with_context(|| report.display().to_string())?;
    let path = results_path(root);
    let mut file = OpenOptions::new()
        .append(true)
        .open(&path)
        .with_context(|| format!("{} could not be opened: `cargo ci results` starts it", path.display()))?;
    file.write_all(run.lines.as_bytes())?;
    for name in &run.failed {
        println!("{name} failed");
    }
    for name in &run.flaky {
        println!("{name} passed at the second try");
    }
    println!("{mode}: {} passed; {} failed;", run.passed, run.failed.len());
    Ok(Verdict::of(run.is_fine()))
}

/// The checklist as it can be judged before tests ran: a line must be named or exempt. Where there are results of these
/// sources, they count as in `conformance --strict`.
fn checklist_of_all(root: &Path) -> Result<Verdict> {
    let tree = Tree::read(root)?;
    let results = read_results(root, &tree)?;
    let wanted = Wanted { strict: Group::ALL.to_vec(), ..Wanted::default() };
    checklist(&tree, results.as_ref(), &wanted, results.is_some())
}

fn checklist(tree: &Tree, results: Option<&Results>, wanted: &Wanted, by_results: bool) -> Result<Verdict> {
    let audit = audit::audit(tree, results);
    for count in &audit.counts {
        println!("{count}");
    }
    let mut verdict = print_findings(&audit.findings);
    for count in audit.counts.iter().filter(|count| wanted.strict.contains(&count.group)) {
        for complaint in count.complaints(by_results) {
            println!("{complaint}");
            verdict = Verdict::Fail;
        }
    }
    if wanted.list_missing {
        for (id, text) in &audit.missing {
            println!("{id} {text}");
        }
        for (id, test) in &audit.not_shown {
            println!("{id} {test}");
        }
    }
    Ok(verdict)
}

/// The results of these sources. Where there are none it says so: no line is covered then.
fn read_results(root: &Path, tree: &Tree) -> Result<Option<Results>> {
    let path = results_path(root);
    let text = match fs::read(&path) {
        // Test binaries write what they like.
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            println!("no test results in {}: no line counts as covered before `ci/test` ran", path.display());
            return Ok(None);
        }
        Err(error) => return Err(error).context(format!("{} could not be read", path.display())),
    };
    let results = Results::parse(&text);
    if results.are_of(tree.sources()) {
        return Ok(Some(results));
    }
    println!(
        "the test results in {} are of other sources: no line counts as covered by them",
        path.display()
    );
    Ok(None)
}

fn results_path(root: &Path) -> PathBuf {
    let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
    root.join(target).join(results::PATH)
}

/// Tries the chosen mutants of the list that is in `folder`, and judges those that survive.
pub fn mutants(root: &Path, folder: &Path, choice: &Choice) -> Result<Verdict> {
    let list = folder.join("list.json");
    let list = fs::read_to_string(&list).with_context(|| format!("{} could not be read", list.display()))?;
    let chosen = choice.of(list::parse(&list)?);
    let outcomes = trials::run(root, folder, &chosen)?;
    let tree = Tree::read(root)?;
    let text = |path| tree.file(path).map_or("", |file| file.text.as_str());
    let (survivors, findings) = survivors::parse(text(survivors::PATH));
    let is_all = *choice == Choice::All;
    let verdict = judge(&modules::parse(text(modules::PATH)), &outcomes, &survivors, is_all);
    for count in &verdict.counts {
        println!("{count}");
    }
    Ok(print_findings(&findings).and(print_findings(&verdict.findings)))
}

/// All stages, each with its verdict; a failed one does not keep the next from running.
pub fn all(root: &Path) -> Result<Verdict> {
    let stages: [(&str, Stage); 6] = [
        ("fmt", fmt),
        ("lint", lint),
        ("layers", layers),
        ("house", house_limits),
        ("book", book),
        ("conformance", checklist_of_all),
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
    let status = cargo_command(root, arguments).status().context("cargo could not be run")?;
    Ok(Verdict::of(status.success()))
}

fn cargo_command(root: &Path, arguments: &[&str]) -> Command {
    // Set by the cargo that runs this program, so that both are of one toolchain.
    let program = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(program);
    command.args(arguments).current_dir(root);
    // What that cargo says of this package would reach the build scripts: those that watch it (ring's) would run again, here and in
    // the next build outside, and whatever depends on them would be compiled again.
    for (name, _) in env::vars_os() {
        if name
            .to_str()
            .is_some_and(|name| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_"))
        {
            command.env_remove(name);
        }
    }
    command
}
