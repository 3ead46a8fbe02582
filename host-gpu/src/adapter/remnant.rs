//! What an engine has left in its shared block whose daemon was killed, and which has ended since.
//!
//! It is an engine's word, as what it reports to a daemon that lives is: whatever it says is checked where it is used.

use std::fs::File;
use std::io;

use campanile_protocol::engine::block;
use campanile_protocol::engine::block::BLOCK_BYTES;
use campanile_protocol::engine::hw_queue;
use campanile_protocol::engine::hw_queue::HwResult;
use campanile_protocol::engine::hw_queue::HwSubmission;
use campanile_protocol::engine::progress::Progress;
use campanile_protocol::engine::progress::Work;
use campanile_protocol::handshake::power;
use zerocopy::FromBytes;
use zerocopy::IntoBytes;

use super::tables::QueuePlace;
use crate::engine::save_area;
use crate::engine::words::load;
use crate::ids::QueueIndex;
use crate::memory::mapping::Access;
use crate::memory::mapping::Mapping;

/// What has become of a kernel-mode buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BufferEnd {
    /// It was run, and its progress fence has its value.
    Done,
    /// It is to be run.
    Left {
        /// From where the save area of its context says.
        is_saved: bool,
    },
    /// It faulted, ran in part, or the engine does not say.
    Unknown,
}

/// The block of an engine that has ended.
#[derive(Debug)]
pub struct Remnant(Mapping);

impl Remnant {
    /// The one in this file.
    ///
    /// # Errors
    /// It has another size than a block, or cannot be mapped.
    pub fn open(file: File) -> io::Result<Self> {
        let bytes = file.metadata()?.len();
        if bytes != BLOCK_BYTES {
            let text = format!("the shared block of an engine has {bytes} bytes, not {BLOCK_BYTES}");
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        Mapping::new(file, 0, BLOCK_BYTES, Access::ReadOnly).map(Self).map_err(io::Error::other)
    }

    /// What it ran when it ended: nothing where it had put all aside.
    pub fn work(&self) -> Work {
        Progress::from_word(load(&self.0, block::PROGRESS)).work
    }

    /// Whether a user-mode queue was stopped by a fault, or the driver under it was lost: then its buffer ran in part, and was not put aside.
    pub fn is_stopped(&self, queue: QueueIndex) -> bool {
        let fault = load(&self.0, block::queue(u32::from(queue.get())) + block::QUEUE_FAULT);
        fault != 0 || load(&self.0, block::POWER) == power::HUNG
    }

    /// What has become of a kernel-mode buffer, with this fence id, that was given to it before `behind` others, which are the last.
    pub fn buffer(&self, fence_id: u64, behind: u64) -> BufferEnd {
        let [submitted, completed] =
            [block::HW_QUEUE_SUBMITTED, block::HW_QUEUE_COMPLETED].map(|word| load(&self.0, word));
        let Some(count) = submitted.checked_sub(behind).and_then(|count| count.checked_sub(1)) else {
            return BufferEnd::Unknown;
        };
        let slot = hw_queue::slot(count);
        if self.read::<HwSubmission>(slot).is_none_or(|given| given.fence_id != fence_id) {
            return BufferEnd::Unknown;
        }
        if count < completed {
            let result = self.read::<HwResult>(slot + hw_queue::RESULT);
            return match result.filter(|result| result.fence_id == fence_id) {
                Some(result) if result.is_handed_back() => BufferEnd::Left { is_saved: result.is_saved != 0 },
                Some(result) if result.fault == 0 => BufferEnd::Done,
                _ => BufferEnd::Unknown,
            };
        }
        let was_run = count == completed && self.work() == Work::HwQueue;
        if was_run || load(&self.0, block::POWER) == power::HUNG {
            return BufferEnd::Unknown;
        }
        let is_saved = count == completed && save_area::is_saved(&self.0, block::HW_QUEUE_SAVED, count);
        BufferEnd::Left { is_saved }
    }

    fn read<T: FromBytes + IntoBytes + Default>(&self, at: u64) -> Option<T> {
        let mut read = T::default();
        let bytes = read.as_mut_bytes();
        self.0.slice(at, bytes.len() as u64)?.copy_to(bytes);
        Some(read)
    }

    /// How far a user-mode queue is.
    pub fn queue_place(&self, queue: QueueIndex) -> QueuePlace {
        QueuePlace::of(&self.0, queue)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use campanile_protocol::engine::block;
    use campanile_protocol::engine::block::QueueEntry;
    use campanile_protocol::engine::hw_queue;
    use campanile_protocol::engine::hw_queue::HW_PREEMPTED;
    use campanile_protocol::engine::progress::Progress;
    use campanile_protocol::engine::progress::Work;
    use campanile_protocol::handshake::power;

    use super::BufferEnd;
    use super::Remnant;
    use crate::adapter::process::EngineProcess;
    use crate::engine::message::NodeKind;
    use crate::memory::vram::create_memfd;

    #[test]
    fn cont_21_what_is_left_of_an_engine_says_what_has_become_of_each_kernel_mode_buffer() {
        let engine = EngineProcess::unstarted(NodeKind::Copy).unwrap();
        let store = |place, value| engine.shared.word(place).unwrap().store(value, Ordering::Release);
        let remnant = Remnant::open(engine.block().try_clone().unwrap()).unwrap();
        let ends = || [remnant.buffer(70, 1), remnant.buffer(80, 0)];
        let [left, saved] = [false, true].map(|is_saved| BufferEnd::Left { is_saved });
        assert_eq!(ends(), [BufferEnd::Unknown; 2], "nothing was submitted");
        // Two of the fence ids 70 and 80.
        store(block::HW_QUEUE_SUBMITTED, 2);
        store(hw_queue::slot(0), 70);
        store(hw_queue::slot(1), 80);
        assert_eq!(ends(), [left; 2]);
        assert_eq!([remnant.buffer(80, 1), remnant.buffer(70, 2)], [BufferEnd::Unknown; 2]);
        // What was put aside is the first that is not done, and no other.
        for (count, expected) in [(1, [saved, left]), (2, [left, left])] {
            store(block::HW_QUEUE_SAVED, count);
            assert_eq!(ends(), expected, "{count}");
        }
        let running = Progress { steps: 1, is_exempt: false, work: Work::HwQueue }.word();
        store(block::PROGRESS, running);
        assert_eq!(ends(), [BufferEnd::Unknown, left]);
        store(block::PROGRESS, 0);
        // The result of the first: its fence id; a fault, and above it whether it is saved.
        let result = |fence_id, fault: u64| {
            store(hw_queue::slot(0) + hw_queue::RESULT, fence_id);
            store(hw_queue::slot(0) + hw_queue::RESULT + 16, fault);
        };
        store(block::HW_QUEUE_COMPLETED, 1);
        let handed_back = u64::from(HW_PREEMPTED);
        for (fence_id, fault, expected) in [
            (70, 0, BufferEnd::Done),
            (70, 4, BufferEnd::Unknown),
            (71, 0, BufferEnd::Unknown),
            (70, handed_back, left),
            (70, 1 << 32 | handed_back, saved),
        ] {
            result(fence_id, fault);
            // The second was put aside before.
            assert_eq!(ends(), [expected, saved], "{fence_id} {fault:#x}");
        }
        store(block::POWER, power::HUNG);
        assert_eq!(ends()[1], BufferEnd::Unknown);
    }

    #[test]
    fn cont_21_what_is_left_of_an_engine_says_how_far_its_queues_are_and_what_it_ran() {
        let mut engine = EngineProcess::unstarted(NodeKind::Copy).unwrap();
        let entry = QueueEntry { consumed: 7, completed: 5, ..QueueEntry::default() };
        let [plain, saved] = [false, true].map(|is_saved| engine.tables.put_queue(entry, is_saved).unwrap());
        let remnant = Remnant::open(engine.block().try_clone().unwrap()).unwrap();
        for (queue, is_saved) in [(plain, false), (saved, true)] {
            let place = remnant.queue_place(queue);
            assert_eq!((place.consumed, place.completed, place.is_saved), (7, 5, is_saved));
        }
        assert_eq!(remnant.work(), Work::Nothing);
        let word = |place| engine.shared.word(place).unwrap();
        for (place, stops) in [
            (block::queue(u32::from(saved.get())) + block::QUEUE_FAULT, [false, true]),
            (block::POWER, [true, true]),
        ] {
            assert_eq!([plain, saved].map(|queue| remnant.is_stopped(queue)), [false; 2]);
            let before =
                word(place).swap(if place == block::POWER { power::HUNG } else { 4 }, Ordering::Release);
            assert_eq!([plain, saved].map(|queue| remnant.is_stopped(queue)), stops);
            word(place).store(before, Ordering::Release);
        }
        let progress = Progress { steps: 1, is_exempt: true, work: Work::UserQueue(plain.get()) };
        engine.shared.word(block::PROGRESS).unwrap().store(progress.word(), Ordering::Release);
        assert_eq!(remnant.work(), Work::UserQueue(plain.get()));
        let other = Remnant::open(create_memfd("no block", 4096).unwrap()).unwrap_err().to_string();
        assert!(other.contains("has 4096 bytes"), "{other}");
    }
}
