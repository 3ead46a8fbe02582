//! `ci/fuzz/run engine`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| campanile_fuzz::run("engine", bytes));
