//! `ci/fuzz/run shader`.
#![no_main]

use std::collections::hash_map::DefaultHasher;
use std::hash::Hash;
use std::hash::Hasher;
use std::io::Write;
use std::process::Command;
use std::process::Stdio;
use std::sync::LazyLock;

/// `spirv-val` looks at one of so many modules; at none without the variable, which is for machines that have that command.
static ONE_IN: LazyLock<Option<u64>> =
    LazyLock::new(|| std::env::var("CAMPANILE_FUZZ_SPIRV_VAL").ok().and_then(|number| number.parse().ok()));

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Some(module) = campanile_fuzz::guarded(bytes)
        && let Some(one_in) = *ONE_IN
        && hash(&module).is_multiple_of(one_in)
    {
        validate(&module);
    }
});

// Most changes leave a module cut into instructions.
libfuzzer_sys::fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    if seed % 8 != 0
        && let Some(near) =
            campanile_fuzz::changed_module(&data[..size], u64::from(seed) << 32 | u64::from(!seed))
        && near.len() <= max_size
    {
        data[..near.len()].copy_from_slice(&near);
        return near.len();
    }
    libfuzzer_sys::fuzzer_mutate(data, size, max_size)
});

fn hash(module: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    module.hash(&mut hasher);
    hasher.finish()
}

/// # Panics
/// The module is not valid for Vulkan.
fn validate(module: &[u8]) {
    let mut command = Command::new("spirv-val");
    command.args(["--target-env", "vulkan1.3", "--scalar-block-layout", "-"]).stdin(Stdio::piped());
    let mut child =
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("spirv-val is there");
    // What it does not read to the end it refuses.
    let _refused = child.stdin.take().expect("it is piped").write_all(module);
    let output = child.wait_with_output().expect("spirv-val ends");
    let why = String::from_utf8_lossy(&output.stderr);
    // An extension that it does not know yet is no answer.
    let is_unknown =
        why.contains("SPV_VALVE_mixed_float_dot_product") || why.contains("Invalid capability operand: 6912");
    // It prints the instruction, which may be as long as the module.
    let why: String = why.chars().take(1000).collect();
    assert!(output.status.success() || is_unknown, "spirv-val refuses what the guard made: {why}");
}
