//! Sessions for unit tests: without engine processes, unless a test names a program.

use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use campanile_host_gpu::adapter::process::EngineProcess;
use campanile_host_gpu::adapter::program::Program;
use campanile_host_gpu::dirty::method::Method;
use campanile_host_gpu::log_limit::LogLimit;
use campanile_host_gpu::scheduling::choice::Choice;
use campanile_host_gpu::scheduling::parameters::Band;
use campanile_host_gpu::scheduling::parameters::Settings;
use campanile_protocol::engine::scheduling;
use campanile_protocol::engine::scheduling::Bands;
use zerocopy::FromBytes;

use super::config::Compute;
use super::config::Config;
use super::saved::SavedSession;
use super::state::Session;
use crate::doorbell::modes::DoorbellModes;
use crate::doorbell::switch::NotifySwitch;
use crate::migration::state;
use crate::orders::Orders;
use crate::recovery::policy::Policy;
use crate::recovery::reports::Clerk;
use crate::recovery::reports::Reports;
use crate::recovery::standing::Standing;
use crate::supervisor::awake::Awake;
use crate::supervisor::share::Share;
use crate::supervisor::thread::Supervisor;
use crate::vidmm::quota::Account;
use crate::vidmm::quota::Pool;
use crate::vidmm::quota::Quota;

/// A vGPU that fits the golden states; its engines cannot be started.
pub(crate) fn config() -> Config {
    let quota = Quota { min: 0, max: 4 << 30 };
    Config {
        name: "tested".to_owned(),
        vram_bytes: 64 << 20,
        account: Arc::new(Account::new(quota, Pool::new(None, []).unwrap())),
        single_use: false,
        engines: 1,
        doorbells: 64,
        doorbell_modes: DoorbellModes::default(),
        notify: Arc::new(NotifySwitch::new(&DoorbellModes::default()).unwrap()),
        spin: Duration::from_millis(2),
        slice: Duration::from_millis(2),
        tracking: Method::Off,
        trackers: Arc::default(),
        d3_after: None,
        sandbox: true,
        window: true,
        vulkan_device: None,
        program: Program::new(PathBuf::from("/nonexistent/campanile"), Vec::new()),
        compute: Compute::Available("a device".to_owned()),
        supervisor: Arc::new(Supervisor::start(Choice::default(), 10, Awake::off()).unwrap()),
        orders: Arc::new(Orders::new().unwrap()),
        scheduler: Choice::default(),
        bands: Settings::default(),
        share: Share { highest_band: Band::Realtime, ..Share::default() },
        policy: Policy::default(),
        timeouts: [Duration::from_secs(600); 2],
        standing: Arc::new(Standing::default()),
        reports: Arc::new(Reports::new(None)),
        spares: false,
        freeze_limit: Duration::ZERO,
        clerk: Arc::new(Clerk::default()),
        log: LogLimit::new("tested"),
    }
}

/// A session of this vGPU, of which nothing was asked yet.
pub(crate) fn session(config: &Arc<Config>) -> Session {
    Session::new(Arc::clone(config), Arc::default()).unwrap()
}

/// The golden state of the present version: something of nearly everything.
pub(crate) fn golden() -> SavedSession {
    let name = format!("tests/golden/state-{}.campanile", state::VERSION);
    let bytes = std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join(name)).unwrap();
    state::decode(&bytes).unwrap().session
}

/// What the shared block of an engine says of bands.
pub(crate) fn bands_of(process: &EngineProcess) -> Bands {
    let mut bytes = [0; size_of::<Bands>()];
    let shared = process.grant_handle().shared;
    shared.slice(scheduling::BANDS, bytes.len() as u64).unwrap().copy_to(&mut bytes);
    Bands::read_from_bytes(&bytes).unwrap()
}
