//! Builds the tests of the copy.

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::Path;
use std::path::PathBuf;
use std::process::Command;
use std::process::Stdio;

use anyhow::Context;
use anyhow::Result;
use anyhow::bail;
use serde_json::Value;

use super::sources::Sources;
use crate::mutants::refusals::Error;

/// The packages, and which of their tests count: the fast ones, without those that wait for real timeouts.
const SELECTIONS: [(&str, &[&str]); 3] = [
    ("campanile-protocol", &["--lib"]),
    ("campanile-host-gpu", &["--lib", "--test", "scheduling", "--test", "dirty"]),
    ("campanile-daemon", &["--lib"]),
];

/// So often the compiler is asked again after something was refused.
const ROUNDS: usize = 40;

/// A test binary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binary {
    /// The package that it belongs to.
    pub package: String,
    /// The folder in which its tests run.
    pub folder: PathBuf,
    /// The file.
    pub path: PathBuf,
}

/// What cargo said.
#[derive(Default)]
struct Said {
    binaries: Vec<Binary>,
    errors: Vec<Error>,
    texts: Vec<String>,
}

/// Builds the tests of these packages, into `target`, without those mutants that the compiler refuses.
pub fn build(sources: &mut Sources, target: &Path, packages: &BTreeSet<&str>) -> Result<Vec<Binary>> {
    for round in 1..=ROUNDS {
        let (is_built, said) = cargo(sources, target, packages)?;
        if is_built {
            return Ok(said.binaries);
        }
        let refused = sources.refuse(&said.errors)?;
        println!("-- round {round}: {} errors, {refused} places are written otherwise", said.texts.len());
        if refused == 0 {
            bail!("the copy cannot be built, and no mutant is to blame:\n{}", said.texts.join("\n"));
        }
    }
    bail!("the copy cannot be built, however often mutants are left out")
}

fn cargo(sources: &Sources, target: &Path, packages: &BTreeSet<&str>) -> Result<(bool, Said)> {
    let mut command = Command::new("cargo");
    command.args(["test", "--no-run", "--no-fail-fast", "--message-format", "json"]);
    let mut kinds: BTreeSet<&str> = BTreeSet::new();
    for (package, selection) in SELECTIONS.iter().filter(|(package, _)| packages.contains(package)) {
        command.args(["--package", package]);
        kinds.extend(selection.split(|word| *word == "--test").flatten().copied());
    }
    for kind in kinds {
        if kind == "--lib" {
            command.arg(kind)
        } else {
            command.args(["--test", kind])
        };
    }
    let output = command
        .current_dir(&sources.root)
        .env("CARGO_TARGET_DIR", target)
        .env("CARGO_INCREMENTAL", "1")
        .env("CARGO_PROFILE_DEV_DEBUG", "none")
        .stderr(Stdio::inherit())
        .output()
        .context("cargo could not be run")?;
    let mut said = Said::default();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        if let Ok(message) = serde_json::from_str(line) {
            said.take(&message);
        }
    }
    Ok((output.status.success(), said))
}

impl Said {
    fn take(&mut self, message: &Value) {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        if let (Some(path), Some(manifest)) = (text(&message["executable"]), text(&message["manifest_path"]))
        {
            let folder = Path::new(&manifest).parent().unwrap_or(Path::new(".")).to_owned();
            let name = folder.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            self.binaries.push(Binary { package: format!("campanile-{name}"), folder, path: path.into() });
        }
        let diagnostic = &message["message"];
        if diagnostic["level"] == "error" {
            let spans = diagnostic["spans"].as_array().cloned().unwrap_or_default();
            let is_of_patterns = diagnostic["code"]["code"] == "E0004";
            let places = spans.iter().filter(|span| span["is_primary"] == true).map(place);
            self.errors.extend(places.map(|(path, range)| Error { path, range, is_of_patterns }));
            self.texts.extend(text(&diagnostic["rendered"]));
        }
    }
}

/// File and bytes of a span; where a macro of another crate wrote the code, those of its call.
fn place(span: &Value) -> (String, Range<usize>) {
    let file = span["file_name"].as_str().unwrap_or_default();
    let outer = &span["expansion"]["span"];
    if Path::new(file).is_absolute() && outer.is_object() {
        return place(outer);
    }
    let byte = |name: &str| span[name].as_u64().and_then(|byte| usize::try_from(byte).ok()).unwrap_or(0);
    (file.to_owned(), byte("byte_start")..byte("byte_end"))
}
