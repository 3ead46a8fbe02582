//! The `campanile` executable: the daemon, and with the feature `bench` what measures it.

mod log_output;
mod log_spans;

use std::os::fd::AsFd;
use std::os::fd::OwnedFd;
use std::process::ExitCode;
use std::sync::Arc;

use campanile_daemon::cli::args::Command as DaemonCommand;
use campanile_daemon::cli::check_gpu;
use campanile_daemon::cli::config;
use campanile_daemon::cli::ctl;
use campanile_daemon::cli::exit;
use campanile_daemon::cli::inspect;
use campanile_daemon::cli::log_level::FILTER;
use campanile_daemon::cli::migration;
use campanile_daemon::cli::schedule;
use campanile_daemon::cli::serve;
use campanile_host_gpu::log_limit::Limited;
#[cfg(feature = "bench")]
use campanile_test_vmm::pause::allocator::VcpuAllocator;
use campanile_top::args::TopArguments;
use clap::Parser;
use clap::Subcommand;

use self::log_output::Output;

/// `bench migrate` stops guest threads of its own anywhere, but not with the allocator's lock. For a thread that is none
/// it is two additions a call.
#[cfg(feature = "bench")]
#[global_allocator]
static ALLOCATOR: VcpuAllocator = VcpuAllocator;

/// Campanile: a host daemon that gives virtual machines a paravirtual GPU.
#[derive(Debug, Parser)]
#[command(version, about)]
struct Arguments {
    /// What to do.
    #[command(subcommand)]
    command: Command,
}

/// The commands of the daemon, and those of its measurements.
#[derive(Debug, Subcommand)]
enum Command {
    #[command(flatten)]
    Daemon(DaemonCommand),
    Top(TopArguments),
    #[cfg(feature = "bench")]
    #[command(flatten)]
    Bench(campanile_bench::cli::command::Command),
}

fn main() -> ExitCode {
    start_log();
    let outcome = match Arguments::parse().command {
        Command::Daemon(command) => run(command),
        Command::Top(arguments) => campanile_top::run::run(&arguments),
        #[cfg(feature = "bench")]
        Command::Bench(command) => campanile_bench::cli::command::run(&command),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("campanile: {error:#}");
            ExitCode::from(exit::code(&error))
        }
    }
}

fn run(command: DaemonCommand) -> anyhow::Result<()> {
    match command {
        DaemonCommand::Serve(arguments) => serve::run(arguments),
        DaemonCommand::Schedule(arguments) => schedule::run(&arguments),
        DaemonCommand::Config(arguments) => config::run(&arguments),
        DaemonCommand::Ctl(arguments) => ctl::run(&arguments),
        DaemonCommand::Migrate(arguments) => migration::migrate(&arguments),
        DaemonCommand::Snapshot(arguments) => migration::snapshot(&arguments),
        DaemonCommand::CheckGpu(arguments) => check_gpu::run::run(&arguments),
        DaemonCommand::Inspect(arguments) => inspect::run(&arguments),
        DaemonCommand::Engine => standard_input().and_then(engine),
    }
}

/// Standard error, with as much of each VM as it may say.
fn start_log() {
    let has_filter = std::env::var_os(FILTER).is_some();
    let logger = Arc::new(Output::new(has_filter));
    log::set_max_level(if has_filter { logger.filter() } else { log::LevelFilter::Info });
    // Nothing was there before.
    let _first = log::set_boxed_logger(Box::new(Limited(Arc::clone(&logger))));
    log_spans::start(logger);
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
