//! `campanile demo` and `campanile bench`.

use std::fmt::Display;

use anyhow::Context;
use campanile_guest::mandelbrot;
use campanile_guest::picture::write_png;
use serde::Serialize;

use super::args::BenchArguments;
use super::args::Figure;
use super::args::MeasureArguments;
use crate::measure::daemon::DaemonProcess;
use crate::measure::figures::Figures;
use crate::measure::recovery;
use crate::measure::round_trips;
use crate::measure::round_trips::Effort;
use crate::recovery::policy::DebugMode;

/// What the demo did, for `--json`.
#[derive(Debug, Serialize)]
struct DemoReport {
    picture: Option<PictureReport>,
    figures: Figures,
}

#[derive(Debug, Serialize)]
struct PictureReport {
    file: String,
    pixels: usize,
    wrong_pixels: usize,
    gpu_ms: f64,
    one_cpu_ms: f64,
}

fn effort(arguments: &MeasureArguments) -> Effort {
    if arguments.quick { Effort::QUICK } else { Effort::FULL }
}

/// Starts a daemon, attaches a guest, renders, checks, measures.
pub fn demo(arguments: &MeasureArguments) -> anyhow::Result<()> {
    let say = |text: &str| {
        if !arguments.json {
            println!("{text}");
        }
    };
    say("starting a daemon, attaching a guest");
    let daemon = DaemonProcess::start(&arguments.engine.to_arguments())?;
    let device = round_trips::open_guest(&daemon.socket())?;
    let picture = if round_trips::can_compute(&device) {
        let report = render(arguments, &device)?;
        say(&format!(
            "rendered {} pixels through a user-mode queue in {:.1} ms (one CPU: {:.1} ms); {} differ from the CPU's; {}",
            report.pixels, report.gpu_ms, report.one_cpu_ms, report.wrong_pixels, report.file
        ));
        anyhow::ensure!(report.wrong_pixels == 0, "{} pixels are wrong", report.wrong_pixels);
        Some(report)
    } else {
        say("no compute node (the daemon's log says why): no picture, only copies");
        None
    };
    drop(device);
    say("measuring");
    let figures = round_trips::measure(&daemon.socket(), daemon.pid(), effort(arguments))?;
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&DemoReport { picture, figures })?);
    } else {
        print!("{figures}");
    }
    Ok(())
}

fn render(
    arguments: &MeasureArguments,
    device: &campanile_guest_driver::device::Device,
) -> anyhow::Result<PictureReport> {
    let picture = mandelbrot::render(device).context("rendering")?;
    let reference = mandelbrot::reference();
    let wrong = picture.counts.iter().zip(&reference.counts).filter(|(one, other)| one != other).count();
    write_png(&arguments.picture, &picture.counts)?;
    Ok(PictureReport {
        file: arguments.picture.display().to_string(),
        pixels: picture.counts.len(),
        wrong_pixels: wrong,
        gpu_ms: picture.elapsed.as_secs_f64() * 1000.0,
        one_cpu_ms: reference.elapsed.as_secs_f64() * 1000.0,
    })
}

/// Measures alone.
pub fn bench(arguments: &BenchArguments) -> anyhow::Result<()> {
    match arguments.figure {
        Figure::RoundTrips => {
            let daemon = DaemonProcess::start(&arguments.measure.engine.to_arguments())?;
            show(
                &round_trips::measure(&daemon.socket(), daemon.pid(), effort(&arguments.measure))?,
                arguments.measure.json,
            )
        }
        Figure::Tdr => {
            // More hangs than limits allow, and no longer than it takes.
            let mut engine = arguments.measure.engine.clone();
            engine.tdr_debug = DebugMode::RecoverAlways;
            engine.tdr_timeout = engine.tdr_timeout.min(200);
            let daemon = DaemonProcess::start(&engine.to_arguments())?;
            let hangs = if arguments.measure.quick { 10 } else { 100 };
            show(&recovery::measure(&daemon.socket(), hangs, engine.tdr_timeout)?, arguments.measure.json)
        }
    }
}

fn show(figures: &(impl Serialize + Display), json: bool) -> anyhow::Result<()> {
    if json {
        println!("{}", serde_json::to_string_pretty(figures)?);
    } else {
        print!("{figures}");
    }
    Ok(())
}
