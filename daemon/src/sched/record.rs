//! What a supervisor in another process has seen of an engine, in memory that both have: it alone stores there.
//!
//! ```text
//!   word 0   1 while the engine was asked to yield its node and has it still
//!   1 to 3   time held, due and wanted, nanoseconds
//!   4 to 18  yields by how long they took, the buckets of [`Latencies`](crate::latencies::Latencies)
//!   19       what all of them took together, nanoseconds
//! ```

use std::fs::File;
use std::io;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::time::Duration;

use campanile_host_gpu::memory::mapping::Access;
use campanile_host_gpu::memory::mapping::Mapping;
use campanile_host_gpu::memory::vram::create_memfd;

use super::measures::Measures;
use super::measures::Times;
use crate::latencies::BOUNDS_US;
use crate::latencies::Distribution;
use crate::latencies::bucket_of;

/// Bytes of a record.
pub const RECORD_BYTES: u64 = 4096;

const KEEPS: usize = 0;
const HELD: usize = 1;
const DUE: usize = 2;
const WANTED: usize = 3;
const YIELDS: usize = 4;
const YIELDS_SUM: usize = YIELDS + BOUNDS_US.len() + 1;

/// A record, of one process of an engine.
#[derive(Debug)]
pub struct Record(Mapping);

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Record {
    /// An empty one, and the file that it lies in.
    ///
    /// # Errors
    /// Memory or descriptors could not be had.
    pub fn new() -> io::Result<(Self, File)> {
        let file = create_memfd("campanile-turns", RECORD_BYTES)?;
        let mapping = Mapping::new(file.try_clone()?, 0, RECORD_BYTES, Access::ReadWrite);
        Ok((Self(mapping.map_err(io::Error::other)?), file))
    }

    /// The one in this memory, of [`RECORD_BYTES`].
    pub const fn over(mapping: Mapping) -> Self {
        Self(mapping)
    }

    fn word(&self, index: usize) -> Option<&AtomicU64> {
        self.0.word(index as u64 * 8)
    }

    fn load(&self, index: usize) -> u64 {
        self.word(index).map_or(0, |word| word.load(Ordering::Relaxed))
    }

    fn raise(&self, index: usize, by: u64) {
        if let Some(word) = self.word(index) {
            word.fetch_add(by, Ordering::Relaxed);
        }
    }

    /// Whether the engine keeps a node that it was asked to yield.
    pub fn keeps_node(&self) -> bool {
        self.load(KEEPS) != 0
    }

    /// What it had of its node.
    pub fn times(&self) -> Times {
        let [held, due, wanted] = [HELD, DUE, WANTED].map(|index| Duration::from_nanos(self.load(index)));
        Times { held, due, wanted }
    }

    /// How long its yields took.
    pub fn yields(&self) -> Distribution {
        let mut yields =
            Distribution { sum: Duration::from_nanos(self.load(YIELDS_SUM)), ..Distribution::default() };
        for (index, count) in yields.buckets.iter_mut().enumerate() {
            *count = self.load(YIELDS + index);
        }
        yields
    }
}

impl Measures for Record {
    fn add(&self, Times { held, due, wanted }: Times) {
        for (index, time) in [(HELD, held), (DUE, due), (WANTED, wanted)] {
            self.raise(index, nanoseconds(time));
        }
    }

    fn note_yield(&self, took: Duration) {
        self.raise(YIELDS + bucket_of(took), 1);
        self.raise(YIELDS_SUM, nanoseconds(took));
    }

    fn set_keeps(&self, keeps: bool) {
        if let Some(word) = self.word(KEEPS).filter(|_| self.keeps_node() != keeps) {
            word.store(u64::from(keeps), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use campanile_host_gpu::memory::mapping::Access;
    use campanile_host_gpu::memory::mapping::Mapping;

    use super::Measures;
    use super::RECORD_BYTES;
    use super::Record;
    use super::Times;
    use crate::latencies::Latencies;

    #[test]
    fn what_one_process_writes_the_other_one_reads() {
        let (read, file) = Record::new().unwrap();
        let written = Record::over(Mapping::new(file, 0, RECORD_BYTES, Access::ReadWrite).unwrap());
        let ms = Duration::from_millis;
        let latencies = Latencies::default();
        for took in [ms(2), ms(200), Duration::from_secs(60)] {
            written.note_yield(took);
            latencies.note(took);
        }
        assert_eq!(read.yields(), latencies.distribution());
        for _ in 0..2 {
            written.add(Times { held: ms(1), due: ms(2), wanted: ms(3) });
        }
        assert_eq!(read.times(), Times { held: ms(2), due: ms(4), wanted: ms(6) });
        for keeps in [true, true, false, true] {
            written.set_keeps(keeps);
            assert_eq!(read.keeps_node(), keeps);
        }
    }
}
