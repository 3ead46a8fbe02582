//! Sessions for unit tests: without engine processes, unless a test names a program.

use campanile_protocol::named_profile::GpuProfile;
use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::time::Duration;

use campanile_host_gpu::adapter::Adapter;
use campanile_host_gpu::adapter::process::EngineProcess;
use campanile_host_gpu::adapter::program::Program;
use campanile_host_gpu::dirty::method::Method;
use campanile_host_gpu::engine::address::EngineAddress;
use campanile_host_gpu::engine::message::NodeKind;
use campanile_host_gpu::ids::ContextIndex;
use campanile_host_gpu::log_limit::LogLimit;
use campanile_host_gpu::memory::mapping::Access;
use campanile_host_gpu::memory::mapping::Mapping;
use campanile_host_gpu::memory::vram::create_memfd;
use campanile_host_gpu::sched::choice::Choice;
use campanile_host_gpu::sched::parameters::Band;
use campanile_host_gpu::sched::parameters::Settings;
use campanile_protocol::device_page::DEVICE_PAGE_BYTES;
use campanile_protocol::engine::block;
use campanile_protocol::engine::hw_queue;
use campanile_protocol::engine::hw_queue::HwResult;
use campanile_protocol::engine::hw_queue::HwSubmission;
use campanile_protocol::engine::progress::Progress;
use campanile_protocol::engine::progress::Work;
use campanile_protocol::engine::scheduling;
use campanile_protocol::engine::scheduling::Bands;
use campanile_protocol::handle::Handle;
use zerocopy::FromBytes;
use zerocopy::IntoBytes;

use super::config::Compute;
use super::config::Config;
use super::control::orders::Orders;
use super::doorbells::modes::DoorbellModes;
use super::doorbells::switch::NotifySwitch;
use super::engines::slot::InFlight;
use super::memory::vidmm::quota::Account;
use super::memory::vidmm::quota::Pool;
use super::memory::vidmm::quota::Quota;
use super::objects::process::Buffer;
use super::objects::process::Device;
use super::power::freeze::Freeze;
use super::session::Session;
use super::state::saved::SavedSession;
use super::tdr::policy::Policy;
use super::tdr::reports::Clerk;
use super::tdr::reports::Reports;
use super::tdr::standing::Standing;
use super::vulkan_devices::VulkanDevices;
use crate::ids::GuestProcess;
use crate::migration::state;
use crate::sched::awake::Awake;
use crate::sched::schedule::Schedule;
use crate::sched::share::Share;
use crate::sched::thread::Supervisor;
use crate::vgpu::engines::lifecycle::Lifecycle;
use crate::vgpu::objects::device_page::GuestPage;
use crate::vgpu::objects::ids::ContextHandle;

/// A vGPU that fits the golden states; its engines cannot be started.
pub(crate) fn config() -> Config {
    config_under(Arc::new(Supervisor::start(Choice::default(), 10, Awake::off()).unwrap()))
}

/// The same, with a supervisor that is there.
pub(crate) fn config_under(schedule: Arc<dyn Schedule>) -> Config {
    let quota = Quota { min: 0, max: 4 << 30 };
    Config {
        name: "tested".to_owned(),
        vram_bytes: 64 << 20,
        account: Arc::new(Account::new(quota, Pool::new(None, []).unwrap())),
        local: None,
        single_use: false,
        engines: 1,
        doorbells: 64,
        doorbell_modes: DoorbellModes::default(),
        notify: Arc::new(NotifySwitch::new(&DoorbellModes::default()).unwrap()),
        spin: Duration::from_millis(2),
        slice: Duration::from_millis(2),
        tracking: Method::Off,
        trackers: Arc::default(),
        ledger: Arc::default(),
        meters: Arc::default(),
        d3_after: None,
        sandbox: true,
        window: true,
        vulkan_devices: VulkanDevices::default(),
        profile: GpuProfile::Host,
        launcher: Arc::new(Program::new(PathBuf::from("/nonexistent/campanile"), Vec::new())),
        compute: Compute::on("a device"),
        schedule,
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

/// An engine is no good any more.
pub(crate) fn lose(session: &mut Session, at: EngineAddress, text: &str) {
    session.vm.engines.condemn(at, text);
    session.settle();
}

/// What the shared block of an engine says of bands.
pub(crate) fn bands_of(process: &EngineProcess) -> Bands {
    let mut bytes = [0; size_of::<Bands>()];
    let shared = process.grant_handle().shared;
    shared.slice(scheduling::BANDS, bytes.len() as u64).unwrap().copy_to(&mut bytes);
    Bands::read_from_bytes(&bytes).unwrap()
}

/// The engine that tests look at.
pub(crate) const COPY: EngineAddress = EngineAddress::new(0, NodeKind::Copy);
/// The process of the golden state that has kernel-mode buffers, for [`COPY`].
pub(crate) const OWNER: GuestProcess = GuestProcess::new(7);
/// Its context that has them.
pub(crate) const CONTEXT: ContextHandle = ContextHandle::new(Handle::new(0, 1));

/// As [`config`], with engines that can be started: a program that never answers, and ends when it is killed.
pub(crate) fn startable() -> Config {
    let launcher = Arc::new(Program::new(PathBuf::from("/usr/bin/yes"), Vec::new()));
    Config { launcher, bands: Settings { normal_share: 37, ..Settings::default() }, ..config() }
}

/// An engine that runs, as the session sees it.
pub(crate) fn run(session: &mut Session, at: EngineAddress) {
    assert!(
        !Lifecycle::of(&mut session.vm)
            .ensure_engine(at)
            .unwrap_or_else(|refused| panic!("{}", refused.text))
    );
    session.vm.engines[at.index()].came_up();
}

/// Gives the processes of the golden state device pages, which lie in a guest's RAM.
pub(crate) fn show_pages(session: &mut Session) {
    for process in session.vm.objects.processes.values_mut() {
        let file = create_memfd("page", DEVICE_PAGE_BYTES).unwrap();
        let mapping = Mapping::new(file, 0, DEVICE_PAGE_BYTES, Access::ReadWrite).unwrap();
        let page = &mut process.device.as_mut().unwrap().page;
        page.guest = Some(GuestPage { mapping: Arc::new(mapping), addresses: Arc::from([]) });
    }
}

/// A session that goes on with the golden state, and whose copy engine runs. Nothing of it is listed yet.
pub(crate) fn restored(config: Config) -> Session {
    let mut session = session(&Arc::new(config));
    session.restore(&golden()).unwrap();
    show_pages(&mut session);
    session.vm.freeze = Freeze::Running;
    let contexts = session.vm.objects.processes.values_mut().filter_map(|process| process.device.as_mut());
    for (_, context) in contexts.flat_map(|device| device.contexts.iter_mut()) {
        context.held.by_freeze = false;
    }
    // As after a move: processes start over what was restored.
    Lifecycle::of(&mut session.vm).start_next_process(COPY).unwrap();
    session.vm.engines[COPY.index()].came_up();
    session
}

/// A device of the golden state.
pub(crate) fn device(session: &mut Session, of: GuestProcess) -> &mut Device {
    session.vm.objects.device_mut(of).unwrap_or_else(|refused| panic!("{}", refused.text))
}

/// Takes the first buffer out of the software queue of [`CONTEXT`].
pub(crate) fn take_buffer(session: &mut Session) -> Buffer {
    device(session, OWNER).contexts.get_mut(CONTEXT).unwrap().software_queue.pop_front().unwrap()
}

/// The entry of [`CONTEXT`] with its engine.
pub(crate) fn entry(session: &mut Session) -> ContextIndex {
    device(session, OWNER).contexts.get(CONTEXT).unwrap().entry.unwrap()
}

/// Gives [`COPY`] a kernel-mode buffer of this owner; its fence id.
pub(crate) fn give(session: &mut Session, owner: Option<(GuestProcess, Buffer)>) -> u64 {
    let entry = if owner.is_some() { entry(session) } else { ContextIndex::new(0) };
    let slot = &mut session.vm.engines[COPY.index()];
    let fence_id = slot.fences.submit();
    let process = slot.process_mut().unwrap();
    process.submit_command(HwSubmission { fence_id, ..HwSubmission::default() }).unwrap();
    let suspends = process.contexts.suspends(entry);
    slot.in_flight.push_back(InFlight { fence_id, entry, suspends, owner });
    fence_id
}

/// The shared block of an engine.
pub(crate) fn shared(session: &Session, at: EngineAddress) -> Arc<Mapping> {
    session.vm.engines[at.index()].process().unwrap().grant_handle().shared
}

/// A word of the shared block of an engine.
pub(crate) fn load(session: &Session, at: EngineAddress, offset: u64) -> u64 {
    shared(session, at).word(offset).unwrap().load(Ordering::Acquire)
}

/// Stores one, as the engine does.
pub(crate) fn store(session: &Session, at: EngineAddress, offset: u64, value: u64) {
    shared(session, at).word(offset).unwrap().store(value, Ordering::Release);
}

/// What [`COPY`] says by itself: the result of the `count`-th buffer.
pub(crate) fn end_with(session: &Session, count: u64, result: HwResult) {
    let place = hw_queue::slot(count) + hw_queue::RESULT;
    shared(session, COPY).slice(place, size_of::<HwResult>() as u64).unwrap().copy_from(result.as_bytes());
    store(session, COPY, block::HW_QUEUE_COMPLETED, count + 1);
}

/// As [`end_with`], with no more than a fault.
pub(crate) fn end(session: &Session, count: u64, fence_id: u64, fault: u32) {
    end_with(session, count, HwResult { fence_id, fault, ..HwResult::default() });
}

/// What [`COPY`] says that it runs.
pub(crate) fn store_progress(session: &Session, work: Work) {
    let progress = Progress { steps: 1, is_exempt: false, work };
    store(session, COPY, block::PROGRESS, progress.word());
}

/// A count of what went on.
pub(crate) fn counted(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}
