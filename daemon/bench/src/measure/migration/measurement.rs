//! The measurement.

use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;
use std::time::Instant;

use anyhow::Context;
use campanile_test_vmm::migration::options::MigrateOptions;
use campanile_test_vmm::migration::options::Next;
use campanile_test_vmm::options::VmOptions;
use campanile_test_vmm::vm::LoopbackVm;

use super::figures::Figures;
use super::figures::Innocent as InnocentFigures;
use super::figures::Move;
use super::hosts::Hosts;
use super::innocent::Innocent;
use super::innocent::beside_load;
use super::load::Load;
use super::socket_copy;

/// Between two looks at how far the source is.
const LOOK: Duration = Duration::from_millis(5);
/// The pause that a live move aims at.
const AIM: Duration = Duration::from_millis(100);
/// When a live move pauses whatever is left.
const TIMEOUT: Duration = Duration::from_secs(120);
/// How long an innocent guest is watched where nothing else sets the time.
const WATCH: Duration = Duration::from_secs(3);

/// What is measured.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// Video memory of the vGPU that moves, bytes.
    pub vram: u64,
    /// Of it: filled.
    pub filled: u64,
    /// Written anew, bytes per second.
    pub per_second: u64,
}

/// Moves a guest there and back, and once more in one piece.
pub fn measure(effort: Effort, settings: &[OsString]) -> anyhow::Result<Figures> {
    let hosts = Hosts::start(effort.vram, settings)?;
    let options = VmOptions { transfer_timeout: Duration::from_secs(600), ..VmOptions::default() };
    let vm = LoopbackVm::connect(hosts.socket(0), &options).context("attaching a guest")?;
    let load = Load::start(&vm, effort.filled, effort.per_second)?;
    let innocent = Innocent::start(&hosts.innocent_socket(0))?;
    let watch = || {
        std::thread::sleep(WATCH);
        Ok(())
    };
    let rate = |before: Duration, begun: Instant| -> anyhow::Result<f64> {
        Ok(hosts.cpu_time()?.saturating_sub(before).as_secs_f64() / begun.elapsed().as_secs_f64())
    };
    let (before, begun) = (hosts.cpu_time()?, Instant::now());
    let (alone_per_s, ()) = innocent.rate(watch)?;
    let without = rate(before, begun)?;
    let (before, begun) = (hosts.cpu_time()?, Instant::now());
    let (beside_move_per_s, live) = innocent.rate(|| migrate(&vm, &hosts, 0, true))?;
    let cpus = (rate(before, begun)? - without).max(0.0);
    innocent.end()?;
    let second = migrate(&vm, &hosts, 1, true)?;
    // The guest is on the source again: what the innocent one has beside it is what it had before the move.
    let innocent = Innocent::start(&hosts.innocent_socket(0))?;
    let (beside_load_per_s, ()) = beside_load(cpus, || innocent.rate(watch))?;
    innocent.end()?;
    let stopped = migrate(&vm, &hosts, 0, false)?;
    load.end()?;
    let socket_copy = socket_copy::measure(effort.filled)?;
    Ok(Figures {
        vram_bytes: effort.vram,
        filled_bytes: effort.filled,
        dirtied_bytes_per_s: effort.per_second,
        socket_copy,
        brownout_over_socket_copy: second.brownout_bytes_per_second() / socket_copy.memory_bytes_per_s,
        stopped_over_live_pause: stopped.pause_ms / live.pause_ms,
        live,
        second,
        stopped,
        innocent: InnocentFigures { alone_per_s, beside_move_per_s, beside_load_per_s, cpus_of_move: cpus },
    })
}

/// From this host to the other.
fn migrate(vm: &Arc<LoopbackVm>, hosts: &Hosts, from: usize, live: bool) -> anyhow::Result<Move> {
    let begun = Instant::now();
    let mut failure = None;
    let after_pass = |_: &_| {
        std::thread::sleep(LOOK);
        match hosts.is_nearly_there(from, AIM) {
            Ok(false) if begun.elapsed() < TIMEOUT => Next::Again,
            Ok(_) => Next::Stop,
            Err(error) => {
                failure = Some(error);
                Next::Stop
            }
        }
    };
    let options = MigrateOptions { live, after_pass: Box::new(after_pass), ..MigrateOptions::default() };
    let report = vm.migrate(hosts.socket(1 - from), options)?;
    let total = begun.elapsed();
    if let Some(error) = failure {
        return Err(error);
    }
    let ms = |time: Duration| time.as_secs_f64() * 1000.0;
    Ok(Move {
        pause_ms: ms(report.pause),
        stop_ms: ms(report.stop),
        save_ms: ms(report.save),
        load_ms: ms(report.load),
        total_ms: ms(total),
        state_bytes: report.state_bytes,
        passes: hosts.passes(from)?,
    })
}
