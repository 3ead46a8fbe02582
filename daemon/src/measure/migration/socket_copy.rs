//! What a plain copy of memory through a Unix socket does on this machine.

use std::io::Read;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::time::Instant;

use super::figures::per_second;

/// Bytes of a write.
const CHUNK: usize = 1 << 20;

/// Copies so many bytes from one thread to another; bytes per second.
pub fn measure(bytes: u64) -> anyhow::Result<f64> {
    let (mut out, mut back) = UnixStream::pair()?;
    let chunks = bytes.div_ceil(CHUNK as u64);
    let begun = Instant::now();
    let reader = std::thread::spawn(move || -> std::io::Result<()> {
        let mut target = vec![0_u8; CHUNK];
        (0..chunks).try_for_each(|_| back.read_exact(&mut target))
    });
    let source = vec![0x5a_u8; CHUNK];
    for _ in 0..chunks {
        out.write_all(&source)?;
    }
    reader.join().map_err(|_| anyhow::anyhow!("the reader panicked"))??;
    Ok(per_second(chunks * CHUNK as u64, u64::try_from(begun.elapsed().as_micros())?))
}
