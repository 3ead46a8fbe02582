//! Which process and use has which part of the memory, for the operator.

use campanile_protocol::control::memory::MemoryInfo;
use serde_json::Value;
use serde_json::json;
use std::sync::atomic::Ordering;

use super::room::Memory;
use super::vidmm::allocations::Backing;
use super::vidmm::device_memory::local_soon;
use super::vidmm::vram::Place;
use crate::vgpu::counters::Counters;
use crate::vgpu::memory::vidmm::quota::Account;

/// Cells of a picture of a segment.
const CELLS: u64 = 64;

/// Percent of each cell that is taken, of a segment of `length` bytes from `start` on.
fn cells(taken: &[(u64, u64)], start: u64, length: u64) -> Vec<u64> {
    let mut filled = vec![0u64; usize::try_from(CELLS).unwrap_or(0)];
    let cell = length.div_ceil(CELLS).max(1);
    for &(offset, size) in taken {
        let mut at = offset.saturating_sub(start);
        let end = at + size;
        while at < end {
            let piece = (cell - at % cell).min(end - at);
            if let Some(sum) = usize::try_from(at / cell).ok().and_then(|index| filled.get_mut(index)) {
                *sum += piece;
            }
            at += piece;
        }
    }
    filled.into_iter().map(|bytes| (bytes * 100).div_ceil(cell)).collect()
}

/// How the memory of this vGPU stands.
pub(in crate::vgpu) fn memory_info(memory: &Memory, account: &Account, counters: &Counters) -> MemoryInfo {
    let (quota, budget) = (account.quota(), account.budget());
    let video = memory.allocations.memory();
    // What is being zeroed is as good as free: what needs it waits for that alone.
    let local = local_soon(video);
    let is_held = |allocation: &super::vidmm::allocations::Allocation| {
        allocation.holds > 0 && matches!(allocation.backing, Backing::Vram(_))
    };
    let held = memory.allocations.iter().filter(|(_, allocation)| is_held(allocation));
    MemoryInfo {
        guaranteed: quota.min,
        limit: quota.max,
        committed: budget.committed,
        available: budget.available,
        local: video.length() - video.aperture_bytes(),
        local_free: local.free_bytes(),
        local_longest: local.longest(),
        visible: video.aperture_bytes(),
        visible_free: video.aperture_free(),
        evicted: video.evicted_bytes(),
        held: held.map(|(_, allocation)| allocation.size).sum(),
        evictions: counters.evictions.load(Ordering::Relaxed),
        restores: counters.restores.load(Ordering::Relaxed),
        residency_faults: counters.residency_faults.load(Ordering::Relaxed),
    }
}

/// How the memory stands, and a picture of each segment.
pub(in crate::vgpu) fn describe_memory(memory: &Memory, account: &Account, counters: &Counters) -> Value {
    let (mut visible, mut local) = (Vec::new(), Vec::new());
    for (_, allocation) in memory.allocations.iter() {
        match allocation.backing {
            Backing::Vram(Some(Place::Aperture(offset))) => visible.push((offset, allocation.size)),
            Backing::Vram(Some(Place::Local(offset))) => local.push((offset, allocation.size)),
            Backing::Vram(Some(Place::Area(_) | Place::Host(_)) | None) | Backing::Guest(_) => {}
        }
    }
    let info: MemoryInfo = memory_info(memory, account, counters);
    let aperture = info.visible;
    json!({
        "guaranteed": info.guaranteed,
        "limit": info.limit,
        "committed": info.committed,
        "available": info.available,
        "local": info.local,
        "local_in": if memory.allocations.memory().device().is_some() { "device" } else { "host" },
        "local_free": info.local_free,
        "local_longest_free": info.local_longest,
        "local_cells": cells(&local, aperture, info.local),
        "visible": info.visible,
        "visible_free": info.visible_free,
        "visible_cells": cells(&visible, 0, aperture),
        "save_areas": memory.areas.iter().map(|area| area.kind.bytes()).sum::<u64>(),
        "save_areas_evicted": memory.evicted_areas(),
        "evicted": info.evicted,
        "held": info.held,
        "evictions": info.evictions,
        "restores": info.restores,
        "residency_faults": info.residency_faults,
    })
}

#[cfg(test)]
mod tests {
    use super::cells;

    #[test]
    fn each_cell_says_how_full_it_is() {
        let picture = cells(&[(6400, 100), (6650, 50), (12_700, 100)], 6400, 6400);
        assert_eq!(picture.len(), 64);
        assert_eq!((picture[0], picture[1], picture[2], picture[63]), (100, 0, 50, 100));
    }
}
