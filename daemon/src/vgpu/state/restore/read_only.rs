//! Mappings that allow no stores.

use std::sync::Arc;

use campanile_host_gpu::memory::page_table::reader::Intent;
use campanile_host_gpu::memory::page_table::reader::Miss;
use campanile_host_gpu::memory::page_table::reader::resolve_one;

use super::tests::device;
use crate::ids::GuestProcess;
use crate::vgpu::control::deferred::Deferred;
use crate::vgpu::memory::vidmm::allocations::Spot;
use crate::vgpu::memory::vidmm::compaction::Relocation;
use crate::vgpu::objects::ids::AllocationId;
use crate::vgpu::session::Session;
use crate::vgpu::state::saved::memory::SavedPlace;
use crate::vgpu::tdr::recovery::Recovery;
use crate::vgpu::testing::config;
use crate::vgpu::testing::golden;
use crate::vgpu::testing::session;

const READ_ONLY: u64 = 16_809_984;
const WRITABLE: u64 = 16_777_216;

/// What an engine comes to at an address of the first process.
fn look(session: &Session, va: u64, intent: Intent) -> Result<u64, Miss> {
    let root = session.vm.objects.processes[&GuestProcess::new(1)].device.as_ref().unwrap().root;
    resolve_one(session.vm.memory.tables.mapping(), root.0, va, 4096, intent).map(|run| run.offset)
}

/// A session with one mapping that allows no stores, and one that does, of memory that may move.
fn with_read_only() -> (Session, [AllocationId; 2]) {
    let mut state = golden();
    // Neither is a blob that the guest sees in its window.
    for (id, place) in [(7, 33 << 20), (2, 34 << 20)] {
        state.blobs.retain(|blob| blob.1 != id);
        let allocation = state.allocations.iter_mut().find(|it| it.0 == id).unwrap();
        allocation.2 = SavedPlace::Local(place);
    }
    let known: Vec<u32> = state.blobs.iter().map(|blob| blob.0).collect();
    state.processes[0].attached.retain(|resource| known.contains(resource));
    let row = device(&mut state, 0).mappings.iter_mut().find(|row| row.0 == READ_ONLY).unwrap();
    row.4 = false;
    let mut session = session(&Arc::new(config()));
    session.restore(&state).unwrap();
    (session, [AllocationId(7), AllocationId(2)])
}

fn assert_access(session: &Session, when: &str) {
    let reads = look(session, READ_ONLY, Intent::Read);
    assert!(reads.is_ok(), "{when}: {reads:?}");
    assert_eq!(look(session, READ_ONLY, Intent::Write), Err(Miss::Fault(READ_ONLY)), "{when}");
    assert_eq!(look(session, WRITABLE, Intent::Write), look(session, WRITABLE, Intent::Read), "{when}");
    assert!(look(session, WRITABLE, Intent::Write).is_ok(), "{when}");
}

#[test]
fn lm_45_a_mapping_that_allows_no_stores_allows_none_after_a_restore_and_a_save() {
    let (session, _) = with_read_only();
    assert_access(&session, "restored");
    let saved = session.save().unwrap();
    let rows = &saved.processes[0].device.as_ref().unwrap().mappings;
    let writable = |va| rows.iter().find(|row| row.0 == va).unwrap().4;
    assert!(!writable(READ_ONLY) && writable(WRITABLE));
}

#[test]
fn mcdm_54_a_mapping_that_allows_no_stores_allows_none_wherever_its_memory_went() {
    let (mut session, ids) = with_read_only();
    for id in ids {
        // No engine runs: what waits for none happens at once.
        Deferred::of(&mut session.vm).start_eviction(id);
        Deferred::of(&mut session.vm).run_pending();
        assert_eq!(session.vm.memory.allocations.spot(id), Spot::Evicted);
    }
    for va in [READ_ONLY, WRITABLE] {
        assert_eq!(look(&session, va, Intent::Read), Err(Miss::Evicted(va)));
    }
    for id in ids {
        assert!(session.vm.memory.allocations.bring_back(id, session.vm.memory.residency.epoch));
        session.vm.memory.remap(id, &mut session.vm.journal);
    }
    assert_access(&session, "evicted and brought back");
    for (id, va) in ids.into_iter().zip([READ_ONLY, WRITABLE]) {
        let before = look(&session, va, Intent::Read).unwrap();
        let free = session.vm.memory.allocations.memory().local().iter().last().unwrap().0;
        Deferred::of(&mut session.vm).start_relocation(Relocation { id, target: free });
        Deferred::of(&mut session.vm).run_pending();
        assert_ne!(look(&session, va, Intent::Read).unwrap(), before, "it has moved");
    }
    assert_access(&session, "moved within video memory");
    Recovery::of(&mut session.vm).purge_memory();
    for id in ids {
        assert_eq!(session.vm.memory.allocations.spot(id), Spot::Evicted);
        assert!(session.vm.memory.allocations.bring_back(id, session.vm.memory.residency.epoch));
        session.vm.memory.remap(id, &mut session.vm.journal);
    }
    assert_access(&session, "after a reset of the adapter");
}
