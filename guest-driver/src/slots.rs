//! The response slots of a device page: each is free, or has one message under way.
//!
//! A slot that the daemon may still write is not used again, so a message that is given up keeps its slot until it is
//! answered. Where slots are short, answers that no thread has taken yet are copied out.
//!
//! Locks, in this order: the table, then one [`Answer`].

use std::sync::Arc;
use std::sync::Condvar;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;

use campanile_protocol::device_page;

use crate::relay::Relay;
use crate::transport::shared_memory::SharedMemory;
use crate::transport::submission::Submission;

/// Slots that long waits leave to other messages, some of which may be what ends a wait.
const KEPT_FROM_WAITS: usize = 8;

/// How often a thread that needs a slot looks whether a message was answered.
const SWEEP: Duration = Duration::from_millis(1);

/// Where the answer to a message is, or will be.
#[derive(Debug)]
enum Place {
    /// In this slot.
    InSlot(u32),
    /// Here, and the slot has been given to another message.
    Copied(Vec<u8>),
}

/// The answer to one message.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    place: Arc<Mutex<Place>>,
}

impl Answer {
    fn place(&self) -> MutexGuard<'_, Place> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// All slots of a device page.
#[derive(Debug)]
pub(crate) struct Slots {
    page: SharedMemory,
    table: Mutex<Table>,
    freed: Condvar,
}

#[derive(Debug)]
struct Table {
    free: Vec<u32>,
    under_way: Vec<(Answer, Submission, Arc<Relay>)>,
}

impl Table {
    /// Frees the slots of messages that are answered, and keeps the answers.
    fn sweep(&mut self, page: &SharedMemory) {
        let Self { free, under_way } = self;
        for (answer, ..) in under_way.extract_if(.., |(_, submission, _)| submission.is_done()) {
            let mut place = answer.place();
            if let Place::InSlot(slot) = *place {
                *place = Place::Copied(bytes(page, slot));
                free.push(slot);
            }
        }
    }
}

/// What the daemon wrote into a slot; nothing where the page has no such slot.
fn bytes(page: &SharedMemory, slot: u32) -> Vec<u8> {
    let at = device_page::response(slot);
    let mut bytes = vec![0; usize::try_from(device_page::RESPONSE_SLOT_BYTES).unwrap_or(0)];
    // PAIRS WITH the daemon's release of the sequence in `answer`.
    let sequence = page.word(at).map(|word| word.load(Ordering::Acquire));
    if sequence.is_none() || page.read(at, &mut bytes).is_none() {
        bytes.clear();
    }
    bytes
}

impl Slots {
    /// All free.
    pub(crate) fn new(page: SharedMemory) -> Self {
        let table = Table { free: (0..device_page::RESPONSE_SLOTS).rev().collect(), under_way: Vec::new() };
        Self { page, table: Mutex::new(table), freed: Condvar::new() }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A slot. Blocks until one is free.
    pub(crate) fn take(&self) -> u32 {
        let mut table = self.table();
        loop {
            if let Some(slot) = table.free.pop() {
                return slot;
            }
            table.sweep(&self.page);
            if table.free.is_empty() {
                // The answer of a message that no thread waits for is not announced.
                table = self.freed.wait_timeout(table, SWEEP).unwrap_or_else(PoisonError::into_inner).0;
            }
        }
    }

    /// A slot for a message that may take very long to be answered, unless too few are left.
    pub(crate) fn take_for_wait(&self) -> Option<u32> {
        let mut table = self.table();
        if table.free.len() <= KEPT_FROM_WAITS {
            table.sweep(&self.page);
        }
        if table.free.len() > KEPT_FROM_WAITS { table.free.pop() } else { None }
    }

    /// A slot, where one is free now.
    pub(crate) fn take_now(&self) -> Option<u32> {
        let mut table = self.table();
        if table.free.is_empty() {
            table.sweep(&self.page);
        }
        table.free.pop()
    }

    /// What is in a slot that no message goes out with but that of its holder.
    pub(crate) fn expect_nothing(&self, slot: u32) -> Answer {
        Answer { place: Arc::new(Mutex::new(Place::InSlot(slot))) }
    }

    /// Gives a slot back that no message went out with.
    pub(crate) fn put_back(&self, slot: u32) {
        self.table().free.push(slot);
        self.freed.notify_one();
    }

    /// The answer to the message that went out with `slot`.
    pub(crate) fn expect_answer(&self, slot: u32, submission: &Submission, relay: Arc<Relay>) -> Answer {
        let answer = Answer { place: Arc::new(Mutex::new(Place::InSlot(slot))) };
        self.table().under_way.push((answer.clone(), submission.clone(), relay));
        answer
    }

    /// The slots of messages that are under way, and what their senders wait for.
    pub(crate) fn under_way(&self) -> Vec<(u32, Arc<Relay>)> {
        let table = self.table();
        let slots = table.under_way.iter().filter_map(|(answer, _, relay)| match &*answer.place() {
            Place::InSlot(slot) => Some((*slot, Arc::clone(relay))),
            Place::Copied(_) => None,
        });
        slots.collect()
    }

    /// Whether the answer of message `sequence` is there, though its work may not be done.
    pub(crate) fn is_answered(&self, answer: &Answer, sequence: u64) -> bool {
        match &*answer.place() {
            // PAIRS WITH the daemon's release of the sequence in `answer`.
            Place::InSlot(slot) => {
                let word = self.page.word(device_page::response(*slot));
                word.is_some_and(|word| word.load(Ordering::Acquire) == sequence)
            }
            Place::Copied(_) => true,
        }
    }

    /// What the daemon wrote, header and payload, once the message is done.
    pub(crate) fn read(&self, answer: &Answer) -> Vec<u8> {
        match &*answer.place() {
            Place::InSlot(slot) => bytes(&self.page, *slot),
            Place::Copied(bytes) => bytes.clone(),
        }
    }

    /// Nobody will ask for this answer any more. Its slot is free now, or once the message is answered.
    pub(crate) fn forget(&self, answer: &Answer, submission: &Submission) {
        if !submission.is_done() {
            return;
        }
        let mut table = self.table();
        table.under_way.retain(|(other, ..)| !Arc::ptr_eq(&other.place, &answer.place));
        if let Place::InSlot(slot) = *answer.place() {
            table.free.push(slot);
            self.freed.notify_one();
        }
    }
}
