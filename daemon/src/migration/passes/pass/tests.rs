use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Mutex;

use super::*;

const PAGES: u64 = 4096;

/// A memory of which every second page is zero, all of it dirty; reads beyond `readable` fail.
struct Memory {
    readable: u64,
}

impl MovingMemory for Memory {
    fn length(&self) -> u64 {
        PAGES * PAGE
    }

    fn page_size(&self) -> u64 {
        PAGE
    }

    fn is_tracked(&self) -> bool {
        true
    }

    fn is_performant(&self) -> bool {
        true
    }

    fn begin(&self, bits: &mut [u8]) -> io::Result<()> {
        bits.fill(0xff);
        Ok(())
    }

    fn begin_paused(&self, bits: &mut [u8]) -> io::Result<()> {
        self.begin(bits)
    }

    fn query_and_clear(&self, _bits: &mut [u8]) -> io::Result<()> {
        Ok(())
    }

    fn end(&self) {}

    fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        if offset + buffer.len() as u64 > self.readable {
            return Err(io::Error::other("on purpose"));
        }
        for (index, page) in (offset / PAGE..).zip(buffer.chunks_mut(4096)) {
            page.fill(u8::from(index % 2 == 1));
        }
        Ok(())
    }
}

/// Counts what it is given; breaks at the `breaks`-th record, and stops the pass at the `stops`-th.
struct Counting<'a> {
    records: u64,
    finished: Vec<u32>,
    breaks: u64,
    stops: u64,
    stop: &'a AtomicBool,
}

impl Sink for Counting<'_> {
    fn next_sequence(&self) -> u64 {
        self.records
    }

    fn put(&mut self, _frame: &[u8]) -> Result<(), MigrationError> {
        self.records += 1;
        if self.records == self.stops {
            self.stop.store(true, Ordering::Relaxed);
        }
        if self.records == self.breaks {
            return Err(MigrationError::State("it breaks".to_owned()));
        }
        Ok(())
    }

    fn finish_pass(&mut self, pass: u32) -> Result<(), MigrationError> {
        self.finished.push(pass);
        Ok(())
    }
}

/// What came of pass 7 over sinks of which each breaks and stops so: what was sent, what is left, bytes told of, and each sink's
/// records and finished passes.
type Outcome = (Result<Sent, MigrationError>, u64, u64, Vec<(u64, Vec<u32>)>);

fn pass(sinks: &[(u64, u64)], readable: u64, pace: Option<&Mutex<Pace>>) -> Outcome {
    let (stop, progress) = (AtomicBool::new(false), AtomicU64::new(0));
    let memories = [Memory { readable }, Memory { readable }];
    let memories = [&memories[0] as &dyn MovingMemory, &memories[1]];
    let mut dirty = DirtyBitmap::begin(memories).unwrap();
    let new = |&(breaks, stops)| Counting { records: 0, finished: Vec::new(), breaks, stops, stop: &stop };
    let mut sinks: Vec<_> = sinks.iter().map(new).collect();
    let manner = Manner { zstd: None, pace, stop: &stop, progress: &progress };
    let sent = send_pending(&Mutex::new(&mut dirty), memories, &mut sinks, 7, &manner);
    let told = sinks.into_iter().map(|sink| (sink.records, sink.finished)).collect();
    (sent, dirty.pending_bytes(), progress.load(Ordering::Relaxed), told)
}

const ALL: u64 = 2 * PAGES * PAGE;

#[test]
fn all_that_is_pending_goes_over_all_lines_and_each_ends_the_pass() {
    for lines in 1..4 {
        let (sent, left, told, sinks) = pass(&vec![(0, 0); lines], ALL, None);
        let sent = sent.unwrap();
        assert_eq!((sent.pages, sent.zero_pages, sent.bytes()), (2 * PAGES, PAGES, ALL));
        assert_eq!((left, told), (0, ALL));
        assert_eq!(sinks.iter().map(|(records, _)| records).sum::<u64>(), sent.records);
        assert!(sinks.iter().all(|(_, finished)| *finished == [7]));
        // Of two pages one is on the line.
        assert!((ALL / 2..ALL / 2 + ALL / 16).contains(&sent.wire_bytes), "{sent:?}");
    }
}

#[test]
fn a_pass_that_is_to_end_ends_between_two_records_and_the_rest_stays_pending() {
    let (sent, left, told, sinks) = pass(&[(0, 3)], ALL, None);
    let sent = sent.unwrap();
    assert_eq!((sent.records, &*sinks), (3, &[(3, vec![7])][..]));
    assert_eq!((left, told), (ALL - sent.bytes(), sent.bytes()));
    // No longer does it wait for the bandwidth, of which there is none.
    let pace = Mutex::new(Pace::new(1, Instant::now()));
    let (sent, left, _, _) = pass(&[(0, 1)], ALL, Some(&pace));
    assert_eq!((sent.unwrap().records, left), (1, ALL - (1 << 20)));
}

#[test]
fn one_line_that_breaks_ends_the_pass_of_all_and_none_says_that_it_is_over() {
    let (sent, _, _, sinks) = pass(&[(1, 0)], ALL, None);
    assert_eq!(sent.unwrap_err().to_string(), MigrationError::State("it breaks".to_owned()).to_string());
    assert_eq!(sinks, [(1, vec![])]);
    // The other one would go on for ever: it has nothing to do but to see that.
    let (stop, progress) = (AtomicBool::new(false), AtomicU64::new(0));
    let memory = Memory { readable: ALL };
    let mut dirty = DirtyBitmap::begin([&memory, &memory]).unwrap();
    let mut sink = Counting { records: 0, finished: Vec::new(), breaks: 0, stops: 0, stop: &stop };
    let manner = Manner { zstd: None, pace: None, stop: &stop, progress: &progress };
    let failed = AtomicBool::new(true);
    let sent = send_over(&Mutex::new(&mut dirty), [&memory, &memory], &mut sink, &manner, &failed).unwrap();
    assert_eq!((sent, sink.records), (Sent::default(), 0));
}

#[test]
fn memory_that_cannot_be_read_ends_the_pass_in_words() {
    let (sent, _, _, sinks) = pass(&[(0, 0)], PAGES * PAGE / 2, None);
    let text = sent.unwrap_err().to_string();
    assert!(text.contains("video memory") && text.contains("on purpose"), "{text}");
    assert!(sinks[0].1.is_empty());
}

#[test]
fn what_was_sent_adds_up() {
    let one = Sent { records: 1, pages: 2, zero_pages: 3, wire_bytes: 4, microseconds: 5 };
    let both = one.plus(one);
    assert_eq!(both, Sent { records: 2, pages: 4, zero_pages: 6, wire_bytes: 8, microseconds: 10 });
    assert_eq!((both.bytes(), both.time()), (4 * PAGE, Duration::from_micros(10)));
}

#[test]
fn no_more_is_sent_than_the_bandwidth_allows() {
    let begun = Instant::now();
    let pace = Mutex::new(Pace::new(1000, begun));
    // Each of the last two waits for the one before it.
    (0..3).for_each(|_| wait(&pace, 10, &AtomicBool::new(false)));
    assert!(begun.elapsed() >= Duration::from_millis(20));
    // Of 16 MiB the first 50 ms are free, and the last record is owed.
    let rate = 100 << 20;
    let pace = Mutex::new(Pace::new(rate, Instant::now()));
    let (sent, ..) = pass(&[(0, 0)], ALL, Some(&pace));
    assert!(sent.unwrap().time() >= Duration::from_millis(90));
}

fn lines() -> [Line; 2] {
    let (source, target) = UnixStream::pair().unwrap();
    [source, target].map(|stream| Line::new(Box::new(stream), Duration::from_secs(600)).unwrap())
}

#[test]
fn a_pass_is_over_when_the_target_says_so_of_that_pass() {
    for (answer, is_over) in [
        (Message::PassDone { pass: 7 }, true),
        (Message::PassDone { pass: 6 }, false),
        (Message::PassEnd { pass: 7 }, false),
    ] {
        let [mut source, mut target] = lines();
        target.send(&answer).unwrap();
        let sequence = Sink::next_sequence(&source);
        let outcome = source.finish_pass(7);
        assert_eq!(outcome.is_ok(), is_over, "{answer:?}");
        assert_eq!(Sink::next_sequence(&source), sequence + 1);
        assert_eq!(target.hear().unwrap(), Message::PassEnd { pass: 7 });
        if let Err(error) = outcome {
            assert!(error.to_string().contains("after pass 7"), "{error}");
        }
    }
}

#[test]
fn a_target_that_says_something_amid_a_pass_ends_it_before_the_next_record() {
    let [mut source, mut target] = lines();
    target.send(&Message::PassDone { pass: 1 }).unwrap();
    let sequence = Sink::next_sequence(&source);
    let error = source.put(&[0; 64]).unwrap_err().to_string();
    assert!(error.contains("amid a pass"), "{error}");
    assert_eq!(Sink::next_sequence(&source), sequence, "nothing was sent");
}

#[test]
fn lm_13_a_sending_thread_has_the_least_weight_and_no_other_thread_loses_its_own() {
    let weight = || rustix::process::getpriority_process(None).unwrap();
    let before = weight();
    let lowered = thread::spawn(move || {
        lower_priority();
        weight()
    });
    assert_eq!((lowered.join().unwrap(), weight()), (19, before));
}

/// All of it is dirty, and only what was begun ahead can be read.
struct Ahead {
    begun: AtomicU64,
    lost: AtomicU64,
}

/// What was begun and is not read yet.
struct Begun<'a>(&'a Ahead);

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        self.0.lost.fetch_add(1, Ordering::Relaxed);
    }
}

impl MovingMemory for Ahead {
    fn length(&self) -> u64 {
        PAGES * PAGE
    }

    fn page_size(&self) -> u64 {
        PAGE
    }

    fn is_tracked(&self) -> bool {
        true
    }

    fn is_performant(&self) -> bool {
        true
    }

    fn begin(&self, bits: &mut [u8]) -> io::Result<()> {
        bits.fill(0xff);
        Ok(())
    }

    fn begin_paused(&self, bits: &mut [u8]) -> io::Result<()> {
        self.begin(bits)
    }

    fn query_and_clear(&self, _bits: &mut [u8]) -> io::Result<()> {
        Ok(())
    }

    fn end(&self) {}

    fn read(&self, _offset: u64, _buffer: &mut [u8]) -> io::Result<()> {
        Err(io::Error::other("it was not begun"))
    }

    fn read_ahead(
        &self,
        offset: u64,
        length: u64,
    ) -> Option<campanile_host_gpu::dirty::elsewhere::Ahead<'_>> {
        self.begun.fetch_add(1, Ordering::Relaxed);
        let begun = Begun(self);
        Some(Box::new(move |into: &mut [u8]| {
            let _begun = begun;
            assert_eq!(into.len() as u64, length);
            into.fill(u8::try_from(offset / (1 << 20) % 255).unwrap() + 1);
            Ok(())
        }))
    }
}

#[test]
fn lm_65_what_a_line_has_begun_to_read_and_does_not_come_to_is_pending_again() {
    let memory = Ahead { begun: AtomicU64::new(0), lost: AtomicU64::new(0) };
    let memories = [&memory as &dyn MovingMemory, &memory];
    let mut dirty = DirtyBitmap::begin(memories).unwrap();
    let (stop, progress) = (AtomicBool::new(false), AtomicU64::new(0));
    let manner = Manner { zstd: None, pace: None, stop: &stop, progress: &progress };
    let mut sinks = [Counting { records: 0, finished: Vec::new(), breaks: 0, stops: 3, stop: &stop }];
    let sent = send_pending(&Mutex::new(&mut dirty), memories, &mut sinks, 7, &manner).unwrap();
    assert_eq!((sent.records, sent.bytes(), dirty.pending_bytes()), (3, 3 << 20, ALL - (3 << 20)));
    // The three that were sent, and what was claimed behind each of them.
    let claimed = 3 + CLAIMS as u64 - 1;
    assert_eq!(memory.begun.load(Ordering::Relaxed), claimed);
    assert_eq!(memory.lost.load(Ordering::Relaxed), claimed, "nothing is kept");
    // The next pass has them, and all else.
    stop.store(false, Ordering::Relaxed);
    let sent = send_pending(&Mutex::new(&mut dirty), memories, &mut sinks, 8, &manner).unwrap();
    assert_eq!((sent.bytes(), sent.zero_pages, dirty.pending_bytes()), (ALL - (3 << 20), 0, 0));
}
