//! `campanile serve`.

use std::env;
use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use anyhow::bail;
use campanile_host_gpu::descriptors;
use signal_hook::consts::SIGINT;
use signal_hook::consts::SIGTERM;
use signal_hook::iterator::Signals;

use super::args::ServeArguments;
use super::configured;
use super::configured::Configured;
use super::exit::DaemonEnded;
use super::narrowed;
use super::options::all_vgpus;
use super::options::serve_options;
use super::reload::Reread;
use super::workers;
use crate::confine::Confinement;
use crate::confine::identity::Identity;
use crate::confine::privileges;
use crate::fd_store;
use crate::host::check::objections;
use crate::host::keeper::keep as keeper;
use crate::host::options::HostOptions;
use crate::host::start::Host;
use crate::host::start::open_awake;
use crate::host::upgrade::successor::Succession;
use crate::service_manager;

/// The same, with what limits engines.
fn held_options(configured: &Configured) -> anyhow::Result<HostOptions> {
    let Configured { arguments, .. } = configured;
    let options = serve_options(configured)?;
    // Workers choose users as one daemon does for all.
    let all = all_vgpus(configured);
    let sockets: Vec<&Path> = all.iter().map(|vgpu| vgpu.socket.as_path()).collect();
    let holding = arguments.holding.holding(&sockets, arguments.user.is_some());
    let mut holding = configured.at("engine-user", holding)?;
    if let Some(name) = &arguments.processes.worker
        && let Some(index) = all.iter().position(|vgpu| vgpu.name == *name)
    {
        holding.accounts = holding.accounts.only(index);
    }
    Ok(HostOptions { holding, ..options })
}

/// Serves within the calling program, as the command line `campanile serve …` says. Its engine processes are
/// the calling program again, with the single argument `engine`. The program keeps its user and its privileges.
pub fn start(command_line: impl IntoIterator<Item = OsString>) -> anyhow::Result<Host> {
    let configured = configured::read(command_line.into_iter().collect())?;
    Ok(Host::start(held_options(&configured)?)?)
}

/// Serves until SIGTERM or SIGINT, or until a successor serves; or keeps a process that does, or starts one for each vGPU.
pub fn run(_arguments: ServeArguments) -> anyhow::Result<()> {
    let succession = Succession::begin()?.map(Arc::new);
    let line: Vec<OsString> = env::args_os().collect();
    if succession.is_none() && keeper::is_kept() {
        keeper::end_with_it()?;
        keeper::receive().context("standard input, from the keeper")?;
    } else if succession.is_none()
        && let Ok(configured) = configured::read(line.clone())
    {
        // What is wrong with the configuration is for the daemon to say.
        let Configured { arguments, .. } = &configured;
        if let (Some(folder), None) = (&arguments.processes.workers, &arguments.processes.worker) {
            return workers::run(line, &configured, folder);
        }
        if arguments.processes.respawn {
            let _lock = narrowed::lock(arguments)?;
            return keep(line);
        }
    }
    let served = serve(succession.clone(), line);
    if let (Err(error), Some(succession)) = (&served, succession) {
        succession.fail(&format!("{error:#}"));
    }
    served
}

fn keep(line: Vec<OsString>) -> anyhow::Result<()> {
    if env::var_os("LISTEN_FDS").is_some() {
        bail!(
            "--respawn: a service manager has handed sockets over; let it start the daemon again (Restart=on-failure)"
        );
    }
    match keeper::run(line).context("keeping a daemon")? {
        keeper::Ended::With(0) => Ok(()),
        keeper::Ended::With(code) => Err(DaemonEnded(code).into()),
        keeper::Ended::GivenUp => bail!("--respawn: the daemon is killed over and over"),
    }
}

fn serve(succession: Option<Arc<Succession>>, line: Vec<OsString>) -> anyhow::Result<()> {
    service_manager::open();
    service_manager::take_sockets()?;
    fd_store::deliver(service_manager::take_stored());
    // Also what a service manager or a shell left open.
    descriptors::close_all_on_exec().context("keeping descriptors from engines (Linux 5.11 or newer)")?;
    let mut signals = Signals::new([SIGINT, SIGTERM]).context("watching for signals")?;
    let configured = configured::read(line.clone())?;
    configured.arguments.log_level.set();
    configured.arguments.log_format.set();
    if let Some(file) = &configured.settings.file {
        log::info!("configuration: {}", file.display());
    }
    let identity = configured.arguments.user.as_ref().map(Identity::find).transpose();
    let identity = configured.at("user", identity.map_err(Into::into))?;
    let mut options = held_options(&configured)?;
    let vgpus = options.vgpus.iter().map(|vgpu| (vgpu.name.as_str(), vgpu.vram_bytes));
    options.holding.make_cgroups(vgpus, options.engines.count, options.engines.spares);
    if let Some(objection) = objections(&options).into_iter().next() {
        return Err(configured.objection(objection));
    }
    if let Some(bytes) = configured.arguments.processes.memory() {
        configured.at("worker-memory", privileges::limit_memory(bytes).map_err(Into::into))?;
    }
    let awake = open_awake(&options)?;
    if options.confinement == Confinement::On {
        privileges::confine_process(identity.as_ref())?;
    }
    let is_kept = succession.is_none() && keeper::is_kept();
    if is_kept {
        keeper::end_with_it()?;
    }
    let changes = Arc::new(Reread::new(line, &configured, signals.handle()));
    let mut host = Host::start_with(options, awake, Some(changes), succession)?;
    // None is to hold a vGPU that the operator removes.
    host.vgpus.clear();
    service_manager::check_claimed()?;
    if is_kept {
        keeper::outlive().context("outliving the keeper")?;
    }
    service_manager::say_ready();
    match signals.forever().next() {
        Some(signal) => log::info!("ending on signal {signal}"),
        None => log::info!("ending: a successor serves"),
    }
    drop(host);
    Ok(())
}
