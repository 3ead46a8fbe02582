//! The cache of what a driver compiles, while a process opens its driver.

use std::env;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use super::start_error::StartError;
use crate::code_cache::folder;
use crate::code_cache::folder::Folder;
use crate::code_cache::folder::Found;
use crate::code_cache::log::Log;
use crate::code_cache::store::Store;
use crate::memory::mapping::Access;
use crate::memory::mapping::Mapping;
use crate::vulkan::info::Info;
use crate::vulkan::info::Kind;

/// A process that goes on without a cache says so.
const NO_CACHE: &str = "kernels are compiled anew by each process of this engine";

/// The folder for the driver's files.
pub(super) struct CodeStart(Folder);

impl CodeStart {
    /// Makes it. None where it cannot be made. Call it before the process is restricted.
    pub(super) fn begin() -> Option<Self> {
        let begin = || {
            let path = env::var_os(folder::VARIABLE);
            let path = path.ok_or_else(|| io::Error::other("its folder is not named"))?;
            let folder = Folder::make(Path::new(&path))
                .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
            Ok(Self(folder))
        };
        begin().inspect_err(|error: &io::Error| log::warn!("{NO_CACHE}: {error}")).ok()
    }

    /// Where the driver makes its files.
    pub(super) fn path(&self) -> &Path {
        self.0.path()
    }

    /// The files of the driver, once it is open; the folder goes. None where the driver of this device has made none.
    pub(super) fn find(self, info: &Info) -> Option<Found> {
        let found = self.0.find(info.kind == Kind::Cpu, &info.to_string());
        found.inspect_err(|error| log::info!("{NO_CACHE}: {error}")).ok()
    }
}

/// The log that came along.
pub(super) fn open_log(log: OwnedFd, mib: u32) -> Result<Log, StartError> {
    let mapping = Mapping::new(log.into(), 0, u64::from(mib) << 20, Access::ReadWrite)?;
    Log::new(Arc::new(mapping))
        .ok_or_else(|| StartError::Node("the log of compiled code is too small".to_owned()))
}

/// The cache, over the files of the driver and the log of the engine.
pub(super) fn store(found: Found, log: Log) -> Option<Store> {
    Store::new(found, log).inspect_err(|error| log::info!("{NO_CACHE}: {error}")).ok()
}
