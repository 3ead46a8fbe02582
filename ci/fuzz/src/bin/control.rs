//! `ci/fuzz/run control`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| campanile_fuzz::run("control", bytes));
