//! The cache of what a driver compiles, while a process opens its driver.

use std::env;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use crate::code_cache::folder;
use crate::code_cache::folder::Folder;
use crate::code_cache::log::Log;
use crate::code_cache::store::Store;
use crate::memory::mapping::Access;
use crate::memory::mapping::Mapping;
use crate::vulkan::info::Info;
use crate::vulkan::info::Kind;

/// A process that goes on without a cache says so.
const NO_CACHE: &str = "kernels are compiled anew by each process of this engine";

/// The log, and the folder for the driver's files.
pub(super) struct CodeStart {
    folder: Folder,
    log: Log,
}

impl CodeStart {
    /// Over the log that came with the start message. None where the folder cannot be made. Call it before the process is restricted.
    pub(super) fn begin(log: OwnedFd, mib: u32) -> Option<Self> {
        let begin = || {
            let mapping = Mapping::new(log.into(), 0, u64::from(mib) << 20, Access::ReadWrite);
            let mapping = mapping.map_err(io::Error::other)?;
            let log = Log::new(Arc::new(mapping)).ok_or_else(|| io::Error::other("the log is too small"))?;
            let path = env::var_os(folder::VARIABLE);
            let path = path.ok_or_else(|| io::Error::other("its folder is not named"))?;
            let folder = Folder::make(Path::new(&path))
                .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
            Ok(Self { folder, log })
        };
        begin().inspect_err(|error: &io::Error| log::warn!("{NO_CACHE}: {error}")).ok()
    }

    /// Where the driver makes its files.
    pub(super) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// The cache, once the driver is open; the folder goes. None where the driver of this device has made none.
    pub(super) fn open(self, info: &Info) -> Option<Store> {
        let found = self.folder.find(info.kind == Kind::Cpu);
        let store = found.and_then(|found| Store::new(found, self.log));
        store.inspect_err(|error| log::info!("{NO_CACHE}: {error}")).ok()
    }
}
