//! How much may be logged for one VM: by its guest, its VMM, its engines, and whatever else can cause a line at will.
//!
//! ```text
//!   thread of a VM: within(limit) ──▶ threads that it starts: inherit
//!          └── log::warn!(…) ──▶ Limited ── limit of this thread ──▶ admitted ──▶ the logger
//!                                   │               └──▶ counted, and said with the next line that is
//!                                   └── a thread of no VM, debug and trace ──▶ the logger
//! ```
//!
//! The logger decides, by the thread that a line comes from, so that no place that logs can go around it. Each VM has a limit
//! of its own: one that floods the log hides no line of another.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::time::Duration;
use std::time::Instant;

use log::Level;
use log::Log;
use log::Metadata;
use log::Record;

/// Lines that may come in one go.
pub const BURST: u32 = 256;
/// Lines a second, for longer.
pub const LINES_PER_SECOND: u32 = 16;

thread_local! {
    static OF_THREAD: RefCell<Option<Arc<LogLimit>>> = const { RefCell::new(None) };
}

/// The limit of one VM, or of another source of lines.
#[derive(Debug)]
pub struct LogLimit {
    name: String,
    bucket: Mutex<Bucket>,
    left_out: AtomicU64,
}

#[derive(Debug)]
struct Bucket {
    allowed: u32,
    counted: Instant,
    left_out: u64,
}

impl Bucket {
    /// Whether a line may be written at `now`, and how many were left out before it.
    fn admit(&mut self, now: Instant) -> Option<u64> {
        let per_line = Duration::from_secs(1) / LINES_PER_SECOND;
        let earned = now.saturating_duration_since(self.counted).as_nanos() / per_line.as_nanos();
        let earned = u32::try_from(earned).unwrap_or(u32::MAX);
        if earned >= BURST - self.allowed {
            (self.allowed, self.counted) = (BURST, now);
        } else {
            self.allowed += earned;
            self.counted += per_line * earned;
        }
        if self.allowed == 0 {
            self.left_out += 1;
            return None;
        }
        self.allowed -= 1;
        Some(std::mem::take(&mut self.left_out))
    }
}

impl LogLimit {
    /// The limit of the VM, or the source of lines, of this name.
    pub fn new(name: &str) -> Arc<Self> {
        let bucket = Bucket { allowed: BURST, counted: Instant::now(), left_out: 0 };
        Arc::new(Self { name: name.to_owned(), bucket: Mutex::new(bucket), left_out: AtomicU64::new(0) })
    }

    /// The limit of the calling thread, if it has one.
    pub fn of_thread() -> Option<Arc<Self>> {
        OF_THREAD.try_with(|limit| limit.borrow().clone()).ok().flatten()
    }

    /// The VM, or the source of lines.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What `work` logs on this thread, and on threads that [`inherit`], is within this limit.
    pub fn within<T>(self: &Arc<Self>, work: impl FnOnce() -> T) -> T {
        within(Some(Arc::clone(self)), work)
    }

    /// Lines that were left out so far.
    pub fn left_out(&self) -> u64 {
        self.left_out.load(Ordering::Relaxed)
    }

    /// A line was left out by a limit below this one.
    pub fn leave_out(&self) {
        self.left_out.fetch_add(1, Ordering::Relaxed);
    }

    fn admit(&self, now: Instant) -> Option<u64> {
        let admitted = self.bucket.lock().unwrap_or_else(PoisonError::into_inner).admit(now);
        if admitted.is_none() {
            self.leave_out();
        }
        admitted
    }
}

/// Puts back what was in force before, also where the work panics.
struct Before(Option<Arc<LogLimit>>);

impl Drop for Before {
    fn drop(&mut self) {
        let before = self.0.take();
        let _ended = OF_THREAD.try_with(|limit| limit.replace(before));
    }
}

/// What `work` logs on this thread is within this limit, or none.
pub fn within<T>(limit: Option<Arc<LogLimit>>, work: impl FnOnce() -> T) -> T {
    let _before = Before(OF_THREAD.try_with(|current| current.replace(limit)).ok().flatten());
    work()
}

/// For a thread that is about to be started: what it logs is within the limit of the thread that calls this.
pub fn inherit<T>(work: impl FnOnce() -> T) -> impl FnOnce() -> T {
    let limit = LogLimit::of_thread();
    move || within(limit, work)
}

/// A logger, behind the limits of the threads that log.
#[derive(Debug)]
pub struct Limited<L>(pub L);

impl<L: Log> Log for Limited<L> {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        self.0.enabled(metadata)
    }

    fn log(&self, record: &Record<'_>) {
        // A log at debug or trace level is asked for by the operator, and whole.
        let limit = LogLimit::of_thread().filter(|_| record.level() <= Level::Info);
        let Some(limit) = limit.filter(|_| self.0.enabled(record.metadata())) else {
            return self.0.log(record);
        };
        let Some(left_out) = limit.admit(Instant::now()) else { return };
        if left_out > 0 {
            let metadata = Metadata::builder().level(Level::Warn).target(module_path!()).build();
            let name = &limit.name;
            self.0.log(
                &Record::builder()
                    .metadata(metadata)
                    .args(format_args!("{name}: {left_out} lines were left out here, it causes too many"))
                    .build(),
            );
        }
        self.0.log(record);
    }

    fn flush(&self) {
        self.0.flush();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::thread;
    use std::time::Duration;
    use std::time::Instant;

    use log::Level;
    use log::Log;
    use log::Metadata;
    use log::Record;

    use super::BURST;
    use super::Bucket;
    use super::LINES_PER_SECOND;
    use super::Limited;
    use super::LogLimit;
    use super::inherit;

    #[derive(Default)]
    struct Kept(Mutex<Vec<String>>);

    impl Log for Kept {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            metadata.target() != "silent"
        }

        fn log(&self, record: &Record<'_>) {
            self.0.lock().unwrap().push(record.args().to_string());
        }

        fn flush(&self) {}
    }

    fn say(logger: &impl Log, level: Level, target: &str, text: &str) {
        let metadata = Metadata::builder().level(level).target(target).build();
        logger.log(&Record::builder().metadata(metadata).args(format_args!("{text}")).build());
    }

    #[test]
    fn a_bucket_admits_a_burst_and_then_so_many_a_second() {
        let begun = Instant::now();
        let mut bucket = Bucket { allowed: BURST, counted: begun, left_out: 0 };
        assert!((0..BURST).all(|_| bucket.admit(begun) == Some(0)));
        assert!((0..1000).all(|_| bucket.admit(begun).is_none()));
        let second = begun + Duration::from_secs(1);
        assert_eq!(bucket.admit(second), Some(1000));
        let rest = (0..1000).filter(|_| bucket.admit(second).is_some()).count();
        assert_eq!(rest, LINES_PER_SECOND as usize - 1);
        let later = begun + Duration::from_secs(100_000);
        let all = (0..10 * BURST).filter(|_| bucket.admit(later).is_some()).count();
        assert_eq!(all, BURST as usize, "time without lines is no credit");
    }

    #[test]
    fn a_flood_of_one_vm_is_cut_off_and_counted_and_hides_no_line_of_another() {
        let logger = Limited(Kept::default());
        let (noisy, quiet) = (LogLimit::new("noisy"), LogLimit::new("quiet"));
        let begun = Instant::now();
        noisy.within(|| (0..10_000).for_each(|_| say(&logger, Level::Error, "a", "flood")));
        quiet.within(|| say(&logger, Level::Info, "a", "of the quiet one"));
        say(&logger, Level::Info, "a", "of no VM");
        noisy.within(|| say(&logger, Level::Debug, "a", "wanted by the operator"));
        noisy.within(|| say(&logger, Level::Error, "silent", "not enabled"));
        let kept = std::mem::take(&mut *logger.0.0.lock().unwrap());
        let count = |text: &str| kept.iter().filter(|line| *line == text).count();
        let most = u64::from(BURST) + (begun.elapsed().as_secs() + 1) * u64::from(LINES_PER_SECOND);
        assert!((u64::from(BURST)..=most).contains(&(count("flood") as u64)), "{}", count("flood"));
        assert_eq!(
            (count("of the quiet one"), count("of no VM"), count("wanted by the operator")),
            (1, 1, 1)
        );
        assert_eq!((noisy.left_out() + count("flood") as u64, quiet.left_out()), (10_000, 0));
    }

    #[test]
    fn what_was_left_out_is_said_before_the_next_line() {
        let logger = Limited(Kept::default());
        let limit = LogLimit::new("v0");
        limit.bucket.lock().unwrap().allowed = 0;
        limit.bucket.lock().unwrap().left_out = 7;
        limit.bucket.lock().unwrap().counted = Instant::now() - Duration::from_secs(1);
        limit.within(|| say(&logger, Level::Warn, "a", "next"));
        let kept = logger.0.0.lock().unwrap();
        assert_eq!(*kept, ["v0: 7 lines were left out here, it causes too many", "next"]);
    }

    #[test]
    fn threads_of_a_vm_have_its_limit_and_a_thread_has_it_no_longer_than_it_works_for_it() {
        let limit = LogLimit::new("v0");
        let name = || LogLimit::of_thread().map(|limit| limit.name.clone());
        limit.within(|| {
            assert_eq!(thread::spawn(inherit(name)).join().unwrap().as_deref(), Some("v0"));
            assert_eq!(thread::spawn(name).join().unwrap(), None);
            let other = LogLimit::new("v1");
            other.within(|| assert_eq!(name().as_deref(), Some("v1")));
            assert_eq!(name().as_deref(), Some("v0"));
        });
        assert_eq!(name(), None);
        let _panicked = std::panic::catch_unwind(|| LogLimit::new("v2").within(|| panic!("on purpose")));
        assert_eq!(name(), None);
    }
}
