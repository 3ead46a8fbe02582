//! The cache of one process: its driver's files, and the log of its engine.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::time::Duration;

use super::ending::replace;
use super::files::Files;
use super::folder::Found;
use super::folder::closed;
use super::log::Log;
use super::log::Reader;

/// From a compilation to the first look at what the driver has written since: it does so on threads of its own, and says nothing
/// of it. From one look to the next is twice as long.
const FIRST_LOOK: Duration = Duration::from_millis(1);
/// After a wait of that length nothing more is expected.
const LAST_LOOK: Duration = Duration::from_millis(2048);

/// Numbers of descriptors that a process needs for it once it is sealed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Descriptors {
    /// Which it locks, as the driver does and as this side does.
    pub locked: [i32; 2],
    /// Which the driver has no more when its cache ends.
    pub replaced: [i32; 2],
    /// What it has instead.
    pub by: i32,
}

/// What one process has of the cache.
#[derive(Debug)]
pub struct Store {
    files: Files,
    /// Those of the driver.
    drivers: [i32; 2],
    closed: File,
    log: Log,
    reader: Reader,
    identity: u64,
    /// Whether it writes to the log: no other process does.
    is_writer: bool,
    has_ended: bool,
    /// How many entries there are once the driver has written all that it has compiled.
    expected: u64,
    /// How long the next look waits.
    look: Option<Duration>,
}

impl Store {
    /// Over what the driver has made, and the log.
    ///
    /// # Errors
    /// No descriptor could be had.
    pub fn new(found: Found, log: Log) -> io::Result<Self> {
        let Found { files, drivers, identity } = found;
        let closed = closed()?;
        let (reader, is_writer, has_ended, look) = (Reader::default(), false, false, None);
        let expected = 0;
        Ok(Self { files, drivers, closed, log, reader, identity, is_writer, has_ended, expected, look })
    }

    /// What it needs once it is sealed.
    pub fn descriptors(&self) -> Descriptors {
        Descriptors {
            locked: [self.drivers[0], self.files.data().as_raw_fd()],
            replaced: self.drivers,
            by: self.closed.as_raw_fd(),
        }
    }

    /// A kernel is about to be compiled: the driver is to find what other processes have.
    pub fn take(&mut self) {
        if self.is_writer || self.has_ended || !self.log.is_of(self.identity) {
            return;
        }
        while let Some(entry) = self.reader.next(&self.log) {
            if let Err(error) = self.files.put(&entry) {
                log::debug!("an entry of the cache is not taken: {error}");
            }
            if self.files.are_full() {
                return self.end();
            }
        }
    }

    /// The process that had the log is gone: this one has it from now on.
    pub fn begin(&mut self) {
        self.take();
        self.is_writer = true;
        self.log.claim(self.identity);
        self.keep();
    }

    /// A kernel was compiled. What the driver makes of it is looked for from now on.
    pub fn compiled(&mut self) {
        self.look = Some(FIRST_LOOK);
        self.keep();
    }

    /// Whether the driver keeps what it compiles.
    pub fn keeps(&self) -> bool {
        self.written().is_some()
    }

    /// Entries that are written, by the driver or for it; none where it keeps nothing any more.
    fn written(&self) -> Option<u64> {
        if self.has_ended { None } else { self.files.records() }
    }

    /// The driver has compiled a kernel just now, and will write it, behind those before it: how many entries there are then. None where
    /// it keeps nothing any more.
    pub fn expect(&mut self) -> Option<u64> {
        self.expected = self.expected.max(self.written()?) + 1;
        Some(self.expected)
    }

    /// Whether so many are written, or no more will be.
    pub fn has(&self, entries: u64) -> bool {
        self.written().is_none_or(|written| written >= entries)
    }

    /// An entry that was expected has not come: the driver had it before.
    pub fn give_up(&mut self) {
        self.expected = self.expected.min(self.written().unwrap_or_default());
    }

    /// How long to wait for something else to do before the next look; none where nothing is expected.
    pub fn next_look(&self) -> Option<Duration> {
        self.look.filter(|_| self.is_writer && !self.has_ended)
    }

    /// It has waited so long.
    pub fn look(&mut self) {
        self.look = self.look.map(|last| last * 2).filter(|next| *next <= LAST_LOOK);
        self.keep();
    }

    /// Puts what the driver has written into the log.
    fn keep(&mut self) {
        if !self.is_writer || self.has_ended {
            return;
        }
        while let Some(entry) = self.files.take_appended() {
            self.log.put(&entry);
        }
        if self.files.are_full() {
            self.end();
        }
    }

    /// The driver has no cache any more.
    fn end(&mut self) {
        self.has_ended = true;
        for number in self.drivers {
            if let Err(error) = replace(number, &self.closed) {
                log::debug!("the driver's cache does not end: {error}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::fs::OpenOptions;
    use std::io::Read;
    use std::os::fd::AsRawFd;
    use std::path::Path;
    use std::sync::Arc;

    use super::Store;
    use crate::code_cache::files::Files;
    use crate::code_cache::files::MOST_DATA_BYTES;
    use crate::code_cache::folder::Found;
    use crate::code_cache::log::Log;
    use crate::memory::mapping::Access;
    use crate::memory::mapping::Mapping;
    use crate::memory::vram::create_memfd;

    const BYTES: u64 = 64 << 10;

    fn log() -> Log {
        let file = create_memfd("log", BYTES).unwrap();
        Log::new(Arc::new(Mapping::new(file, 0, BYTES, Access::ReadWrite).unwrap())).unwrap()
    }

    /// A process over a log: its store, and its driver.
    struct Process {
        store: Store,
        driver: Files,
        descriptors: [File; 2],
        _folder: tempfile::TempDir,
    }

    fn open(folder: &Path, name: &str) -> File {
        OpenOptions::new().read(true).append(true).create(true).open(folder.join(name)).unwrap()
    }

    fn process(log: &Log, identity: u64) -> Process {
        let folder = tempfile::tempdir().unwrap();
        for name in ["data", "index"] {
            std::fs::write(folder.path().join(name), b"\x81FOSSILIZEDB\0\0\0\x06").unwrap();
        }
        let both = || ["data", "index"].map(|name| open(folder.path(), name));
        let files = || {
            let [data, index] = both();
            Files::new(data, index).unwrap()
        };
        let descriptors = both();
        let drivers = [descriptors[0].as_raw_fd(), descriptors[1].as_raw_fd()];
        let store = Store::new(Found { files: files(), drivers, identity }, log.clone()).unwrap();
        Process { store, driver: files(), descriptors, _folder: folder }
    }

    fn entry(key: u8) -> Vec<u8> {
        [format!("{key:040x}").as_bytes(), b"\x04\0\0\0\x01\0\0\0\0\0\0\0\x04\0\0\0", b"code"].concat()
    }

    /// What the driver finds that it has not written.
    fn found(process: &mut Process) -> Vec<Vec<u8>> {
        std::iter::from_fn(|| process.driver.take_appended()).collect()
    }

    #[test]
    fn the_next_process_of_an_engine_has_what_the_last_one_compiled_and_writes_only_what_is_new() {
        let log = log();
        let mut first = process(&log, 7);
        first.store.begin();
        first.driver.put(&entry(1)).unwrap();
        first.store.compiled();
        first.driver.put(&entry(2)).unwrap();
        first.store.look();
        assert_eq!(log.claims().added, 2);
        drop(first);
        let mut second = process(&log, 7);
        second.store.begin();
        assert_eq!(found(&mut second), [entry(1), entry(2)]);
        second.store.compiled();
        assert_eq!(log.claims().added, 2, "nothing was compiled anew");
        second.driver.put(&entry(3)).unwrap();
        second.store.compiled();
        assert_eq!(log.claims().added, 3);
    }

    #[test]
    fn each_kernel_that_is_compiled_is_one_entry_more_unless_the_driver_had_it() {
        let log = log();
        let mut it = process(&log, 7);
        // Two at the same time: the second is not there when the first is.
        let [first, second] = [(); 2].map(|()| it.store.expect().unwrap());
        it.driver.put(&entry(1)).unwrap();
        assert_eq!([first, second].map(|entries| it.store.has(entries)), [true, false]);
        it.driver.put(&entry(2)).unwrap();
        assert!(it.store.has(second));
        // What came unseen, of the log or of a kernel that was compiled in no time, is none of the next one's.
        it.driver.put(&entry(3)).unwrap();
        let third = it.store.expect().unwrap();
        assert!(!it.store.has(third));
        // It had that, and the next one is not waited for longer because of it.
        it.store.give_up();
        let fourth = it.store.expect().unwrap();
        it.driver.put(&entry(4)).unwrap();
        assert!(it.store.has(fourth) && it.store.keeps());
        it.store.end();
        assert!(it.store.has(fourth + 9) && !it.store.keeps() && it.store.expect().is_none());
    }

    #[test]
    fn a_spare_takes_what_the_engine_compiles_and_keeps_its_own_when_it_is_told_to_begin() {
        let log = log();
        let (mut engine, mut spare) = (process(&log, 7), process(&log, 7));
        engine.store.begin();
        for key in 1..=2 {
            engine.driver.put(&entry(key)).unwrap();
            engine.store.compiled();
            spare.store.take();
            assert_eq!(found(&mut spare), [entry(key)]);
        }
        spare.driver.put(&entry(9)).unwrap();
        spare.store.compiled();
        assert_eq!((log.claims().added, spare.store.next_look()), (2, None), "the log has one writer");
        drop(engine);
        spare.store.begin();
        assert_eq!(log.claims().added, 3);
    }

    #[test]
    fn what_another_driver_compiled_is_not_taken() {
        let log = log();
        let mut first = process(&log, 7);
        first.store.begin();
        first.driver.put(&entry(1)).unwrap();
        first.store.compiled();
        let mut other = process(&log, 8);
        other.store.take();
        assert!(found(&mut other).is_empty());
        other.store.begin();
        assert!(found(&mut other).is_empty());
        assert_eq!(log.claims().bytes, 0);
    }

    #[test]
    fn looks_become_rarer_and_end_and_begin_again_with_the_next_kernel() {
        let mut process = process(&log(), 7);
        process.store.begin();
        assert_eq!(process.store.next_look(), None);
        for _ in 0..2 {
            process.store.compiled();
            let mut waits = Vec::new();
            while let Some(wait) = process.store.next_look() {
                waits.push(wait.as_millis());
                process.store.look();
            }
            assert_eq!(waits, (0..12).map(|power| 1 << power).collect::<Vec<u128>>());
        }
    }

    #[test]
    fn a_driver_whose_files_are_full_has_no_cache_any_more_and_the_log_stays() {
        let log = log();
        let mut process = process(&log, 7);
        process.store.begin();
        process.driver.put(&entry(1)).unwrap();
        process.store.compiled();
        process.descriptors[0].set_len(MOST_DATA_BYTES + 1).unwrap();
        process.store.compiled();
        assert!(process.descriptors.iter_mut().all(|file| file.read(&mut [0]).is_err()));
        assert_eq!((process.store.next_look(), log.claims().added), (None, 1));
        process.driver.put(&entry(2)).unwrap();
        process.store.compiled();
        assert_eq!(log.claims().added, 1);
    }
}
