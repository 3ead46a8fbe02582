//! The thread that writes shared memory with its own hands.

use std::sync::atomic::Ordering;

use anyhow::Context;
use campanile_protocol::PAGE_SIZE;

use super::guest::Progress;
use crate::target::Machine;

/// Pages of each of its two buffers.
const PAGES: u64 = 64;

/// Counts in every page until all are to end; each count is the last one and one.
pub fn run(machine: &Machine, progress: &Progress) -> anyhow::Result<()> {
    let device = machine.open()?;
    let buffers = [device.create_buffer(PAGES * PAGE_SIZE)?, device.create_guest_buffer(PAGES * PAGE_SIZE)?];
    let mut round = 0_u64;
    while !progress.is_over() {
        for buffer in &buffers {
            for page in 0..PAGES {
                let word = buffer.memory().word(page * PAGE_SIZE + 8 * (round % 512));
                let word = word.context("a word of a buffer")?;
                let last = word.load(Ordering::Relaxed);
                anyhow::ensure!(last == round / 512, "WRONG WORD: {last} in round {round}, page {page}");
                word.store(last + 1, Ordering::Relaxed);
            }
        }
        round += 1;
        progress.scribbles.fetch_add(1, Ordering::Relaxed);
        if round.is_multiple_of(64) {
            device.check()?;
            std::thread::yield_now();
        }
    }
    Ok(())
}
