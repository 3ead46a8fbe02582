//! DEVICE_STATE: what a front-end hands a device to become (LM-31 to LM-40).
//!
//! ```text
//!   choice │ stream         choice: the front, and whether the shell's part is in front of the device's
//! ```
//!
//! Nothing is ever half applied: what was refused leaves a device that takes another state; what was taken can be saved
//! again, means the same then, and runs.

use std::sync::Arc;

use campanile_daemon::frontend::device::FrontDevice;
use campanile_daemon::frontend::fs::state::Fs;
use campanile_daemon::frontend::gpu::device::Gpu;
use campanile_daemon::frontend::vhost::answers::Answers;
use campanile_daemon::frontend::vhost::device::Device;
use campanile_daemon::frontend::vhost::saved::Own;
use campanile_daemon::frontend::vhost::saved::SavedShell;
use campanile_daemon::migration::inspect;
use campanile_daemon::migration::state;
use campanile_daemon::migration::state::State;
use campanile_daemon::vgpu::config::Config;

use super::world::Fronted;
use super::world::GOLDEN;
use super::world::config;
use super::world::device;
use super::world::memory;

/// In the first byte: the fs front.
pub(crate) const FS: u8 = 1;
/// The shell's part is there.
pub(crate) const SHELL: u8 = 2;

/// What became of a state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Became {
    /// Nothing, and why.
    Refused(String),
    /// A device.
    Taken,
}

/// A device out of an input.
///
/// # Panics
/// Something is wrong with the daemon.
pub(crate) fn run(bytes: &[u8]) -> Became {
    let Some((choice, stream)) = bytes.split_first() else { return Became::Refused(String::new()) };
    let mut device = stream;
    if choice & SHELL != 0 {
        let (shell, rest) = match SavedShell::decode(stream) {
            Ok(parts) => parts,
            Err(error) => return refused(error.to_string()),
        };
        let own = Own { features: u64::MAX, config: &[], smallest_answer: 0, queues: 9 };
        if let Err(error) = shell.judge(own) {
            return refused(error.to_string());
        }
        let again = shell.encode(rest).unwrap();
        assert_eq!(SavedShell::decode(&again).unwrap(), (shell, rest));
        device = rest;
    }
    if choice & FS == 0 { restore::<Gpu>(device) } else { restore::<Fs>(device) }
}

fn refused(why: String) -> Became {
    assert!(!why.is_empty());
    Became::Refused(why)
}

/// A device takes this state, or does not.
fn restore<F: Fronted>(bytes: &[u8]) -> Became {
    // People look at files that are damaged too.
    let _either = inspect::describe(bytes);
    let state = match state::decode(bytes) {
        Ok(state) => state,
        Err(error) => return refused(error.to_string()),
    };
    let config = config(GOLDEN);
    let mut taker = device::<F>(&config);
    if let Err(why) = taker.take_over(&state) {
        assert!(taker.session().is_fresh() && !taker.session().is_frozen(), "{why}");
        let innocent = State { immutable: taker.session().immutable(), ..State::default() };
        taker.take_over(&innocent).expect("nothing was applied");
        return refused(why);
    }
    assert!(taker.session().is_frozen(), "it stands still until it is started");
    assert!(taker.take_over(&state).is_err(), "once");
    let saved = taker.state(state.bundle).expect("what was taken can be saved");
    // More than was written: what version 1 did not have, and defaults.
    if let Ok(bytes) = saved.encode() {
        let again = state::decode(&bytes).unwrap();
        assert_eq!(again, saved);
        // What was promised to its guests is counted once.
        drop(std::mem::replace(&mut taker, device::<F>(&config)));
        taker.take_over(&again).expect("what was saved can be taken");
        assert_eq!(without_ages(taker.state(state.bundle).unwrap()), without_ages(saved));
    }
    go_on(&config, taker);
    Became::Taken
}

/// Moments are ages, which grow.
fn without_ages(mut state: State) -> State {
    state.session.adapter_resets.fill(0);
    for process in &mut state.session.processes {
        process.offences.fill(0);
    }
    state
}

/// It runs as a vGPU does whose engines cannot be started, stands still once more, and ends.
fn go_on<F: Fronted>(config: &Arc<Config>, mut device: FrontDevice<F>) {
    let mut answers = Answers::kept();
    device.memory_changed(memory(F::IS_FS), &mut answers);
    device.thaw();
    device.event(&mut answers);
    device.freeze();
    for _ in 0..4 {
        device.event(&mut answers);
    }
    if device.is_frozen() {
        let state = device.state(state::BundleId::default()).unwrap();
        drop(device);
        self::device::<F>(config).take_over(&state).expect("what ran can be taken");
    }
}
