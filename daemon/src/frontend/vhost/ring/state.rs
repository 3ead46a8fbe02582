//! A ring's state, and what the front-end does to it.

use std::io;
use std::os::fd::AsFd;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use virtio_queue::Queue;
use virtio_queue::QueueT;
use vm_memory::GuestAddress;
use vm_memory::GuestMemory;
use vm_memory::Permissions;

use super::super::MAX_QUEUE_SIZE;
use super::super::call::Call;
use super::super::features;
use super::super::handed::Placed;
use super::super::refusal::Refusal;
use super::super::saved::SavedRing;
use super::in_flight::InFlight;
use super::interrupts::Interrupts;
use crate::guest_ram::dirty_log::DirtyLog;
use crate::guest_ram::memory::GuestRam;
use crate::ledger::words::RingWords;

/// Bytes of the fixed part of an available or used ring, with its event field (virtio 1.3, 2.7.6, 2.7.8).
const RING_META: usize = 6;

/// Everything of one ring.
#[derive(Debug)]
pub(in super::super) struct RingState {
    pub(super) index: u16,
    pub(super) smallest_answer: usize,
    pub(super) queue: Queue,
    pub(super) indirect: bool,
    pub(super) ram: Option<Arc<GuestRam>>,
    kick: Option<OwnedFd>,
    pub(super) interrupts: Interrupts,
    started: bool,
    enabled: bool,
    /// The three parts lie in guest memory.
    placed: bool,
    /// The position in the used ring was read since the start.
    joined: bool,
    pub(super) broken: bool,
    pub(super) epoch: u64,
    pub(super) in_flight: InFlight,
    /// Position at the last stop in this epoch.
    stopped_at: Option<u16>,
    pub(super) log: Arc<DirtyLog>,
    /// Where the log has the used ring, if the front-end wants it logged (`VHOST_VRING_F_LOG`).
    log_address: Option<u64>,
    /// Kicks are switched off (only without EVENT_IDX).
    pub(super) quiet: bool,
}

/// What a SET_VRING_BASE amounts to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(in super::super) enum Based {
    /// A first start, or a resume.
    Kept,
    /// The ring had been used and starts at 0: the guest has begun anew.
    Rewound,
}

impl RingState {
    pub(super) fn new(index: u16, smallest_answer: usize, log: Arc<DirtyLog>) -> Self {
        let queue = Queue::new(MAX_QUEUE_SIZE).expect("a power of two is a queue size");
        Self {
            index,
            smallest_answer,
            queue,
            indirect: false,
            ram: None,
            kick: None,
            interrupts: Interrupts::default(),
            started: false,
            enabled: false,
            placed: false,
            joined: false,
            broken: false,
            epoch: 0,
            in_flight: InFlight::default(),
            stopped_at: None,
            log,
            log_address: None,
            quiet: false,
        }
    }

    /// Whether the ring may be read and written.
    pub(in super::super) fn is_live(&self) -> bool {
        self.started && self.enabled && self.placed && self.joined && !self.broken
    }

    pub(in super::super) fn is_started(&self) -> bool {
        self.started
    }

    pub(in super::super) fn set_features(&mut self, acked: u64) {
        self.queue.set_event_idx(acked & features::EVENT_IDX != 0);
        self.indirect = acked & features::INDIRECT_DESC != 0;
    }

    pub(in super::super) fn set_size(&mut self, size: u32) -> Result<(), Refusal> {
        let refused = Refusal::QueueSize { queue: self.index, size, max: MAX_QUEUE_SIZE };
        let Ok(narrow) = u16::try_from(size) else { return Err(refused) };
        if self.is_live() && narrow != self.queue.size() {
            return Err(Refusal::QueueRuns(self.index));
        }
        self.queue.try_set_size(narrow).map_err(|_| refused)?;
        self.settle();
        Ok(())
    }

    /// Sets where the ring lies. On a live ring (the front-end repeats this to switch logging) its positions
    /// stay: the used index in memory may be older than ours.
    pub(in super::super) fn set_addresses(
        &mut self,
        table: u64,
        avail: u64,
        used: u64,
    ) -> Result<(), Refusal> {
        let before = (self.queue.desc_table(), self.queue.avail_ring(), self.queue.used_ring());
        if !self.is_live() && before != (table, avail, used) {
            self.joined = false;
        }
        let unaligned = |_| Refusal::QueueAlignment(self.index);
        self.queue.try_set_desc_table_address(GuestAddress(table)).map_err(unaligned)?;
        self.queue.try_set_avail_ring_address(GuestAddress(avail)).map_err(unaligned)?;
        self.queue.try_set_used_ring_address(GuestAddress(used)).map_err(unaligned)?;
        self.settle();
        Ok(())
    }

    /// Has the used ring logged at this guest address, or not apart from the memory that it lies in.
    pub(in super::super) fn set_log_address(&mut self, address: Option<u64>) {
        self.log_address = address;
    }

    /// Notes that `length` bytes at `offset` of the used ring have been written. Where the ring lies is noted with every
    /// write; this is for a log that has it elsewhere.
    pub(super) fn log_used(&self, offset: u64, length: u64) {
        if let Some(address) = self.log_address
            && address != self.queue.used_ring()
        {
            self.log.mark(address.saturating_add(offset), length);
        }
    }

    pub(in super::super) fn set_base(&mut self, base: u32) -> Result<Based, Refusal> {
        let refused = Refusal::QueueBase { queue: self.index, base };
        let base = u16::try_from(base).map_err(|_| refused)?;
        if self.is_live() && base != self.queue.next_avail() {
            return Err(Refusal::QueueRuns(self.index));
        }
        self.queue.set_next_avail(base);
        let rewound = base == 0 && self.stopped_at.is_some() && self.in_flight.was_used();
        Ok(if rewound { Based::Rewound } else { Based::Kept })
    }

    /// SET_VRING_KICK: starts the ring. Gives back the kick descriptor that it replaces.
    pub(in super::super) fn start(&mut self, kick: OwnedFd) -> Option<OwnedFd> {
        if !self.started {
            self.started = true;
            self.joined = false;
            self.broken = false;
        }
        self.settle();
        self.kick.replace(kick)
    }

    /// GET_VRING_BASE: from here on nothing is written. Gives back the position and the kick descriptor.
    pub(in super::super) fn stop(&mut self) -> (u16, Option<OwnedFd>) {
        // The descriptor goes away: what the guest has not been told of, tell it now.
        self.interrupt();
        self.started = false;
        self.interrupts.set_call(None);
        self.stopped_at = Some(self.queue.next_avail());
        (self.queue.next_avail(), self.kick.take())
    }

    /// It was stopped in a process before this one, where it is now.
    pub(in super::super) fn was_stopped(&mut self) {
        self.stopped_at = Some(self.queue.next_avail());
    }

    /// RESET_DEVICE: stopped and disabled. Gives back the kick descriptor.
    pub(in super::super) fn halt(&mut self) -> Option<OwnedFd> {
        self.started = false;
        self.enabled = false;
        self.kick.take()
    }

    pub(in super::super) fn set_enabled(&mut self, enabled: bool) {
        self.enabled = enabled;
    }

    /// Whether the front-end has said where to signal.
    pub(in super::super) fn has_call(&self) -> bool {
        self.interrupts.has_call()
    }

    pub(in super::super) fn set_call(&mut self, call: Option<Call>) {
        self.interrupts.set_call(call);
    }

    pub(in super::super) fn set_error(&mut self, error: Option<Call>) {
        self.interrupts.set_error(error);
    }

    pub(in super::super) fn set_ram(&mut self, ram: Arc<GuestRam>) {
        self.ram = Some(ram);
        self.settle();
    }

    /// A new epoch: what the guest had in flight is void.
    pub(in super::super) fn begin_epoch(&mut self, epoch: u64) {
        self.epoch = epoch;
        self.in_flight.clear();
        self.stopped_at = None;
        self.interrupts.owed = false;
    }

    /// What a saved state needs of this ring. It stays as it is.
    pub(in super::super) fn save(&self) -> SavedRing {
        self.in_flight.save(self.queue.next_avail(), self.interrupts.owed)
    }

    /// Takes over what was saved of this ring, which has not been used. Heads have been judged.
    pub(in super::super) fn restore(&mut self, saved: SavedRing) {
        self.interrupts.owed = saved.owes_interrupt;
        self.in_flight.restore(saved.was_used, saved.in_flight, saved.repeated);
    }

    /// What of this ring goes to another process: its place, its state, and kick, call and error descriptors. The guest is told
    /// what it has not been told of; the device does nothing meanwhile.
    pub(in super::super) fn hand_over(&mut self) -> io::Result<(Placed, SavedRing, Vec<OwnedFd>)> {
        self.interrupt();
        let files = [self.kick.as_ref().map(AsFd::as_fd), self.interrupts.call(), self.interrupts.error()];
        let copies = files.into_iter().flatten().map(|file| file.try_clone_to_owned());
        let files: io::Result<Vec<OwnedFd>> = copies.collect();
        Ok((self.placed(), self.save(), files?))
    }

    /// Where it lies, and which descriptors it has.
    pub(in super::super) fn placed(&self) -> Placed {
        let queue = &self.queue;
        Placed {
            size: queue.size(),
            parts: [queue.desc_table(), queue.avail_ring(), queue.used_ring()],
            is_enabled: self.enabled,
            has_kick: self.kick.is_some(),
            has_call: self.interrupts.call().is_some(),
            has_error: self.interrupts.error().is_some(),
        }
    }

    /// Has what is in flight written there, too.
    pub(in super::super) fn write_to(&mut self, words: RingWords) {
        self.in_flight.write_to(words);
    }

    /// Looks at addresses, size and memory again, and joins the used ring if that was not done since the start.
    fn settle(&mut self) {
        let queue = &self.queue;
        let size = usize::from(queue.size());
        let ram = self.ram.as_deref().filter(|ram| {
            let within = |place: u64, bytes: usize, permission| {
                place != 0 && ram.check_range(GuestAddress(place), bytes, permission)
            };
            within(queue.desc_table(), size * 16, Permissions::Read)
                && within(queue.avail_ring(), RING_META + size * 2, Permissions::Read)
                && within(queue.used_ring(), RING_META + size * 8, Permissions::Write)
        });
        self.placed = ram.is_some();
        if self.started
            && !self.joined
            && let Some(ram) = ram
            && let Ok(used) = self.queue.used_idx(ram, Ordering::Relaxed)
        {
            self.queue.set_next_used(used.0);
            self.in_flight.note_used(used.0);
            self.quiet = false;
            self.interrupts.unsignalled = false;
            self.joined = true;
        }
    }
}
