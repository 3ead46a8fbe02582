//! State that asks for more than this vGPU was given, or contradicts itself: one field at a time.

use campanile_protocol::named_profile::GpuProfile;
use std::sync::Arc;
use std::time::Duration;

use campanile_host_gpu::adapter::Adapter;
use campanile_host_gpu::engine::address::EngineAddress;
use campanile_host_gpu::engine::message::NodeKind;
use campanile_host_gpu::memory::page_table::reader::Intent;
use campanile_host_gpu::memory::page_table::reader::resolve_one;
use campanile_host_gpu::sched::parameters::Band;
use campanile_host_gpu::sched::parameters::Settings;
use campanile_protocol::control::scheduling;
use campanile_protocol::device_page::DEVICE_STOPPED;
use campanile_protocol::engine::fences;
use campanile_protocol::handle::Handle;
use campanile_protocol::page_table::SegmentId;
use campanile_protocol::queue::doorbell::DoorbellModel;

use super::install::RestoreError;
use super::kept::full;
use crate::ids::FrontContext;
use crate::ids::GuestProcess;
use crate::sched::share::Share;
use crate::vgpu::config::Compute;
use crate::vgpu::config::Config;
use crate::vgpu::memory::vidmm::quota::Account;
use crate::vgpu::memory::vidmm::quota::Pool;
use crate::vgpu::memory::vidmm::quota::Quota;
use crate::vgpu::memory::vidmm::vram::VideoMemory;
use crate::vgpu::objects::doorbell_state::DoorbellState;
use crate::vgpu::session::Session;
use crate::vgpu::state::restore::install::check_immutable;
use crate::vgpu::state::saved::SavedSession;
use crate::vgpu::state::saved::memory::SavedPlace;
use crate::vgpu::state::saved::process::SavedContext;
use crate::vgpu::state::saved::process::SavedDevice;
use crate::vgpu::state::saved::process::SavedDoorbell;
use crate::vgpu::state::saved::process::SavedQueue;
use crate::vgpu::state::saved::process::SavedScheduling;
use crate::vgpu::state::saved::row::SavedChange;
use crate::vgpu::state::saved::row::SavedOperation;
use crate::vgpu::state::saved::row::SavedOrigin;
use crate::vgpu::testing::OWNER;
use crate::vgpu::testing::bands_of;
use crate::vgpu::testing::config;
use crate::vgpu::testing::golden;
use crate::vgpu::testing::load;
use crate::vgpu::testing::session;

/// Why this state is refused on a vGPU that is configured so; none where it is taken.
fn refusal(config: &Arc<Config>, state: &SavedSession) -> Option<String> {
    let mut session = session(config);
    let refused = session.restore(state).err().map(|error| error.to_string());
    assert_eq!(session.is_fresh(), refused.is_some(), "nothing is half applied: {refused:?}");
    refused
}

fn with_highest(highest_band: Band) -> Arc<Config> {
    Arc::new(Config { share: Share { highest_band, ..Share::default() }, ..config() })
}

/// The device of one of the two guest processes of the golden state.
pub(super) fn device(state: &mut SavedSession, process: usize) -> &mut SavedDevice {
    state.processes[process].device.as_mut().unwrap()
}

fn context(state: &mut SavedSession, process: usize) -> &mut SavedContext {
    device(state, process).contexts.0[0].1.as_mut().unwrap()
}

fn queue(state: &mut SavedSession, index: usize) -> &mut SavedQueue {
    device(state, 1).queues.0[index].1.as_mut().unwrap()
}

fn doorbell(state: &mut SavedSession, index: usize) -> &mut SavedDoorbell {
    device(state, 1).doorbells.0[index].1.as_mut().unwrap()
}

fn scheduled(state: &mut SavedSession, change: impl FnOnce(&mut SavedScheduling)) {
    let ms = 1_000_000;
    let mut set =
        SavedScheduling { band: 1, level: 0, priority: 0, quantum: 2 * ms, grace_same: ms, grace_lower: ms };
    change(&mut set);
    context(state, 1).scheduling = Some(set);
}

#[test]
fn pre_65_lm_39_no_context_of_a_state_has_a_band_above_what_was_granted_here() {
    let bands = [Band::Idle, Band::Normal, Band::Focus, Band::Realtime];
    for highest in bands {
        let config = with_highest(highest);
        for (number, band) in (0..).zip(bands) {
            let mut state = golden();
            scheduled(&mut state, |set| set.band = number);
            // The class says nothing here: IDLE fits everywhere.
            (0..2).for_each(|process| device(&mut state, process).class = scheduling::CLASS_IDLE);
            match refusal(&config, &state) {
                None => assert!(band <= highest, "{band:?} where {highest:?} is the highest"),
                Some(why) => {
                    assert!(band > highest, "{band:?} where {highest:?} is the highest: {why}");
                    assert!(why.contains("its band was not granted"), "{why}");
                }
            }
        }
    }
}

#[test]
fn pre_61_pre_65_no_process_of_a_state_has_a_class_above_what_was_granted_here() {
    for (class, lowest) in [
        (scheduling::CLASS_IDLE, Band::Idle),
        (scheduling::CLASS_HIGH, Band::Normal),
        (scheduling::CLASS_REALTIME, Band::Realtime),
    ] {
        for highest in [Band::Idle, Band::Normal, Band::Focus, Band::Realtime] {
            let mut state = golden();
            (0..2).for_each(|process| device(&mut state, process).class = scheduling::CLASS_IDLE);
            device(&mut state, 0).class = class;
            let why = refusal(&with_highest(highest), &state);
            assert_eq!(why.is_none(), lowest <= highest, "class {class} where {highest:?} is the highest");
            assert!(why.is_none_or(|why| why.contains("its class was not granted")));
        }
    }
}

type Change = (&'static str, fn(&mut SavedSession));

/// Changes one thing at a time, each of which is refused by name.
fn each_is_refused(changes: &[Change]) {
    let config = Arc::new(config());
    assert_eq!(refusal(&config, &golden()), None);
    for (number, (reason, change)) in changes.iter().enumerate() {
        let mut state = golden();
        change(&mut state);
        let why = refusal(&config, &state);
        let why = why.unwrap_or_else(|| panic!("change {number} was taken, for which {reason:?} was due"));
        assert!(why.contains(reason), "change {number}: {why:?}, and not {reason:?}");
    }
}

#[test]
fn lm_39_how_a_context_is_scheduled_stays_within_what_a_message_could_have_set() {
    each_is_refused(&[
        ("how it is scheduled", |state| scheduled(state, |set| set.band = 4)),
        ("how it is scheduled", |state| scheduled(state, |set| set.level = 32)),
        ("how it is scheduled", |state| scheduled(state, |set| set.priority = 8)),
        ("how it is scheduled", |state| scheduled(state, |set| set.priority = -8)),
        ("how it is scheduled", |state| scheduled(state, |set| set.quantum = 0)),
        ("how it is scheduled", |state| scheduled(state, |set| set.quantum = u64::MAX)),
        ("how it is scheduled", |state| scheduled(state, |set| set.grace_same = u64::MAX)),
        ("how it is scheduled", |state| scheduled(state, |set| set.grace_lower = u64::MAX)),
    ]);
    let mut state = golden();
    scheduled(&mut state, |set| (set.band, set.level, set.priority) = (3, 31, -7));
    assert_eq!(refusal(&Arc::new(config()), &state), None);
}

#[test]
fn lm_39_ids_counts_and_handles_that_cannot_be_are_refused_each_by_name() {
    each_is_refused(&[
        // Guest processes.
        ("its number", |state| state.processes[0].context = GuestProcess::new(0)),
        ("its number", |state| state.processes[0].context = GuestProcess::new(7)),
        ("a resource that is attached", |state| state.processes[0].attached.push(99)),
        ("timeline 1 is there twice", |state| {
            let again = state.processes[0].timelines[0].clone();
            state.processes[0].timelines.push(again);
        }),
        ("timeline 64", |state| state.processes[0].timelines[0].ring = 64),
        ("its number", |state| state.processes[0].timelines[0].next = u64::MAX / 2),
        ("its open work", |state| state.processes[1].timelines[1].open = vec![2]),
        ("its open work", |state| state.processes[1].timelines[0].open = vec![2, 1]),
        ("nothing ends work 1 of timeline 1", |state| state.processes[1].timelines[0].open = vec![1]),
        ("the order of its fences", |state| state.processes[1].timelines[1].fences[0].0 = 2),
        ("command 54 waits for two things", |state| state.processes[1].timelines[1].fences[0].1 = 54),
        ("class 6", |state| device(state, 0).class = 6),
        ("its device is in state 0", |state| device(state, 0).status = 0),
        ("its device is in state", |state| device(state, 0).status = u64::MAX),
        // Contexts and queues.
        ("engine 2, which this vGPU does not have", |state| context(state, 0).engine = 2),
        ("suspend fence", |state| context(state, 0).suspends = Some(u64::MAX / 4)),
        ("its context", |state| queue(state, 0).context = 77),
        ("its doorbell", |state| queue(state, 3).doorbell = Some(1 << 32)),
        ("its fence value", |state| queue(state, 3).value = u64::MAX / 2),
        ("a queue whose doorbell is not there", |state| device(state, 1).doorbells.0[2].1 = None),
        // Doorbells.
        ("its queue", |state| doorbell(state, 0).queue = 77),
        ("its queue", |state| doorbell(state, 0).queue = (1 << 32) + 1),
        ("its ring of 63 entries", |state| doorbell(state, 0).entries = 63),
        ("its ring of 1 entries", |state| doorbell(state, 0).entries = 1),
        ("its ring of", |state| doorbell(state, 0).entries = 1 << 31),
        ("its ring of", |state| doorbell(state, 0).ring_va += 8),
        ("its ring of", |state| doorbell(state, 0).control_va += 8),
        ("its ring: no allocation 99", |state| doorbell(state, 0).ring = 99),
        ("its ring control: no allocation 99", |state| doorbell(state, 0).control = 99),
        ("a doorbell that ends for nobody", |state| doorbell(state, 0).is_draining = true),
        ("how far it is, on an engine that is gone", |state| context(state, 1).suspends = None),
        // Buffers.
        ("the queue of a buffer", |state| context(state, 1).buffers[0].queue = 1 << 32),
        ("the order of its buffers", |state| context(state, 1).buffers[1].order = 1),
        ("the order of its buffers", |state| context(state, 1).buffers[3].order = 5),
        ("a buffer of 24 bytes", |state| context(state, 1).buffers[0].va += 4),
        ("a buffer of 28 bytes", |state| context(state, 1).buffers[0].length = 28),
        ("a buffer of", |state| context(state, 1).buffers[0].length = 1 << 31),
        ("a buffer of 24 bytes", |state| context(state, 1).buffers[3].fence_value = 5),
        ("a buffer of 24 bytes", |state| context(state, 1).buffers[0].paging = 2),
        ("work 1 of timeline 6, which is not open", |state| context(state, 1).buffers[0].ring = 6),
        // Engines.
        ("3 engines", |state| state.engines.push(Default::default())),
        ("the fence ids of", |state| state.engines[1].submitted = 3),
        ("the fence ids of", |state| {
            (state.engines[1].submitted, state.engines[1].completed) = (u64::MAX / 2, u64::MAX / 2);
        }),
        ("the fence ids of", |state| state.engines[1].taken = u64::MAX / 2),
        ("the order of its buffers", |state| state.engines[1].taken = 3),
        // Native fences.
        ("native fence 1", |state| device(state, 1).fences.0[0].1.as_mut().unwrap().0 = 1),
        ("meets a mapping", |state| device(state, 1).fences.0[0].1.as_mut().unwrap().1 = 16_777_216),
        ("a native fence that nobody has open", |state| {
            let mut other = state.fences[0];
            (other.0, other.1) = (1, other.1 ^ 1 << 40);
            state.fences.push(other);
        }),
        // Messages.
        ("a wait of another process", |state| device(state, 1).waits[0].0.0 = GuestProcess::new(1)),
        ("a wait for a queue that is none", |state| device(state, 1).waits[0].1 = 77),
        ("a wait for a native fence that is not open", |state| device(state, 1).native_waits[0].1 = 77),
        ("slot", |state| device(state, 1).waits[0].0.1 = u32::MAX),
        ("the end of a doorbell", |state| state.drains[0].0 = GuestProcess::new(1)),
        ("the end of a doorbell", |state| state.drains[0].1 = 1 << 32),
        ("the end of a doorbell", |state| state.drains[0].2.0 = GuestProcess::new(1)),
        ("refusal 99", |state| state.due.push((1000, 99))),
        ("the end of segment 9", |state| state.retired.push((9, 1000))),
        ("context 5, which is process 99", |state| {
            state.names.push((FrontContext::new(5), GuestProcess::new(99)))
        }),
    ]);
}

#[test]
fn lm_39_memory_that_lies_outside_or_has_two_uses_is_refused_by_name() {
    each_is_refused(&[
        ("allocation 1: its size or priority", |state| state.allocations[0].1 = 0),
        ("allocation 1: its size or priority", |state| state.allocations[0].1 += 1),
        ("allocation 1: its size or priority", |state| state.allocations[0].3 = u32::MAX),
        ("allocation 1: there twice", |state| state.allocations[1].0 = 1),
        ("it lies outside of its memory", |state| state.allocations[0].2 = SavedPlace::Aperture(64 << 20)),
        ("it lies outside of its memory", |state| state.allocations[0].2 = SavedPlace::Local(0)),
        ("guest RAM segment 9", |state| state.allocations[7].2 = SavedPlace::Guest(9)),
        ("guest RAM segment 2", |state| state.allocations[7].2 = SavedPlace::Guest(2)),
        ("guest RAM segment 0", |state| state.segments[0].id = 0),
        ("there twice", |state| state.segments[1].id = 1),
        ("bytes at", |state| state.segments[0].pieces[0].0 += 1),
        ("bytes at", |state| state.segments[0].pieces[0].1 += 1),
        ("bytes at", |state| state.segments[0].pieces[0].0 = u64::MAX << 12),
        ("no allocation 99", |state| state.blobs[0].1 = 99),
        ("blob 2: there twice", |state| state.blobs[1].0 = 2),
        ("blob 0: its kind", |state| state.blobs[0].0 = 0),
        ("blob 2: its kind", |state| state.blobs[0].2 = false),
        ("blob 2: its kind", |state| state.blobs[0].3 = false),
        ("blob 8: its kind", |state| state.blobs[5].4 = true),
        ("a mapping of", |state| device(state, 0).mappings[1].1 += 4096),
        ("a mapping of", |state| device(state, 0).mappings[1].3 = 4096),
        ("a mapping of", |state| device(state, 0).mappings[1].0 = 0),
        ("a mapping of", |state| device(state, 0).mappings[1].2 = 99),
        ("mappings that meet", |state| device(state, 0).mappings.swap(1, 2)),
        ("its device page", |state| device(state, 0).page_allocation = 99),
        ("its device page is not where it must be", |state| device(state, 0).page_va += 4096),
        ("its device page is not where it must be", |state| device(state, 0).page_offset = 4096),
        ("its device page is not where it must be", |state| device(state, 0).mappings[0].4 = false),
        ("it holds allocation 99", |state| device(state, 0).holds.push((99, 1))),
        ("it holds allocation 2 0 times", |state| device(state, 0).holds.push((2, 0))),
        ("it holds allocation 2 twice", |state| device(state, 0).holds.extend([(2, 1), (2, 1)])),
        ("its save area", |state| context(state, 1).area = Some(12)),
        ("its save area", |state| context(state, 1).area = Some(9)),
        ("a save area, and something else", |state| device(state, 1).holds.push((10, 1))),
        ("the order of its paging operations", |state| device(state, 1).paging[0].0 = 2),
        ("its paging operations", |state| device(state, 1).paging_issued = 2),
        ("two mappings are to come", |state| {
            let row = device(state, 1).mappings[12];
            device(state, 1).paging[0].1.extend([SavedChange::Map(row), SavedChange::Map(row)]);
        }),
        ("a mapping is to come that nobody asked for", |state| {
            let mut row = device(state, 1).mappings[12];
            row.0 = 1 << 30 | 1 << 20;
            device(state, 1).paging[0].1.push(SavedChange::Map(row));
        }),
        ("what is to make room", |state| {
            device(state, 1).paging_issued = 2;
            device(state, 1).paging.push(SavedOperation(2, vec![SavedChange::Evict(vec![99])]));
        }),
        ("source", |state| device(state, 0).kernels.0[0].1 = Some(9)),
        ("its source", |state| state.sources[0].language = 99),
        ("its source", |state| state.sources[0].bytes.0.clear()),
        ("its source", |state| state.sources[0].bytes.0.resize((128 << 10) + 1, 0)),
        ("the name of its entry point", |state| state.sources[0].entry = Some("x".repeat(257))),
        ("the name of its entry point", |state| state.sources[0].entry = Some("\n".to_owned())),
    ]);
}

#[test]
fn lm_39_a_context_of_a_node_that_cannot_be_used_here_is_refused() {
    let config = Arc::new(Config { compute: Compute::Refused("no driver".to_owned()), ..config() });
    let why = refusal(&config, &golden()).unwrap();
    assert!(why.contains("there is no") && why.contains("compute"), "{why}");
}

#[test]
fn pre_68_pre_69_an_engine_that_is_restored_has_the_bands_of_the_operator_before_it_starts() {
    let bands = Settings { normal_share: 37, ..Settings::default() };
    let config = Arc::new(Config { bands, ..config() });
    let mut session = session(&config);
    session.restore(&golden()).unwrap();
    for node in [NodeKind::Compute, NodeKind::Copy] {
        let at = EngineAddress::new(0, node);
        let process = session.vm.engines[at.index()].process().unwrap();
        assert_eq!(bands_of(process).normal_share, 37, "{at}");
    }
}

#[test]
fn lm_54_fence_ids_of_a_restored_engine_go_on_where_they_were() {
    let mut session = session(&Arc::new(config()));
    session.restore(&golden()).unwrap();
    let at = EngineAddress::new(0, NodeKind::Copy);
    let slot = &mut session.vm.engines[at.index()];
    assert_eq!((slot.fences.submitted(), slot.fences.completed(), slot.taken), (4, 4, 4));
    // The id that its process would give for a reset now.
    assert_eq!(slot.process_mut().unwrap().reset_engine().unwrap(), 4);
}

#[test]
fn lm_54_tdr_53_what_was_handed_back_before_a_move_has_not_completed_after_it() {
    let mut state = golden();
    state.engines[1].completed = 2;
    let mut session = session(&Arc::new(config()));
    session.restore(&state).unwrap();
    let slot = &mut session.vm.engines[EngineAddress::new(0, NodeKind::Copy).index()];
    assert_eq!((slot.fences.submitted(), slot.fences.completed()), (4, 2));
    assert_eq!(slot.process_mut().unwrap().reset_engine().unwrap(), 2);
    let saved = session.save().unwrap();
    assert_eq!((saved.engines[1].submitted, saved.engines[1].completed), (4, 2));
}

#[test]
fn lm_34_lm_33_every_setting_that_a_guest_has_seen_must_be_the_same_where_its_state_goes() {
    type Other = (&'static str, fn(&mut Config));
    let others: [Other; 14] = [
        ("vram_bytes", |it| it.vram_bytes /= 2),
        ("quota_bytes", |it| {
            let quota = Quota { min: 0, max: 2 << 30 };
            it.account = Arc::new(Account::new(quota, Pool::new(None, []).unwrap()));
        }),
        ("window", |it| it.window = false),
        ("single_use", |it| it.single_use = true),
        ("gpu_profile", |it| it.profile = GpuProfile::Campanile1),
        ("engines", |it| it.engines = 2),
        ("highest_band", |it| it.share.highest_band = Band::Normal),
        ("doorbells of node compute", |it| it.doorbells = 63),
        ("has_global_doorbell of node compute", |it| it.doorbell_modes.0[0].model = DoorbellModel::Global),
        ("has_global_doorbell of node copy", |it| it.doorbell_modes.0[1].model = DoorbellModel::Global),
        ("is_sliced of node compute", |it| it.slice = Duration::ZERO),
        ("device of node compute", |it| it.compute = Compute::on("another")),
        ("device of node compute", |it| it.compute = Compute::Refused("no driver".to_owned())),
        ("aperture_bytes", |it| it.vram_bytes /= 2),
    ];
    let saved = session(&Arc::new(config())).immutable();
    for (field, change) in others {
        let mut other = config();
        change(&mut other);
        let mut here = session(&Arc::new(other)).immutable();
        if field == "aperture_bytes" {
            // Else the size of all of it is refused first.
            here.vram_bytes = saved.vram_bytes;
        }
        let mismatch = here.check(&saved).unwrap_err();
        assert_eq!(mismatch.field, field, "{mismatch}");
    }
    // The rest follows from the daemon's program, and no configuration changes it.
    let all = serde_json::to_value(&saved).unwrap();
    let names =
        |value: &serde_json::Value| -> Vec<String> { value.as_object().unwrap().keys().cloned().collect() };
    let fixed = ["daemon", "protocol", "nodes", "name"];
    for field in names(&all).into_iter().chain(names(&all["nodes"][0])) {
        let is_listed = others.iter().any(|other| other.0.split(' ').next() == Some(field.as_str()));
        assert!(is_listed || fixed.contains(&field.as_str()), "{field} is not varied");
    }
    // What is the target's own decides nothing.
    let mut other = config();
    (other.name, other.spin) = ("another".to_owned(), Duration::ZERO);
    other.timeouts = [Duration::from_secs(1); 2];
    other.bands.normal_share = 50;
    assert_eq!(check_immutable(&other, &saved), Ok(()));
}

#[test]
fn lm_33_a_state_of_another_kind_of_vgpu_does_not_fit() {
    let session = session(&Arc::new(config()));
    let mut other = session.immutable();
    assert_eq!(check_immutable(session.config(), &other), Ok(()));
    other.vram_bytes *= 2;
    assert_eq!(check_immutable(session.config(), &other).unwrap_err().field, "vram_bytes");
}

#[test]
fn lm_31_a_session_of_which_anything_was_asked_takes_no_state_and_no_memory() {
    type Change = fn(&mut Session);
    let changes: [Change; 2] = [
        // A guest process, which has no memory yet.
        |session| session.create_context(FrontContext::new(5)).unwrap(),
        |session| assert!(session.vm.memory.allocations.create_vram(4096).is_ok()),
    ];
    for change in changes {
        let config = Arc::new(config());
        let mut session = session(&config);
        change(&mut session);
        let memory = VideoMemory::new(64 << 20, 4 << 30, config.tracking).unwrap();
        assert!(matches!(session.adopt_memory(memory), Err(RestoreError::InUse)));
        assert!(matches!(session.restore(&golden()), Err(RestoreError::InUse)));
    }
}

#[test]
fn an_engine_that_is_restored_knows_the_native_fences_of_the_state() {
    let mut state = golden();
    // Not the first, which lies where all begins.
    (state.fences[0].0, device(&mut state, 1).fences.0[0].1.as_mut().unwrap().0) = (3, 3);
    state.fences[0].1 |= 3;
    device(&mut state, 1).native_waits.clear();
    state.processes[1].timelines.retain(|timeline| timeline.ring != 2);
    let mut session = session(&Arc::new(config()));
    session.restore(&state).unwrap();
    for node in [NodeKind::Compute, NodeKind::Copy] {
        let handle = load(&session, EngineAddress::new(0, node), fences::handle(3));
        assert_eq!(handle, state.fences[0].1, "{node:?}");
    }
    // And its page is found where the process has it open.
    let root = session.vm.objects.processes[&OWNER].device.as_ref().unwrap().root;
    let run = resolve_one(session.vm.memory.tables.mapping(), root.0, 1 << 30, 8, Intent::Write).unwrap();
    assert_eq!((run.segment, run.offset), (SegmentId::FENCES, 3 * 4096));
}

#[test]
fn lm_50_a_doorbell_is_dead_where_it_says_so_and_where_its_device_is_and_alive_elsewhere() {
    type Change = fn(&mut SavedSession);
    let cases: [(Change, [DoorbellState; 2]); 3] = [
        (|_| (), [DoorbellState::Retry; 2]),
        (|state| doorbell(state, 0).is_aborted = true, [DoorbellState::Abort, DoorbellState::Retry]),
        (|state| device(state, 1).status = DEVICE_STOPPED, [DoorbellState::Abort; 2]),
    ];
    for (change, expected) in cases {
        let mut state = golden();
        change(&mut state);
        let mut session = session(&Arc::new(config()));
        session.restore(&state).unwrap();
        let device = session.vm.objects.processes[&OWNER].device.as_ref().unwrap();
        let found = [0, 2].map(|index| device.doorbells.get(Handle::new(index, 1)).unwrap());
        assert_eq!(found.map(|doorbell| doorbell.state), expected);
        let is_alive = expected.map(|state| state == DoorbellState::Retry);
        assert_eq!(found.map(|doorbell| doorbell.hw_queue.is_some()), is_alive);
    }
}

#[test]
fn a_context_of_a_state_counts_its_queues() {
    let mut session = session(&Arc::new(config()));
    session.restore(&golden()).unwrap();
    let counts = |of: GuestProcess| {
        let device = session.vm.objects.processes[&of].device.as_ref().unwrap();
        device.contexts.iter().map(|(_, context)| context.queues).collect::<Vec<_>>()
    };
    assert_eq!((counts(GuestProcess::new(1)), counts(OWNER)), (vec![1], vec![4, 0]));
}

/// A state of two physical adapters, whose compute engines compile these kernels for these messages.
fn compiling(first: &[(SavedOrigin, u64)], second: &[(SavedOrigin, u64)]) -> SavedSession {
    let mut state = golden();
    device(&mut state, 0).kernels.0.push((1, Some(0)));
    state.processes[0].timelines[0].open = vec![1, 2];
    state.engines.resize_with(4, Default::default);
    (state.engines[0].compiling, state.engines[2].compiling) = (first.to_vec(), second.to_vec());
    state
}

#[test]
fn lm_39_engines_compile_a_kernel_for_one_message_and_different_kernels_for_different_ones() {
    let config = Arc::new(Config { engines: 2, ..config() });
    let kernel = |index: u64| 1 << 32 | index;
    let [one, two] =
        [1, 2].map(|item| SavedOrigin(GuestProcess::new(1), u32::try_from(item).unwrap(), 77, 1, Some(item)));
    let both = [(one, kernel(0)), (two, kernel(1))];
    for (first, second) in [(&both[..], &both[..]), (&both, &[]), (&both[..1], &both[1..])] {
        let state = compiling(first, second);
        let mut session = session(&config);
        session.restore(&state).unwrap();
        let saved = session.save().unwrap().engines;
        assert_eq!((saved[0].compiling.as_slice(), saved[2].compiling.as_slice()), (first, second));
    }
    // One kernel for two messages.
    let why = refusal(&config, &compiling(&both, &[(two, kernel(0))])).unwrap();
    assert!(why.contains("engine 2: a kernel that is compiled"), "{why}");
}

#[test]
fn lm_39_times_of_a_context_are_as_long_as_a_message_could_have_set_and_no_longer() {
    type Time = fn(&mut SavedScheduling) -> &mut u64;
    let times: [Time; 3] = [|set| &mut set.quantum, |set| &mut set.grace_same, |set| &mut set.grace_lower];
    // Messages say them in units of 100 ns.
    let longest = 100 * u64::from(scheduling::MAX_TIME);
    for time in times {
        for (length, is_taken) in [(longest, true), (longest + 1, false)] {
            let mut state = golden();
            scheduled(&mut state, |set| *time(set) = length);
            assert_eq!(refusal(&Arc::new(config()), &state).is_none(), is_taken, "{length}");
        }
    }
}

#[test]
fn lm_31_lm_39_memory_of_another_size_or_for_a_session_in_use_is_refused() {
    let config = Arc::new(config());
    let limit = config.account.quota().max;
    let memory = |bytes| VideoMemory::new(bytes, limit, config.tracking).unwrap();
    let mut session = session(&config);
    let why = session.adopt_memory(memory(32 << 20)).unwrap_err().to_string();
    assert!(why.contains("33554432 bytes of video memory, not 67108864"), "{why}");
    session.adopt_memory(memory(64 << 20)).unwrap();
    session.restore(&full()).unwrap();
    assert!(session.is_frozen() && !session.is_fresh());
    assert!(matches!(session.adopt_memory(memory(64 << 20)), Err(RestoreError::InUse)));
    let before = session.save().unwrap().allocations;
    assert!(matches!(session.restore(&full()), Err(RestoreError::InUse)));
    assert_eq!(session.save().unwrap().allocations, before);
}
