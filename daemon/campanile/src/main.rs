//! The `campanile` executable.

use campanile_host_gpu::log_limit::Limited;
use std::os::fd::AsFd;
use std::os::fd::OwnedFd;
use std::process::ExitCode;

use campanile_daemon::cli::args::Arguments;
use campanile_daemon::cli::args::Command;
use campanile_daemon::cli::ctl;
use campanile_daemon::cli::demo;
use campanile_daemon::cli::inspect;
use campanile_daemon::cli::migration;
use campanile_daemon::cli::serve;
use campanile_daemon::cli::simulate;
use campanile_daemon::measure::peer;
use campanile_test_vmm::pause::allocator::VcpuAllocator;
use clap::Parser;

/// `bench migrate` stops guest threads of its own anywhere, but not with the allocator's lock. For a thread that is none
/// it is two additions a call.
#[global_allocator]
static ALLOCATOR: VcpuAllocator = VcpuAllocator;

fn main() -> ExitCode {
    start_log();
    let outcome = match Arguments::parse().command {
        Command::Serve(arguments) => serve::run(arguments),
        Command::Ctl(arguments) => ctl::run(&arguments),
        Command::Migrate(arguments) => migration::migrate(&arguments),
        Command::Snapshot(arguments) => migration::snapshot(&arguments),
        Command::Demo(arguments) => demo::demo(&arguments),
        Command::Bench(arguments) => demo::bench(&arguments),
        Command::Sim(arguments) => simulate::run(&arguments),
        Command::Inspect(arguments) => inspect::run(&arguments),
        Command::Engine => standard_input().and_then(engine),
        Command::Peer => standard_input().and_then(peer::play),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("campanile: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Standard error, with as much of each VM as it may say.
fn start_log() {
    let logger = env_logger::Builder::from_env(env_logger::Env::default().default_filter_or("info")).build();
    log::set_max_level(logger.filter());
    // Nothing was there before.
    let _first = log::set_boxed_logger(Box::new(Limited(logger)));
}

/// Returns only when the engine cannot start; the daemon has been told why, and says so.
fn engine(socket: OwnedFd) -> anyhow::Result<()> {
    let error = campanile_host_gpu::engine::start::main(socket);
    log::debug!("engine: {error}");
    std::process::exit(1)
}

/// The channel to the process that started this one.
fn standard_input() -> anyhow::Result<OwnedFd> {
    Ok(std::io::stdin().as_fd().try_clone_to_owned()?)
}
