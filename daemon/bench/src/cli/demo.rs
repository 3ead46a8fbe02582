//! `campanile demo` and `campanile bench`.

use std::fmt::Display;
use std::sync::Arc;

use anyhow::Context;
use campanile_guest::mandelbrot;
use campanile_guest::picture::write_png;
use campanile_host_gpu::dirty::method::Method;
use campanile_host_gpu::dirty::protect::Guard;
use campanile_protocol::engine::block::MAX_DOORBELLS;
use serde::Serialize;

use super::args::BenchArguments;
use super::args::Figure;
use super::args::MeasureArguments;
use crate::measure::continuity;
use crate::measure::daemon::DaemonProcess;
use crate::measure::dirty;
use crate::measure::doorbells;
use crate::measure::doorbells::DoorbellFigures;
use crate::measure::doorbells::Settings;
use crate::measure::figures::Figures;
use crate::measure::gpu::measurement as gpu;
use crate::measure::guests;
use crate::measure::memory;
use crate::measure::migration::figures::Figures as MigrationFigures;
use crate::measure::migration::measurement as migration;
use crate::measure::migration::picture as migration_picture;
use crate::measure::recovery::figures as recovery;
use crate::measure::round_trips;
use crate::measure::round_trips::Effort;
use crate::measure::scheduling;
use crate::measure::scheduling::scene;
use crate::measure::slicing;
use crate::measure::stolen::Watch;
use crate::measure::stolen::Witnessed;
use crate::measure::upgrade_picture;
use crate::measure::wake_ups;
use crate::measure::wake_ups::WakeUps;
use campanile_daemon::cli::doorbells::parse_models;
use campanile_daemon::cli::engines::EngineArguments;
use campanile_daemon::cli::engines::Profile;
use campanile_daemon::cli::engines::Spares;
use campanile_daemon::cli::gantt;
use campanile_daemon::cli::options::host_options;
use campanile_daemon::cli::vulkan_environment;
use campanile_daemon::host::local_choice::LocalChoice;
use campanile_daemon::host::options::VgpuOptions;
use campanile_daemon::host::start::Host;
use campanile_daemon::host::tracking::TrackingChoice;
use campanile_daemon::vgpu::tdr::policy::DebugMode;

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
    let device = guests::open_guest(&daemon.socket())?;
    let picture = if guests::can_compute(&device) {
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
    let has_compute = guests::can_compute(&device);
    drop(device);
    if let Some(file) = arguments.timeline.as_deref().filter(|_| has_compute) {
        let timeline = scene::record(&arguments.engine.to_arguments())?;
        std::fs::write(file, gantt::draw(&serde_json::from_value(timeline)?)?)
            .with_context(|| format!("writing {}", file.display()))?;
        say(&format!("two guests and a realtime context: {}", file.display()));
    }
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

/// All figures of `campanile bench`.
#[derive(Debug, Serialize)]
struct BenchReport {
    #[serde(flatten)]
    figures: Figures,
    /// With the guest on a CPU of its own; absent where there is one CPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    wake_ups_apart: Option<WakeUps>,
    doorbells: DoorbellFigures,
}

impl Display for BenchReport {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}", self.figures)?;
        if let Some(apart) = &self.wake_ups_apart {
            write!(formatter, "with the guest on a CPU of its own:\n{apart}")?;
        }
        write!(formatter, "{}", self.doorbells)
    }
}

/// Daemons with the operator's settings, but for what the figures are about.
fn doorbell_settings(engine: &EngineArguments) -> anyhow::Result<Settings> {
    let spin = u64::try_from(doorbells::SPIN.as_micros())?;
    let dedicated = parse_models("dedicated").map_err(anyhow::Error::msg)?;
    let global = parse_models("global").map_err(anyhow::Error::msg)?;
    let engine = EngineArguments { spin, doorbell_model: dedicated, notify: None, ..engine.clone() };
    Ok(Settings {
        many: EngineArguments { doorbells: MAX_DOORBELLS, ..engine.clone() }.to_arguments(),
        global: EngineArguments { doorbells: 1, doorbell_model: global, ..engine.clone() }.to_arguments(),
        one: EngineArguments { doorbells: 1, ..engine }.to_arguments(),
    })
}

/// A host in this process with one vGPU, whose writes are tracked like this.
fn dirty_subject(engine: &EngineArguments, method: Method, bytes: u64) -> anyhow::Result<dirty::Subject> {
    let folder = tempfile::tempdir().context("making a folder for the socket")?;
    let socket = folder.path().join("v0.sock");
    let engine = EngineArguments { dirty_tracking: TrackingChoice::Fixed(method), ..engine.clone() };
    let vgpu = VgpuOptions::new("v0".to_owned(), socket.clone(), bytes);
    let host = Host::start(host_options(vec![vgpu], &engine)?)?;
    let vgpu = host.vgpus.first().context("the host has a vGPU")?;
    let trackers = Arc::clone(&vgpu.trackers);
    Ok(dirty::Subject { socket, trackers, host: Box::new((host, folder)) })
}

/// All sizes of `campanile bench migrate`.
#[derive(Debug, Serialize)]
struct MigrationReport {
    sizes: Vec<MigrationFigures>,
}

impl Display for MigrationReport {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.sizes.iter().try_for_each(|size| write!(formatter, "{size}"))
    }
}

/// Measures alone.
pub fn bench(arguments: &BenchArguments) -> anyhow::Result<()> {
    let BenchArguments { measure, figure } = arguments;
    let watch = Watch::begin();
    match figure {
        Figure::RoundTrips => {
            let (settings, effort) = (measure.engine.to_arguments(), effort(measure));
            let daemon = DaemonProcess::start(&settings)?;
            let figures = round_trips::measure(&daemon.socket(), daemon.pid(), effort)?;
            drop(daemon);
            let wake_ups_apart = wake_ups::measure_apart(&settings, effort.wake_ups)?;
            let settings = doorbell_settings(&measure.engine)?;
            let doorbells = doorbells::measure(&settings, effort.doorbells)?;
            show(&BenchReport { figures, wake_ups_apart, doorbells }, &watch, measure.json)
        }
        Figure::Tdr => {
            // More hangs than limits allow, and no longer than it takes.
            let mut engine = measure.engine.clone();
            engine.tdr.debug = DebugMode::RecoverAlways;
            engine.tdr.timeout = engine.tdr.timeout.min(200);
            let effort = if measure.quick {
                recovery::Effort { hangs: 10, stalls: 3 }
            } else {
                recovery::Effort { hangs: 100, stalls: 30 }
            };
            let settings = engine.to_arguments();
            let without_spares = EngineArguments { spares: Spares::Off, ..engine.clone() }.to_arguments();
            let figures = recovery::measure(&settings, &without_spares, engine.tdr.timeout, effort)?;
            show(&figures, &watch, measure.json)
        }
        Figure::Mem => {
            let effort = memory::Effort { rounds: if measure.quick { 5 } else { 20 } };
            show(&memory::measure(&measure.engine.to_arguments(), effort)?, &watch, measure.json)
        }
        Figure::Slicing => {
            let profiles = [Profile::Default, Profile::Latency].map(|profile| {
                let sliced = EngineArguments { profile, ..measure.engine.clone() };
                slicing::Settings {
                    profile: profile.to_string(),
                    slice: sliced.slice(),
                    sliced: sliced.to_arguments(),
                    whole: EngineArguments { slice: Some(0), ..sliced }.to_arguments(),
                }
            });
            let effort = if measure.quick {
                slicing::Effort { rounds: 4, pairs: 9, short: 40 }
            } else {
                slicing::Effort { rounds: 10, pairs: 15, short: 200 }
            };
            show(&slicing::measure(&profiles, effort)?, &watch, measure.json)
        }
        Figure::Dirty => {
            let start = |method: Method, bytes: u64| dirty_subject(&measure.engine, method, bytes);
            let methods = [Method::WriteProtect, Method::BoundRanges, Method::ShadowCompare];
            let methods = methods.into_iter();
            let methods: Vec<Method> =
                methods.filter(|method| method.has_planes() || Guard::new().is_ok()).collect();
            let effort = if measure.quick {
                dirty::Effort { pairs: 20, round_trips: 20_000, queries: 5 }
            } else {
                dirty::Effort { pairs: 100, round_trips: 200_000, queries: 30 }
            };
            show(&dirty::measure(&start, &methods, effort)?, &watch, measure.json)
        }
        Figure::Sched => {
            let profiles = [Profile::Default, Profile::Latency].map(|profile| {
                let engine = EngineArguments { profile, ..measure.engine.clone() };
                let (slice, arguments) = (engine.slice(), engine.to_arguments());
                scheduling::settings::Settings { profile: profile.to_string(), slice, arguments }
            });
            let effort = if measure.quick {
                scheduling::Effort { rounds: 1, windows: 3, submissions: 100 }
            } else {
                scheduling::Effort { rounds: 5, windows: 5, submissions: 200 }
            };
            show(&scheduling::measure(&profiles, effort)?, &watch, measure.json)
        }
        Figure::Gpu => {
            // This process loads the driver, too.
            vulkan_environment::enter(measure.engine.vulkan_driver.as_deref())?;
            let (rounds, small) = if measure.quick { (5, true) } else { (21, false) };
            let name = measure.engine.vulkan_device.as_ref().and_then(|devices| devices.of(0));
            let (settings, effort) = (measure.engine.to_arguments(), gpu::Effort { rounds, small });
            let in_device = EngineArguments { local_memory: LocalChoice::Device, ..measure.engine.clone() };
            let start = |bytes: u64| dirty_subject(&in_device, Method::BoundRanges, bytes);
            show(&gpu::measure(&settings, &start, name, effort)?, &watch, measure.json)
        }
        Figure::Continuity => {
            let rounds = if measure.quick { 3 } else { 5 };
            let report = continuity::measure(&measure.engine.to_arguments(), rounds)?;
            if let Some(file) = measure.timeline.as_deref() {
                std::fs::write(file, upgrade_picture::draw(&report.history))
                    .with_context(|| format!("writing {}", file.display()))?;
            }
            show(&report, &watch, measure.json)
        }
        Figure::Migrate => {
            let mib = 1 << 20;
            let per_second = 100_000_000;
            let small = migration::Effort { vram: 512 * mib, filled: 192 * mib, per_second };
            let large = migration::Effort { vram: 4096 * mib, filled: 3584 * mib, per_second };
            let efforts: &[_] = if measure.quick { &[small] } else { &[small, large] };
            let settings = measure.engine.to_arguments();
            let sizes = efforts
                .iter()
                .map(|effort| migration::measure(*effort, &settings))
                .collect::<Result<_, _>>()?;
            let report = MigrationReport { sizes };
            if let (Some(file), Some(last)) = (measure.timeline.as_deref(), report.sizes.last()) {
                let title = format!("A guest with {} MiB of video memory moves", last.vram_bytes >> 20);
                std::fs::write(file, migration_picture::draw(&title, &last.live))
                    .with_context(|| format!("writing {}", file.display()))?;
            }
            show(&report, &watch, measure.json)
        }
    }
}

fn show(figures: &(impl Serialize + Display), watch: &Watch, json: bool) -> anyhow::Result<()> {
    let figures = Witnessed::new(figures, watch);
    if json {
        println!("{}", serde_json::to_string_pretty(&figures)?);
    } else {
        print!("{figures}");
    }
    Ok(())
}
