//! vGPUs without engines, and guest memory for them.

use campanile_protocol::named_profile::GpuProfile;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::OnceLock;
use std::time::Duration;

use campanile_daemon::frontend::device::FrontDevice;
use campanile_daemon::frontend::fs::state::Fs;
use campanile_daemon::frontend::fs::state::FsOptions;
use campanile_daemon::frontend::gpu::device::Gpu;
use campanile_daemon::frontend::kind::Front;
use campanile_daemon::guest_ram::memory::GuestRam;
use campanile_daemon::sched::awake::Awake;
use campanile_daemon::sched::share::Share;
use campanile_daemon::sched::thread::Supervisor;
use campanile_daemon::vgpu::config::Compute;
use campanile_daemon::vgpu::config::Config;
use campanile_daemon::vgpu::control::orders::Orders;
use campanile_daemon::vgpu::doorbells::modes::DoorbellModes;
use campanile_daemon::vgpu::doorbells::switch::NotifySwitch;
use campanile_daemon::vgpu::memory::vidmm::quota::Account;
use campanile_daemon::vgpu::memory::vidmm::quota::Pool;
use campanile_daemon::vgpu::memory::vidmm::quota::Quota;
use campanile_daemon::vgpu::tdr::policy::Policy;
use campanile_daemon::vgpu::tdr::reports::Clerk;
use campanile_daemon::vgpu::tdr::reports::Reports;
use campanile_daemon::vgpu::tdr::standing::Standing;
use campanile_daemon::vgpu::vulkan_devices::VulkanDevices;
use campanile_host_gpu::adapter::program::Program;
use campanile_host_gpu::dirty::method::Method;
use campanile_host_gpu::log_limit::LogLimit;
use campanile_host_gpu::memory::vram::create_memfd;
use campanile_host_gpu::sched::choice::Choice;
use campanile_host_gpu::sched::parameters::Band;
use campanile_host_gpu::sched::parameters::Settings;
use vm_memory::FileOffset;
use vm_memory::GuestAddress;

/// Bytes of video memory where states of the golden files go.
pub(crate) const GOLDEN: (u64, u64) = (64 << 20, 4 << 30);
/// Bytes of video memory, and of what may be allocated, elsewhere.
pub(crate) const SMALL: (u64, u64) = (4 << 20, 16 << 20);
/// Bytes of guest RAM, from address 0 on.
pub(crate) const RAM: u64 = 4 << 20;
/// Bytes of the aperture of a VM behind the fs front.
pub(crate) const APERTURE: u64 = 1 << 20;

/// What is the same for all: a thread that nobody gives work to.
fn supervisor() -> Arc<Supervisor> {
    static SUPERVISOR: OnceLock<Arc<Supervisor>> = OnceLock::new();
    Arc::clone(
        SUPERVISOR.get_or_init(|| Arc::new(Supervisor::start(Choice::default(), 10, Awake::off()).unwrap())),
    )
}

/// A vGPU of that many bytes, whose engines cannot be started.
pub(crate) fn config((vram_bytes, max): (u64, u64)) -> Arc<Config> {
    Arc::new(Config {
        name: "fuzzed".to_owned(),
        vram_bytes,
        account: Arc::new(Account::new(Quota { min: 0, max }, Pool::new(None, []).unwrap())),
        single_use: false,
        engines: 1,
        doorbells: 64,
        doorbell_modes: DoorbellModes::default(),
        notify: Arc::new(NotifySwitch::new(&DoorbellModes::default()).unwrap()),
        spin: Duration::from_millis(2),
        slice: Duration::from_millis(2),
        tracking: Method::BoundRanges,
        trackers: Arc::default(),
        ledger: Arc::default(),
        meters: Arc::default(),
        d3_after: None,
        sandbox: true,
        window: true,
        vulkan_devices: VulkanDevices::default(),
        profile: GpuProfile::Host,
        launcher: Arc::new(Program::new(PathBuf::from("/nowhere/campanile"), Vec::new())),
        compute: Compute::on("whatever there is"),
        local: None,
        schedule: supervisor(),
        orders: Arc::new(Orders::new().unwrap()),
        scheduler: Choice::default(),
        bands: Settings::default(),
        share: Share { highest_band: Band::Realtime, ..Share::default() },
        policy: Policy::default(),
        timeouts: [Duration::from_secs(600); 2],
        standing: Arc::new(Standing::default()),
        reports: Arc::new(Reports::new(None)),
        spares: false,
        code_mib: 0,
        freeze_limit: Duration::ZERO,
        budget: Arc::default(),
        clerk: Arc::new(Clerk::default()),
        log: LogLimit::new("tested"),
    })
}

/// A front, as the operator configures it here.
pub(crate) trait Fronted: Front {
    /// Its options.
    fn options() -> Self::Options;
    /// Whether it is the fs front.
    const IS_FS: bool;
}

impl Fronted for Gpu {
    fn options() {}
    const IS_FS: bool = false;
}

impl Fronted for Fs {
    fn options() -> FsOptions {
        FsOptions { aperture: APERTURE, tag: None }
    }
    const IS_FS: bool = true;
}

/// A device with nothing in it.
pub(crate) fn device<F: Fronted>(config: &Arc<Config>) -> FrontDevice<F> {
    FrontDevice::with(F::options(), Arc::clone(config), Arc::default()).unwrap()
}

/// Guest memory, which is zero, with an aperture above it or without.
pub(crate) fn memory(with_aperture: bool) -> Arc<GuestRam> {
    let all = [("ram", 0, RAM), ("aperture", 1 << 32, APERTURE)];
    let ranges: Vec<(GuestAddress, usize, Option<FileOffset>)> = all[..1 + usize::from(with_aperture)]
        .iter()
        .map(|(name, address, bytes)| {
            let file = FileOffset::new(create_memfd(name, *bytes).unwrap(), 0);
            (GuestAddress(*address), usize::try_from(*bytes).unwrap(), Some(file))
        })
        .collect();
    Arc::new(GuestRam::from_ranges_with_files(ranges).unwrap())
}
