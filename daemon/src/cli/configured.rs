//! `campanile serve` as its command line and the files say together.

use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use clap::ArgMatches;
use clap::CommandFactory;
use clap::FromArgMatches;

use super::args::Arguments;
use super::args::ServeArguments;
use super::narrowed::narrow;
use crate::config::command_line;
use crate::config::fault::Fault;
use crate::config::fault::Faults;
use crate::config::fault::Place;
use crate::config::files::DEFAULT;
use crate::config::known::Options;
use crate::config::read;
use crate::config::settings::Settings;
use crate::host::check::Objection;
use crate::host::error::HostError;
use crate::host::options::VgpuOptions;

/// The name of the command.
const SERVE: &str = "serve";

/// What was said, and where.
#[derive(Debug)]
pub struct Configured {
    /// As if all had been said on the command line, but for the vGPUs of files.
    pub arguments: ServeArguments,
    /// What files say of it.
    pub settings: Settings,
    /// Every option by its name, as the command line has it, with what it is by default.
    pub said: Vec<(String, Vec<OsString>)>,
}

/// The options that files can have.
pub fn options() -> Options {
    let mut all = Arguments::command();
    let serve = all.find_subcommand_mut(SERVE).map(std::mem::take);
    Options::of(serve.unwrap_or_default())
}

/// Reads a command line of `campanile serve`, and the files that it names: those of an installed daemon, where it names none and no vGPU.
/// What a worker reads is narrowed to its vGPU.
///
/// # Errors
/// It is none, or files are not right: [`Faults`].
pub fn read(line: Vec<OsString>) -> anyhow::Result<Configured> {
    let mut configured = read_or(line, Path::new(DEFAULT))?;
    narrow(&mut configured.arguments);
    Ok(configured)
}

/// The file of a command line, if it is to be read: one that says itself what is served is whole without that of the installed
/// daemon, which may be there and run.
fn file<'a>(arguments: &'a ServeArguments, installed: &'a Path) -> anyhow::Result<Option<&'a Path>> {
    if arguments.config.is_some() || arguments.socket.is_some() || !arguments.vgpu.is_empty() {
        return Ok(arguments.config.as_deref());
    }
    let exists = installed.try_exists().with_context(|| format!("looking for {}", installed.display()))?;
    Ok(exists.then_some(installed))
}

fn read_or(line: Vec<OsString>, installed: &Path) -> anyhow::Result<Configured> {
    let given = serve_matches(&line)?;
    let arguments = ServeArguments::from_arg_matches(&given)?;
    let options = options();
    let Some(path) = file(&arguments, installed)? else {
        let (settings, said) = (Settings::default(), said(&options, &given));
        return Ok(Configured { arguments, settings, said });
    };
    let (settings, faults) = read::read(path, &options);
    if !faults.is_empty() {
        return Err(Faults(faults).into());
    }
    let joined = serve_matches(&command_line::join(line, &given, &options, &settings));
    let joined = joined
        .and_then(|matches| Ok((ServeArguments::from_arg_matches(&matches)?, said(&options, &matches))));
    match joined {
        Ok((arguments, said)) => Ok(Configured { arguments, settings, said }),
        Err(error) => Err(match command_line::fault_of(&error, &settings) {
            Some(fault) => Faults(vec![fault]).into(),
            None => error.into(),
        }),
    }
}

fn serve_matches(line: &[OsString]) -> Result<ArgMatches, clap::Error> {
    let mut all = Arguments::command();
    let mut matches = all.try_get_matches_from_mut(line)?;
    match matches.remove_subcommand() {
        Some((name, serve)) if name == SERVE => Ok(serve),
        _ => Err(all.error(clap::error::ErrorKind::InvalidSubcommand, "the command line does not say serve")),
    }
}

fn said(options: &Options, matches: &ArgMatches) -> Vec<(String, Vec<OsString>)> {
    let raw = |id: &str| matches.get_raw(id).into_iter().flatten().map(Into::into).collect();
    options.all().iter().map(|known| (known.name.clone(), raw(&known.id))).collect()
}

impl Configured {
    /// An objection at its place of a file, if it has one.
    pub fn objection(&self, found: Objection) -> anyhow::Error {
        match self.settings.place_of(found.vgpu.as_deref(), found.option) {
            Some(place) => Faults(vec![Fault::new(place.clone(), &found.text)]).into(),
            None => HostError::Options(found.text).into(),
        }
    }

    /// The same, at the first file where there is no place.
    pub fn fault(&self, found: Objection) -> Fault {
        let place = self.settings.place_of(found.vgpu.as_deref(), found.option).cloned();
        let whole =
            || self.settings.file.as_ref().map_or_else(|| Place::whole(&Arc::default()), Place::whole);
        Fault::new(place.unwrap_or_else(whole), &found.text)
    }

    /// The vGPUs of both, but for that of `--socket`.
    pub fn vgpus(&self) -> Vec<VgpuOptions> {
        command_line::join_vgpus(&self.settings, self.arguments.vgpu.clone())
    }

    /// What came of an option: where it fails, with the place of the file where it was said, if it was.
    ///
    /// # Errors
    /// It failed.
    pub fn at<T>(&self, option: &str, outcome: anyhow::Result<T>) -> anyhow::Result<T> {
        outcome.map_err(|error| match self.settings.place_of(None, option) {
            Some(place) => Faults(vec![Fault::new(place.clone(), &format!("{error:#}"))]).into(),
            None => error,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::fs;

    use clap::CommandFactory;

    use super::Configured;
    use super::options;
    use super::read;
    use crate::cli::args::Arguments;
    use crate::config::kind::Kind;
    use crate::config::vgpu::KEYS;
    use crate::config::vgpu::parse_vgpu;

    /// A value of an option as a file has it: what stands for it in help says what it is.
    fn sample(name: &str, kind: Kind, stands: &str, values: &[String]) -> String {
        match (kind, stands) {
            (Kind::Flag, _) => "true".to_owned(),
            (Kind::Number, _) => "7".to_owned(),
            (Kind::Size, _) => "\"64M\"".to_owned(),
            (Kind::Path, _) => format!("\"/{name}\""),
            (Kind::Text, "PEER") => "\"unix:/peer\"".to_owned(),
            (Kind::Text, "ADDRESS") if name == "web" => "\"127.0.0.1:9\"".to_owned(),
            (Kind::Text, "ADDRESS") => "\"tcp:127.0.0.1:9\"".to_owned(),
            (Kind::Text, "USERS") => "\"root,54321\"".to_owned(),
            (Kind::Text, "USER" | "auto|none|USER") => "\"1:1\"".to_owned(),
            (Kind::Text, "NODES") => "\"copy\"".to_owned(),
            (Kind::Text, "TEXT") => "\"card\"".to_owned(),
            (Kind::Text, _) if !values.is_empty() => format!("\"{}\"", values[0]),
            (Kind::Text, _) => String::new(),
        }
    }

    #[test]
    fn every_option_of_the_command_line_is_one_of_a_file_and_is_taken_as_it_is_there() {
        let all = options();
        let mut command = Arguments::command();
        let serve = command.find_subcommand_mut("serve").unwrap();
        let names: Vec<_> = serve.get_arguments().filter_map(|option| option.get_long()).collect();
        assert!(names.len() > 50, "{names:?}");
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("c.toml");
        for name in names.into_iter().filter(|name| !["config", "vgpu", "worker", "help"].contains(name)) {
            let known = all.find(name).unwrap_or_else(|| panic!("a file has no {name}"));
            let mut value = sample(name, known.kind, &known.value_name, &known.values);
            if let (true, Some(default)) = (value.is_empty(), &known.default) {
                value = format!("\"{default}\"");
            }
            assert!(!value.is_empty(), "no value is known for {name} ({})", known.value_name);
            fs::write(&file, format!("{name} = {value}\n")).unwrap();
            let (settings, faults) = crate::config::read::read(&file, &all);
            assert!(faults.is_empty(), "{name} = {value}: {faults:?}");
            assert_eq!(settings.options[name].text, value.trim_matches('"'), "{name}");
        }
    }

    #[test]
    fn every_key_of_a_vgpu_is_the_same_in_a_file_and_on_the_command_line() {
        let values = [
            ("name", "\"a\""),
            ("socket", "\"/a\""),
            ("front", "\"fs\""),
            ("tag", "\"t\""),
            ("bands", "\"focus\""),
            ("gpu-profile", "\"campanile-1\""),
            ("restore", "\"/r\""),
            ("migrate-from", "\"uid:7\""),
            ("migrate-listen", "\"unix:/p\""),
        ];
        let value = |name: &str, kind: Kind| match values.iter().find(|(key, _)| *key == name) {
            Some((_, value)) => (*value).to_owned(),
            None => sample(name, kind, "", &[]),
        };
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("c.toml");
        let (mut table, mut spec) = (String::from("[[vgpu]]\n"), Vec::new());
        for key in KEYS {
            let value = value(key.name, key.kind);
            table.push_str(&format!("{} = {value}\n", key.name));
            spec.push(match key.kind {
                Kind::Flag => key.name.to_owned(),
                _ => format!("{}={}", key.name, value.trim_matches('"')),
            });
        }
        fs::write(&file, table).unwrap();
        let (settings, faults) = crate::config::read::read(&file, &options());
        assert!(faults.is_empty(), "{faults:?}");
        assert_eq!(settings.vgpus[0].options, parse_vgpu(&spec.join(",")).unwrap());
    }

    fn configured(text: &str, more: &[&str]) -> anyhow::Result<Configured> {
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("c.toml");
        fs::write(&file, text)?;
        let mut line: Vec<OsString> = ["campanile", "serve", "--config"].map(Into::into).into();
        line.push(file.into());
        line.extend(more.iter().map(Into::into));
        read(line)
    }

    #[test]
    fn the_installed_file_is_read_where_the_command_line_names_neither_a_file_nor_a_vgpu() {
        let folder = tempfile::tempdir().unwrap();
        let (installed, other) = (folder.path().join("campanile.toml"), folder.path().join("other.toml"));
        let names = |arguments: &[&str]| -> Vec<String> {
            let line = ["campanile", "serve"].iter().chain(arguments).map(Into::into).collect();
            let vgpus = crate::cli::options::vgpus(&super::read_or(line, &installed).unwrap());
            vgpus.into_iter().map(|vgpu| vgpu.name).collect()
        };
        let none: [&str; 0] = [];
        assert_eq!(names(&[]), none, "there is none");
        for (file, name) in [(&installed, "a"), (&other, "b")] {
            fs::write(file, format!("[[vgpu]]\nname = \"{name}\"\nsocket = \"/{name}\"\nvram = \"64M\"\n"))
                .unwrap();
        }
        assert_eq!(names(&["--spin", "5"]), ["a"]);
        assert_eq!(names(&["--config", other.to_str().unwrap()]), ["b"]);
        assert_eq!(names(&["--vgpu", "name=c,socket=/c,vram=64M"]), ["c"]);
        assert_eq!(names(&["--socket", "/c", "--vram", "64M"]), ["vgpu0"]);
        let both = ["--config", other.to_str().unwrap(), "--vgpu", "name=c,socket=/c,vram=64M"];
        assert_eq!(names(&both), ["b", "c"]);
        fs::write(&installed, "spin = \"many\"\n").unwrap();
        let wrong = super::read_or(vec!["campanile".into(), "serve".into()], &installed).unwrap_err();
        assert!(wrong.to_string().contains("campanile.toml:1:8: "), "{wrong}");
    }

    #[test]
    fn what_the_command_line_says_wins() {
        let text = "spin = 5\nslice = 7\nno-window = true\nno-sandbox = false\n[[vgpu]]\nname = \"a\"\nsocket = \"/a\"\n\
                    vram = \"64M\"\n[[vgpu]]\nname = \"b\"\nsocket = \"/b\"\nvram = \"64M\"\n";
        let more =
            ["--spin", "6", "--vgpu", "name=c,socket=/c,vram=32M", "--vgpu", "name=a,socket=/x,vram=32M"];
        let said = configured(text, &more).unwrap();
        let engine = &said.arguments.engine;
        assert_eq!(
            (engine.spin, engine.slice, engine.no_window, engine.no_sandbox),
            (6, Some(7), true, false)
        );
        let vgpus: Vec<_> =
            said.vgpus().iter().map(|vgpu| (vgpu.name.clone(), vgpu.socket.display().to_string())).collect();
        let expected = [("a", "/x"), ("b", "/b"), ("c", "/c")].map(|(a, b)| (a.to_owned(), b.to_owned()));
        assert_eq!(vgpus, expected);
    }

    #[test]
    fn options_that_exclude_each_other_are_named_where_the_file_has_one() {
        let error = configured("spin = 5\nuser = \"1\"\n", &["--no-confinement"]).unwrap_err().to_string();
        assert!(error.contains("c.toml:2:1: ") && error.contains("--no-confinement"), "{error}");
        let error = configured("spin = 5\n", &["--user", "1", "--no-confinement"]).unwrap_err().to_string();
        assert!(!error.contains("c.toml"), "{error}");
    }
}
