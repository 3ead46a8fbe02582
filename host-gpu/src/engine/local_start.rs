//! Local memory of a device's own, as an engine is given it, and the process that allocates it.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread;

use super::message::Local;
use super::message::START_DESCRIPTORS;
use super::message::Start;
use super::mover::Mover;
use super::start_error::StartError;
use crate::memory::local::LocalMemory;
use crate::memory::mapping::Access;
use crate::memory::mapping::Mapping;
use crate::node::local_copies;
use crate::node::local_copies::LocalCopies;
use crate::vulkan::driver::Driver;
use crate::vulkan::info::Info;
use crate::vulkan::local::Exported;
use crate::vulkan::options::Executor;
use crate::vulkan::options::Options;

/// How much nicer the threads that run kernels are than those that give them work, whose CPU slices are shorter, too: on a
/// CPU driver they take all cores, and the thread that wakes up to say what comes next should not have to wait for
/// them.
const DRIVER_NICE: i32 = 5;

/// What a start message brings of local memory.
pub(super) struct LocalFiles {
    /// What is known of it.
    pub(super) local: LocalMemory,
    /// Itself.
    pub(super) memory: OwnedFd,
    /// What is evicted.
    evicted: File,
}

/// What a copy node copies by.
pub(super) struct Copies {
    /// For what guests copy.
    pub(super) copies: LocalCopies,
    /// For what the daemon has moved.
    pub(super) mover: Mover,
    pub(super) info: Info,
}

impl LocalFiles {
    /// Takes the last two descriptors, where local memory is a device's own.
    pub(super) fn take(start: &Start, descriptors: &mut Vec<OwnedFd>) -> Result<Option<Self>, StartError> {
        let Local::Device(local) = start.local else { return Ok(None) };
        let count = descriptors.len();
        match (descriptors.pop(), descriptors.pop()) {
            (Some(evicted), Some(memory)) => Ok(Some(Self { local, memory, evicted: evicted.into() })),
            _ => Err(StartError::Descriptors(count, START_DESCRIPTORS + start.local.descriptors())),
        }
    }

    /// What copies from and to it, on this device instance.
    pub(super) fn copies(&self, driver: Driver) -> Result<LocalCopies, StartError> {
        let copies = LocalCopies::new(driver, self.local, self.memory.try_clone()?);
        copies.map_err(|error| StartError::Node(error.to_string()))
    }
}

/// Opens the device that the operator wants.
pub(super) fn open_driver(start: &Start) -> Result<Driver, StartError> {
    let Start { profile, is_realtime, .. } = *start;
    let executor = Executor::of_environment().map_err(|error| StartError::Node(error.to_string()))?;
    let name = start.vulkan_device.clone();
    let options = Options { name, profile, is_realtime, executor, ..Options::default() };
    elsewhere(|| nicely(|| Driver::open(&options).map_err(|error| StartError::Node(error.to_string()))))
}

/// Another instance of the device.
pub(super) fn another(driver: &Driver) -> Result<Driver, StartError> {
    driver.secondary().map_err(|error| StartError::Node(error.to_string()))
}

/// Begins to copy by two instances of a device: for guests, and for the daemon.
pub(super) fn begin_copies(
    [guests, daemons]: [Driver; 2],
    files: &LocalFiles,
    vram: &Arc<Mapping>,
) -> Result<Copies, StartError> {
    let info = daemons.info().clone();
    let copies = files.copies(guests)?;
    let (file, bytes) = (files.evicted.try_clone()?, files.local.evicted_bytes);
    let evicted = Arc::new(Mapping::new(file, 0, bytes, Access::ReadWrite)?);
    let mover = Mover::new(files.copies(daemons)?, Arc::clone(vram), evicted);
    Ok(Copies { copies, mover, info })
}

/// Allocates local memory, for engines that are to come.
pub(super) fn allocate(driver: &Driver, bytes: u64) -> Result<Exported, StartError> {
    let failed = |error| StartError::Node(format!("{}: {error}", driver.info().name));
    local_copies::allocate(driver, bytes).map_err(failed)
}

/// Makes the calling thread nicer, for good, and those that it starts.
pub(super) fn nicely<T>(work: impl FnOnce() -> Result<T, StartError>) -> Result<T, StartError> {
    rustix::process::nice(DRIVER_NICE).map_err(|error| StartError::System(error.into()))?;
    work()
}

/// On a thread of its own, since how nice it is, and how long its CPU slices are, goes to those that it starts.
pub(super) fn elsewhere<T: Send>(
    work: impl FnOnce() -> Result<T, StartError> + Send,
) -> Result<T, StartError> {
    let panicked = || StartError::Node("the driver panicked".to_owned());
    thread::scope(|scope| scope.spawn(work).join().unwrap_or_else(|_panic| Err(panicked())))
}
