//! The words that programs keep with objects, by the slot of private data that they lie in.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;

/// The words of each slot of this process, by object.
#[derive(Debug, Default)]
pub(crate) struct Words {
    slots: HashMap<u64, HashMap<u64, u64>>,
    made: u64,
}

static WORDS: Mutex<Option<Words>> = Mutex::new(None);

/// Whether there ever was a slot: where there was none, the end of an object costs a load.
static IS_USED: AtomicBool = AtomicBool::new(false);

fn words() -> MutexGuard<'static, Option<Words>> {
    WORDS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes a slot, and names it.
pub(crate) fn make() -> u64 {
    IS_USED.store(true, Ordering::Relaxed);
    let mut words = words();
    let words = words.get_or_insert_default();
    words.made += 1;
    words.slots.insert(words.made, HashMap::new());
    words.made
}

/// Ends a slot.
pub(crate) fn end(slot: u64) {
    if let Some(words) = words().as_mut() {
        words.slots.remove(&slot);
    }
}

/// Keeps a word with an object.
pub(crate) fn set(slot: u64, object: u64, word: u64) {
    if let Some(words) = words().as_mut().and_then(|words| words.slots.get_mut(&slot)) {
        words.insert(object, word);
    }
}

/// The word of an object; 0 where none was set.
pub(crate) fn get(slot: u64, object: u64) -> u64 {
    let words = words();
    let found = words.as_ref().and_then(|words| words.slots.get(&slot)?.get(&object));
    found.copied().unwrap_or(0)
}

/// Forgets an object that ends: the next one at its place has no words.
pub(crate) fn forget(object: u64) {
    if !IS_USED.load(Ordering::Relaxed) {
        return;
    }
    if let Some(words) = words().as_mut() {
        for slot in words.slots.values_mut() {
            slot.remove(&object);
        }
    }
}
