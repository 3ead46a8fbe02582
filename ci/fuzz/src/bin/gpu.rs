//! `ci/fuzz/run gpu`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| campanile_fuzz::run("gpu", bytes));
