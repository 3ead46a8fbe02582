//! `ci/fuzz/run state`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| campanile_fuzz::run("state", bytes));

// Every other change leaves a state CBOR.
libfuzzer_sys::fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    if seed % 2 == 0
        && let Some(near) = campanile_fuzz::changed(&data[..size], u64::from(seed) << 32 | u64::from(!seed))
        && near.len() <= max_size
    {
        data[..near.len()].copy_from_slice(&near);
        return near.len();
    }
    libfuzzer_sys::fuzzer_mutate(data, size, max_size)
});
