//! The `campanile-guest` executable.

use std::process::ExitCode;

use campanile_guest::args::Arguments;
use campanile_guest::cli;
#[cfg(feature = "test-vmm")]
use campanile_test_vmm::pause::allocator::VcpuAllocator;
use clap::Parser;

/// Virtual CPUs of a loopback VM stop anywhere, but not with the allocator's lock.
#[cfg(feature = "test-vmm")]
#[global_allocator]
static ALLOCATOR: VcpuAllocator = VcpuAllocator;

fn main() -> ExitCode {
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or("warn")).init();
    match cli::execute(Arguments::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("campanile-guest: {error:#}");
            ExitCode::FAILURE
        }
    }
}
