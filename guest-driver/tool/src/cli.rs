//! From the command line to what it asks for.

use std::process::ExitCode;

use crate::animation;
use crate::args::Arguments;
use crate::args::Command;
use crate::bench;
use crate::burn;
use crate::info;
use crate::mandelbrot;
use crate::picture;
use crate::relay;
use crate::relay::Mischief;
use crate::run;
use crate::selftest;
use crate::trespass;

/// Does what the command line says.
pub fn execute(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let target = &arguments.target;
    let done: anyhow::Result<()> = match arguments.command {
        Command::Animate(arguments) => {
            return animation::run::run(target, &arguments);
        }
        Command::Relay { listen, daemon, lose_log } => relay::run(&listen, &daemon, Mischief { lose_log }),
        Command::Info { json } => info::print(target, json),
        Command::Run(arguments) => run::run(&target.open()?, &arguments),
        Command::Bench(arguments) => bench::run(&target.open()?, &arguments),
        Command::Burn(arguments) => burn::run(&target.open()?, &arguments),
        Command::Mandelbrot { picture: path } => {
            let rendered = mandelbrot::render(&target.open()?)?;
            picture::write_png(&path, &rendered.counts)?;
            let milliseconds = rendered.elapsed.as_secs_f64() * 1000.0;
            println!("{} pixels in {milliseconds:.1} ms; {}", rendered.counts.len(), path.display());
            Ok(())
        }
        Command::Selftest => selftest::run(target),
        Command::Secret => trespass::keep_secret(&target.open()?),
        Command::Trespass { resource, va } => trespass::trespass(target, resource, va),
        Command::Fill => trespass::fill(&target.open()?),
    };
    done.map(|()| ExitCode::SUCCESS)
}
