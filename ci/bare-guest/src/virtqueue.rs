//! A split virtqueue (virtio 1.3, 2.7) for one command at a time. A command that is given up keeps its descriptors and its memory
//! until all others had their turn, so that an answer that comes late spoils nothing. Requests that are parked have descriptors of their own,
//! at the end of the table.

use crate::arena::Arena;
use crate::clock::Patience;
use crate::memory::Memory;

/// Descriptor flags: another one follows; the device writes.
const NEXT: u16 = 1;
const WRITE: u16 = 2;
/// Bytes of a descriptor, and of an entry of the used ring.
const DESCRIPTOR: u64 = 16;
const USED: u64 = 8;
/// In both rings: where the index is, where entries begin.
const INDEX: u64 = 2;
const ENTRIES: u64 = 4;
/// Room for a command and for an answer.
const COMMAND_BYTES: u64 = 8192;
const ANSWER_BYTES: u64 = 4096;
/// Looks at the ring between two looks at the clock.
const LOOKS: u32 = 64;

/// A queue.
pub(crate) struct VirtQueue {
    index: u16,
    size: u16,
    table: Memory,
    available: Memory,
    used: Memory,
    buffers: Memory,
    notify: Memory,
    offered: u16,
    seen: u16,
    turn: u16,
    parked: u16,
}

impl VirtQueue {
    /// Fewest entries that it works with.
    pub(crate) const SMALLEST: u16 = 16;
    /// Most that it makes use of.
    pub(crate) const LARGEST: u16 = 128;

    /// An empty queue of `size` entries.
    pub(crate) fn new(index: u16, size: u16, notify: Memory, arena: &mut Arena) -> Self {
        let entries = u64::from(size);
        let table = arena.take(entries * DESCRIPTOR);
        let available = arena.take(ENTRIES + 2 * entries + 2);
        let used = arena.take(ENTRIES + USED * entries + 2);
        let buffers = arena.take(entries / 2 * (COMMAND_BYTES + ANSWER_BYTES));
        Self { index, size, table, available, used, buffers, notify, offered: 0, seen: 0, turn: 0, parked: 0 }
    }

    /// Addresses of descriptor table, available ring, used ring.
    pub(crate) fn places(&self) -> [u64; 3] {
        [self.table.address(), self.available.address(), self.used.address()]
    }

    fn describe(&self, index: u16, memory: Memory, flags: u16, next: u16) {
        let at = u64::from(index) * DESCRIPTOR;
        self.table.write64(at, memory.address());
        self.table.write32(at + 8, u32::try_from(memory.length()).unwrap_or(0));
        self.table.write16(at + 12, flags);
        self.table.write16(at + 14, next);
    }

    /// The memory of a command and of its answer; the command is there.
    fn buffers_of(&self, place: u16, command: &[&[u8]]) -> (Memory, Memory) {
        let both = COMMAND_BYTES + ANSWER_BYTES;
        let buffers = self.buffers.part(u64::from(place) * both, both);
        let mut length = 0;
        for part in command {
            buffers.part(0, COMMAND_BYTES).write(length, part);
            length += part.len() as u64;
        }
        (buffers.part(0, length), buffers.part(COMMAND_BYTES, ANSWER_BYTES))
    }

    /// Hands a chain to the device.
    fn offer(&mut self, head: u16) {
        let place = ENTRIES + 2 * u64::from(self.offered % self.size);
        self.available.write16(place, head);
        self.offered = self.offered.wrapping_add(1);
        self.available.write16(INDEX, self.offered);
        self.notify.write16(0, self.index);
    }

    /// Sends a command that is not answered for long: its results go to `data`, behind a head of `head_bytes`. False where too many are
    /// parked.
    pub(crate) fn park(&mut self, command: &[&[u8]], head_bytes: u64, data: Memory) -> bool {
        let place = self.size / 4 + self.parked;
        let head = self.size / 2 + 3 * self.parked;
        if head + 2 >= self.size {
            return false;
        }
        self.parked += 1;
        let (request, answer) = self.buffers_of(place, command);
        self.describe(head, request, NEXT, head + 1);
        self.describe(head + 1, answer.part(0, head_bytes), NEXT | WRITE, head + 2);
        self.describe(head + 2, data, WRITE, 0);
        self.offer(head);
        true
    }

    /// Nothing is parked any more.
    pub(crate) fn forget_parked(&mut self) {
        self.parked = 0;
    }

    /// Sends a command, and waits for its answer at most so many milliseconds: the answer's memory, and its length.
    pub(crate) fn call(&mut self, command: &[&[u8]], milliseconds: u32) -> Option<(Memory, u64)> {
        // Half of the table is for these.
        let pair = self.turn % (self.size / 4);
        self.turn = self.turn.wrapping_add(1);
        let (request, answer) = self.buffers_of(pair, command);
        let head = 2 * pair;
        self.describe(head, request, NEXT, head + 1);
        self.describe(head + 1, answer, WRITE, 0);
        self.offer(head);
        let mut patience = Patience::new(milliseconds);
        loop {
            for _ in 0..LOOKS {
                if let Some(length) = self.answered(head) {
                    return Some((answer, length));
                }
            }
            if patience.is_over() {
                return None;
            }
        }
    }

    /// Takes what was used off the ring; the length of the answer to this head, if it is there.
    fn answered(&mut self, head: u16) -> Option<u64> {
        let mut length = None;
        while self.used.read16(INDEX) != self.seen {
            let place = ENTRIES + USED * u64::from(self.seen % self.size);
            if self.used.read32(place) == u32::from(head) {
                length = Some(u64::from(self.used.read32(place + 4)).min(ANSWER_BYTES));
            }
            self.seen = self.seen.wrapping_add(1);
        }
        length
    }
}
