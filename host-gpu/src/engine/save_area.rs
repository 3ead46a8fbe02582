//! The save areas that a context runs with, as its engine reaches them ([`campanile_protocol::engine::save_area`]).
//!
//! ```text
//!   turn ──▶ open: both areas there, headers right ──▶ buffer runs ──▶ put aside: slot, seal ──▶ saved word
//!              └── on the move or evicted ──▶ blocked, and asked for like any other memory
//! ```
//!
//! What is open is good until the next page-table generation is acknowledged: an area does not move before that.

use std::sync::atomic::Ordering;

use campanile_protocol::engine::block;
use campanile_protocol::engine::save_area;
use campanile_protocol::engine::save_area::AreaKind;
use campanile_protocol::engine::save_area::KERNEL_MODE_SLOT;
use campanile_protocol::engine::save_area::SLOT_BYTES;
use campanile_protocol::engine::save_area::SLOT_WORDS;
use campanile_protocol::packet::Fault;

use super::words::load;
use super::words::store;
use crate::ids::ContextIndex;
use crate::memory::mapping::Mapping;
use crate::memory::page_table::reader::Run;
use crate::memory::segment::Place;
use crate::memory::segment::Segments;
use crate::node::buffer::Buffer;
use crate::node::space::Space;
use crate::node::space::Stop;

/// Where the words of a slot lie, one behind the other.
const WORDS: [u64; SLOT_WORDS] = [0, 8, 16, 24, 32, 40];

/// Whose slot: that of the kernel-mode buffers of a context, or of the user-mode queue of this number in its device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// The kernel-mode buffers.
    KernelMode,
    /// A user-mode queue.
    Queue(u32),
}

/// A slot of an area that is there, together with the other area that its context needs.
#[derive(Debug)]
pub struct Slot {
    run: Run,
    place: Place,
}

impl Slot {
    /// Opens the slot of `owner`, of a context entry in a process whose areas are in `space`, the device-wide one at
    /// `device_va`.
    ///
    /// # Errors
    /// An area is on the move or evicted, and is asked for; or it is none.
    pub fn open(
        shared: &Mapping,
        space: &Space<'_>,
        context: ContextIndex,
        device_va: u64,
        owner: Owner,
    ) -> Result<Self, Stop> {
        if context.get() >= block::MAX_CONTEXTS {
            return Err(Stop::fault(Fault::SaveArea));
        }
        let context_va = load(shared, block::context_area(context.get()));
        for (kind, va) in [(AreaKind::Context, context_va), (AreaKind::Device, device_va)] {
            let (_, place) = find(space, va)?;
            if place.word(0).is_none_or(|word| word.load(Ordering::Acquire) != kind.header()) {
                return Err(Stop::Fault(Fault::SaveArea, va));
            }
        }
        let (kind, offset) = match owner {
            Owner::KernelMode => (AreaKind::Context, KERNEL_MODE_SLOT),
            Owner::Queue(index) => save_area::queue_slot(index),
        };
        let area = if kind == AreaKind::Context { context_va } else { device_va };
        let (run, place) = find(space, area.saturating_add(offset))?;
        Ok(Self { run, place })
    }

    /// Saves how far the buffer of this name is, and then, in the saved word at `saved` of the shared block, that the
    /// `count`-th buffer was put aside: before the progress word says that nothing runs.
    pub fn save(&self, segments: &Segments, shared: &Mapping, name: u64, buffer: &Buffer, saved: (u64, u64)) {
        segments.writes.open(self.run, segments.length(self.run.segment));
        for (offset, value) in WORDS.into_iter().zip(save_area::slot_words(name, buffer.save())) {
            if let Some(word) = self.place.word(offset) {
                word.store(value, Ordering::Release);
            }
        }
        segments.writes.close();
        let (place, count) = saved;
        store(shared, place, count.wrapping_add(1));
    }

    /// Takes up what was saved of the buffer of this name.
    ///
    /// # Errors
    /// It is not there, or cannot be: a fault of the buffer.
    pub fn restore(&self, name: u64, buffer: Buffer) -> Result<Buffer, Stop> {
        let words = WORDS.map(|at| self.place.word(at).map_or(0, |word| word.load(Ordering::Acquire)));
        let saved = save_area::read_slot(words, name).ok_or(Stop::fault(Fault::SaveArea))?;
        buffer.restore(saved)
    }
}

/// A slot by its address. That there is none is no page fault of a guest's.
fn find(space: &Space<'_>, va: u64) -> Result<(Run, Place), Stop> {
    space.run(va, SLOT_BYTES).map_err(|stop| match stop {
        Stop::Fault(_, address) => Stop::Fault(Fault::SaveArea, address),
        Stop::Moving => Stop::Moving,
    })
}

/// Whether the saved word at `place` of the shared block says that the `count`-th buffer was put aside.
pub fn is_saved(shared: &Mapping, place: u64, count: u64) -> bool {
    load(shared, place) == count.wrapping_add(1)
}
