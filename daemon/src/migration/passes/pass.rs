//! One pass: all pending pages over all lines.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;
use std::time::Instant;

use campanile_host_gpu::dirty::elsewhere::Ahead;
use campanile_host_gpu::log_limit::inherit;
use serde::Serialize;

use super::dirty_bitmap::Batch;
use super::dirty_bitmap::DirtyBitmap;
use super::pace::Pace;
use crate::migration::channel::line::Line;
use crate::migration::channel::message::Message;
use crate::migration::channel::record::RecordWriter;
use crate::migration::error::MigrationError;
use crate::migration::lock::locked;
use crate::migration::memory::MovingMemory;
use crate::migration::pages::PAGE;

/// Batches that a line claims at most, the one that it sends included.
const CLAIMS: usize = 8;
/// How long a sender waits at a time for the bandwidth, before it looks whether it is still wanted.
const NAP: Duration = Duration::from_millis(20);

/// What was sent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Sent {
    /// Records.
    pub records: u64,
    /// Pages, with zero pages.
    pub pages: u64,
    /// Zero pages.
    pub zero_pages: u64,
    /// Bytes on the line.
    pub wire_bytes: u64,
    /// How long it took.
    pub microseconds: u64,
}

impl Sent {
    /// Both together.
    pub fn plus(self, other: Self) -> Self {
        Self {
            records: self.records + other.records,
            pages: self.pages + other.pages,
            zero_pages: self.zero_pages + other.zero_pages,
            wire_bytes: self.wire_bytes + other.wire_bytes,
            microseconds: self.microseconds + other.microseconds,
        }
    }

    /// Bytes of the pages.
    pub fn bytes(&self) -> u64 {
        self.pages * PAGE
    }

    /// How long it took.
    pub fn time(&self) -> Duration {
        Duration::from_micros(self.microseconds)
    }
}

/// How a pass is sent.
#[derive(Debug)]
pub struct Manner<'a> {
    /// Level of zstd, if pages are packed.
    pub zstd: Option<i32>,
    /// The bandwidth, if it is limited.
    pub pace: Option<&'a Mutex<Pace>>,
    /// Set to have it end between two records.
    pub stop: &'a AtomicBool,
    /// Bytes of pages sent so far, for observers.
    pub progress: &'a AtomicU64,
}

/// Where records go: a line, or a file.
pub trait Sink: Send {
    /// The number of the next frame.
    fn next_sequence(&self) -> u64;

    /// Takes one.
    ///
    /// # Errors
    /// It cannot be sent or written.
    fn put(&mut self, frame: &[u8]) -> Result<(), MigrationError>;

    /// Waits until everything before is where it should be.
    ///
    /// # Errors
    /// It is not.
    fn finish_pass(&mut self, pass: u32) -> Result<(), MigrationError>;
}

impl Sink for Line {
    fn next_sequence(&self) -> u64 {
        Self::next_sequence(self)
    }

    fn put(&mut self, frame: &[u8]) -> Result<(), MigrationError> {
        if self.is_readable() {
            // Whatever it is, it ends the pass: nothing is to be said before it does.
            let said = self.hear()?;
            return Err(MigrationError::protocol(format!("{said:?} amid a pass")));
        }
        self.send_frame(frame).map_err(|error| self.explain(error))
    }

    fn finish_pass(&mut self, pass: u32) -> Result<(), MigrationError> {
        self.send(&Message::PassEnd { pass }).map_err(|error| self.explain(error))?;
        match self.hear()? {
            Message::PassDone { pass: done } if done == pass => Ok(()),
            other => Err(MigrationError::protocol(format!("{other:?} after pass {pass}"))),
        }
    }
}

/// Sends what is pending over `sinks`, each with a thread of its own but the first, which the caller is. Returns what
/// was sent; pages that were not, because of `stop`, are still pending.
///
/// # Errors
/// A sink failed, or a memory cannot be read. What is pending then says nothing.
pub fn send_pending<S: Sink>(
    dirty: &Mutex<&mut DirtyBitmap>,
    memories: [&dyn MovingMemory; 2],
    sinks: &mut [S],
    pass: u32,
    manner: &Manner<'_>,
) -> Result<Sent, MigrationError> {
    let begun = Instant::now();
    let failed = AtomicBool::new(false);
    let one = |sink: &mut S| {
        let sent = send_over(dirty, memories, sink, manner, &failed).and_then(|sent| {
            if failed.load(Ordering::Relaxed) {
                return Ok(sent);
            }
            sink.finish_pass(pass).map(|()| sent)
        });
        if sent.is_err() {
            failed.store(true, Ordering::Relaxed);
        }
        sent
    };
    let outcomes: Vec<Result<Sent, MigrationError>> = thread::scope(|scope| {
        let Some((first, others)) = sinks.split_first_mut() else { return Vec::new() };
        let one = &one;
        let others: Vec<_> = others.iter_mut().map(|sink| scope.spawn(inherit(move || one(sink)))).collect();
        let first = one(first);
        let panicked = || Err(MigrationError::State("a sending thread ended".to_owned()));
        std::iter::once(first)
            .chain(others.into_iter().map(|other| other.join().unwrap_or_else(|_| panicked())))
            .collect()
    });
    let mut sum = Sent::default();
    for outcome in outcomes {
        sum = sum.plus(outcome?);
    }
    sum.microseconds = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
    Ok(sum)
}

/// Batches that a line has claimed, the first of which it sends next: the others are being read meanwhile. What it does not come to is pending again.
struct Claims<'a, 'b> {
    dirty: &'a Mutex<&'b mut DirtyBitmap>,
    memories: [&'a dyn MovingMemory; 2],
    claimed: VecDeque<(Batch, Vec<Option<Ahead<'a>>>)>,
}

impl<'a, 'b> Claims<'a, 'b> {
    fn new(dirty: &'a Mutex<&'b mut DirtyBitmap>, memories: [&'a dyn MovingMemory; 2]) -> Self {
        Self { dirty, memories, claimed: VecDeque::new() }
    }

    /// The next batch, and what of its ranges was begun to be read.
    fn take(&mut self) -> Option<(Batch, Vec<Option<Ahead<'a>>>)> {
        while self.claimed.len() < CLAIMS {
            let Some(batch) = locked(self.dirty).next_batch() else { break };
            let memory = self.memories[batch.memory.index()];
            let begin = |(offset, length): &(u64, usize)| memory.read_ahead(*offset, *length as u64);
            let reads: Vec<_> = batch.ranges.iter().map(begin).collect();
            let is_begun = reads.iter().all(Option::is_some);
            self.claimed.push_back((batch, reads));
            // What is read when it is sent may as well be sent by another line.
            if !is_begun {
                break;
            }
        }
        self.claimed.pop_front()
    }
}

impl Drop for Claims<'_, '_> {
    fn drop(&mut self) {
        for (batch, _) in &self.claimed {
            locked(self.dirty).put_back(batch);
        }
    }
}

fn send_over<S: Sink>(
    dirty: &Mutex<&mut DirtyBitmap>,
    memories: [&dyn MovingMemory; 2],
    sink: &mut S,
    manner: &Manner<'_>,
    failed: &AtomicBool,
) -> Result<Sent, MigrationError> {
    let mut writer = RecordWriter::default();
    let mut sent = Sent::default();
    let mut claims = Claims::new(dirty, memories);
    while !manner.stop.load(Ordering::Relaxed) && !failed.load(Ordering::Relaxed) {
        let Some((batch, reads)) = claims.take() else { break };
        let memory = memories[batch.memory.index()];
        let mut room = writer.room(batch.bytes());
        for ((offset, length), ahead) in batch.ranges.iter().zip(reads) {
            let (here, rest) = room.split_at_mut(*length);
            let unreadable = |error| MigrationError::State(format!("{}: {error}", batch.memory));
            match ahead {
                Some(read) => read(here).map_err(unreadable)?,
                None => memory.read(*offset, here).map_err(unreadable)?,
            }
            room = rest;
        }
        let (frame, zeroes) = writer.finish(batch.memory, &batch.ranges, manner.zstd, sink.next_sequence());
        if let Some(pace) = manner.pace {
            wait(pace, frame.len(), manner.stop);
        }
        sink.put(frame)?;
        sent.records += 1;
        sent.pages += batch.bytes() as u64 / PAGE;
        sent.zero_pages += zeroes;
        sent.wire_bytes += frame.len() as u64;
        manner.progress.fetch_add(batch.bytes() as u64, Ordering::Relaxed);
    }
    Ok(sent)
}

/// Waits for the bandwidth; no longer once the pass is to end.
/// Waits until so many bytes may be sent, or `stop`.
pub(in crate::migration) fn wait(pace: &Mutex<Pace>, bytes: usize, stop: &AtomicBool) {
    let until = Instant::now() + locked(pace).take(bytes, Instant::now());
    while !stop.load(Ordering::Relaxed) {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        thread::sleep(left.min(NAP));
    }
}

/// Gives the calling thread, and those that it starts, the least weight that a thread can have (LM-13).
pub fn lower_priority() {
    if let Err(error) = rustix::process::setpriority_process(None, 19) {
        log::debug!("a migration thread keeps its priority: {error}");
    }
}

#[cfg(test)]
mod tests;
