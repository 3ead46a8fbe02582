//! Each limit of a state from both sides: what lies on it is taken, and what lies beyond is refused by name.

use std::sync::Arc;

use campanile_protocol::PAGE_SIZE;
use campanile_protocol::control::frame::MAX_CONTROL_BYTES;
use campanile_protocol::control::memory::PRIORITY_MAXIMUM;
use campanile_protocol::device_page::DEVICE_PAGE_FAULT;
use campanile_protocol::device_page::MAX_QUEUES;
use campanile_protocol::device_page::RESPONSE_SLOTS;
use campanile_protocol::engine::block::MAX_PROCESSES;
use campanile_protocol::engine::message::MAX_SOURCE_BYTES;
use campanile_protocol::packet::MAX_DMA_BUFFER;
use campanile_protocol::page_table::SegmentId;

use super::kept::full;
use super::kept::handle;
use crate::ids::FrontContext;
use crate::ids::GuestProcess;
use crate::vgpu::doorbells::line::MAX_WAITING;
use crate::vgpu::engines::kernels::MAX_KERNEL_BYTES;
use crate::vgpu::memory::blobs::MAX_BLOBS;
use crate::vgpu::memory::segments::MAX_RUNS_OF_VM;
use crate::vgpu::objects::process::MAX_CONTEXTS;
use crate::vgpu::objects::process::MAX_KERNELS;
use crate::vgpu::objects::process::MAX_MAPPINGS;
use crate::vgpu::objects::process::MAX_OPEN_FENCES;
use crate::vgpu::objects::process::MAX_SOFTWARE_QUEUE;
use crate::vgpu::objects::process::MAX_WAITS;
use crate::vgpu::state::saved::SavedSession;
use crate::vgpu::state::saved::bytes::Bytes;
use crate::vgpu::state::saved::engine::SavedMessage;
use crate::vgpu::state::saved::memory::SavedAllocation;
use crate::vgpu::state::saved::memory::SavedBlob;
use crate::vgpu::state::saved::memory::SavedPlace;
use crate::vgpu::state::saved::memory::SavedSegment;
use crate::vgpu::state::saved::process::SavedAway;
use crate::vgpu::state::saved::process::SavedBuffer;
use crate::vgpu::state::saved::process::SavedDevice;
use crate::vgpu::state::saved::process::SavedProcess;
use crate::vgpu::state::saved::row::SavedChange;
use crate::vgpu::state::saved::row::SavedGpuWait;
use crate::vgpu::state::saved::row::SavedMap;
use crate::vgpu::state::saved::row::SavedMapping;
use crate::vgpu::state::saved::row::SavedOrigin;
use crate::vgpu::state::saved::row::SavedResident;
use crate::vgpu::state::saved::row::SavedWait;
use crate::vgpu::testing::config;
use crate::vgpu::testing::session;

type Change = fn(&mut SavedSession);

fn device(state: &mut SavedSession, process: usize) -> &mut SavedDevice {
    state.processes[process].device.as_mut().unwrap()
}

fn first_buffer(state: &mut SavedSession) -> &mut SavedBuffer {
    &mut device(state, 1).contexts.0[0].1.as_mut().unwrap().buffers[0]
}

fn away(state: &mut SavedSession) -> &mut SavedAway {
    state.processes[0].away.as_mut().unwrap()
}

const fn message(slot: u32) -> SavedOrigin {
    SavedOrigin(GuestProcess::new(7), slot, 1, 1, None)
}

/// Why the rich state is refused after this change; none where it is taken.
fn outcome(change: Change) -> Option<String> {
    let mut state = full();
    change(&mut state);
    let mut session = session(&Arc::new(config()));
    let refused = session.restore(&state).err().map(|error| error.to_string());
    assert_eq!(session.is_fresh(), refused.is_some(), "nothing is half applied: {refused:?}");
    refused
}

/// Each change is refused for its reason; all that are not are told together.
fn each_is_refused(changes: &[(&str, Change)]) {
    let wrong = changes.iter().enumerate().filter_map(|(number, (reason, change))| match outcome(*change) {
        Some(why) if why.contains(reason) => None,
        Some(why) => Some(format!("change {number}: {why:?}, and not {reason:?}")),
        None => Some(format!("change {number} was taken, for which {reason:?} was due")),
    });
    let wrong: Vec<String> = wrong.collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

fn each_is_taken(changes: &[(&str, Change)]) {
    let refused = changes.iter().filter_map(|(what, change)| Some(format!("{what}: {}", outcome(*change)?)));
    let refused: Vec<String> = refused.collect();
    assert!(refused.is_empty(), "{refused:#?}");
}

/// Guest RAM in so many pieces, which one more allocation is.
fn add_pieces(state: &mut SavedSession, count: u64) {
    let pieces = (0..count).map(|page| (page * 2 * PAGE_SIZE, PAGE_SIZE)).collect();
    state.segments.push(SavedSegment { id: 3, pieces });
    let id = 100;
    state.allocations.push(SavedAllocation(id, count * PAGE_SIZE, SavedPlace::Guest(3), 0));
    state.blobs.push(SavedBlob(99, id, false, false, false));
}

/// So many blobs in all, counted with those of the process that is away.
fn fill_blobs(state: &mut SavedSession, count: usize) {
    let more = count - state.blobs.len();
    state.blobs.extend((100..).take(more).map(|resource| SavedBlob(resource, 12, true, false, false)));
}

#[test]
fn lm_39_lm_40_what_lies_on_a_limit_is_taken() {
    each_is_taken(&[
        ("as it is", |_| ()),
        ("the highest priority", |state| state.allocations[0].3 = PRIORITY_MAXIMUM),
        ("as many pieces as a VM may have", |state| add_pieces(state, MAX_RUNS_OF_VM as u64 - 3)),
        ("as many blobs as a VM may have", |state| fill_blobs(state, MAX_BLOBS - 2)),
        ("the last state of a device", |state| device(state, 0).status = DEVICE_PAGE_FAULT),
        ("the last slot", |state| state.residents[0].0.1 = RESPONSE_SLOTS - 1),
        ("the last timeline", |state| state.residents[0].0.3 = 63),
        ("as many connects as can wait", |state| {
            let more = MAX_WAITING - state.engines[1].connects.len();
            state.engines[1].connects.extend((0..more).map(|_| (message(9), handle(0))));
        }),
        ("a message as long as can be", |state| {
            state.engines[1].waiting[0].2 = Bytes(vec![0; MAX_CONTROL_BYTES as usize]);
        }),
        ("as many MAKE_RESIDENT messages as can wait", |state| {
            let more = MAX_WAITS - state.residents.len();
            state.residents.extend((0..more).map(|_| SavedResident(message(9), vec![19])));
        }),
        ("as many MAP_BLOB commands as can wait", |state| {
            state.maps.extend((1..MAX_BLOBS as u64).map(|token| SavedMap(9, 0, 1 << 20 | token)));
        }),
        ("the last refusal", |state| state.due[0].1 = 5),
        ("as many processes as a VM may have", |state| add_processes(state, MAX_PROCESSES)),
        ("a blob at the end of the names of a process that is away", |state| {
            away(state).blobs[1].0 = (1 << 40) + u64::from(u32::MAX);
        }),
        ("a fence behind work that was begun last", |state| {
            let timeline = &mut state.processes[1].timelines[0];
            timeline.fences = vec![(5, 2000), (5, 2001)];
        }),
        ("a source as long as can be", |state| {
            state.sources[0].bytes.0.resize(MAX_SOURCE_BYTES as usize, 0);
        }),
        ("as many bytes of sources as are kept", |state| add_kernels(state, 0)),
        ("a buffer as long as can be", |state| first_buffer(state).length = MAX_DMA_BUFFER),
        ("a buffer behind the last paging operation", |state| first_buffer(state).paging = 2),
        ("a buffer with the last fence value", |state| first_buffer(state).fence_value = 6),
        ("the last order that was taken", |state| {
            device(state, 1).contexts.0[0].1.as_mut().unwrap().buffers[3].order = 8;
        }),
        ("a suspend fence that can still rise", |state| {
            device(state, 1).contexts.0[1].1.as_mut().unwrap().suspends = Some(u64::MAX / 4 - 1);
        }),
        ("as many waits as there are slots", |state| {
            let more = MAX_WAITS - 2;
            device(state, 1).waits.extend((0..more).map(|_| SavedWait(message(9), handle(0), 1)));
        }),
        ("mappings side by side", |state| {
            let rows = &device(state, 0).mappings;
            assert_eq!(rows[2].0 + rows[2].1, rows[3].0);
        }),
    ]);
}

fn add_processes(state: &mut SavedSession, count: u32) {
    let more = count - u32::try_from(state.processes.len()).unwrap();
    let new = |number| SavedProcess { context: GuestProcess::new(number), ..SavedProcess::default() };
    state.processes.extend((100..100 + more).map(new));
}

/// Kernels whose sources are as many bytes as are kept, and so many kernels more.
fn add_kernels(state: &mut SavedSession, more: usize) {
    state.sources[0].bytes.0.resize(MAX_SOURCE_BYTES as usize, 0);
    let fit = MAX_KERNEL_BYTES / MAX_SOURCE_BYTES as usize;
    let kernels = &mut device(state, 0).kernels.0;
    let living = kernels.iter().filter(|(_, source)| source.is_some()).count();
    kernels.extend((0..fit - living + more).map(|_| (1, Some(0))));
}

#[test]
fn lm_39_lm_40_memory_beyond_a_limit_is_refused_by_name() {
    each_is_refused(&[
        ("allocation 1: its size or priority", |state| state.allocations[0].3 = PRIORITY_MAXIMUM + 1),
        (": its number", |state| state.segments[0].id = SegmentId::FENCES.0),
        ("pieces of guest RAM: too many", |state| add_pieces(state, MAX_RUNS_OF_VM as u64 - 2)),
        ("0x0 bytes at", |state| state.segments[0].pieces.push((1 << 20, 0))),
        ("a guest RAM segment of nobody", |state| {
            state.segments.push(SavedSegment { id: 3, pieces: vec![(1 << 20, 4096)] });
        }),
        ("allocation 8: guest RAM segment 1", |state| state.allocations[7].1 -= 4096),
        ("allocation 11: guest RAM segment 1", |state| {
            (state.allocations[10].1, state.allocations[10].2) = (73728, SavedPlace::Guest(1));
        }),
        ("blob 8: its kind", |state| state.blobs[5].2 = true),
        ("blob 8: its kind", |state| state.blobs[5].3 = true),
        ("blob 3: its kind", |state| state.blobs[1].4 = true),
        ("blob 5: its kind", |state| state.blobs[3].4 = true),
        ("blob 6: its kind", |state| state.blobs[4].4 = true),
        ("blobs: too many", |state| fill_blobs(state, MAX_BLOBS + 1)),
        ("it lies outside of its memory", |state| state.allocations[1].2 = SavedPlace::Host(1 << 60)),
        ("it lies outside of its memory", |state| state.allocations[6].2 = SavedPlace::Local(64 << 20)),
        ("it lies outside of its memory", |state| state.allocations[3].2 = SavedPlace::Area(0)),
        ("it lies outside of its memory", |state| state.allocations[3].2 = SavedPlace::Area(u64::MAX - 4095)),
        ("its save area, allocation 5: where it lies", |state| {
            state.allocations[4].2 = SavedPlace::Local(48 << 20);
        }),
        ("its save area", |state| {
            let second = device(state, 1).contexts.0[1].1.as_mut().unwrap();
            second.area = Some(10);
        }),
        ("too many mappings", |state| {
            let row = device(state, 0).mappings[4];
            device(state, 0).mappings.extend(vec![row; MAX_MAPPINGS]);
        }),
        ("its paging fence", |state| {
            let device = device(state, 1);
            (device.paging_applied, device.paging_issued) = (u64::MAX / 2 - 2, u64::MAX / 2);
            (device.paging[0].0, device.paging[1].0) = (u64::MAX / 2 - 1, u64::MAX / 2);
        }),
        ("a mapping is to come that nobody asked for", |state| {
            // Other memory than what the address space is to have there, of which no mapping would hold it.
            device(state, 1).paging[1].1[0] =
                SavedChange::Map(SavedMapping(0x5000_0000, 4096, 19, 4096, false));
        }),
        ("a mapping is to come that nobody asked for", |state| {
            device(state, 1).paging[1].1[0] =
                SavedChange::Map(SavedMapping(0x5000_0000, 4096, 23, 4096, true));
        }),
        ("the mapping that goes at 0x50000000", |state| {
            device(state, 1).mappings.pop();
            let other = SavedMapping(0x5000_0000, 4096, 19, 4096, false);
            device(state, 1).paging[1].1.push(SavedChange::Unmap(other));
        }),
        ("it holds allocation 2 9223372036854775807 times", |state| {
            device(state, 0).holds[0].1 = u64::MAX / 2;
        }),
        ("the blob that it calls 0xffffffffff", |state| away(state).blobs[0].0 = (1 << 40) - 1),
        ("the blob that it calls 0x10100000000", |state| {
            away(state).blobs[1].0 = (1 << 40) + (1 << 32);
        }),
        ("the blob that it calls 0x10000000009", |state| away(state).blobs[1].2 = true),
        ("the blob that it calls 0x10000000000", |state| away(state).blobs[0].1 = 99),
        ("there twice", |state| away(state).blobs[1].0 = 1 << 40),
        ("there twice", |state| fill_blobs(state, MAX_BLOBS - 1)),
        ("its token", |state| away(state).token = 0),
        ("its token", |state| {
            state.processes[1].away = Some(SavedAway { token: 77, ..SavedAway::default() })
        }),
    ]);
}

#[test]
fn lm_39_lm_40_objects_beyond_a_limit_are_refused_by_name() {
    each_is_refused(&[
        ("257 processes", |state| add_processes(state, MAX_PROCESSES + 1)),
        ("its device is in state 8", |state| device(state, 0).status = DEVICE_PAGE_FAULT + 1),
        ("its open work", |state| state.processes[1].timelines[1].open.insert(0, 0)),
        ("the order of its fences", |state| {
            state.processes[1].timelines[0].fences = vec![(2, 2000), (1, 2001)];
        }),
        ("more than 1024 contexts", |state| {
            device(state, 0).contexts.0.resize(MAX_CONTEXTS as usize + 1, (1, None));
        }),
        ("more than 1024 queues", |state| {
            device(state, 0).queues.0.resize(MAX_QUEUES as usize + 1, (1, None));
        }),
        ("more than 1024 doorbells", |state| {
            device(state, 0).doorbells.0.resize(MAX_QUEUES as usize + 1, (1, None));
        }),
        ("more than 4096 kernels", |state| {
            device(state, 0).kernels.0.resize(MAX_KERNELS as usize + 1, (1, None));
        }),
        ("its native fences", |state| {
            device(state, 0).fences.0.resize(MAX_OPEN_FENCES as usize + 1, (1, None));
        }),
        ("the generation of a context", |state| device(state, 0).contexts.0.push((0, None))),
        ("the generation of a queue", |state| device(state, 0).queues.0.push((0, None))),
        ("the generation of a doorbell", |state| device(state, 0).doorbells.0.push((0, None))),
        ("the generation of a kernel", |state| device(state, 0).kernels.0.push((0, None))),
        ("its native fences", |state| device(state, 0).fences.0.push((0, None))),
        ("its source", |state| state.sources[0].bytes.0.resize(MAX_SOURCE_BYTES as usize + 1, 0)),
        ("more sources than are kept", |state| add_kernels(state, 1)),
        ("suspend fence", |state| {
            device(state, 1).contexts.0[1].1.as_mut().unwrap().suspends = Some(u64::MAX / 4);
        }),
        ("its ring of 64 entries", |state| {
            device(state, 1).doorbells.0[0].1.as_mut().unwrap().ring_va -= 8;
        }),
        ("a buffer of 65544 bytes", |state| first_buffer(state).length = MAX_DMA_BUFFER + 8),
        ("a buffer of 24 bytes", |state| first_buffer(state).paging = 3),
        ("a buffer of 24 bytes", |state| first_buffer(state).fence_value = 7),
        ("the queue of a buffer", |state| first_buffer(state).queue = handle(0)),
        ("the order of its buffers", |state| {
            device(state, 1).contexts.0[0].1.as_mut().unwrap().buffers[3].order = 9;
        }),
        ("the order of its buffers", |state| {
            device(state, 1).contexts.0[0].1.as_mut().unwrap().buffers[0].order = 0;
        }),
        ("too many buffers", |state| {
            let buffers = &mut device(state, 1).contexts.0[0].1.as_mut().unwrap().buffers;
            buffers.resize(MAX_SOFTWARE_QUEUE + 1, SavedBuffer::default());
        }),
        ("native fence 4096", |state| {
            device(state, 1).fences.0[0].1.as_mut().unwrap().0 = 4096;
            (state.fences[0].0, state.fences[0].1) = (4096, 4096 << 12);
        }),
        ("a native fence has no name that it could have", |state| state.fences[0].1 |= 1),
        ("a native fence has no name that it could have", |state| state.fences[0].1 = 0),
        ("native fence 0: its type", |state| state.fences[0].2 = 2),
        ("a native fence has no name that it could have", |state| {
            let again = state.fences[0];
            state.fences.push(again);
        }),
        ("a context that waits for a native fence", |state| {
            device(state, 1).gpu_waits[0].0 = handle(2);
        }),
        ("a context that waits for a native fence", |state| device(state, 1).gpu_waits[0].1 = 1),
        ("a context that waits for a native fence", |state| {
            device(state, 1).gpu_waits.push(SavedGpuWait(handle(1), 0, 10));
        }),
        ("33 waits", |state| {
            let more = MAX_WAITS - 1;
            device(state, 1).waits.extend((0..more).map(|_| SavedWait(message(9), handle(0), 1)));
        }),
        ("a wait of another process", |state| device(state, 1).native_waits[0].0.0 = GuestProcess::new(1)),
    ]);
}

#[test]
fn lm_39_lm_40_messages_and_names_beyond_a_limit_are_refused_by_name() {
    each_is_refused(&[
        ("engine 0: a connect", |state| {
            let connects = std::mem::take(&mut state.engines[1].connects);
            state.engines[0].connects = connects;
        }),
        ("engine 1: a connect", |state| state.engines[1].connects[0].1 = handle(3)),
        ("engine 1: a connect", |state| state.engines[1].connects[0].0.0 = GuestProcess::new(9)),
        ("engine 1: more connects than can wait", |state| {
            let more = MAX_WAITING - state.engines[1].connects.len() + 1;
            state.engines[1].connects.extend((0..more).map(|_| (message(9), handle(0))));
        }),
        ("engine 1: a message that is too long", |state| {
            state.engines[1].waiting[0].2 = Bytes(vec![0; MAX_CONTROL_BYTES as usize + 1]);
        }),
        ("a message of process 99", |state| {
            state.engines[1].waiting.push(SavedMessage(
                SavedOrigin(GuestProcess::new(99), 1, 1, 1, None),
                5,
                Bytes(Vec::new()),
            ));
        }),
        ("a message of process 100, slot 9", |state| {
            add_processes(state, 3);
            state.residents.push(SavedResident(SavedOrigin(GuestProcess::new(100), 9, 1, 1, None), vec![19]));
        }),
        ("slot 32", |state| state.residents[0].0.1 = RESPONSE_SLOTS),
        ("process 7: timeline 64", |state| state.residents[0].0.3 = 64),
        ("what is to be made resident", |state| state.residents[0].1.clear()),
        ("what is to be made resident", |state| state.residents[0].1.push(99)),
        ("what is to be made resident", |state| {
            state.residents.extend((0..MAX_WAITS).map(|_| SavedResident(message(9), vec![19])));
        }),
        ("more MAP_BLOB commands than can wait", |state| {
            state.maps.extend((0..MAX_BLOBS as u64).map(|token| SavedMap(9, 0, 1 << 20 | token)));
        }),
        ("command 900 waits for two things", |state| state.maps.push(SavedMap(9, 8192, 900))),
        ("command 901 waits for two things", |state| state.due[1].0 = 901),
        ("command 903 waits for two things", |state| state.maps[0].2 = 903),
        ("engine 0: a kernel that is compiled", |state| state.engines[0].compiling[0].1 = handle(1)),
        ("engine 0: a kernel that is compiled", |state| {
            state.engines[0].compiling[0].0.0 = GuestProcess::new(7)
        }),
        ("engine 1: a kernel that is compiled", |state| {
            let compiling = std::mem::take(&mut state.engines[0].compiling);
            state.engines[1].compiling = compiling;
        }),
        ("engine 0: a kernel that is compiled", |state| {
            let again = state.engines[0].compiling[0];
            state.engines[0].compiling.push(again);
        }),
        ("engine 0: a kernel that is compiled", |state| {
            let (origin, kernel) = state.engines[0].compiling[0];
            let other = SavedOrigin(origin.0, origin.1 + 1, origin.2, origin.3, origin.4);
            state.engines[0].compiling.push((other, kernel));
        }),
        ("process 7: the end of a doorbell", |state| {
            let again = state.drains[0];
            state.drains.push(again);
        }),
        ("a doorbell that ends for nobody", |state| {
            state.drains.clear();
            state.processes[1].timelines[3].open.clear();
        }),
        ("process 7: the end of a doorbell", |state| {
            device(state, 1).doorbells.0[1].1.as_mut().unwrap().is_draining = false;
        }),
        ("refusal 6 of a command", |state| state.due[0].1 = 6),
        ("the end of segment 2", |state| state.retired.push((2, 904))),
        ("context 0, which is process 7", |state| state.names[0].0 = FrontContext::new(0)),
        ("context 13, which is process 7", |state| {
            state.names.push((FrontContext::new(13), GuestProcess::new(7)))
        }),
        ("context 12, which is process 1", |state| {
            state.names.push((FrontContext::new(12), GuestProcess::new(1)))
        }),
    ]);
}
