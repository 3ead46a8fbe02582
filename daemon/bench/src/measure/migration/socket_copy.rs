//! What a plain copy of memory through a Unix socket does on this machine.

use std::io::Read;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::time::Instant;

use serde::Serialize;

/// A rate.
pub fn per_second(bytes: u64, micros: u64) -> f64 {
    bytes as f64 * 1e6 / (micros.max(1)) as f64
}

/// Bytes of a write.
const CHUNK: usize = 1 << 20;
/// Copies of each kind.
const ROUNDS: usize = 3;

/// What was measured, bytes per second.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct SocketCopy {
    /// Memory into fresh memory, as much as was migrated: each chunk is read from one place and stored in another.
    pub memory_bytes_per_s: f64,
    /// One chunk over and over into one buffer, which stays in the caches of both CPUs.
    pub chunk_bytes_per_s: f64,
}

/// Copies so many bytes from one thread to another, in both ways, and keeps the best of a few copies of each.
pub fn measure(bytes: u64) -> anyhow::Result<SocketCopy> {
    let length = usize::try_from(bytes)?.next_multiple_of(CHUNK);
    let memory = vec![0x5a_u8; length];
    let best = |source: &[u8]| {
        (0..ROUNDS).try_fold(0.0_f64, |best, _| Ok::<_, anyhow::Error>(best.max(copy(source, length)?)))
    };
    Ok(SocketCopy { memory_bytes_per_s: best(&memory)?, chunk_bytes_per_s: best(&memory[..CHUNK])? })
}

/// Sends `source` as often as it fits in `bytes`; what comes goes into as much fresh memory.
fn copy(source: &[u8], bytes: usize) -> anyhow::Result<f64> {
    let (mut out, mut back) = UnixStream::pair()?;
    let length = source.len();
    let begun = Instant::now();
    let reader = std::thread::spawn(move || -> std::io::Result<()> {
        let mut target = vec![0_u8; length];
        (0..bytes / CHUNK).try_for_each(|index| {
            let at = index * CHUNK % length;
            back.read_exact(&mut target[at..at + CHUNK])
        })
    });
    for index in 0..bytes / CHUNK {
        let at = index * CHUNK % length;
        out.write_all(&source[at..at + CHUNK])?;
    }
    reader.join().map_err(|_| anyhow::anyhow!("the reader panicked"))??;
    Ok(per_second(bytes as u64, u64::try_from(begun.elapsed().as_micros())?))
}
