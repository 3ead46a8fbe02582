//! The VMM's side: starts the guest, moves it, says what came of it.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;
use std::time::Instant;

use campanile_guest_driver::transport::loopback::migration::options::MigrateOptions;
use campanile_guest_driver::transport::loopback::migration::options::Next;
use campanile_guest_driver::transport::loopback::migration::options::Order;
use campanile_guest_driver::transport::loopback::migration::options::Ram;
use campanile_guest_driver::transport::loopback::migration::options::Report;
use campanile_guest_driver::transport::loopback::vm::LoopbackVm;
use serde::Serialize;

use super::copier;
use super::guest;
use super::guest::Ending;
use super::guest::Progress;
use super::renderer;
use super::renderer::Animation;
use super::scribbler;
use crate::args::AnimateArguments;
use crate::target::Machine;
use crate::target::Target;

/// Between two looks at what guest threads do: they do not say so.
const LOOK: Duration = Duration::from_millis(1);
/// What the process ends with when the guest lost its device and was told so.
const LOST: u8 = 3;

/// One move, for `--json`.
#[derive(Debug, Serialize)]
struct Move {
    to: String,
    /// Why the guest stayed, where it did.
    failed: Option<String>,
    frames_before: u64,
    pause_ms: f64,
    stop_ms: f64,
    save_ms: f64,
    load_ms: f64,
    state_bytes: usize,
    passes: u32,
    live_frames: u64,
}

/// Everything, for `--json`.
#[derive(Debug, Serialize)]
struct Summary {
    frames: u64,
    copies: u64,
    scribbles: u64,
    checksum: Option<String>,
    moves: Vec<Move>,
    lost: Vec<String>,
    wrong: Vec<String>,
}

/// Renders all frames, moving on the way.
///
/// # Errors
/// Moves are asked for in a VM that its VMM moves; the GPU cannot be reached.
pub fn run(target: &Target, arguments: &AnimateArguments) -> anyhow::Result<ExitCode> {
    let machine = target.machine()?;
    let progress: Arc<Progress> = Arc::default();
    let frames = if arguments.until.is_some() { u64::MAX } else { arguments.frames };
    let animation = Animation { frames, words: arguments.words, tells: arguments.tell };
    let sum: Arc<Mutex<Option<u64>>> = Arc::default();
    let mut threads = Vec::new();
    {
        let sum = Arc::clone(&sum);
        let render =
            move |machine: &Machine, progress: &Progress| renderer::run(machine, progress, animation, &sum);
        threads.push(guest::start("renderer", &machine, &progress, render)?);
    }
    if !arguments.quiet {
        threads.push(guest::start("copier", &machine, &progress, copier::run)?);
        threads.push(guest::start("scribbler", &machine, &progress, scribbler::run)?);
    }
    let mut moves = Vec::new();
    for (hop, to) in (1..).zip(&arguments.to) {
        let Machine::Loopback(vm) = &machine else {
            anyhow::bail!("--to needs --socket: a VM is moved by its VMM")
        };
        if !reach(&progress, hop * arguments.every) {
            break;
        }
        let moved = hop_to(vm, &progress, to, arguments);
        if !arguments.json {
            say(&moved);
        }
        moves.push(moved);
    }
    if let Some(file) = &arguments.until {
        while !progress.is_over() && !file.exists() {
            std::thread::sleep(LOOK);
        }
        progress.over.store(true, Ordering::Relaxed);
    }
    let (mut lost, mut wrong) = (Vec::new(), Vec::new());
    for thread in threads {
        match thread.join() {
            Ok(Ending::Done) => {}
            Ok(Ending::Lost(why)) => lost.push(why),
            Ok(Ending::Wrong(why)) => wrong.push(why),
            Err(_) => wrong.push("a guest thread panicked".to_owned()),
        }
    }
    let checksum = *sum.lock().unwrap_or_else(PoisonError::into_inner);
    let summary = Summary {
        frames: progress.frames.load(Ordering::Relaxed),
        copies: progress.copies.load(Ordering::Relaxed),
        scribbles: progress.scribbles.load(Ordering::Relaxed),
        checksum: checksum.map(|sum| format!("{sum:#018x}")),
        moves,
        lost,
        wrong,
    };
    tell(&summary, arguments.json)?;
    if !summary.wrong.is_empty() {
        return Ok(ExitCode::FAILURE);
    }
    Ok(if summary.lost.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(LOST) })
}

/// Waits for so many frames; `false` where the guest ends before.
fn reach(progress: &Progress, frames: u64) -> bool {
    while progress.frames.load(Ordering::Relaxed) < frames {
        if progress.is_over() {
            return false;
        }
        std::thread::sleep(LOOK);
    }
    true
}

fn hop_to(vm: &LoopbackVm, progress: &Progress, to: &Path, arguments: &AnimateArguments) -> Move {
    let frames_before = progress.frames.load(Ordering::Relaxed);
    if !arguments.json {
        // Whoever reads this may act on it at once.
        println!("moving to {} after {frames_before} frames", to.display());
        let _unread = std::io::stdout().flush();
    }
    let begun = Instant::now();
    let settle = Duration::from_millis(arguments.settle);
    let options = MigrateOptions {
        order: if arguments.cloud_hypervisor { Order::CloudHypervisor } else { Order::Qemu },
        live: !arguments.stopped,
        ram: if arguments.move_ram { Ram::Moves } else { Ram::Stays },
        after_pass: Box::new(move |_| {
            std::thread::sleep(LOOK);
            if begun.elapsed() < settle { Next::Again } else { Next::Stop }
        }),
        ..MigrateOptions::default()
    };
    let (report, failed) = match vm.migrate(to, options) {
        Ok(report) => (report, None),
        Err(error) => (Report::default(), Some(error.to_string())),
    };
    let ms = |time: Duration| time.as_secs_f64() * 1000.0;
    Move {
        to: to.display().to_string(),
        failed,
        frames_before,
        pause_ms: ms(report.pause),
        stop_ms: ms(report.stop),
        save_ms: ms(report.save),
        load_ms: ms(report.load),
        state_bytes: report.state_bytes,
        passes: u32::try_from(report.passes.len()).unwrap_or(u32::MAX),
        live_frames: progress.frames.load(Ordering::Relaxed) - frames_before,
    }
}

fn say(moved: &Move) {
    match &moved.failed {
        Some(why) => println!("not moved to {}: {why}", moved.to),
        None => println!(
            "moved to {}: pause {:.1} ms (stop {:.1}, save {:.1}, load {:.1}), {} bytes of state, {} frames meanwhile",
            moved.to,
            moved.pause_ms,
            moved.stop_ms,
            moved.save_ms,
            moved.load_ms,
            moved.state_bytes,
            moved.live_frames
        ),
    }
    let _unread = std::io::stdout().flush();
}

fn tell(summary: &Summary, json: bool) -> anyhow::Result<()> {
    if json {
        println!("{}", serde_json::to_string_pretty(summary)?);
        return Ok(());
    }
    for why in &summary.lost {
        println!("LOST {why}");
    }
    for why in &summary.wrong {
        println!("WRONG {why}");
    }
    let Summary { frames, copies, scribbles, checksum, .. } = summary;
    let checksum = checksum.as_deref().unwrap_or("none");
    println!(
        "{frames} frames, {copies} copies, {scribbles} rounds of stores, all checked; checksum {checksum}"
    );
    Ok(())
}
