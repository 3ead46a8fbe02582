//! Reads local memory of a device's own, for migrations, snapshots and comparisons of contents.
//!
//! ```text
//!   reading threads ──offset, piece──▶ thread of the reader ──Move──▶ its process ──▶ device
//!         ▲                                                                             │ copies
//!         └──────────── staging: a file that the daemon maps, SLOTS pieces ◀────────────┘
//! ```
//!
//! Pieces that follow one another, in local memory and in staging, and wait together are one move. So a thread that has pieces read ahead has the
//! device copy much at a time, and empties one piece while it copies others.
//!
//! The reader has a thread of its own, which the vGPU's thread starts, since those that read are the operator's, too, and may start
//! no process. The process comes with the first read, and ends with [`LocalReader::rest`]. While the device copies for one
//! thread, others empty their pieces.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
#[cfg(test)]
use std::path::PathBuf;
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
use campanile_host_gpu::dirty::elsewhere::Ahead;
use campanile_host_gpu::dirty::elsewhere::Elsewhere;
use campanile_host_gpu::engine::message::MoveSide;
use campanile_host_gpu::log_limit::inherit;
#[cfg(test)]
use campanile_host_gpu::memory::local::LocalMemory;
use campanile_host_gpu::memory::mapping::Access;
use campanile_host_gpu::memory::mapping::Mapping;
use campanile_host_gpu::memory::vram::create_memfd;
use campanile_protocol::PAGE_SIZE;
use rustix::fs::FallocateFlags;

#[cfg(test)]
use super::device_local::DeviceLocal;
use super::local_port::LocalPort;
#[cfg(test)]
use super::ranges::Ranges;

/// Bytes of a piece: as many as a record of a migration has.
const PIECE: u64 = 1 << 20;
/// Pieces that may be on their way.
const SLOTS: u64 = 16;
/// As many of them are left to what is read when it is needed.
const RESERVED: usize = 4;
/// How often a piece is tried, with a process each.
const ATTEMPTS: u32 = 3;

/// What the reader's thread is to do.
enum Order {
    /// Copy a piece.
    Copy(Copy),
    /// Nothing is read for now.
    Rest,
}

/// So many bytes from this offset into this piece.
struct Copy {
    offset: u64,
    slot: u64,
    length: u64,
    done: SyncSender<io::Result<()>>,
}

impl Copy {
    /// Whether it goes on where `last` ends, on both sides.
    fn follows(&self, last: &Self) -> bool {
        last.length == PIECE
            && self.slot == last.slot + 1
            && self.offset.checked_sub(PIECE) == Some(last.offset)
    }
}

/// Pieces that no thread has.
#[derive(Debug)]
struct Free {
    slots: BTreeSet<u64>,
    /// The one behind that which was taken last.
    next: u64,
}

impl Free {
    /// The next, or another.
    fn take(&mut self) -> Option<u64> {
        let slot = self.slots.take(&self.next).or_else(|| self.slots.pop_first())?;
        self.next = (slot + 1) % SLOTS;
        Some(slot)
    }
}

/// A piece that is read ahead: as long as this is there, no other thread has it.
struct Held {
    reader: Arc<LocalReader>,
    slot: u64,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.reader.give_back(self.slot);
    }
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
    file: File,
    free: Mutex<Free>,
    changed: Condvar,
}

impl Worker {
    fn serve(mut self, orders: &Receiver<Order>) {
        let mut waiting = None;
        while let Some(order) = waiting.take().or_else(|| orders.recv().ok()) {
            let mut run = match order {
                Order::Copy(first) => vec![first],
                Order::Rest => {
                    self.process = None;
                    continue;
                }
            };
            while let Ok(order) = orders.try_recv() {
                match order {
                    Order::Copy(copy) if run.last().is_some_and(|last| copy.follows(last)) => run.push(copy),
                    other => {
                        waiting = Some(other);
                        break;
                    }
                }
            }
            self.copy_run(run);
        }
    }

    /// Copies pieces that follow one another, and tells those that wait for them.
    fn copy_run(&mut self, run: Vec<Copy>) {
        let Some((offset, slot)) = run.first().map(|first| (first.offset, first.slot)) else { return };
        let length = run.iter().map(|copy| copy.length).sum();
        let outcome = self.copy(offset, slot, length);
        for copy in run {
            let told = outcome.as_ref().map_err(|error| io::Error::new(error.kind(), error.to_string()));
            // A thread that gave it up is gone.
            let _gone = copy.done.send(told.copied());
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
        let worker = Worker { port: port.clone(), staging: file.try_clone()?, process: None };
        // It ends with the last of its senders.
        thread::Builder::new()
            .name("local-reader".to_owned())
            .spawn(inherit(move || worker.serve(&waiting)))?;
        let free = Mutex::new(Free { slots: (0..SLOTS).collect(), next: 0 });
        Ok(Self { port, orders: Mutex::new(orders), staging, file, free, changed: Condvar::new() })
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

    /// Nothing is read for now: the process ends, and staging has no memory, unless a thread reads after all.
    pub fn rest(&self) {
        let _gone = self.orders().send(Order::Rest);
        let free = self.free();
        if free.slots.len() as u64 == SLOTS {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let freed = rustix::fs::fallocate(&self.file, flags, 0, SLOTS * PIECE);
            // It is used again.
            let _kept = freed.inspect_err(|error| log::debug!("staging keeps its memory: {error}"));
        }
    }

    fn orders(&self) -> MutexGuard<'_, Sender<Order>> {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn free(&self) -> MutexGuard<'_, Free> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_slot(&self) -> u64 {
        let waited = self.changed.wait_while(self.free(), |free| free.slots.is_empty());
        waited.unwrap_or_else(PoisonError::into_inner).take().unwrap_or_default()
    }

    fn give_back(&self, slot: u64) {
        self.free().slots.insert(slot);
        self.changed.notify_one();
    }

    /// Has a piece copied, which is told there.
    fn order(&self, offset: u64, slot: u64, length: u64) -> io::Result<Receiver<io::Result<()>>> {
        let (done, copied) = mpsc::sync_channel(1);
        let order = Order::Copy(Copy { offset, slot, length, done });
        self.orders().send(order).map_err(|_| lost())?;
        Ok(copied)
    }

    fn read_piece(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let length = into.len() as u64;
        // Before it is read: what is zeroed meanwhile is told by the tracker.
        let stale = self.port.device.stale_within(offset, length);
        let slot = self.take_slot();
        let copied = self.order(offset, slot, length);
        let read = copied.and_then(|copied| self.empty(slot, offset, &copied, &stale, into));
        self.give_back(slot);
        read
    }

    /// Waits for a piece from `offset` on, and has there what it has but for what is stale.
    fn empty(
        &self,
        slot: u64,
        offset: u64,
        copied: &Receiver<io::Result<()>>,
        stale: &[(u64, u64)],
        into: &mut [u8],
    ) -> io::Result<()> {
        copied.recv().map_err(|_| lost())??;
        let piece = self.staging.slice(slot * PIECE, into.len() as u64);
        piece.ok_or_else(|| io::Error::other("a piece that is too long"))?.copy_to(into);
        for (at, length) in stale {
            let at = usize::try_from(at - offset).unwrap_or(usize::MAX);
            let end = at.saturating_add(usize::try_from(*length).unwrap_or(usize::MAX));
            if let Some(stale) = into.get_mut(at..end) {
                stale.fill(0);
            }
        }
        Ok(())
    }
}

fn lost() -> io::Error {
    io::Error::other("the thread that reads local memory is gone")
}

impl Elsewhere for LocalReader {
    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let piece = usize::try_from(PIECE).unwrap_or(usize::MAX);
        let offsets = (offset..).step_by(piece);
        offsets.zip(into.chunks_mut(piece)).try_for_each(|(offset, into)| self.read_piece(offset, into))
    }

    fn read_ahead(self: Arc<Self>, offset: u64, length: u64) -> Option<Ahead<'static>> {
        if length > PIECE {
            return None;
        }
        // Before it is read, as always.
        let stale = self.port.device.stale_within(offset, length);
        let slot = {
            let mut free = self.free();
            (free.slots.len() > RESERVED).then(|| free.take()).flatten()?
        };
        let held = Held { reader: self, slot };
        let copied = held.reader.order(offset, slot, length).ok()?;
        Some(Box::new(move |into: &mut [u8]| {
            if into.len() as u64 != length {
                return Err(io::Error::other("what was read ahead has another length"));
            }
            held.reader.empty(held.slot, offset, &copied, &stale, into)
        }))
    }
}

#[cfg(test)]
mod tests;
