//! The options that a file can have: those of `campanile serve`.

use std::error::Error;
use std::ffi::OsString;
use std::num::ParseIntError;

use clap::Arg;
use clap::Command;
use clap::error::ContextKind;
use clap::error::ContextValue;
use clap::error::ErrorKind;

use super::kind::Kind;

/// What the command line has and a file has not, or not so: where files are, tables, what a process says to those that it starts, and
/// what clap adds.
pub const ABSENT: [&str; 5] = ["config", "vgpu", "worker", "help", "version"];

/// How alike a word must be to an option to be taken for it, of 1.
const ALIKE: f64 = 0.8;

/// An option.
#[derive(Debug, Clone)]
pub struct Known {
    /// What clap knows it by.
    pub id: String,
    /// Its long name, which is its key.
    pub name: String,
    /// What its value is.
    pub kind: Kind,
    /// What it does.
    pub help: String,
    /// What stands for its value in help.
    pub value_name: String,
    /// What it is where nothing is said.
    pub default: Option<String>,
    /// All values, where they are few.
    pub values: Vec<String>,
}

/// All of them.
#[derive(Debug)]
pub struct Options {
    command: Command,
    all: Vec<Known>,
}

impl Options {
    /// Those of this command.
    pub fn of(mut serve: Command) -> Self {
        serve.build();
        let all = serve.get_arguments().filter_map(known).collect();
        Self { command: serve, all }
    }

    /// In the order of the help.
    pub fn all(&self) -> &[Known] {
        &self.all
    }

    /// The one with this long name.
    pub fn find(&self, name: &str) -> Option<&Known> {
        self.all.iter().find(|known| known.name == name)
    }

    /// Whether the command line takes this value of this option.
    ///
    /// # Errors
    /// Why not, and what it takes.
    pub fn check(&self, known: &Known, text: &str) -> Result<(), String> {
        if known.kind == Kind::Flag {
            return Ok(());
        }
        let line = ["serve".into(), argument(&known.name, text)];
        let Err(error) = self.command.clone().try_get_matches_from(line) else { return Ok(()) };
        match (error.kind(), error.source(), error.get(ContextKind::ValidValue)) {
            // What it says of other options is known when all of them are.
            (ErrorKind::MissingRequiredArgument | ErrorKind::ArgumentConflict, _, _) => Ok(()),
            (_, _, Some(ContextValue::Strings(values))) => {
                Err(format!("{text:?} is not possible; {} are", values.join(", ")))
            }
            // What the standard library says of it is not for operators.
            (_, Some(source), _) if source.is::<ParseIntError>() => {
                Err(format!("{text:?} is not possible; a whole number from 0 on, and not too large, is"))
            }
            (_, Some(source), _) => {
                // A range names the value itself.
                let source = source.to_string();
                Err(if source.contains(text) { source } else { format!("{text:?}: {source}") })
            }
            _ => Err(format!("{text:?} is not possible; {} is", known.allowed())),
        }
    }
}

impl Known {
    /// What a file may say, in words.
    pub fn allowed(&self) -> String {
        match self.values.as_slice() {
            [] => self.kind.allowed().to_owned(),
            values => {
                let quoted: Vec<String> = values.iter().map(|value| format!("\"{value}\"")).collect();
                quoted.join(" or ")
            }
        }
    }
}

/// An option with its value as one word of the command line.
pub fn argument(name: &str, text: &str) -> OsString {
    format!("--{name}={text}").into()
}

/// The name that is most like this, if one is.
pub fn nearest<'a>(name: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let alike = names.into_iter().map(|known| (strsim::jaro_winkler(name, known), known));
    let best = alike.max_by(|(a, _), (b, _)| a.total_cmp(b))?;
    (best.0 >= ALIKE).then_some(best.1)
}

fn known(option: &Arg) -> Option<Known> {
    let name = option.get_long().filter(|name| !ABSENT.contains(name))?.to_owned();
    let kind = Kind::of(option);
    let has_value = kind != Kind::Flag;
    let values = option.get_possible_values();
    Some(Known {
        id: option.get_id().to_string(),
        name,
        kind,
        help: option.get_help().map(ToString::to_string).unwrap_or_default(),
        value_name: option.get_value_names().into_iter().flatten().map(|name| name.to_string()).collect(),
        default: option
            .get_default_values()
            .first()
            .filter(|_| has_value)
            .map(|value| value.to_string_lossy().into_owned()),
        values: values.iter().filter(|_| has_value).map(|value| value.get_name().to_owned()).collect(),
    })
}
