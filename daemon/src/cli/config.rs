//! `campanile config`.

use std::path::Path;

use super::args::ConfigArguments;
use super::args::ConfigCommand;
use super::configured;
use super::holding::EngineUser;
use super::options::serve_options;
use super::output::print;
use crate::config::example;
use crate::config::fault::Fault;
use crate::config::fault::Faults;
use crate::config::fault::Place;
use crate::confine::identity::Identity;
use crate::host::check::objections;
use crate::host::options::HostOptions;
use crate::migration::channel::address::Peer;
use crate::operator::http::address::Address;

/// Runs it.
///
/// # Errors
/// The configuration is wrong: all that is.
pub fn run(arguments: &ConfigArguments) -> anyhow::Result<()> {
    match &arguments.command {
        ConfigCommand::Example => print(&example::text(&configured::options()))?,
        ConfigCommand::Check { file } => {
            let (options, notes) = check(file).map_err(|error| told(file, error))?;
            for note in notes {
                eprintln!("note: {note}");
            }
            let vgpus = counted(options.vgpus.len(), "vGPU");
            print(&format!("{}: {vgpus}, no fault\n", file.display()))?;
        }
    }
    Ok(())
}

/// A number of things, in words.
fn counted(count: usize, thing: &str) -> String {
    format!("{count} {thing}{}", if count == 1 { "" } else { "s" })
}

/// All faults on standard error, each a line as compilers write them, and their number.
fn told(file: &Path, error: anyhow::Error) -> anyhow::Error {
    match error.downcast::<Faults>() {
        Err(error) => error,
        Ok(faults) => {
            eprintln!("{faults}");
            anyhow::anyhow!("{}: {}", file.display(), counted(faults.0.len(), "fault"))
        }
    }
}

/// What a file comes to, and what may have to be there before it is served.
///
/// # Errors
/// It is wrong.
fn check(file: &Path) -> anyhow::Result<(HostOptions, Vec<Fault>)> {
    let configured =
        configured::read(vec!["campanile".into(), "serve".into(), "--config".into(), file.into()])?;
    let users = [
        ("user", configured.arguments.user.as_ref()),
        (
            "engine-user",
            match &configured.arguments.holding.engine_user {
                EngineUser::Named(user) => Some(user),
                EngineUser::Auto | EngineUser::None => None,
            },
        ),
    ];
    for (option, user) in users {
        let found = user.map(Identity::find).transpose();
        configured.at(option, found.map_err(Into::into))?;
    }
    let options = serve_options(&configured)?;
    let whole = Place::whole(&file.to_owned().into());
    let place = |vgpu: Option<&str>, option: &str| {
        configured.settings.place_of(vgpu, option).unwrap_or(&whole).clone()
    };
    let faults: Vec<Fault> = objections(&options).into_iter().map(|found| configured.fault(found)).collect();
    if !faults.is_empty() {
        return Err(Faults(faults).into());
    }
    let folder =
        |path: &Path| path.parent().filter(|folder| !folder.as_os_str().is_empty()).map(Path::to_owned);
    let sockets = options.vgpus.iter().map(|vgpu| (Some(vgpu.name.as_str()), "socket", folder(&vgpu.socket)));
    let peers = options.vgpus.iter().filter_map(|vgpu| match &vgpu.migrate_listen {
        Some(Peer::Unix(path)) => Some((Some(vgpu.name.as_str()), "migrate-listen", folder(path))),
        Some(Peer::Tcp(_) | Peer::Tls(_)) | None => None,
    });
    // The state directory is made.
    let others = [
        ("control", options.control.as_deref()),
        ("status", options.status.as_deref()),
        (
            "metrics",
            match &options.metrics {
                Some(Address::Unix(path)) => Some(path.as_path()),
                Some(Address::Tcp(_)) | None => None,
            },
        ),
    ];
    let others = others.map(|(option, path)| (None, option, path.and_then(folder)));
    let absent = sockets.chain(peers).chain(others).filter_map(|(vgpu, option, folder)| {
        let folder = folder.filter(|folder| !folder.is_dir())?;
        let text = format!("{option}: {} is no folder yet; the daemon does not make it", folder.display());
        Some(Fault::new(place(vgpu, option), &text))
    });
    let notes = absent.collect();
    Ok((options, notes))
}
