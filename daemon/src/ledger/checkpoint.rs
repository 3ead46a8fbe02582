//! A device at work, in memory that outlives this process.
//!
//! ```text
//!   0   magic (8) │ version (4) │ 0 (4) │ bytes that hold (8): 0 for none      24   the device
//! ```
//!
//! Little-endian. One thread writes it, the one that the device changes on: before anything changes the word becomes 0, and when the device is
//! written the bytes come first. So what holds is the device as it is, at whatever moment this process is killed.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;

use campanile_host_gpu::memory::mapping::Access;
use campanile_host_gpu::memory::mapping::Mapping;
use campanile_host_gpu::memory::vram::create_memfd;

/// First bytes of a checkpoint.
const MAGIC: [u8; 8] = *b"CAMPCHKP";
/// Version of what is written. Raised when an older daemon could not read it, or would read it wrongly.
const VERSION: u32 = 1;
/// Where the word lies that says how much holds.
const HOLDS: u64 = 16;
/// Bytes before the device.
const HEADER: u64 = 24;
const HEADER_BYTES: usize = 24;
/// Bytes of a device at the most: a state has 4 MiB, and its rings less than 1.
pub const MAX_BYTES: usize = 5 << 20;

/// Why one cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// Reading failed.
    #[error("the checkpoint cannot be read")]
    Read(#[from] io::Error),
    /// It is none.
    #[error("the checkpoint does not begin as one")]
    Magic,
    /// Another daemon has written it.
    #[error("the checkpoint has version {0}; this daemon reads {VERSION}")]
    Version(u32),
    /// It says that more holds than there can be.
    #[error("the checkpoint is to have {0} bytes")]
    TooLong(u64),
}

/// One that is written.
#[derive(Debug)]
pub struct Checkpoint {
    file: File,
    header: Mapping,
}

impl Checkpoint {
    /// One that nothing holds of.
    ///
    /// # Errors
    /// No memory or descriptor is left.
    pub fn new() -> io::Result<Self> {
        let file = create_memfd("campanile-checkpoint", HEADER + MAX_BYTES as u64)?;
        let mut head = MAGIC.to_vec();
        head.extend(VERSION.to_le_bytes());
        file.write_all_at(&head, 0)?;
        let header = Mapping::new(file.try_clone()?, 0, HEADER, Access::ReadWrite);
        Ok(Self { file, header: header.map_err(io::Error::other)? })
    }

    /// Its file.
    pub fn file(&self) -> &File {
        &self.file
    }

    fn word(&self) -> Option<&AtomicU64> {
        self.header.word(HOLDS)
    }

    /// Nothing that was written holds any more. To be said before anything of the device changes.
    pub fn forget(&self) {
        if let Some(word) = self.word() {
            word.store(0, Ordering::SeqCst);
        }
    }

    /// This is the device, until [`Self::forget`].
    ///
    /// # Errors
    /// It is too large, or there is no memory for it: nothing holds then.
    pub fn write(&self, device: &[u8]) -> io::Result<()> {
        self.forget();
        if device.is_empty() || device.len() > MAX_BYTES {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.file.write_all_at(device, HEADER)?;
        let word = self.word().ok_or(io::ErrorKind::UnexpectedEof)?;
        word.store(device.len() as u64, Ordering::SeqCst);
        Ok(())
    }
}

/// The device of a checkpoint that another process has written, if it holds: once, so that one which this daemon does not survive is not taken by
/// the next.
///
/// # Errors
/// It is none, or cannot be read.
pub fn take(file: &File) -> Result<Option<Vec<u8>>, CheckpointError> {
    let mut header = [0; HEADER_BYTES];
    file.read_exact_at(&mut header, 0)?;
    if header[..8] != MAGIC {
        return Err(CheckpointError::Magic);
    }
    let version = header[8..].first_chunk().copied().map_or(0, u32::from_le_bytes);
    if version != VERSION {
        return Err(CheckpointError::Version(version));
    }
    let bytes = header[16..].first_chunk().copied().map_or(0, u64::from_le_bytes);
    if bytes == 0 {
        return Ok(None);
    }
    let length = usize::try_from(bytes).ok().filter(|length| *length <= MAX_BYTES);
    let mut device = vec![0; length.ok_or(CheckpointError::TooLong(bytes))?];
    file.read_exact_at(&mut device, HEADER)?;
    file.write_all_at(&[0; 8], HOLDS)?;
    Ok(Some(device))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::Checkpoint;
    use super::CheckpointError;
    use super::HOLDS;
    use super::MAX_BYTES;
    use super::take;
    use campanile_host_gpu::memory::vram::create_memfd;

    #[test]
    fn cont_21_what_is_written_holds_until_it_is_forgotten_and_is_taken_once() {
        let checkpoint = Checkpoint::new().unwrap();
        assert_eq!(take(checkpoint.file()).unwrap(), None, "nothing was written");
        for device in [&b"a device"[..], b"it"] {
            checkpoint.write(device).unwrap();
            assert_eq!(take(checkpoint.file()).unwrap().as_deref(), Some(device));
            assert_eq!(take(checkpoint.file()).unwrap(), None, "it was taken");
        }
        checkpoint.write(b"a device").unwrap();
        checkpoint.forget();
        assert_eq!(take(checkpoint.file()).unwrap(), None);
        checkpoint.write(b"a device").unwrap();
        assert!(checkpoint.write(&vec![0; MAX_BYTES + 1]).is_err() && checkpoint.write(b"").is_err());
        assert_eq!(
            take(checkpoint.file()).unwrap(),
            None,
            "a device that is too large is not as the last one"
        );
    }

    #[test]
    fn cont_14_a_checkpoint_that_is_cut_or_none_or_of_another_version_or_too_long_is_refused_by_what_is_wrong()
     {
        let written = || {
            let checkpoint = Checkpoint::new().unwrap();
            checkpoint.write(b"a device").unwrap();
            checkpoint.file().try_clone().unwrap()
        };
        let short = create_memfd("short", 20).unwrap();
        assert!(matches!(take(&short), Err(CheckpointError::Read(_))));
        let other = written();
        other.write_all_at(b"x", 0).unwrap();
        assert!(matches!(take(&other), Err(CheckpointError::Magic)));
        let later = written();
        later.write_all_at(&9u32.to_le_bytes(), 8).unwrap();
        assert!(matches!(take(&later), Err(CheckpointError::Version(9))));
        let long = written();
        long.write_all_at(&(MAX_BYTES as u64 + 1).to_le_bytes(), HOLDS).unwrap();
        assert!(matches!(take(&long), Err(CheckpointError::TooLong(_))));
    }
}
