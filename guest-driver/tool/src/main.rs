//! The `campanile-guest` executable.

use std::process::ExitCode;

use campanile_guest::cli::Arguments;
use clap::Parser;

fn main() -> ExitCode {
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or("warn")).init();
    match Arguments::parse().execute() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("campanile-guest: {error:#}");
            ExitCode::FAILURE
        }
    }
}
