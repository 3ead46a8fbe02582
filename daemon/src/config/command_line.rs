//! Files and command line together: the command line wins.

use std::ffi::OsString;

use clap::ArgMatches;
use clap::error::ContextKind;
use clap::error::ContextValue;
use clap::parser::ValueSource;

use super::fault::Fault;
use super::kind::Kind;
use super::known::Options;
use super::known::argument;
use super::settings::Settings;
use crate::host::options::VgpuOptions;

/// Where options of `campanile serve` begin: behind the names of the program and of the command.
const OPTIONS: usize = 2;

/// A command line of `campanile serve` as `given`, and with it the options of files that neither it nor the environment has.
pub fn join(
    mut line: Vec<OsString>,
    given: &ArgMatches,
    options: &Options,
    settings: &Settings,
) -> Vec<OsString> {
    let is_given = |id: &str| {
        matches!(given.value_source(id), Some(ValueSource::CommandLine | ValueSource::EnvVariable))
    };
    let mut added = Vec::new();
    for known in options.all().iter().filter(|known| !is_given(&known.id)) {
        match settings.options.get(&known.name) {
            Some(setting) if known.kind != Kind::Flag => added.push(argument(&known.name, &setting.text)),
            Some(setting) if setting.text == "true" => added.push(format!("--{}", known.name).into()),
            _ => {}
        }
    }
    let at = OPTIONS.min(line.len());
    line.splice(at..at, added);
    line
}

/// The vGPUs of files, those that the command line has by the same name as it has them, then the others of it.
pub fn join_vgpus(settings: &Settings, given: Vec<VgpuOptions>) -> Vec<VgpuOptions> {
    let (mut all, mut rest) = (Vec::new(), given);
    for placed in &settings.vgpus {
        match rest.iter().position(|vgpu| vgpu.name == placed.options.name) {
            Some(at) => all.push(rest.remove(at)),
            None => all.push(placed.options.clone()),
        }
    }
    all.extend(rest);
    all
}

/// What clap says of a command line that was joined, at the place of the file that it is about, if it is about one.
pub fn fault_of(error: &clap::Error, settings: &Settings) -> Option<Fault> {
    let names =
        [ContextKind::InvalidArg, ContextKind::PriorArg].into_iter().flat_map(|kind| match error.get(kind) {
            Some(ContextValue::String(name)) => vec![name.clone()],
            Some(ContextValue::Strings(names)) => names.clone(),
            _ => Vec::new(),
        });
    // `--user <USER>`
    let option = |name: &str| name.strip_prefix("--")?.split([' ', '=']).next().map(str::to_owned);
    let place = names.filter_map(|name| option(&name)).find_map(|name| settings.options.get(&name))?;
    let text = error.to_string();
    let line = text.lines().next().unwrap_or_default();
    Some(Fault::new(place.place.clone(), line.strip_prefix("error: ").unwrap_or(line)))
}
