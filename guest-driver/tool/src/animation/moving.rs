//! The VMM's side of a move: when the VM moves, where to, and in which order of messages.

use std::io::Write;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;
use std::time::Instant;

use campanile_test_vmm::migration::options::MigrateOptions;
use campanile_test_vmm::migration::options::Next;
use campanile_test_vmm::migration::options::Ram;
use campanile_test_vmm::migration::options::Report;
use campanile_test_vmm::order::Order;
use campanile_test_vmm::vm::LoopbackVm;

use super::guest::LOOK;
use super::guest::Progress;
use super::moved::Move;
use crate::args::AnimateArguments;
use crate::target::Machine;

/// Moves the VM to each daemon of `--to`, each after its number of frames.
///
/// # Errors
/// There is somewhere to go, and the VM is one that its VMM moves.
pub fn move_on(
    machine: &Machine,
    progress: &Progress,
    arguments: &AnimateArguments,
) -> anyhow::Result<Vec<Move>> {
    let mut moves = Vec::new();
    for (hop, to) in (1..).zip(&arguments.to) {
        let Machine::Loopback(vm) = machine else {
            anyhow::bail!("--to needs --socket: a VM is moved by its VMM")
        };
        if !reach(progress, hop * arguments.every) {
            break;
        }
        let moved = hop_to(vm, progress, to, arguments);
        if !arguments.json {
            say(&moved);
        }
        moves.push(moved);
    }
    Ok(moves)
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
        // The reader of this line may act on it at once.
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
