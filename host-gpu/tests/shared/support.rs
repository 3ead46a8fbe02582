//! A page that two threads share, and a wait that gives up its turn.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::thread;
use std::time::Duration;
use std::time::Instant;

use campanile_host_gpu::memory::mapping::Access;
use campanile_host_gpu::memory::mapping::Mapping;
use campanile_host_gpu::memory::vram::create_memfd;
use vm_memory::Bytes;

/// How often each side does what it does.
pub(crate) const TIMES: u64 = 400;

/// Shared memory as engines map it.
pub(crate) fn mapping(bytes: u64) -> Arc<Mapping> {
    Arc::new(Mapping::new(create_memfd("shared", bytes).unwrap(), 0, bytes, Access::ReadWrite).unwrap())
}

/// The word at `place`.
pub(crate) fn word(mapping: &Mapping, place: u64) -> &AtomicU64 {
    mapping.word(place).unwrap()
}

/// Stores eight bytes, as a buffer's are: no word of a handshake.
pub(crate) fn write(mapping: &Mapping, place: u64, value: u64) {
    mapping.slice(place, 8).unwrap().write_obj(value, 0).unwrap();
}

/// Loads such bytes.
pub(crate) fn read(mapping: &Mapping, place: u64) -> u64 {
    mapping.slice(place, 8).unwrap().read_obj(0).unwrap()
}

/// Tries until there is something.
///
/// # Panics
/// There is nothing for a minute: a handshake was lost.
pub(crate) fn until<T>(what: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = attempt() {
            return found;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}: waited for in vain");
        thread::yield_now();
    }
}
