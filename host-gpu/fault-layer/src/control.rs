//! The file in which tests and layer meet.
//!
//! ```text
//!   0      lost: whether all devices are
//!   4      global priorities of queues: the sum of those that are offered, of those that are permitted, how many were asked for,
//!          and the first of those in turn
//!   64     per entry point: calls, the first of them to fail (0: none), how many are to, with what, how many did
//!   4000   memory that devices have left, KiB, and one more; 0 where that is the driver's business
//!   4096   names of hidden extensions, each with a NUL behind it
//! ```
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::ptr;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering;

use ash::vk;
use rustix::mm::MapFlags;
use rustix::mm::ProtFlags;
use rustix::mm::mmap;

use crate::entries::ENTRIES;

/// Bytes of the file.
pub(crate) const BYTES: usize = 8192;
/// Where the names of hidden extensions begin, bytes.
pub(crate) const HIDDEN: usize = 4096;
/// Its name.
pub(crate) const NAME: &str = "faults";

const WORDS: usize = BYTES / 4;
const FIRST: usize = 16;
const EACH: usize = 5;
/// Words of global priorities, each of which is a power of two.
const OFFERED: usize = 1;
const PERMITTED: usize = 2;
const ASKED: usize = 3;
const ASKS: Range<usize> = 4..FIRST;
/// Behind all entry points.
const LEFT: usize = 1000;
const _: () = assert!(FIRST + ENTRIES.len() * EACH <= LEFT);

/// The file, mapped for as long as the process lives.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Control(&'static [AtomicU32; WORDS]);

impl Control {
    /// Maps the file in this folder. Where it cannot be written, as in a sandbox, what this process notes stays in it.
    pub(crate) fn open(folder: &Path) -> io::Result<Self> {
        let path = folder.join(NAME);
        let (file, flags) = match File::options().read(true).write(true).open(&path) {
            Ok(file) => (file, MapFlags::SHARED),
            Err(_) => (File::open(&path)?, MapFlags::PRIVATE),
        };
        if file.metadata()?.len() != BYTES as u64 {
            return Err(io::Error::other("a control file of another size"));
        }
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses where; the file has as many bytes, and nothing makes it shorter.
        let address = unsafe { mmap(ptr::null_mut(), BYTES, protection, flags, &file, 0) }?;
        // SAFETY: the mapping is as large, aligned to pages, and never ends; all of it is accessed by atomics alone.
        Ok(Self(unsafe { &*address.cast::<[AtomicU32; WORDS]>() }))
    }

    fn word(&self, entry: usize, field: usize) -> &AtomicU32 {
        &self.0[FIRST + entry * EACH + field]
    }

    /// Whether devices are lost.
    pub(crate) fn is_lost(&self) -> bool {
        self.0[0].load(Ordering::Acquire) != 0
    }

    /// They are, or those that are made from now on are not.
    pub(crate) fn set_lost(&self, is_lost: bool) {
        self.0[0].store(is_lost.into(), Ordering::Release);
    }

    /// Has as many calls fail of an entry point, from number `nth` from now on, counted from 1; 0 has none do so.
    pub(crate) fn arm(&self, entry: usize, nth: u32, times: u32, result: vk::Result) {
        self.word(entry, 1).store(0, Ordering::Release);
        for (field, value) in [(0, 0), (2, result.as_raw().cast_unsigned()), (3, 0), (4, times), (1, nth)] {
            self.word(entry, field).store(value, Ordering::Release);
        }
    }

    /// Counts a call. What it is to fail with, if it is.
    pub(crate) fn count(&self, entry: usize) -> Option<vk::Result> {
        let call = self.word(entry, 0).fetch_add(1, Ordering::AcqRel) + 1;
        let first = self.word(entry, 1).load(Ordering::Acquire);
        let times = self.word(entry, 4).load(Ordering::Acquire);
        if first == 0 || !(first..first.saturating_add(times)).contains(&call) {
            return None;
        }
        self.word(entry, 3).fetch_add(1, Ordering::AcqRel);
        Some(vk::Result::from_raw(self.word(entry, 2).load(Ordering::Acquire).cast_signed()))
    }

    /// Calls of an entry point since it was last armed.
    pub(crate) fn calls(&self, entry: usize) -> u32 {
        self.word(entry, 0).load(Ordering::Acquire)
    }

    /// How many of them were made to fail.
    pub(crate) fn failed(&self, entry: usize) -> u32 {
        self.word(entry, 3).load(Ordering::Acquire)
    }

    /// Has devices offer these global priorities, and give those that are permitted. Forgets what was asked for.
    pub(crate) fn offer(
        &self,
        offered: &[vk::QueueGlobalPriorityKHR],
        permitted: &[vk::QueueGlobalPriorityKHR],
    ) {
        let sum = |all: &[vk::QueueGlobalPriorityKHR]| {
            all.iter().fold(0, |sum, it| sum | it.as_raw().cast_unsigned())
        };
        for (word, value) in [(ASKED, 0), (PERMITTED, sum(permitted)), (OFFERED, sum(offered))] {
            self.0[word].store(value, Ordering::Release);
        }
    }

    /// What they are to offer, the lowest first.
    pub(crate) fn offered(&self) -> Vec<vk::QueueGlobalPriorityKHR> {
        let sum = self.0[OFFERED].load(Ordering::Acquire).cast_signed();
        let bits = (0..31).map(|bit| 1 << bit).filter(|bit| sum & bit != 0);
        bits.map(vk::QueueGlobalPriorityKHR::from_raw).collect()
    }

    /// Notes that a priority is asked for, and tells whether it is permitted, or left to the driver.
    pub(crate) fn ask(&self, priority: vk::QueueGlobalPriorityKHR) -> bool {
        let raw = priority.as_raw().cast_unsigned();
        let place = ASKS.start + self.0[ASKED].fetch_add(1, Ordering::AcqRel) as usize;
        if ASKS.contains(&place) {
            self.0[place].store(raw, Ordering::Release);
        }
        self.0[OFFERED].load(Ordering::Acquire) == 0 || self.0[PERMITTED].load(Ordering::Acquire) & raw != 0
    }

    /// What was asked for, in turn.
    pub(crate) fn asked(&self) -> Vec<vk::QueueGlobalPriorityKHR> {
        let count = (self.0[ASKED].load(Ordering::Acquire) as usize).min(ASKS.len());
        let asks = self.0[ASKS].iter().take(count);
        asks.map(|word| vk::QueueGlobalPriorityKHR::from_raw(word.load(Ordering::Acquire).cast_signed()))
            .collect()
    }

    /// Has devices have only so many bytes of memory left, in whole KiB; none leaves that to the driver.
    pub(crate) fn leave(&self, bytes: Option<u64>) {
        let word = bytes.map_or(0, |bytes| u32::try_from(bytes >> 10).unwrap_or(u32::MAX - 1) + 1);
        self.0[LEFT].store(word, Ordering::Release);
    }

    /// What they have left.
    pub(crate) fn left(&self) -> Option<u64> {
        self.0[LEFT].load(Ordering::Acquire).checked_sub(1).map(|kib| u64::from(kib) << 10)
    }

    /// Names of hidden extensions.
    pub(crate) fn hidden(&self) -> Vec<Vec<u8>> {
        let words = self.0.iter().skip(HIDDEN / 4);
        let bytes: Vec<u8> = words.flat_map(|word| word.load(Ordering::Acquire).to_ne_bytes()).collect();
        bytes.split(|byte| *byte == 0).filter(|name| !name.is_empty()).map(<[u8]>::to_vec).collect()
    }

    /// Forgets all that was counted and armed.
    pub(crate) fn reset(&self) {
        self.set_lost(false);
        self.leave(None);
        for entry in 0..ENTRIES.len() {
            self.arm(entry, 0, 0, vk::Result::SUCCESS);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use ash::vk;

    use super::BYTES;
    use super::Control;
    use super::NAME;

    #[test]
    fn the_call_that_is_armed_fails_once_in_all_mappings() {
        let folder = std::env::temp_dir().join(format!("campanile-faults-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join(NAME), vec![0; BYTES]).unwrap();
        let (test, layer) = (Control::open(&folder).unwrap(), Control::open(&folder).unwrap());
        test.arm(3, 2, 1, vk::Result::ERROR_DEVICE_LOST);
        let results = [(); 3].map(|()| layer.count(3));
        assert_eq!(results, [None, Some(vk::Result::ERROR_DEVICE_LOST), None]);
        assert_eq!((test.calls(3), test.failed(3), test.calls(4)), (3, 1, 0));
        let left = [Some(0), Some(5 << 30), None].map(|bytes| {
            test.leave(bytes);
            layer.left()
        });
        assert_eq!(left, [Some(0), Some(5 << 30), None]);
        test.leave(Some(1 << 20));
        test.reset();
        assert_eq!((layer.calls(3), layer.failed(3), layer.count(3), layer.left()), (0, 0, None, None));
        fs::remove_dir_all(&folder).unwrap();
    }
}
