//! What the thread of one line does.

use std::sync::Arc;
use std::time::Duration;
use std::time::Instant;

use super::bundle::Bundle;
use super::phase::Do;
use super::phase::Receiving;
use super::registry::Registry;
use super::visit::Visit;
use crate::migration::channel::kernel::SentKernel;
use crate::migration::channel::line::Line;
use crate::migration::channel::line::Received;
use crate::migration::channel::line::Woken;
use crate::migration::channel::message::Message;
use crate::migration::channel::message::shortened;
use crate::migration::channel::record::Record;
use crate::migration::channel::stream::Stream;
use crate::migration::error::MigrationError;
use crate::migration::ownership::claimant::Claimant;
use crate::migration::settings::Timeouts;
use crate::migration::stage::Unpacker;

/// How long a source has to hear why its migration has failed.
const LINGER: Duration = Duration::from_secs(1);

/// Serves a line from its first message to its end. `handle` is another handle of its socket.
///
/// # Errors
/// Why it ended, if not as it should. The bundle that it was of is dropped then.
pub(super) fn serve(
    registry: &Registry,
    mut line: Line,
    handle: Box<dyn Stream>,
    visit: &Visit,
    timeouts: &Timeouts,
) -> Result<(), MigrationError> {
    match line.receive()? {
        Received::Message(Message::Hello(hello)) => {
            let (version, bundle) = match visit.accept(|| registry.greet(&hello, &visit.credentials)) {
                Ok(accepted) => accepted,
                Err(reason) => {
                    line.send(&Message::refused(&reason))?;
                    return Err(MigrationError::Refused(reason));
                }
            };
            log::info!("vGPU {}: bundle {} is on its way here", hello.vgpu, hello.bundle);
            bundle.add_line(handle);
            let outcome = line
                .send(&Message::Accept { version })
                .and_then(|()| receive(&bundle, &mut line, Receiving::new(true, version)))
                .and_then(|()| line.send(&Message::Stored))
                .and_then(|()| hold(&bundle, &mut line, timeouts));
            finish(&bundle, &mut line, &outcome);
            registry.remove(bundle.id);
            outcome
        }
        Received::Message(Message::Join { bundle: id }) => {
            let bundle = match visit.accept(|| registry.join(id, &visit.credentials)) {
                Ok(bundle) => bundle,
                Err(reason) => {
                    line.send(&Message::refused(&reason))?;
                    return Err(MigrationError::Refused(reason));
                }
            };
            bundle.add_line(handle);
            let version = bundle.version;
            let outcome = line
                .send(&Message::Accept { version })
                .and_then(|()| receive(&bundle, &mut line, Receiving::new(false, version)));
            // The source closes these lines when all was sent.
            if bundle.stage().is_err() {
                return Ok(());
            }
            finish(&bundle, &mut line, &outcome);
            outcome
        }
        Received::Message(_) => {
            line.send(&Message::refused(&"this is no HELLO"))?;
            Err(MigrationError::protocol("a line that does not begin with HELLO or JOIN"))
        }
        Received::Pages | Received::Kernel => Err(MigrationError::protocol("pages or a kernel before HELLO")),
    }
}

/// Frees a bundle whose line has failed, and says why, where the line still stands.
fn finish(bundle: &Arc<Bundle>, line: &mut Line, outcome: &Result<(), MigrationError>) {
    if let Err(error) = outcome {
        bundle.drop_for(error);
        let is_gone = matches!(error, MigrationError::Closed | MigrationError::Stalled);
        if !is_gone && line.send(&Message::give_up(error)).is_ok() {
            line.linger(LINGER);
        }
        bundle.close();
    }
}

/// Pages, and kernels between them, until all have come.
fn receive(bundle: &Bundle, line: &mut Line, mut phase: Receiving) -> Result<(), MigrationError> {
    let stage = bundle.stage()?;
    let mut unpacker = Unpacker::default();
    loop {
        match line.receive()? {
            Received::Pages => {
                phase.pages()?;
                stage.apply(&Record::decode(line.body())?, &mut unpacker)?;
            }
            Received::Kernel => {
                phase.kernel()?;
                bundle.compiles.take(&SentKernel::decode(line.body())?)?;
            }
            Received::Message(message) => match phase.hear(message)? {
                Do::Nothing => {}
                Do::CountKernels => line.send(&Message::Kernels { left: bundle.compiles.left() })?,
                Do::Confirm(pass) => line.send(&Message::PassDone { pass })?,
                Do::Seal { records, bytes } => return bundle.seal(records, bytes),
                Do::Forget(reason) => return Err(MigrationError::Refused(shortened(&reason))),
            },
        }
    }
}

/// A complete bundle, until it runs or is forgotten.
fn hold(bundle: &Bundle, line: &mut Line, timeouts: &Timeouts) -> Result<(), MigrationError> {
    let stored = Instant::now();
    let mut has_asked = false;
    let mut is_up = true;
    loop {
        if bundle.asks() && !has_asked && is_up {
            has_asked = true;
            line.send(&Message::MayIRun)?;
        }
        // A session that has claimed it has as long as its front-end takes.
        let left = if bundle.is_claimed() {
            Duration::from_secs(60)
        } else {
            timeouts.claim.saturating_sub(stored.elapsed())
        };
        if left.is_zero() {
            let _none = bundle.step("it was not loaded for too long", Claimant::forget);
            return Err(MigrationError::State("it was not loaded for too long".to_owned()));
        }
        let woken = if is_up {
            line.wait(&bundle.bell, left)
        } else {
            bundle.bell.wait(Some(left));
            Woken::Bell
        };
        if woken == Woken::Peer {
            match line.hear() {
                Ok(message) => {
                    if let Some(word) = answer(bundle, &message)? {
                        line.send(&word)?;
                    }
                    if message == Message::Revoke {
                        return Ok(());
                    }
                    if message == Message::Granted && !bundle.is_over() {
                        // Unasked: the source has no more to say, and may end.
                        line.close();
                        is_up = false;
                    }
                }
                Err(MigrationError::Refused(reason)) => {
                    let _none = bundle.step(&reason, Claimant::declined);
                }
                Err(error @ MigrationError::Closed) => {
                    let _none = bundle.step("the source is gone", Claimant::unreachable);
                    // What was granted stays so, without a line.
                    is_up = false;
                    if bundle.is_over() && !bundle.runs() {
                        return Err(error);
                    }
                }
                Err(error) => {
                    let _none = bundle.step(&error.to_string(), Claimant::unreachable);
                    return Err(error);
                }
            }
        }
        if bundle.is_over() && !is_up {
            return Ok(());
        }
        if bundle.is_over() {
            return last_words(bundle, line, timeouts);
        }
    }
}

fn answer(bundle: &Bundle, message: &Message) -> Result<Option<Message>, MigrationError> {
    match message {
        Message::Still => Ok(None),
        Message::Granted => Ok(bundle.step("granted", Claimant::granted)),
        Message::Declined => Ok(bundle.step("the source has not let the guest run here", Claimant::declined)),
        Message::Revoke => Ok(bundle.step("the source runs again", Claimant::revoke)),
        other => Err(MigrationError::Protocol(format!("{other:?} cannot be said now"))),
    }
}

/// It runs, or is dropped: the source may still ask what became of it, once.
fn last_words(bundle: &Bundle, line: &mut Line, timeouts: &Timeouts) -> Result<(), MigrationError> {
    let until = Instant::now() + timeouts.message;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        match line.wait(&bundle.bell, left) {
            Woken::Bell => {}
            Woken::Time => return Ok(()),
            Woken::Peer => {
                let Ok(message) = line.hear() else { return Ok(()) };
                if let Some(word) = answer(bundle, &message)? {
                    line.send(&word)?;
                    line.linger(LINGER);
                }
                return Ok(());
            }
        }
    }
}
