//! A memory whose writes are tracked by itself.

use std::io;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;

use campanile_daemon::migration::memory::MovingMemory;
use campanile_daemon::migration::pages::PAGE;

#[derive(Debug)]
struct Inside {
    bytes: Vec<u8>,
    ever: Vec<bool>,
    dirty: Vec<bool>,
    is_moving: bool,
    /// Called after each read, with its offset: a guest that writes just then.
    reads: u64,
}

/// Memory that the test, as the guest, writes to.
pub(crate) struct Memory {
    inside: Mutex<Inside>,
    is_tracked: AtomicBool,
    /// Nothing is known of before a migration has begun.
    is_late: bool,
    /// What was asked, in order.
    pub(crate) asked: Mutex<Vec<&'static str>>,
    pub(crate) begun: AtomicU64,
    pub(crate) ended: AtomicU64,
    /// Writes that happen between a query and a read: page, value.
    pub(crate) on_read: Mutex<Vec<(u64, u8)>>,
}

impl Memory {
    pub(crate) fn new(pages: u64) -> Self {
        let count = usize::try_from(pages).unwrap();
        let bytes = vec![0; count * usize::try_from(PAGE).unwrap()];
        let inside =
            Inside { bytes, ever: vec![false; count], dirty: vec![false; count], is_moving: false, reads: 0 };
        Self {
            inside: Mutex::new(inside),
            is_tracked: AtomicBool::new(true),
            is_late: false,
            asked: Mutex::default(),
            begun: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            on_read: Mutex::default(),
        }
    }

    pub(crate) fn untracked(self) -> Self {
        self.is_tracked.store(false, Ordering::Relaxed);
        self
    }

    /// Tracked from the beginning of a migration only.
    pub(crate) fn late(self) -> Self {
        Self { is_late: true, ..self }
    }

    /// The guest fills a page.
    pub(crate) fn fill(&self, page: u64, value: u8) {
        let mut inside = self.inside.lock().unwrap();
        let index = usize::try_from(page).unwrap();
        let length = usize::try_from(PAGE).unwrap();
        inside.bytes[index * length..(index + 1) * length].fill(value);
        // Not all of a page is the same, so that pages are no runs of one byte.
        inside.bytes[index * length + 7] = value.wrapping_mul(31);
        inside.ever[index] = true;
        inside.dirty[index] = true;
    }

    pub(crate) fn contents(&self) -> Vec<u8> {
        self.inside.lock().unwrap().bytes.clone()
    }

    pub(crate) fn is_moving(&self) -> bool {
        self.inside.lock().unwrap().is_moving
    }

    pub(crate) fn reads(&self) -> u64 {
        self.inside.lock().unwrap().reads
    }
}

fn pack(pages: &[bool], bits: &mut [u8]) {
    bits.fill(0);
    for (index, _) in pages.iter().enumerate().filter(|(_, is_dirty)| **is_dirty) {
        bits[index / 8] |= 1 << (index % 8);
    }
}

impl MovingMemory for Memory {
    fn length(&self) -> u64 {
        self.inside.lock().unwrap().bytes.len() as u64
    }

    fn page_size(&self) -> u64 {
        PAGE
    }

    fn is_tracked(&self) -> bool {
        self.is_tracked.load(Ordering::Relaxed)
    }

    fn is_performant(&self) -> bool {
        self.is_tracked() && !self.is_late
    }

    fn begin_paused(&self, bits: &mut [u8]) -> io::Result<()> {
        self.begin(bits)
    }

    fn begin(&self, bits: &mut [u8]) -> io::Result<()> {
        let mut inside = self.inside.lock().unwrap();
        self.begun.fetch_add(1, Ordering::Relaxed);
        inside.is_moving = true;
        inside.dirty.fill(false);
        self.asked.lock().unwrap().push("begin");
        if self.is_tracked() && !self.is_late {
            pack(&inside.ever, bits)
        } else {
            bits.fill(0xff)
        }
        Ok(())
    }

    fn query_and_clear(&self, bits: &mut [u8]) -> io::Result<()> {
        let mut inside = self.inside.lock().unwrap();
        self.asked.lock().unwrap().push("query");
        if !inside.is_moving {
            return Err(io::Error::other("nothing is tracked"));
        }
        if self.is_tracked() {
            pack(&inside.dirty, bits)
        } else {
            bits.fill(0xff)
        }
        inside.dirty.fill(false);
        Ok(())
    }

    fn end(&self) {
        self.ended.fetch_add(1, Ordering::Relaxed);
        self.inside.lock().unwrap().is_moving = false;
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        // A guest that runs writes just before a page is read, and just after.
        let due: Vec<(u64, u8)> = self.on_read.lock().unwrap().pop().into_iter().collect();
        for (page, value) in &due {
            self.fill(*page, *value);
        }
        let mut inside = self.inside.lock().unwrap();
        let at = usize::try_from(offset).unwrap();
        buffer.copy_from_slice(&inside.bytes[at..at + buffer.len()]);
        inside.reads += 1;
        self.asked.lock().unwrap().push("read");
        drop(inside);
        for (page, value) in due {
            self.fill(page, value.wrapping_add(1));
        }
        Ok(())
    }
}
