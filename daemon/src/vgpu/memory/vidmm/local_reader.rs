//! Reads local memory of a device's own, for migrations, snapshots and comparisons of contents.
//!
//! ```text
//!   reading threads ──offset, piece──▶ thread of the reader ──Move──▶ its process ──▶ device
//!         ▲                                                                             │ copies
//!         └──────────── staging: a file that the daemon maps, SLOTS pieces ◀────────────┘
//! ```
//!
//! The reader has a thread of its own, which the vGPU's thread starts, since those that read are the operator's, too, and may start
//! no process. The process comes with the first read, and ends with [`LocalReader::rest`]. While the device copies for one
//! thread, others empty their pieces.

use std::fs::File;
use std::io;
#[cfg(test)]
use std::path::PathBuf;
#[cfg(test)]
use std::sync::Arc;
use std::sync::Condvar;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::sync::mpsc;
use std::sync::mpsc::Receiver;
use std::sync::mpsc::Sender;
use std::sync::mpsc::SyncSender;
use std::thread;

#[cfg(test)]
use campanile_host_gpu::adapter::copy_process::CopyOptions;
use campanile_host_gpu::adapter::copy_process::CopyProcess;
#[cfg(test)]
use campanile_host_gpu::adapter::program::Program;
use campanile_host_gpu::dirty::elsewhere::Elsewhere;
use campanile_host_gpu::engine::message::MoveSide;
use campanile_host_gpu::log_limit::inherit;
#[cfg(test)]
use campanile_host_gpu::memory::local::LocalMemory;
use campanile_host_gpu::memory::mapping::Access;
use campanile_host_gpu::memory::mapping::Mapping;
use campanile_host_gpu::memory::vram::create_memfd;
use campanile_protocol::PAGE_SIZE;

#[cfg(test)]
use super::device_local::DeviceLocal;
use super::local_port::LocalPort;
#[cfg(test)]
use super::ranges::Ranges;

/// Bytes of a piece: as many as a record of a migration has.
const PIECE: u64 = 1 << 20;
/// Pieces that may be on their way.
const SLOTS: u64 = 4;
/// How often a piece is tried, with a process each.
const ATTEMPTS: u32 = 3;

/// What the reader's thread is to do.
enum Order {
    /// Copy so many bytes from this offset into this piece.
    Copy { offset: u64, slot: u64, length: u64, done: SyncSender<io::Result<()>> },
    /// Nothing is read for now.
    Rest,
}

/// What the reader's thread has.
struct Worker {
    port: LocalPort,
    staging: File,
    process: Option<CopyProcess>,
}

/// Reads it.
#[derive(Debug)]
pub struct LocalReader {
    port: LocalPort,
    orders: Mutex<Sender<Order>>,
    staging: Mapping,
    /// Pieces that no thread has.
    free: Mutex<Vec<u64>>,
    changed: Condvar,
}

impl Worker {
    fn serve(mut self, orders: &Receiver<Order>) {
        while let Ok(order) = orders.recv() {
            match order {
                Order::Copy { offset, slot, length, done } => {
                    // The reading thread waits.
                    let _gone = done.send(self.copy(offset, slot, length));
                }
                Order::Rest => self.process = None,
            }
        }
    }

    fn copy(&mut self, offset: u64, slot: u64, length: u64) -> io::Result<()> {
        let mut attempts = 0;
        loop {
            attempts += 1;
            match self.try_copy(offset, slot, length) {
                Err(error) if attempts < ATTEMPTS => {
                    log::warn!("reading local memory of the device: {error}; once more");
                }
                Err(error) => {
                    let text = format!("reading local memory of the device: {error}");
                    return Err(io::Error::new(error.kind(), text));
                }
                Ok(()) => return Ok(()),
            }
        }
    }

    fn try_copy(&mut self, offset: u64, slot: u64, length: u64) -> io::Result<()> {
        let mut process = match self.process.take() {
            Some(process) => process,
            None => self.port.open(&self.staging, &create_memfd("campanile-nothing", PAGE_SIZE)?)?,
        };
        process.carry_out(MoveSide::Local(offset), MoveSide::Visible(slot * PIECE), length)?;
        self.process = Some(process);
        Ok(())
    }
}

impl LocalReader {
    /// Of the memory behind `port`. The calling thread is one that may start processes.
    ///
    /// # Errors
    /// No memory or thread is left.
    pub fn new(port: LocalPort) -> io::Result<Self> {
        let file = create_memfd("campanile-staging", SLOTS * PIECE)?;
        let staging =
            Mapping::new(file.try_clone()?, 0, SLOTS * PIECE, Access::ReadWrite).map_err(io::Error::other)?;
        let (orders, waiting) = mpsc::channel();
        let worker = Worker { port: port.clone(), staging: file, process: None };
        // It ends with the last of its senders.
        thread::Builder::new()
            .name("local-reader".to_owned())
            .spawn(inherit(move || worker.serve(&waiting)))?;
        let free = Mutex::new((0..SLOTS).collect());
        Ok(Self { port, orders: Mutex::new(orders), staging, free, changed: Condvar::new() })
    }

    /// Of this memory, with nothing that could read it.
    #[cfg(test)]
    pub(super) fn without_process(device: Arc<DeviceLocal>, local: LocalMemory) -> Self {
        let launcher = Arc::new(Program::new(PathBuf::from("/nonexistent"), Vec::new()));
        let options = CopyOptions { local, vulkan_device: None, sandbox: true, policy: "fair".to_owned() };
        Self::new(LocalPort { device, launcher, options }).expect("memory and threads are left")
    }

    /// What it reads.
    pub fn port(&self) -> &LocalPort {
        &self.port
    }

    /// Nothing is read for now: the process ends.
    pub fn rest(&self) {
        let _gone = self.orders().send(Order::Rest);
    }

    fn orders(&self) -> MutexGuard<'_, Sender<Order>> {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn free(&self) -> MutexGuard<'_, Vec<u64>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_slot(&self) -> u64 {
        let waited = self.changed.wait_while(self.free(), |free| free.is_empty());
        waited.unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default()
    }

    fn read_piece(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let length = into.len() as u64;
        // Before it is read: what is zeroed meanwhile is told by the tracker.
        let stale = self.port.device.stale_within(offset, length);
        let slot = self.take_slot();
        let read = self.read_into_slot(offset, slot, into);
        self.free().push(slot);
        self.changed.notify_one();
        for (at, length) in stale {
            let at = usize::try_from(at - offset).unwrap_or(usize::MAX);
            let end = at.saturating_add(usize::try_from(length).unwrap_or(usize::MAX));
            if let Some(stale) = into.get_mut(at..end) {
                stale.fill(0);
            }
        }
        read
    }

    fn read_into_slot(&self, offset: u64, slot: u64, into: &mut [u8]) -> io::Result<()> {
        let length = into.len() as u64;
        let (done, copied) = mpsc::sync_channel(1);
        let lost = || io::Error::other("the thread that reads local memory is gone");
        self.orders().send(Order::Copy { offset, slot, length, done }).map_err(|_| lost())?;
        copied.recv().map_err(|_| lost())??;
        let piece = self.staging.slice(slot * PIECE, length);
        piece.ok_or_else(|| io::Error::other("a piece that is too long"))?.copy_to(into);
        Ok(())
    }
}

impl Elsewhere for LocalReader {
    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let piece = usize::try_from(PIECE).unwrap_or(usize::MAX);
        let offsets = (offset..).step_by(piece);
        offsets.zip(into.chunks_mut(piece)).try_for_each(|(offset, into)| self.read_piece(offset, into))
    }
}

#[cfg(test)]
mod tests;
