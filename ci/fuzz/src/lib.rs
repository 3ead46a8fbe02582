//! The targets of `daemon/tests/fuzz`, for libFuzzer.

#[allow(dead_code, reason = "its seeds are written, and its outcomes looked at, by the tests")]
#[path = "../../../daemon/tests/fuzz/targets/mod.rs"]
mod targets;

/// Gives bytes to the target of that name.
///
/// # Panics
/// Something is wrong with the daemon.
pub fn run(target: &str, bytes: &[u8]) {
    targets::run(target, bytes);
}

/// A state near to one: `bytes` begin with a byte of choice and the 16 bytes before the map.
pub fn changed(bytes: &[u8], seed: u64) -> Option<Vec<u8>> {
    targets::change::changed(bytes, 17, seed)
}

/// What the guard makes of a module, as bytes; `None` where it is refused.
///
/// # Panics
/// Something is wrong with the guard.
pub fn guarded(bytes: &[u8]) -> Option<Vec<u8>> {
    Some(targets::shader::bytes(&targets::shader::run(bytes)?.words))
}

/// A module near to one.
pub fn changed_module(bytes: &[u8], seed: u64) -> Option<Vec<u8>> {
    let near = targets::instructions::changed(&targets::shader::words(bytes), seed)?;
    Some(targets::shader::bytes(&near))
}
