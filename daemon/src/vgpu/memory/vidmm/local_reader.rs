//! Reads local memory of a device's own, for migrations, snapshots and comparisons of contents.
//!
//! ```text
//!   device ──copied by a process of its own──▶ staging: SLOTS pieces ──copied by the reading thread──▶ its buffer
//! ```
//!
//! The process is started by the first read, and ends with [`LocalReader::rest`]. Several threads may read: one of them at a time
//! has the device copy, and meanwhile the others empty their pieces.

use std::fs::File;
use std::io;
#[cfg(test)]
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::Condvar;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;

#[cfg(test)]
use campanile_host_gpu::adapter::copy_process::CopyOptions;
use campanile_host_gpu::adapter::copy_process::CopyProcess;
#[cfg(test)]
use campanile_host_gpu::adapter::program::Program;
use campanile_host_gpu::dirty::elsewhere::Elsewhere;
use campanile_host_gpu::engine::message::MoveSide;
#[cfg(test)]
use campanile_host_gpu::memory::local::LocalMemory;
use campanile_host_gpu::memory::mapping::Access;
use campanile_host_gpu::memory::mapping::Mapping;
use campanile_host_gpu::memory::vram::create_memfd;
use campanile_protocol::PAGE_SIZE;

#[cfg(test)]
use super::device_local::DeviceLocal;
use super::local_port::LocalPort;

/// Bytes of a piece: as many as a record of a migration has.
const PIECE: u64 = 1 << 20;
/// Pieces that may be on their way.
const SLOTS: u64 = 4;
/// How often a piece is tried, with a process each.
const ATTEMPTS: u32 = 3;

/// The process, and where it copies to.
#[derive(Debug)]
struct Opened {
    process: CopyProcess,
    staging: Arc<Mapping>,
}

#[derive(Debug)]
struct State {
    opened: Option<Opened>,
    /// Pieces of the staging that no thread has.
    free: Vec<u64>,
}

/// Reads it.
#[derive(Debug)]
pub struct LocalReader {
    port: LocalPort,
    state: Mutex<State>,
    changed: Condvar,
}

impl Opened {
    fn open(port: &LocalPort) -> io::Result<Self> {
        let file = create_memfd("campanile-staging", SLOTS * PIECE)?;
        let nothing: File = create_memfd("campanile-nothing", PAGE_SIZE)?;
        let process = port.open(&file, &nothing)?;
        let staging = Mapping::new(file, 0, SLOTS * PIECE, Access::ReadWrite).map_err(io::Error::other)?;
        Ok(Self { process, staging: Arc::new(staging) })
    }
}

impl LocalReader {
    /// Of the memory behind `port`.
    pub fn new(port: LocalPort) -> Self {
        let state = Mutex::new(State { opened: None, free: (0..SLOTS).collect() });
        Self { port, state, changed: Condvar::new() }
    }

    /// Of this memory, with nothing that could read it.
    #[cfg(test)]
    pub(super) fn without_process(device: Arc<DeviceLocal>, local: LocalMemory) -> Self {
        let launcher = Arc::new(Program::new(PathBuf::from("/nonexistent"), Vec::new()));
        let options =
            CopyOptions { local, vulkan_device: None, sandbox: true, policy: "fair".to_owned() };
        Self::new(LocalPort { device, launcher, options })
    }

    /// What it reads.
    pub fn port(&self) -> &LocalPort {
        &self.port
    }

    /// Ends the process, until the next read.
    pub fn rest(&self) {
        let opened = self.lock().opened.take();
        drop(opened);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the device copy `length` bytes into a piece.
    fn copy(&self, state: &mut State, offset: u64, slot: u64, length: u64) -> io::Result<Arc<Mapping>> {
        let mut attempts = 0;
        loop {
            attempts += 1;
            let copied = match &mut state.opened {
                Some(opened) => opened
                    .process
                    .carry_out(MoveSide::Local(offset), MoveSide::Visible(slot * PIECE), length)
                    .map(|()| Arc::clone(&opened.staging)),
                none => match Opened::open(&self.port) {
                    Ok(opened) => {
                        *none = Some(opened);
                        attempts -= 1;
                        continue;
                    }
                    Err(error) => Err(error),
                },
            };
            match copied {
                Ok(staging) => return Ok(staging),
                Err(error) if attempts < ATTEMPTS => {
                    log::warn!("reading local memory of the device: {error}; once more");
                    state.opened = None;
                }
                Err(error) => {
                    state.opened = None;
                    return Err(io::Error::new(
                        error.kind(),
                        format!("reading local memory of the device: {error}"),
                    ));
                }
            }
        }
    }

    fn read_piece(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        // Before it is read: what is zeroed meanwhile is told by the tracker.
        let stale = self.port.device.stale_within(offset, into.len() as u64);
        let length = into.len() as u64;
        let (slot, copied) = {
            let waits = |state: &mut State| state.free.is_empty();
            let waited = self.changed.wait_while(self.lock(), waits);
            let mut state = waited.unwrap_or_else(PoisonError::into_inner);
            let slot = state.free.pop().unwrap_or_default();
            let copied = self.copy(&mut state, offset, slot, length);
            (slot, copied)
        };
        let seen = copied.and_then(|staging| {
            let piece = staging.slice(slot * PIECE, length);
            piece.ok_or_else(|| io::Error::other("a piece that is too long"))?.copy_to(into);
            Ok(())
        });
        self.lock().free.push(slot);
        self.changed.notify_one();
        for (at, length) in stale {
            let at = usize::try_from(at - offset).unwrap_or(usize::MAX);
            let length = usize::try_from(length).unwrap_or(usize::MAX);
            if let Some(stale) = into.get_mut(at..at.saturating_add(length)) {
                stale.fill(0);
            }
        }
        seen
    }
}

impl Elsewhere for LocalReader {
    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let pieces = into.chunks_mut(usize::try_from(PIECE).unwrap_or(usize::MAX));
        (offset..).step_by(usize::try_from(PIECE).unwrap_or(usize::MAX)).zip(pieces).try_for_each(
            |(offset, piece)| self.read_piece(offset, piece),
        )
    }
}
