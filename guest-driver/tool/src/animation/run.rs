//! The VMM's side: starts the guest, moves it, says what came of it.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use serde::Serialize;

use super::copier;
use super::guest;
use super::guest::Ending;
use super::guest::LOOK;
use super::guest::Progress;
use super::moved::Move;
#[cfg(feature = "test-vmm")]
use super::moving;
use super::renderer;
use super::renderer::Animation;
use super::scribbler;
use crate::args::AnimateArguments;
use crate::target::Machine;
use crate::target::Target;

/// What the process ends with when the guest lost its device and was told so.
const LOST: u8 = 3;

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
    #[cfg(feature = "test-vmm")]
    let moves = moving::move_on(&machine, &progress, arguments)?;
    #[cfg(not(feature = "test-vmm"))]
    let moves = {
        anyhow::ensure!(arguments.to.is_empty(), "--to needs --socket: a VM is moved by its VMM");
        Vec::new()
    };
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
