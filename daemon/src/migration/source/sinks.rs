//! The sinks of one migration, and what is still to be sent: the lines that a target has accepted, or a file.

use std::sync::Mutex;
use std::sync::atomic::AtomicBool;

use super::departing::Departing;
use super::progress::Progress;
use super::progress::Step;
use tracing::field::Empty;

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
use crate::migration::passes::dirty_bitmap::DirtyBitmap;
use crate::migration::passes::pace::Pace;
use crate::migration::passes::pass::Manner;
use crate::migration::passes::pass::Sent;
use crate::migration::passes::pass::Sink;
use crate::migration::passes::pass::send_pending;
use crate::migration::settings::Settings;
use crate::vgpu::objects::spans::TARGET;

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

/// Connects to a target, and has it look at what it will get. The version that it speaks, and the lines.
///
/// # Errors
/// It cannot be reached, or refuses, and says why.
pub fn greet(
    departing: &Departing,
    vgpu: &str,
    bundle: BundleId,
    peer: &Peer,
    settings: &Settings,
) -> Result<(u32, Vec<Line>), MigrationError> {
    let limit = settings.timeouts.message;
    let open = |message: &Message| {
        let mut line = Line::new(connect(peer, settings.identity.as_ref(), limit)?, limit)?;
        line.send(message).map_err(|error| line.explain(error))?;
        match line.hear()? {
            Message::Accept { version } if (OLDEST..=VERSION).contains(&version) => Ok((version, line)),
            other => Err(MigrationError::protocol(format!("{other:?} in answer to a greeting"))),
        }
    };
    let streams = settings.streams.clamp(1, MAX_STREAMS);
    let (version, first) = open(&Message::Hello(hello(departing, vgpu, bundle, streams)))?;
    let mut lines = vec![first];
    for _ in 1..streams {
        lines.push(open(&Message::Join { bundle })?.1);
    }
    Ok((version, lines))
}

/// Sinks of one kind, and the pages that go into them.
#[derive(Debug)]
pub struct Sinks<S> {
    /// The bundle.
    pub bundle: BundleId,
    /// The first is the one that messages go over.
    pub each: Vec<S>,
    /// What is still to be sent.
    pub dirty: DirtyBitmap,
    passes: u32,
    /// Whether all that was dirty at first was sent.
    is_begun: bool,
    /// Sent in all.
    pub sum: Sent,
}

impl<S: Sink> Sinks<S> {
    /// Nothing was sent yet of what is dirty.
    pub fn new(bundle: BundleId, each: Vec<S>, dirty: DirtyBitmap) -> Self {
        Self { bundle, each, dirty, passes: 0, is_begun: false, sum: Sent::default() }
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
        self.dirty.query(departing.memories())?;
        let left = self.dirty.pending_bytes();
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
        let span = tracing::debug_span!(target: TARGET, "pass", pass = self.passes, bytes = Empty).entered();
        let manner = Manner { zstd: settings.zstd, pace, stop, progress: &progress.in_pass };
        let memories = departing.memories();
        let dirty = Mutex::new(&mut self.dirty);
        let sent = send_pending(&dirty, memories, &mut self.each, self.passes, &manner)?;
        self.sum = self.sum.plus(sent);
        self.is_begun |= self.dirty.pending_bytes() == 0;
        span.record("bytes", sent.bytes());
        progress.step(Step::Pass { pass: self.passes, bytes: sent.bytes() });
        Ok(sent)
    }
}

impl Sinks<Line> {
    /// Tells the target that the source is still there, while it waits.
    ///
    /// # Errors
    /// The target is not, or says why it gives up.
    pub fn still(&mut self) -> Result<(), MigrationError> {
        for line in &mut self.each {
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
        if self.dirty.pending_bytes() > 0 {
            return Err(MigrationError::CalledOff("the last pass was cut short".to_owned()));
        }
        let mut line = self.each.remove(0);
        let (records, bytes) = (self.sum.records, self.sum.bytes());
        line.send(&Message::Complete { records, bytes }).map_err(|error| line.explain(error))?;
        match line.hear()? {
            Message::Stored => Ok(line),
            other => Err(MigrationError::protocol(format!("{other:?} where all was sent"))),
        }
    }

    /// It is over.
    pub fn give_up(mut self, reason: &str) {
        if let Some(line) = self.each.first_mut() {
            let _gone = line.send(&Message::give_up(&reason));
        }
    }
}
