//! The commands, and what each does.

use std::os::fd::AsFd;

use clap::Subcommand;

use super::args::BenchArguments;
use super::args::MeasureArguments;
use super::demo;
use super::simulate;
use super::simulate::SimArguments;
use crate::measure::peer;

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Start a daemon, attach a guest, render a Mandelbrot picture, check it, and measure.
    Demo(MeasureArguments),
    /// Measure.
    Bench(BenchArguments),
    /// Simulate many guests on one engine, without a GPU: fairness, latency, and what a decision costs.
    Sim(SimArguments),
    /// Be the other process of a bare ping-pong; the benchmark starts it by itself.
    #[command(hide = true)]
    Peer,
}

/// Does what the command line says.
///
/// # Errors
/// What was measured could not be, or a figure is beyond its bound; the text is for the operator.
pub fn run(command: &Command) -> anyhow::Result<()> {
    match command {
        Command::Demo(arguments) => demo::demo(arguments),
        Command::Bench(arguments) => demo::bench(arguments),
        Command::Sim(arguments) => simulate::run(arguments),
        Command::Peer => peer::play(std::io::stdin().as_fd().try_clone_to_owned()?),
    }
}
