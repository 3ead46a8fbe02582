use std::io;
use std::sync::Mutex;

use super::*;

/// A memory that says what it is told to, and what it was asked.
struct Memory {
    pages: u64,
    scale: u64,
    /// Bits of the next answer; none, it fails.
    says: Mutex<Option<Vec<u64>>>,
    asked: Mutex<Vec<&'static str>>,
}

impl Memory {
    fn new(pages: u64, scale: u64, says: &[u64]) -> Self {
        Self { pages, scale, says: Mutex::new(Some(says.to_vec())), asked: Mutex::default() }
    }

    fn says(&self, says: Option<&[u64]>) {
        *self.says.lock().unwrap() = says.map(<[u64]>::to_vec);
    }

    fn answer(&self, asked: &'static str, bits: &mut [u8]) -> io::Result<()> {
        self.asked.lock().unwrap().push(asked);
        let says = self.says.lock().unwrap().clone().ok_or_else(|| io::Error::other("on purpose"))?;
        says.iter().for_each(|bit| bits[usize::try_from(bit / 8).unwrap()] |= 1 << (bit % 8));
        Ok(())
    }
}

impl MovingMemory for Memory {
    fn length(&self) -> u64 {
        self.pages * PAGE
    }

    fn page_size(&self) -> u64 {
        self.scale * PAGE
    }

    fn is_tracked(&self) -> bool {
        true
    }

    fn is_performant(&self) -> bool {
        true
    }

    fn begin(&self, bits: &mut [u8]) -> io::Result<()> {
        self.answer("begin", bits)
    }

    fn begin_paused(&self, bits: &mut [u8]) -> io::Result<()> {
        self.answer("begin paused", bits)
    }

    fn query_and_clear(&self, bits: &mut [u8]) -> io::Result<()> {
        self.answer("query", bits)
    }

    fn end(&self) {}

    fn read(&self, _offset: u64, _buffer: &mut [u8]) -> io::Result<()> {
        Ok(())
    }
}

/// The pages of all batches, memory by memory, in the order in which they come.
fn drain(dirty: &mut DirtyBitmap) -> [Vec<u64>; 2] {
    let mut all = [Vec::new(), Vec::new()];
    while let Some(batch) = dirty.next_batch() {
        assert!(batch.bytes() <= MAX_DATA && batch.ranges.len() <= MAX_RUNS);
        for (offset, length) in batch.ranges {
            all[batch.memory.index()].extend(offset / PAGE..(offset + length as u64) / PAGE);
        }
    }
    all
}

#[test]
fn dirty_34_what_was_ever_written_is_sent_first_and_then_what_trackers_tell() {
    let [vram, evicted] = [Memory::new(100, 1, &[3, 4, 99]), Memory::new(50, 1, &[])];
    let mut dirty = DirtyBitmap::begin([&vram, &evicted]).unwrap();
    assert_eq!(dirty.pending_bytes(), 3 * PAGE);
    assert_eq!(drain(&mut dirty), [vec![3, 4, 99], vec![]]);
    assert_eq!(dirty.pending_bytes(), 0);
    vram.says(Some(&[4, 7]));
    evicted.says(Some(&[49]));
    dirty.query([&vram, &evicted]).unwrap();
    // The first pages again, though the last ones were sent last.
    assert_eq!(drain(&mut dirty), [vec![4, 7], vec![49]]);
    vram.says(Some(&[]));
    evicted.says(Some(&[]));
    dirty.query([&vram, &evicted]).unwrap();
    assert!(drain(&mut dirty).iter().all(Vec::is_empty), "nothing is told twice");
    assert_eq!(*vram.asked.lock().unwrap(), ["begin", "query", "query"]);
}

#[test]
fn dirty_30_with_the_vm_paused_nothing_is_asked_that_begins_tracking() {
    let [vram, evicted] = [Memory::new(100, 1, &[1]), Memory::new(50, 1, &[2])];
    let dirty = DirtyBitmap::begin_paused([&vram, &evicted]).unwrap();
    let pending = dirty.into_pending();
    assert_eq!(pending.each_ref().map(PageSet::count), [1, 1]);
    assert!(pending[0].contains(1) && pending[1].contains(2));
    for memory in [vram, evicted] {
        assert_eq!(*memory.asked.lock().unwrap(), ["begin paused"]);
    }
}

#[test]
fn a_tracker_that_cannot_say_has_all_of_its_memory_sent_and_the_other_is_asked_all_the_same() {
    for failing in [0, 1] {
        let memories = [Memory::new(10, 1, &[]), Memory::new(20, 1, &[])];
        let both = || [&memories[0] as &dyn MovingMemory, &memories[1]];
        let mut dirty = DirtyBitmap::begin(both()).unwrap();
        memories[failing].says(None);
        memories[1 - failing].says(Some(&[2]));
        assert_eq!(dirty.query(both()).unwrap_err().to_string(), "on purpose");
        let mut expected = [vec![2], vec![2]];
        expected[failing] = (0..memories[failing].pages).collect();
        assert_eq!(drain(&mut dirty), expected);
    }
}

#[test]
fn dirty_06_a_bit_that_stands_for_several_pages_has_them_sent_in_one_record() {
    let scale = 16;
    // The last bit stands for the rest.
    let [vram, evicted] = [Memory::new(scale * 9, scale, &[0, 8]), Memory::new(1, 1, &[0])];
    let mut dirty = DirtyBitmap::begin([&vram, &evicted]).unwrap();
    let expected: Vec<u64> = (0..scale).chain(scale * 8..scale * 9).collect();
    assert_eq!(drain(&mut dirty), [expected, vec![0]]);
}

#[test]
fn a_record_has_no_more_bytes_and_runs_than_a_frame_holds_and_nothing_is_left_out() {
    let most = MAX_DATA as u64 / PAGE;
    let long: Vec<u64> = (0..3 * most + 1).collect();
    let apart: Vec<u64> = (0..2 * MAX_RUNS as u64 + 1).map(|index| index * 2).collect();
    for bits in [long, apart] {
        let pages = bits.last().unwrap() + 1;
        let [vram, evicted] = [Memory::new(pages, 1, &bits), Memory::new(1, 1, &[])];
        let mut dirty = DirtyBitmap::begin([&vram, &evicted]).unwrap();
        assert_eq!(drain(&mut dirty), [bits, vec![]]);
    }
}

#[test]
fn dirty_06_a_record_is_full_of_whole_bits_before_the_next_begins() {
    for (scale, pages, expected) in
        [(1, 600, vec![256, 256, 88]), (3, 600, vec![255, 255, 90]), (16, 600, vec![256, 256, 88])]
    {
        let bits: Vec<u64> = (0..u64::div_ceil(pages, scale)).collect();
        let [vram, evicted] = [Memory::new(pages, scale, &bits), Memory::new(1, 1, &[])];
        let mut dirty = DirtyBitmap::begin([&vram, &evicted]).unwrap();
        let mut lengths = Vec::new();
        while let Some(batch) = dirty.next_batch() {
            assert_eq!(batch.ranges.len(), 1);
            lengths.push(batch.bytes() as u64 / PAGE);
        }
        assert_eq!(lengths, expected, "{scale} pages a bit");
    }
}
