//! A state in which every field says something: it is kept word for word, and each word that is changed is kept or
//! refused.

use std::collections::BTreeSet;
use std::sync::Arc;

use campanile_protocol::control::message::CREATE_KERNEL;
use campanile_protocol::control::message::DESTROY_KERNEL;
use ciborium::Value;

use crate::ids::FrontContext;
use crate::ids::GuestProcess;
use crate::vgpu::config::Config;
use crate::vgpu::objects::doorbell_state::DoorbellState;
use crate::vgpu::state::saved::SavedSession;
use crate::vgpu::state::saved::bytes::Bytes;
use crate::vgpu::state::saved::engine::SavedMessage;
use crate::vgpu::state::saved::memory::SavedKeptBlob;
use crate::vgpu::state::saved::memory::SavedPlace;
use crate::vgpu::state::saved::process::SavedAway;
use crate::vgpu::state::saved::process::SavedDevice;
use crate::vgpu::state::saved::process::SavedScheduling;
use crate::vgpu::state::saved::row::SavedChange;
use crate::vgpu::state::saved::row::SavedGpuWait;
use crate::vgpu::state::saved::row::SavedMap;
use crate::vgpu::state::saved::row::SavedMapping;
use crate::vgpu::state::saved::row::SavedOperation;
use crate::vgpu::state::saved::row::SavedOrigin;
use crate::vgpu::state::saved::row::SavedResident;
use crate::vgpu::testing::config;
use crate::vgpu::testing::golden;
use crate::vgpu::testing::session;

/// The handle of what was first at place `index` of a table.
pub(super) const fn handle(index: u64) -> u64 {
    1 << 32 | index
}

fn device(state: &mut SavedSession, process: usize) -> &mut SavedDevice {
    state.processes[process].device.as_mut().unwrap()
}

/// A message of the second process, in a response slot of its own.
fn message(slot: u32) -> SavedOrigin {
    SavedOrigin(GuestProcess::new(7), slot, 100 + u64::from(slot), 1, None)
}

fn enrich_memory(state: &mut SavedSession) {
    let places = [
        (2, SavedPlace::Host(8 << 20), 7),
        (7, SavedPlace::Local(40 << 20), 8),
        (13, SavedPlace::Nowhere, 9),
    ];
    for (id, place, priority) in places {
        let row = state.allocations.iter_mut().find(|row| row.0 == id).unwrap();
        (row.2, row.3) = (place, priority);
        state.blobs.iter_mut().filter(|blob| blob.1 == id).for_each(|blob| blob.4 = false);
    }
    // One that the window shows not, and never will.
    let hidden = state.blobs.iter_mut().find(|blob| blob.1 == 6).unwrap();
    (hidden.3, hidden.4) = (false, false);
    state.segments[0].pieces = vec![(0x4001_0000, 4096), (0x5000_0000, 69632)];
}

fn enrich_processes(state: &mut SavedSession) {
    state.processes[0].offences = vec![400, 300];
    state.processes[0].blocked = Some(5);
    let blobs = vec![SavedKeptBlob(1 << 40, 3, true), SavedKeptBlob(1 << 40 | 9, 8, false)];
    state.processes[0].away = Some(SavedAway { token: 77, names: 1 << 40, is_gone: true, blobs });
    let first = device(state, 0);
    first.status = 3;
    first.class = 1;
    first.holds = vec![(2, 3), (7, 1)];
    first.mappings.last_mut().unwrap().4 = false;
    first.kernels.0.push((4, None));
    first.waits.clear();
    let bell = first.doorbells.0[0].1.as_mut().unwrap();
    (bell.is_aborted, bell.place) = (true, None);
    let ms = 1_000_000;
    let second = device(state, 1);
    second.class = 3;
    let context = second.contexts.0[1].1.as_mut().unwrap();
    context.suspends = Some(9);
    context.scheduling = Some(SavedScheduling {
        band: 2,
        level: 3,
        priority: -4,
        quantum: 5 * ms,
        grace_same: 6 * ms,
        grace_lower: 7 * ms,
    });
    let buffers = &mut second.contexts.0[0].1.as_mut().unwrap().buffers;
    (buffers[1].is_exempt, buffers[2].paging) = (true, 1);
    second.queues.0[0].1.as_mut().unwrap().is_exempt = true;
    second.queues.0[1].1.as_mut().unwrap().value = 3;
    second.queues.0[3].1.as_mut().unwrap().value = 6;
    let bell = second.doorbells.0[2].1.as_mut().unwrap();
    (bell.notify, bell.was_connected) = (true, false);
    let place = bell.place.as_mut().unwrap();
    (place.consumed, place.completed, place.is_saved) = (12, 11, false);
    // Behind the change that waits: memory that is to be mapped, then some that is to make room.
    let row = SavedMapping(0x5000_0000, 4096, 23, 4096, false);
    second.mappings.push(row);
    second.paging_issued = 2;
    second.paging.push(SavedOperation(2, vec![SavedChange::Map(row), SavedChange::Evict(vec![19, 22])]));
    second.gpu_waits = vec![SavedGpuWait(handle(1), 0, 9)];
}

/// The golden state, with what it lacks.
pub(super) fn full() -> SavedSession {
    let mut state = golden();
    enrich_memory(&mut state);
    enrich_processes(&mut state);
    state.sources[0].entry = Some("main".to_owned());
    state.fences[0].2 = 1;
    let [compute, copy] = state.engines.as_mut_slice() else { panic!("two engines") };
    (compute.resets, compute.compiling) =
        (vec![700], vec![(SavedOrigin(GuestProcess::new(1), 4, 77, 1, None), handle(0))]);
    (copy.submitted, copy.completed, copy.taken) = (9, 7, 8);
    copy.connects = vec![(message(4), handle(2)), (message(5), handle(0))];
    copy.waiting = vec![SavedMessage(message(6), 5, Bytes(vec![1, 2, 3]))];
    state.residents = vec![SavedResident(message(7), vec![19, 2])];
    state.maps = vec![SavedMap(9, 4096, 900)];
    state.due = vec![(901, 0), (902, 5)];
    state.retired = vec![(2, 903)];
    state.names = vec![(FrontContext::new(12), GuestProcess::new(7))];
    state.adapter_resets = vec![600];
    state.quarantine = Some("too many resets".to_owned());
    state
}

/// Ages grow while they are looked at: those of `saved` become those of `state` again, where they are not younger.
fn with_ages_of(mut saved: SavedSession, state: &SavedSession) -> SavedSession {
    let settle = |saved: &mut Vec<u64>, before: &[u64]| {
        if saved.len() == before.len() && saved.iter().zip(before).all(|(now, then)| now >= then) {
            *saved = before.to_vec();
        }
    };
    settle(&mut saved.adapter_resets, &state.adapter_resets);
    for (saved, state) in saved.processes.iter_mut().zip(&state.processes) {
        settle(&mut saved.offences, &state.offences);
    }
    for (saved, state) in saved.engines.iter_mut().zip(&state.engines) {
        settle(&mut saved.resets, &state.resets);
    }
    saved
}

/// What is attached is a set, and what is kept for a process that is away is found by name.
fn canonical(mut state: SavedSession) -> SavedSession {
    for process in &mut state.processes {
        process.attached.sort_unstable();
        process.attached.dedup();
        process.away.iter_mut().for_each(|away| away.blobs.sort_by_key(|blob| blob.0));
    }
    state
}

/// What a vGPU makes of a state: why it refuses it, or what it saves when it has it.
fn kept(config: &Config, state: &SavedSession) -> Result<SavedSession, String> {
    // What it is told of its past is its own.
    let config = Arc::new(Config { standing: Arc::default(), ..config.clone() });
    let mut session = session(&config);
    session.restore(state).map_err(|error| error.to_string())?;
    Ok(canonical(with_ages_of(session.save().unwrap(), state)))
}

#[test]
fn lm_26_lm_37_a_state_in_which_every_field_says_something_is_kept_word_for_word() {
    let state = full();
    let saved = kept(&config(), &state).unwrap();
    assert_eq!(saved, state);
}

#[test]
fn lm_31_lm_50_what_is_restored_stands_still_is_connected_nowhere_and_is_counted_anew() {
    let state = full();
    let mut session = session(&Arc::new(config()));
    session.restore(&state).unwrap();
    for saved in &state.processes {
        let device = session.vm.objects.processes[&saved.context].device.as_ref().unwrap();
        let was = saved.device.as_ref().unwrap();
        for ((_, context), was) in device.contexts.iter().zip(was.contexts.living()) {
            let held = context.held;
            let expected = (was.is_suspended, false, true, saved.away.is_some());
            assert_eq!((held.by_guest, held.by_power, held.by_freeze, held.by_absence), expected);
        }
        for ((_, bell), was) in device.doorbells.iter().zip(was.doorbells.living()) {
            let expected = if was.is_aborted { DoorbellState::Abort } else { DoorbellState::Retry };
            assert_eq!((bell.state, bell.hw_queue.is_some()), (expected, was.place.is_some()));
        }
    }
    // References to memory follow from the rest.
    for (id, it) in session.vm.memory.allocations.iter() {
        let holds = [(2, 3), (7, 1)].into_iter().find(|held| held.0 == id.0).map_or(0, |held| held.1);
        let is_area = [4, 5, 9, 10, 24].contains(&id.0);
        let pins = u64::from([1, 8].contains(&id.0));
        assert_eq!((it.holds, it.pins, it.is_area), (holds, pins, is_area), "allocation {}", id.0);
    }
    assert_eq!(session.vm.objects.kernel_bytes, state.sources[0].bytes.0.len());
    assert_eq!(session.vm.engines.iter().map(|slot| slot.kernels_asked).collect::<Vec<_>>(), [1, 0]);
    assert_eq!(
        session.vm.memory.residency.paging.iter().copied().collect::<Vec<_>>(),
        [GuestProcess::new(7)]
    );
    // What comes next has a number that nothing had.
    assert_eq!(session.vm.memory.allocations.create_vram(4096).unwrap().0, 25);
}

/// Where in a state a value is: names of fields and places in lists.
type Path = Vec<String>;

/// Rows of one list that are looked at: the others are of the same kinds.
const ROWS: usize = 8;

fn leaves(value: &mut Value, path: &mut Path, visit: &mut dyn FnMut(&Path, &mut Value)) {
    let inner: Vec<(String, &mut Value)> = match value {
        Value::Array(list) => {
            list.iter_mut().enumerate().take(ROWS).map(|(at, value)| (at.to_string(), value)).collect()
        }
        Value::Map(map) => {
            map.iter_mut().map(|(name, value)| (name.as_text().unwrap().to_owned(), value)).collect()
        }
        leaf => return visit(path, leaf),
    };
    for (name, value) in inner {
        path.push(name);
        leaves(value, path, visit);
        path.pop();
    }
}

/// What says the same as a state in which these were changed: a doorbell is dead where its device is, or where it says so.
const SAID_TWICE: [&str; 2] = [".status", ".is_aborted"];

/// What is put in the place of a value, in turn.
fn others(value: &Value) -> Vec<Value> {
    match value {
        Value::Bool(flag) => vec![Value::Bool(!flag)],
        Value::Integer(number) => {
            let number = i128::from(*number);
            let near = [number - 1, number + 1, number ^ 4096];
            let near = near.into_iter().filter(|other| *other >= 0);
            near.map(|other| Value::Integer(other.try_into().unwrap())).collect()
        }
        Value::Text(text) => vec![Value::Text(format!("{text}x"))],
        Value::Bytes(bytes) => vec![Value::Bytes([bytes.as_slice(), b"x"].concat())],
        _ => Vec::new(),
    }
}

fn decoded(value: &Value) -> Option<SavedSession> {
    let mut bytes = Vec::new();
    ciborium::into_writer(value, &mut bytes).unwrap();
    ciborium::from_reader(bytes.as_slice()).ok()
}

#[test]
fn lm_26_lm_39_lm_40_each_word_of_a_state_that_is_changed_is_kept_or_refused_and_none_is_dropped() {
    let config = config();
    let mut value = Value::serialized(&full()).unwrap();
    let mut changes: Vec<(Path, Value)> = Vec::new();
    leaves(&mut value, &mut Vec::new(), &mut |path, leaf| {
        changes.extend(others(leaf).into_iter().map(|other| (path.clone(), other)));
    });
    let (mut taken, mut refused, mut dropped) = (BTreeSet::new(), 0, BTreeSet::new());
    for (path, other) in changes {
        let mut changed = value.clone();
        leaves(&mut changed, &mut Vec::new(), &mut |at, leaf| {
            if *at == path {
                leaf.clone_from(&other);
            }
        });
        let name = path.join(".");
        let Some(state) = decoded(&changed) else { continue };
        match kept(&config, &state) {
            Ok(saved) if saved == canonical(state) => drop(taken.insert(name)),
            Ok(_) if SAID_TWICE.iter().any(|twice| name.ends_with(twice)) => {}
            Ok(_) => drop(dropped.insert(format!("{name} as {other:?}"))),
            Err(why) => {
                refused += 1;
                assert!(why.chars().any(char::is_alphabetic), "{name}: {why:?}");
            }
        }
    }
    assert!(dropped.is_empty(), "taken, and lost: {dropped:#?}");
    assert!(taken.len() > 60 && refused > 200, "{} taken, {refused} refused", taken.len());
}

/// Items of each kind that are held for a state of these counts, as they are named to the operator.
fn held_for(state: &SavedSession) -> Vec<(&'static str, u64)> {
    let config = Arc::new(config());
    let mut session = session(&config);
    session.restore(state).unwrap();
    config.budget.standing().kinds.iter().map(|(name, held)| (*name, held.items)).collect()
}

#[test]
fn lm_39_each_thing_of_a_state_is_charged_and_what_ends_something_was_paid_for_with_it() {
    let state = full();
    let held = held_for(&state);
    let expected = [
        ("processes", 2),
        // Two segments, 19 blobs, as many names of processes, and two blobs that are kept.
        ("blobs", 2 + 19 + 19 + 2),
        // Contexts, queues, doorbells, an open native fence and a kernel.
        ("objects", 3 + 5 + 4 + 1 + 1),
        ("mappings", 5 + 14 + 1),
        ("kernels", 1),
        // Seven pieces of open work, of which one is the end of a doorbell.
        ("work", 6),
        ("messages", 1),
        // Two holds, one list of what is to make room, and a list that is to be made resident.
        ("paging", 2 + 1 + 1),
        ("files", 0),
    ];
    assert_eq!(held, expected);
    // A message that ends a kernel, and two that do not, each with its work.
    let mut state = full();
    state.processes[1].timelines[0].open = vec![3, 4, 5];
    let waiting = |slot, opcode, item| {
        SavedMessage(SavedOrigin(GuestProcess::new(7), slot, 1, 1, Some(item)), opcode, Bytes(vec![0; 8]))
    };
    state.engines[1].waiting = [(3, CREATE_KERNEL), (4, DESTROY_KERNEL), (5, CREATE_KERNEL)]
        .map(|(item, opcode)| waiting(10, opcode, item))
        .to_vec();
    let held = held_for(&state);
    assert_eq!((held[5], held[6]), (("work", 6 + 2), ("messages", 2)));
}
