//! What a command line of `campanile serve` and its files come to.

use std::path::PathBuf;
use std::time::Duration;

use campanile_host_gpu::adapter::program::Program;

use super::args::ServeArguments;
use super::configured::Configured;
use super::engines::EngineArguments;
use super::engines::Profile;
use super::engines::Spares;
use super::vulkan_environment;
use super::vulkan_environment::OWN_PROGRAM;
use crate::confine::Confinement;
use crate::confine::identity::find_user;
use crate::host::engines::EngineOptions;
use crate::host::holding::Holding;
use crate::host::options::HostOptions;
use crate::host::options::Listening;
use crate::host::options::Scheduling;
use crate::host::options::VgpuOptions;
use crate::migration::channel::address::Peer;
use crate::migration::settings::Settings;
use crate::operator::socket::Answered;
use crate::vgpu::objects::budget::BUDGET_BYTES;

/// What engine processes are started from: the executable that this process was started from. The two speak without versions,
/// so a package that is upgraded meanwhile must not put another in its place.
pub fn engine_program(arguments: &EngineArguments) -> anyhow::Result<Program> {
    let path = PathBuf::from(OWN_PROGRAM);
    let mut environment = vulkan_environment::variables(arguments.vulkan_driver.as_deref())?;
    if arguments.profile == Profile::Latency {
        // lavapipe runs kernels on the queue's own thread: a slice costs 13 us and not 50 to 70.
        environment.push(("LP_NUM_THREADS".to_owned(), "0".to_owned()));
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
            code_mib: engine.code_cache,
            sandbox: !engine.no_sandbox,
            local: engine.local_memory,
            vulkan_devices: engine.vulkan_device.clone().unwrap_or_default(),
            profile: engine.gpu_profile,
            program: engine_program(engine)?,
            findings: None,
        },
        timeouts: engine.tdr.timeouts(),
        policy: engine.tdr.policy(),
        scheduling: engine.scheduling.scheduling(),
        tracking: engine.dirty_tracking,
        freeze_limit: Duration::from_millis(engine.freeze_limit),
        state_dir: engine.state_dir.clone(),
        window: !engine.no_window,
        control: None,
        control_users: Answered::default(),
        status: None,
        metrics: None,
        web: None,
        migration: Settings::default(),
        listening: Listening::Nowhere,
        confinement: Confinement::Off,
        holding: Holding::default(),
    })
}

/// The vGPUs of a command line and its files.
pub fn vgpus(configured: &Configured) -> Vec<VgpuOptions> {
    let worker = configured.arguments.processes.worker.as_ref();
    let all = all_vgpus(configured).into_iter();
    all.filter(|vgpu| worker.is_none_or(|name| *name == vgpu.name)).collect()
}

/// The same, those of other workers, too.
pub fn all_vgpus(configured: &Configured) -> Vec<VgpuOptions> {
    let arguments = &configured.arguments;
    let single = arguments.socket.as_ref().zip(arguments.vram);
    let single = single.map(|(socket, vram)| VgpuOptions::new("vgpu0".to_owned(), socket.clone(), vram));
    configured.vgpus().into_iter().chain(single).collect()
}

/// Where others bring vGPUs: workers have an address each.
pub fn listening(arguments: &ServeArguments) -> Listening {
    if arguments.processes.workers.is_some() {
        return Listening::Each;
    }
    arguments.migration.migrate_listen.clone().map_or(Listening::Nowhere, Listening::All)
}

/// What a command line and its files come to; what limits engines (cgroups, users) is not settled yet.
///
/// # Errors
/// A file that is named cannot be used.
pub fn serve_options(configured: &Configured) -> anyhow::Result<HostOptions> {
    let Configured { arguments, .. } = configured;
    if arguments.vram.is_some() && arguments.socket.is_none() {
        configured
            .at("vram", Err(anyhow::anyhow!("--vram is of the vGPU of --socket, and there is none")))?;
    }
    let options = configured.at("vulkan-driver", host_options(vgpus(configured), &arguments.engine))?;
    let migration = arguments.migration.settings(options.state_dir.as_deref());
    let migration = configured.at("migrate-cert", migration)?;
    if let Some(vgpu) = options.vgpus.iter().find(|vgpu| matches!(vgpu.migrate_listen, Some(Peer::Tls(_))))
        && migration.identity.is_none()
    {
        let text = "migrate-listen=tls:… needs --migrate-cert, --migrate-key and --migrate-ca";
        configured.at("migrate-cert", Err(anyhow::anyhow!("vGPU {}: {text}", vgpu.name)))?;
    }
    let users: Result<_, String> = arguments.control_user.iter().map(|name| find_user(name)).collect();
    let users = users.map_err(|why| anyhow::anyhow!("control-user: {why}"));
    let users = Answered::Users(configured.at("control-user", users)?);
    // Other workers are of the same user.
    let control_users = arguments.processes.starter().map_or(users, Answered::HolderOf);
    let engines = EngineOptions { findings: arguments.processes.findings(), ..options.engines };
    Ok(HostOptions {
        engines,
        vram_total: arguments.vram_total,
        vm_budget: arguments.vm_budget,
        scheduling: Scheduling { broker: arguments.schedule.clone(), ..options.scheduling },
        control: arguments.control.clone(),
        control_users,
        status: arguments.status.clone(),
        metrics: arguments.metrics.clone(),
        web: arguments.web.map(|web| web.0),
        migration,
        listening: listening(arguments),
        confinement: if arguments.no_confinement { Confinement::Off } else { Confinement::On },
        ..options
    })
}
