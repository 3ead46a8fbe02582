//! `campanile serve --workers DIR`: what starts a worker for each vGPU.

use std::env;
use std::ffi::OsStr;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use anyhow::Context;
use campanile_host_gpu::descriptors;
use clap::ValueEnum;
use rustix::process::Uid;
use signal_hook::iterator::Signals;

use super::args::ServeArguments;
use super::configured::Configured;
use super::options::serve_options;
use super::reload::Reread;
use crate::confine::Confinement;
use crate::confine::identity::Identity;
use crate::confine::privileges;
use crate::fd_store;
use crate::host::check::objections;
use crate::service_manager;
use crate::workers::folder::Folder;
use crate::workers::plan::Plan;
use crate::workers::serve::serve;
use crate::workers::supervisor::Ended;

/// Starts workers, and looks after them until they have ended.
pub(super) fn run(line: Vec<OsString>, configured: &Configured, folder: &Path) -> anyhow::Result<()> {
    service_manager::open();
    service_manager::take_sockets()?;
    let handed = service_manager::check_claimed();
    handed.context("--workers: workers make their own sockets; leave this one out of the units")?;
    // What workers have left that were killed with all else, or a daemon for all.
    fd_store::deliver(service_manager::take_stored());
    let program = env::current_exe().context("finding this program")?;
    descriptors::close_all_on_exec().context("keeping descriptors from workers (Linux 5.11 or newer)")?;
    let arguments = &configured.arguments;
    arguments.log_level.set();
    arguments.log_format.set();
    let options = serve_options(configured)?;
    if let Some(objection) = objections(&options).into_iter().next() {
        return Err(configured.objection(objection));
    }
    let folder = Folder::new(folder);
    if let Some(why) = options.vgpus.iter().find_map(|vgpu| folder.objection(&vgpu.name)) {
        configured.at("workers", Err::<(), _>(anyhow::anyhow!("--workers: {why}")))?;
    }
    if options.confinement == Confinement::On {
        privileges::close_process()?;
    }
    let identity = arguments.user.as_ref().map(Identity::find).transpose();
    let identity = configured.at("user", identity.map_err(Into::into))?;
    let config = configured.settings.file.as_ref().filter(|_| arguments.config.is_none());
    // Those that are there stay in this folder, whatever files say by now.
    let mut pinned: Vec<OsString> = line.iter().skip(2).cloned().collect();
    if !pinned.iter().any(|word| is_workers(word)) {
        pinned.extend(["--workers".into(), folder.path().into()]);
    }
    let plan = Plan {
        program,
        arguments: pinned.clone(),
        config: config.map(|file| file.to_path_buf()),
        schedule: arguments.schedule.is_none().then(|| schedule_arguments(&folder, arguments)),
        folder,
        user: identity.map(|identity| Uid::from_raw(identity.uid.as_raw())),
    };
    // What ends this process are signals, which the supervisor hears.
    let none = Signals::new(std::iter::empty::<i32>()).context("watching for signals")?;
    let source = Arc::new(Reread::new(line.clone(), configured, none.handle()));
    match serve(plan, &options, source)? {
        Ended::All => Ok(()),
        Ended::Replaced(program) => {
            log::info!("upgrade: {} goes on in place of this program", program.display());
            let error = Command::new(&program).arg("serve").args(pinned).exec();
            Err(error).with_context(|| format!("executing {}; workers go on", program.display()))
        }
    }
}

/// Whether a word of the command line names the folder, or begins to.
fn is_workers(word: &OsStr) -> bool {
    word == "--workers" || word.as_encoded_bytes().starts_with(b"--workers=")
}

/// The command line of `campanile schedule` for these workers.
fn schedule_arguments(folder: &Folder, arguments: &ServeArguments) -> Vec<OsString> {
    let mut all: Vec<OsString> = vec!["--socket".into(), folder.schedule().into()];
    all.extend(["--lock".into(), folder.schedule_lock().into()]);
    all.extend(arguments.engine.scheduling.to_arguments());
    if let Some(user) = &arguments.user {
        all.extend(["--user".into(), user.to_string().into()]);
    }
    if arguments.no_confinement {
        all.push("--no-confinement".into());
    }
    all.extend(named("--log-level", arguments.log_level));
    all.extend(named("--log-format", arguments.log_format));
    all
}

/// An option with one of its values.
fn named(option: &str, value: impl ValueEnum) -> Option<OsString> {
    Some(format!("{option}={}", value.to_possible_value()?.get_name()).into())
}
