//! What a target holds of a vGPU that is on its way.
//!
//! ```text
//!   HELLO ──▶ Stage: zero-filled memfds of the vGPU's shape ── records ──▶ sealed by COMPLETE ──▶ claimed by one LOAD
//!                └────────── any failure, a time-out, REVOKE: all of it is freed ──────────┘
//! ```
//!
//! No session has anything to do with a stage before it has claimed it, so that nothing is ever half applied (LM-39). A
//! stage takes no more memory of the host than the vGPU may.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::RwLock;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;

use campanile_host_gpu::memory::vram::create_memfd;

use crate::migration::channel::frame::MAX_DATA;
use crate::migration::channel::record::Encoding;
use crate::migration::channel::record::Record;
use crate::migration::channel::record::Run;
use crate::migration::error::MigrationError;
use crate::migration::lock::locked;
use crate::migration::memory::Memory;
use crate::migration::pages::PAGE;
use crate::migration::pages::PageSet;

/// The memories that a vGPU has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Bytes of each, by index.
    pub lengths: [u64; 2],
    /// Bytes that may lie in each.
    pub limits: [u64; 2],
}

/// One memory that was received.
#[derive(Debug)]
pub struct Staged {
    /// Its memfd, sealed in size.
    pub file: File,
    /// What has come: those pages count as written from the start (DIRTY-54).
    pub received: PageSet,
}

#[derive(Debug)]
struct Part {
    memory: Memory,
    file: File,
    length: u64,
    limit: u64,
    /// What has come, and how many pages that are.
    received: Mutex<(PageSet, u64)>,
}

/// The memories of one vGPU on their way; several lines write to it at a time.
#[derive(Debug)]
pub struct Stage {
    parts: [Part; 2],
    /// Whether nothing may be written any more.
    sealed: RwLock<bool>,
    records: AtomicU64,
    bytes: AtomicU64,
}

/// What unpacking needs, one for each line.
#[derive(Debug)]
pub struct Unpacker {
    bytes: Vec<u8>,
}

impl Default for Unpacker {
    fn default() -> Self {
        Self { bytes: vec![0; MAX_DATA] }
    }
}

static ZEROES: [u8; 64 << 10] = [0; 64 << 10];

impl Part {
    fn new(memory: Memory, shape: &Shape) -> io::Result<Self> {
        let length = shape.lengths[memory.index()];
        let name = match memory {
            Memory::Vram => "campanile-vram",
            Memory::Evicted => "campanile-evicted",
        };
        let file = create_memfd(name, length)?;
        let received = Mutex::new((PageSet::none(length / PAGE), 0));
        Ok(Self { memory, file, length, limit: shape.limits[memory.index()], received })
    }

    /// Counts pages in, if they may lie here.
    fn admit(&self, runs: &[Run]) -> Result<(), MigrationError> {
        let refuse = |what| Err(MigrationError::Bounds { memory: self.memory, what });
        let ends_inside =
            |run: &Run| run.offset.checked_add(run.bytes()).is_some_and(|end| end <= self.length);
        if !runs.iter().all(ends_inside) {
            return refuse("pages past its end");
        }
        let mut guard = locked(&self.received);
        let (received, count) = &mut *guard;
        let pages = |run: &Run| run.offset / PAGE..run.offset / PAGE + u64::from(run.pages);
        let fresh: u64 = runs
            .iter()
            .filter(|run| !run.is_zero)
            .map(|run| u64::from(run.pages) - received.count_in(pages(run)))
            .sum();
        if (*count + fresh) * PAGE > self.limit {
            return refuse("more than may lie in it");
        }
        for run in runs.iter().filter(|run| !run.is_zero) {
            *count += u64::from(run.pages) - received.count_in(pages(run));
            received.insert(pages(run));
        }
        Ok(())
    }

    /// Through the file: a store would fault every fresh page in, and zero it before.
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), MigrationError> {
        let failed = |source| MigrationError::Storing { memory: self.memory, source };
        self.file.write_all_at(bytes, offset).map_err(failed)
    }

    /// Zeroes what has come of a run; the rest is zero as it is, and takes no memory.
    fn zero(&self, run: &Run) -> Result<(), MigrationError> {
        let (mut at, end) = (run.offset / PAGE, run.offset / PAGE + u64::from(run.pages));
        while at < end {
            let found = locked(&self.received).0.next_run(at, ZEROES.len() as u64 / PAGE);
            let Some(found) = found.filter(|found| found.start < end) else { break };
            let pages = found.end.min(end) - found.start;
            let length = usize::try_from(pages * PAGE).unwrap_or(0);
            self.write(found.start * PAGE, &ZEROES[..length])?;
            at = found.start + pages;
        }
        Ok(())
    }
}

impl Stage {
    /// Zero-filled memories.
    ///
    /// # Errors
    /// They cannot be had.
    pub fn new(shape: &Shape) -> io::Result<Self> {
        Ok(Self {
            parts: [Part::new(Memory::Vram, shape)?, Part::new(Memory::Evicted, shape)?],
            sealed: RwLock::new(false),
            records: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        })
    }

    /// Writes a record.
    ///
    /// # Errors
    /// It does not fit, or all was said to have come already. What was written of it then does no harm: the stage is dropped.
    pub fn apply(&self, record: &Record<'_>, unpacker: &mut Unpacker) -> Result<(), MigrationError> {
        let sealed = self.sealed.read().unwrap_or_else(PoisonError::into_inner);
        if *sealed {
            return Err(MigrationError::protocol("pages after all had come"));
        }
        let part = &self.parts[record.memory.index()];
        part.admit(&record.runs)?;
        let data = match record.encoding {
            Encoding::Raw => record.payload,
            Encoding::Zstd => {
                let room = &mut unpacker.bytes[..record.data];
                match zstd::bulk::decompress_to_buffer(record.payload, room) {
                    Ok(count) if count == record.data => &unpacker.bytes[..count],
                    _ => return Err(MigrationError::Corrupt("packed data cannot be unpacked")),
                }
            }
        };
        let (mut rest, mut bytes) = (data, 0);
        for run in &record.runs {
            bytes += run.bytes();
            if run.is_zero {
                part.zero(run)?;
                continue;
            }
            let length = usize::try_from(run.bytes()).unwrap_or(usize::MAX);
            let Some((here, behind)) = rest.split_at_checked(length) else {
                return Err(MigrationError::protocol("a record: less data than its runs need"));
            };
            part.write(run.offset, here)?;
            rest = behind;
        }
        self.records.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Nothing may be written from here on.
    ///
    /// # Errors
    /// What has come is not what was sent.
    pub fn seal(&self, records: u64, bytes: u64) -> Result<(), MigrationError> {
        let mut sealed = self.sealed.write().unwrap_or_else(PoisonError::into_inner);
        if *sealed {
            return Err(MigrationError::protocol("all has come already"));
        }
        *sealed = true;
        let (had, has) = (self.records.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed));
        if (had, has) == (records, bytes) {
            Ok(())
        } else {
            Err(MigrationError::Protocol(format!(
                "{records} records of {bytes} bytes were sent, and {had} of {has} have come"
            )))
        }
    }

    /// Bytes of pages that have come, with zero pages.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// The memories, for the device that claims them.
    ///
    /// # Errors
    /// No descriptor is left, or not all has come.
    pub fn memories(&self) -> io::Result<[Staged; 2]> {
        if !*self.sealed.read().unwrap_or_else(PoisonError::into_inner) {
            return Err(io::Error::other("not all of it has come"));
        }
        let staged = |part: &Part| {
            Ok::<_, io::Error>(Staged {
                file: part.file.try_clone()?,
                received: locked(&part.received).0.clone(),
            })
        };
        Ok([staged(&self.parts[0])?, staged(&self.parts[1])?])
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use proptest::collection::vec;
    use proptest::prelude::any;
    use proptest::proptest;

    use super::Shape;
    use super::Stage;
    use super::Unpacker;
    use crate::migration::channel::frame;
    use crate::migration::channel::record::Record;
    use crate::migration::channel::record::RecordWriter;
    use crate::migration::memory::Memory;
    use crate::migration::pages::PAGE;

    const LENGTH: u64 = 64 * PAGE;
    const SHAPE: Shape = Shape { lengths: [LENGTH, LENGTH], limits: [LENGTH, 4 * PAGE] };

    fn record(memory: Memory, pages: &[(u64, u8)], level: Option<i32>) -> (Vec<u8>, u64) {
        let mut writer = RecordWriter::default();
        let length = usize::try_from(PAGE).unwrap();
        let room = writer.room(pages.len() * length);
        for (chunk, (_, fill)) in room.chunks_exact_mut(length).zip(pages) {
            chunk.fill(*fill);
        }
        let ranges: Vec<(u64, usize)> = pages.iter().map(|(page, _)| (page * PAGE, length)).collect();
        let (bytes, zeroes) = writer.finish(memory, &ranges, level, 0);
        (bytes[frame::HEADER..].to_vec(), zeroes)
    }

    fn contents(stage: &Stage, memory: Memory) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(LENGTH).unwrap()];
        stage.parts[memory.index()].file.read_exact_at(&mut bytes, 0).unwrap();
        bytes
    }

    proptest! {
        #[test]
        fn lm_09_a_stage_holds_what_was_sent_whatever_the_packing(
            writes in vec((vec((0u64..64, 0u8..3), 1..40), any::<bool>()), 1..8),
        ) {
            let stage = Stage::new(&SHAPE).unwrap();
            let mut unpacker = Unpacker::default();
            let mut model = vec![0; usize::try_from(LENGTH).unwrap()];
            let (mut records, mut bytes) = (0, 0);
            for (mut pages, packed) in writes {
                pages.sort_unstable();
                pages.dedup_by_key(|(page, _)| *page);
                let (body, zeroes) = record(Memory::Vram, &pages, packed.then_some(1));
                assert_eq!(zeroes, pages.iter().filter(|(_, fill)| *fill == 0).count() as u64);
                stage.apply(&Record::decode(&body).unwrap(), &mut unpacker).unwrap();
                for (page, fill) in pages {
                    let at = usize::try_from(page * PAGE).unwrap();
                    model[at..at + 4096].fill(fill);
                    bytes += PAGE;
                }
                records += 1;
            }
            assert_eq!(contents(&stage, Memory::Vram), model);
            assert!(stage.memories().is_err(), "not sealed");
            stage.seal(records, bytes).unwrap();
            let [vram, evicted] = stage.memories().unwrap();
            // What was received counts as written; zero pages that nothing was in do not.
            for page in 0..64 {
                let at = usize::try_from(page * PAGE).unwrap();
                assert!(vram.received.contains(page) || model[at] == 0);
            }
            assert!(evicted.received.is_empty());
        }

        #[test]
        fn a_record_that_was_changed_is_refused_or_stays_inside(
            pages in vec((0u64..64, 0u8..3), 1..9), packed in any::<bool>(),
            changes in vec((0usize..200, any::<u8>()), 1..6), cut in any::<bool>(),
        ) {
            let (mut body, _) = record(Memory::Evicted, &pages, packed.then_some(1));
            for (at, value) in changes {
                // Heads and runs are what is worth changing.
                let length = body.len();
                let at = if at % 2 == 0 { at % 16 } else { length - 1 - at % length.min(64) };
                body[at] = value;
                if cut { body.truncate(length - 1); }
            }
            let stage = Stage::new(&SHAPE).unwrap();
            if let Ok(record) = Record::decode(&body) {
                let _either = stage.apply(&record, &mut Unpacker::default());
                assert!(super::locked(&stage.parts[1].received).0.count() <= 4, "the limit holds");
            }
        }
    }

    #[test]
    fn lm_40_pages_past_the_end_too_many_or_too_late_are_refused() {
        let stage = Stage::new(&SHAPE).unwrap();
        let apply = |memory, pages: &[(u64, u8)]| {
            let (body, _) = record(memory, pages, None);
            stage.apply(&Record::decode(&body).unwrap(), &mut Unpacker::default()).map_err(|e| e.to_string())
        };
        let past = apply(Memory::Vram, &[(64, 1)]).unwrap_err();
        assert!(past.contains("past its end"), "{past}");
        apply(Memory::Evicted, &[(0, 1), (1, 1), (2, 1), (3, 1)]).unwrap();
        apply(Memory::Evicted, &[(0, 2), (9, 0)]).unwrap();
        let many = apply(Memory::Evicted, &[(5, 1)]).unwrap_err();
        assert!(many.contains("more than may lie"), "{many}");
        stage.seal(2, 6 * PAGE).unwrap();
        let late = apply(Memory::Vram, &[(0, 1)]).unwrap_err();
        assert!(late.contains("after all had come"), "{late}");
        assert!(stage.seal(2, 6 * PAGE).is_err());
        assert!(Stage::new(&SHAPE).unwrap().seal(1, PAGE).is_err(), "less has come than was sent");
    }
}
