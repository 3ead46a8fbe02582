//! `campanile schedule`.

use anyhow::Context;
use campanile_host_gpu::descriptors;
use rustix::process::Resource;
use rustix::process::Rlimit;
use rustix::process::getrlimit;
use rustix::process::setrlimit;
use signal_hook::consts::SIGINT;
use signal_hook::consts::SIGTERM;
use signal_hook::iterator::Signals;

use super::args::ScheduleArguments;
use crate::confine::Confinement;
use crate::confine::identity::Identity;
use crate::confine::privileges;
use crate::file_lock::FileLock;
use crate::host::schedule::ScheduleHost;
use crate::sched::awake::Awake;
use crate::service_manager;

/// Gives turns until SIGTERM or SIGINT.
pub fn run(arguments: &ScheduleArguments) -> anyhow::Result<()> {
    service_manager::open();
    service_manager::take_sockets()?;
    descriptors::close_all_on_exec().context("closing what was left open (Linux 5.11 or newer)")?;
    let mut signals = Signals::new([SIGINT, SIGTERM]).context("watching for signals")?;
    arguments.log_level.set();
    arguments.log_format.set();
    let lock = arguments.lock.as_deref().map(FileLock::take).transpose();
    let _lock = lock.context("--lock: another schedule")?;
    let identity = arguments.user.as_ref().map(Identity::find).transpose().context("--user")?;
    raise_files().context("raising the limit of open files")?;
    // Only root can open it. Which vGPUs of which daemons have realtime work is known later.
    let awake = Awake::open(arguments.scheduling.cpu_latency)?;
    let confinement = if arguments.no_confinement { Confinement::Off } else { Confinement::On };
    if confinement == Confinement::On {
        privileges::confine_process(identity.as_ref())?;
    }
    let scheduling = arguments.scheduling.scheduling();
    let host = ScheduleHost::start(&arguments.socket, &scheduling, awake, confinement)?;
    service_manager::check_claimed()?;
    service_manager::say_ready();
    if let Some(signal) = signals.forever().next() {
        log::info!("ending on signal {signal}: engines keep what they have until there is another schedule");
    }
    drop(host);
    Ok(())
}

/// As many open files as this process may have: four or more are of each engine.
fn raise_files() -> std::io::Result<()> {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    Ok(setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })?)
}
