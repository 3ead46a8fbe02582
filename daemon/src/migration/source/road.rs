//! The way to a target: lines that were accepted, or a file.

use std::sync::Mutex;
use std::sync::atomic::AtomicBool;

use super::departing::Departing;
use super::progress::Progress;
use super::progress::Step;
use crate::migration::brownout::pace::Pace;
use crate::migration::brownout::pass::Manner;
use crate::migration::brownout::pass::Sent;
use crate::migration::brownout::pass::Sink;
use crate::migration::brownout::pass::send_pending;
use crate::migration::brownout::sheet::Sheet;
use crate::migration::channel::address::Peer;
use crate::migration::channel::connect::connect;
use crate::migration::channel::line::Line;
use crate::migration::channel::message::Hello;
use crate::migration::channel::message::MAX_STREAMS;
use crate::migration::channel::message::Message;
use crate::migration::channel::message::OLDEST;
use crate::migration::channel::message::VERSION;
use crate::migration::error::MigrationError;
use crate::migration::id::BundleId;
use crate::migration::settings::Settings;

/// What a source says of itself.
pub fn hello(departing: &Departing, vgpu: &str, bundle: BundleId, streams: u8) -> Hello {
    Hello {
        version: VERSION,
        oldest: OLDEST,
        vgpu: vgpu.to_owned(),
        bundle,
        streams,
        memories: departing.memories().map(|memory| memory.length()),
        immutable: departing.immutable.clone(),
    }
}

/// Connects to a target, and has it look at what it will get.
///
/// # Errors
/// It cannot be reached, or refuses, and says why.
pub fn greet(
    departing: &Departing,
    vgpu: &str,
    bundle: BundleId,
    peer: &Peer,
    settings: &Settings,
) -> Result<Vec<Line>, MigrationError> {
    let limit = settings.patience.message;
    let open = |message: &Message| {
        let mut line = Line::new(connect(peer, settings.identity.as_ref(), limit)?, limit)?;
        line.send(message).map_err(|error| line.explain(error))?;
        match line.hear()? {
            Message::Accept { version } if (OLDEST..=VERSION).contains(&version) => Ok(line),
            other => Err(MigrationError::protocol(format!("{other:?} in answer to a greeting"))),
        }
    };
    let streams = settings.streams.clamp(1, MAX_STREAMS);
    let mut lines = vec![open(&Message::Hello(hello(departing, vgpu, bundle, streams)))?];
    for _ in 1..streams {
        lines.push(open(&Message::Join { bundle })?);
    }
    Ok(lines)
}

/// Pages on their way over sinks of one kind.
#[derive(Debug)]
pub struct Road<S> {
    /// The bundle.
    pub bundle: BundleId,
    /// The first is the one that is spoken over.
    pub sinks: Vec<S>,
    /// What is still to be sent.
    pub sheet: Sheet,
    passes: u32,
    /// Whether all that the sheet began with was sent.
    is_begun: bool,
    /// Sent in all.
    pub sum: Sent,
}

impl<S: Sink> Road<S> {
    /// Nothing was sent yet of what the sheet began with.
    pub fn new(bundle: BundleId, sinks: Vec<S>, sheet: Sheet) -> Self {
        Self { bundle, sinks, sheet, passes: 0, is_begun: false, sum: Sent::default() }
    }

    /// Whether a part of a first pass is still to be sent that must be over before the first query (DIRTY-61).
    pub fn owes_first_pass(&self, departing: &Departing) -> bool {
        !self.is_begun && departing.is_costly()
    }

    /// Passes so far.
    pub fn passes(&self) -> u32 {
        self.passes
    }

    /// Asks the trackers: bytes that are dirty.
    ///
    /// # Errors
    /// A tracker cannot say.
    pub fn query(&mut self, departing: &Departing, progress: &Progress) -> Result<u64, MigrationError> {
        self.sheet.query(departing.memories())?;
        let left = self.sheet.pending_bytes();
        progress.step(Step::Query { left_bytes: left });
        Ok(left)
    }

    /// Sends what the last query told, until `stop`.
    ///
    /// # Errors
    /// A sink failed.
    pub fn pass(
        &mut self,
        departing: &Departing,
        settings: &Settings,
        pace: Option<&Mutex<Pace>>,
        stop: &AtomicBool,
        progress: &Progress,
    ) -> Result<Sent, MigrationError> {
        self.passes = self.passes.saturating_add(1);
        let manner = Manner { zstd: settings.zstd, pace, stop, progress: &progress.in_pass };
        let memories = departing.memories();
        let sheet = Mutex::new(&mut self.sheet);
        let sent = send_pending(&sheet, memories, &mut self.sinks, self.passes, &manner)?;
        self.sum = self.sum.plus(sent);
        self.is_begun |= self.sheet.pending_bytes() == 0;
        progress.step(Step::Pass { pass: self.passes, bytes: sent.bytes() });
        Ok(sent)
    }
}

impl Road<Line> {
    /// Tells the target that the source is still there, while it waits.
    ///
    /// # Errors
    /// The target is not, or says why it gives up.
    pub fn still(&mut self) -> Result<(), MigrationError> {
        for line in &mut self.sinks {
            if line.is_readable() {
                let said = line.hear()?;
                return Err(MigrationError::protocol(format!("{said:?} while nothing was asked")));
            }
            line.send(&Message::Still).map_err(|error| line.explain(error))?;
        }
        Ok(())
    }

    /// All was sent, and nothing will change: the target holds it. The line that is spoken over is left.
    ///
    /// # Errors
    /// The target does not have all of it.
    pub fn complete(mut self) -> Result<Line, MigrationError> {
        if self.sheet.pending_bytes() > 0 {
            return Err(MigrationError::CalledOff("the last pass was cut short".to_owned()));
        }
        let mut line = self.sinks.remove(0);
        let (records, bytes) = (self.sum.records, self.sum.bytes());
        line.send(&Message::Complete { records, bytes }).map_err(|error| line.explain(error))?;
        match line.hear()? {
            Message::Stored => Ok(line),
            other => Err(MigrationError::protocol(format!("{other:?} where all was sent"))),
        }
    }

    /// It is over.
    pub fn give_up(mut self, reason: &str) {
        if let Some(line) = self.sinks.first_mut() {
            let _gone = line.send(&Message::give_up(&reason));
        }
    }
}
