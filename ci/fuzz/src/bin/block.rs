//! `ci/fuzz/run block`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| campanile_fuzz::run("block", bytes));
