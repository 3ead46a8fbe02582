//! The `campanile-guest` executable.

use std::process::ExitCode;

use campanile_guest::args::Arguments;
use campanile_guest::cli;
use clap::Parser;

fn main() -> ExitCode {
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or("warn")).init();
    match cli::execute(Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("campanile-guest: {error:#}");
            ExitCode::FAILURE
        }
    }
}
