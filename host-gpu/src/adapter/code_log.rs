//! The log of what a driver has compiled, as the daemon keeps it for the processes of an engine.

use std::fs::File;
use std::io;
use std::sync::Arc;

use rustix::fs::SealFlags;

use crate::code_cache::log::Claims;
use crate::code_cache::log::Log;
use crate::memory::mapping::Access;
use crate::memory::mapping::Mapping;
use crate::memory::vram::create_memfd;

/// The file, of a size that is sealed, and what the daemon reads of it: two counters, which engines write.
#[derive(Debug)]
pub struct CodeLog {
    pub(super) file: File,
    log: Option<Log>,
    mib: u32,
}

impl CodeLog {
    /// An empty one of so many MiB; none for 0.
    ///
    /// # Errors
    /// Memory or descriptors could not be had.
    pub fn new(mib: u32) -> io::Result<Option<Self>> {
        if mib == 0 {
            return Ok(None);
        }
        Self::over(create_memfd("campanile-code", u64::from(mib) << 20)?, mib).map(Some)
    }

    /// One of so many MiB that a daemon before this one has kept.
    ///
    /// # Errors
    /// The file is none, or has another size; descriptors could not be had.
    pub fn kept(file: File, mib: u32) -> io::Result<Self> {
        let invalid = |text: String| io::Error::new(io::ErrorKind::InvalidData, text);
        let (bytes, expected) = (file.metadata()?.len(), u64::from(mib) << 20);
        if bytes != expected {
            return Err(invalid(format!("a log of {bytes} bytes, not {expected}")));
        }
        // What can shrink would end this process when it is read.
        if !rustix::fs::fcntl_get_seals(&file)?.contains(SealFlags::SHRINK | SealFlags::GROW) {
            return Err(invalid("a log whose size is not sealed".to_owned()));
        }
        Self::over(file, mib)
    }

    fn over(file: File, mib: u32) -> io::Result<Self> {
        let bytes = u64::from(mib) << 20;
        let mapping =
            Mapping::new(file.try_clone()?, 0, bytes, Access::ReadWrite).map_err(io::Error::other)?;
        Ok(Self { file, log: Log::new(Arc::new(mapping)), mib })
    }

    /// The file, for a daemon after this one.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// MiB of it.
    pub fn mib(&self) -> u32 {
        self.mib
    }

    /// What engines say of it.
    pub fn claims(&self) -> Claims {
        self.log.as_ref().map(Log::claims).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use rustix::fs::MemfdFlags;
    use rustix::fs::memfd_create;

    use super::CodeLog;
    use crate::memory::vram::create_memfd;

    #[test]
    fn a_log_that_was_kept_has_its_size_sealed_and_what_was_in_it() {
        let log = CodeLog::new(1).unwrap().unwrap();
        assert!(log.log.as_ref().unwrap().put(b"code"));
        let again = CodeLog::kept(log.file().try_clone().unwrap(), 1).unwrap();
        assert_eq!((again.claims(), again.claims().added), (log.claims(), 1));
        let why = CodeLog::kept(create_memfd("log", 2 << 20).unwrap(), 1).unwrap_err();
        assert_eq!(why.to_string(), "a log of 2097152 bytes, not 1048576");
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = File::from(memfd_create("log", flags).unwrap());
        file.set_len(1 << 20).unwrap();
        assert_eq!(CodeLog::kept(file, 1).unwrap_err().to_string(), "a log whose size is not sealed");
    }
}
