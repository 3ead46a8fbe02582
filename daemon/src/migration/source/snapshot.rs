//! A snapshot: a migration into a file, after which the guest goes on here (LM-07, LM-66).

use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Instant;

use serde_json::Value;
use serde_json::json;

use super::departure::Departure;
use super::departure::Job;
use super::progress::Step;
use super::sinks::Sinks;
use super::sinks::hello;
use crate::migration::channel::message::Message;
use crate::migration::error::MigrationError;
use crate::migration::file::write::Draft;
use crate::migration::id::BundleId;
use crate::migration::passes::dirty_bitmap::DirtyBitmap;
use crate::migration::passes::plan::Next;

impl Departure {
    /// Writes all of the vGPU into `path`, which is there whole or not at all. Most pages are written while the guest runs;
    /// `save` quiesces it and says its state, and `go_on`, which is always called after that, lets it go on.
    ///
    /// # Errors
    /// A migration is under way, the file cannot be written, or the vGPU does not stand still. The guest goes on.
    pub fn snapshot(
        &self,
        path: &Path,
        save: impl FnOnce() -> Result<Vec<u8>, String>,
        go_on: impl FnOnce(),
    ) -> Result<Value, MigrationError> {
        let job = self.begin_snapshot()?;
        let outcome = self.write_snapshot(&job, path, save, go_on);
        let words = match &outcome {
            Ok(_) => format!("a snapshot is in {}", path.display()),
            Err(error) => format!("no snapshot: {error}"),
        };
        self.end_snapshot(&job, &words);
        outcome
    }

    fn write_snapshot(
        &self,
        job: &Job,
        path: &Path,
        save: impl FnOnce() -> Result<Vec<u8>, String>,
        go_on: impl FnOnce(),
    ) -> Result<Value, MigrationError> {
        let (departing, settings, progress) = (&job.departing, &self.settings, &*job.progress);
        let bundle = BundleId::random()?;
        let mut draft = Draft::new(path)?;
        draft.say(&Message::Hello(hello(departing, &self.name, bundle, 1)))?;
        let dirty = DirtyBitmap::begin(departing.memories())?;
        progress.step(Step::Begin { left_bytes: dirty.pending_bytes() });
        let mut sinks = Sinks::new(bundle, vec![draft], dirty);
        let is_tracked = departing.memories().iter().all(|memory| memory.is_tracked());
        // Where nothing is tracked, all of it is written while the vGPU stands still.
        let mut goes_on = is_tracked;
        while goes_on {
            progress.begin_pass(sinks.dirty.pending_bytes());
            let sent = sinks.pass(departing, settings, None, &job.stop, progress)?;
            progress.end_pass(sinks.passes(), false, sent);
            let left = sinks.query(departing, progress)?;
            goes_on = settings.goal.next(sinks.passes(), left, progress.rate()) == Next::Pass;
        }
        let stopped = Instant::now();
        let state = save();
        let written = state.map_err(MigrationError::State).and_then(|state| {
            progress.begin_pass(sinks.query(departing, progress)?);
            let sent = sinks.pass(departing, settings, None, &job.stop, progress)?;
            progress.end_pass(sinks.passes(), true, sent);
            Ok(state)
        });
        progress.blackout(stopped.elapsed());
        go_on();
        let state = written?;
        if job.stop.load(Ordering::Acquire) || sinks.dirty.pending_bytes() > 0 {
            return Err(MigrationError::CalledOff("the VM moves, or is gone".to_owned()));
        }
        let (sum, passes) = (sinks.sum, sinks.passes());
        let mut draft = sinks.each.remove(0);
        draft.state(&state)?;
        draft.finish(&sum)?;
        Ok(json!({ "file": path, "passes": passes, "pages": sum.pages, "zero_pages": sum.zero_pages,
                   "bytes": sum.wire_bytes, "state_bytes": state.len() }))
    }
}
