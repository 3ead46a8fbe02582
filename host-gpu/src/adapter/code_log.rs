//! The log of what a driver has compiled, as the daemon keeps it for the processes of an engine.

use std::fs::File;
use std::io;
use std::sync::Arc;

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
        let bytes = u64::from(mib) << 20;
        let file = create_memfd("campanile-code", bytes)?;
        let mapping =
            Mapping::new(file.try_clone()?, 0, bytes, Access::ReadWrite).map_err(io::Error::other)?;
        Ok(Some(Self { file, log: Log::new(Arc::new(mapping)), mib }))
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
