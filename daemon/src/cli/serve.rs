//! `campanile serve`.

use std::env;
use std::ffi::OsString;
use std::path::Path;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use campanile_host_gpu::adapter::program::Program;
use campanile_host_gpu::descriptors;
use signal_hook::consts::SIGINT;
use signal_hook::consts::SIGTERM;
use signal_hook::iterator::Signals;

use super::args::ServeArguments;
use super::configured;
use super::configured::Configured;
use super::engines::EngineArguments;
use super::engines::Profile;
use super::engines::Spares;
use crate::confine::Confinement;
use crate::confine::identity::Identity;
use crate::confine::privileges;
use crate::host::check::objections;
use crate::host::engines::EngineOptions;
use crate::host::error::HostError;
use crate::host::holding::Holding;
use crate::host::options::HostOptions;
use crate::host::options::VgpuOptions;
use crate::host::start::Host;
use crate::host::start::open_awake;
use crate::migration::settings::Settings;
use crate::service_manager;
use crate::vgpu::objects::budget::BUDGET_BYTES;

/// The file that a process was started from, whatever has its name by now.
const OWN_PROGRAM: &str = "/proc/self/exe";

/// What engine processes are started from: the executable that this process was started from. The two speak without versions,
/// so a package that is upgraded meanwhile must not put another in its place.
pub fn engine_program(arguments: &EngineArguments) -> anyhow::Result<Program> {
    let path = PathBuf::from(OWN_PROGRAM);
    // One compiler cache for all guests would let them see each other's kernels, and writes files.
    let mut environment = vec![("MESA_SHADER_CACHE_DISABLE".to_owned(), "true".to_owned())];
    if let Some(driver) = &arguments.vulkan_driver {
        let driver = driver
            .canonicalize()
            .with_context(|| format!("the Vulkan driver manifest {}", driver.display()))?;
        let driver = driver.to_string_lossy().into_owned();
        environment.push(("VK_DRIVER_FILES".to_owned(), driver.clone()));
        environment.push(("VK_ICD_FILENAMES".to_owned(), driver));
    }
    if arguments.profile == Profile::Latency {
        // lavapipe runs kernels on the queue's own thread: a slice costs 13 us and not 50 to 70.
        environment.push(("LP_NUM_THREADS".to_owned(), "0".to_owned()));
    }
    if let Ok(libraries) = env::var("CAMPANILE_VULKAN_LIBRARY_PATH") {
        environment.push(("LD_LIBRARY_PATH".to_owned(), libraries));
    }
    Ok(Program::new(path, environment))
}

/// A host of these vGPUs with these settings.
pub fn host_options(vgpus: Vec<VgpuOptions>, engine: &EngineArguments) -> anyhow::Result<HostOptions> {
    Ok(HostOptions {
        vgpus,
        vram_total: None,
        vm_budget: BUDGET_BYTES,
        engines: EngineOptions {
            count: engine.engines,
            doorbells: engine.doorbells,
            doorbell_modes: engine.doorbell_modes(),
            spin: engine.spin(),
            slice: engine.slice(),
            d3_after: engine.d3_after(),
            spares: engine.spares == Spares::On,
            sandbox: !engine.no_sandbox,
            vulkan_device: engine.vulkan_device.clone(),
            program: engine_program(engine)?,
        },
        timeouts: engine.tdr.timeouts(),
        policy: engine.tdr.policy(),
        scheduling: engine.scheduling.scheduling(),
        tracking: engine.dirty_tracking,
        freeze_limit: Duration::from_millis(engine.freeze_limit),
        state_dir: engine.state_dir.clone(),
        window: !engine.no_window,
        control: None,
        metrics: None,
        migration: Settings::default(),
        migrate_listen: None,
        confinement: Confinement::Off,
        holding: Holding::default(),
    })
}

/// What a command line and its files come to; who holds engines is not settled yet.
///
/// # Errors
/// A file that is named cannot be used.
pub(super) fn serve_options(configured: &Configured) -> anyhow::Result<HostOptions> {
    let Configured { arguments, .. } = configured;
    let mut vgpus = configured.vgpus();
    if let (Some(socket), Some(vram_bytes)) = (&arguments.socket, arguments.vram) {
        vgpus.push(VgpuOptions::new("vgpu0".to_owned(), socket.clone(), vram_bytes));
    }
    let options = configured.at("vulkan-driver", host_options(vgpus, &arguments.engine))?;
    let migration = arguments.migration.settings(options.state_dir.as_deref());
    let migration = configured.at("migrate-cert", migration)?;
    Ok(HostOptions {
        vram_total: arguments.vram_total,
        vm_budget: arguments.vm_budget,
        control: arguments.control.clone(),
        metrics: arguments.metrics.clone(),
        migration,
        migrate_listen: arguments.migration.migrate_listen.clone(),
        confinement: if arguments.no_confinement { Confinement::Off } else { Confinement::On },
        ..options
    })
}

/// The same, with who holds engines.
fn held_options(configured: &Configured) -> anyhow::Result<HostOptions> {
    let Configured { arguments, .. } = configured;
    let options = serve_options(configured)?;
    let sockets: Vec<&Path> = options.vgpus.iter().map(|vgpu| vgpu.socket.as_path()).collect();
    let holding = arguments.holding.holding(&sockets, arguments.user.is_some());
    let holding = configured.at("engine-user", holding)?;
    Ok(HostOptions { holding, ..options })
}

/// Serves within the calling program, as the command line `campanile serve …` says. Its engine processes are
/// the calling program again, with the single argument `engine`. The program keeps its user and its privileges.
pub fn start(command_line: impl IntoIterator<Item = OsString>) -> anyhow::Result<Host> {
    let configured = configured::read(command_line.into_iter().collect())?;
    Ok(Host::start(held_options(&configured)?)?)
}

/// Serves until SIGTERM or SIGINT.
pub fn run(arguments: ServeArguments) -> anyhow::Result<()> {
    service_manager::take_sockets()?;
    // Also what a service manager or a shell left open.
    descriptors::close_all_on_exec().context("keeping descriptors from engines (Linux 5.11 or newer)")?;
    let mut signals = Signals::new([SIGINT, SIGTERM]).context("watching for signals")?;
    let configured = match arguments.config {
        Some(_) => configured::read(env::args_os().collect())?,
        None => Configured::without_files(arguments),
    };
    let identity = configured.arguments.user.as_ref().map(Identity::find).transpose();
    let identity = configured.at("user", identity.map_err(Into::into))?;
    let mut options = held_options(&configured)?;
    let vgpus = options.vgpus.iter().map(|vgpu| (vgpu.name.as_str(), vgpu.vram_bytes));
    options.holding.make_cgroups(vgpus, options.engines.count, options.engines.spares);
    if let Some(objection) = objections(&options).into_iter().next() {
        let place = configured.settings.place_of(objection.vgpu.as_deref(), objection.option).cloned();
        let error = anyhow::Error::from(HostError::Options(objection.text));
        return Err(place.into_iter().fold(error, |error, place| error.context(place.to_string())));
    }
    let awake = open_awake(&options)?;
    if options.confinement == Confinement::On {
        privileges::confine_process(identity.as_ref())?;
    }
    let host = Host::start_with(options, awake)?;
    service_manager::check_claimed()?;
    service_manager::say_ready();
    let signal = signals.forever().next();
    log::info!("ending on signal {}", signal.unwrap_or_default());
    drop(host);
    Ok(())
}
