//! Keeps the machine's CPUs awake while realtime work comes.
//!
//! ```text
//!   engine ── realtime work ran, at … ──▶ supervisor ──▶ /dev/cpu_dma_latency: "no CPU may take longer than … to wake up"
//!                                             └── a second after the last ──▶ "as long as it likes"
//! ```
//!
//! Several threads wake up between ring and first packet, and a CPU that sleeps takes its time: 0.1 ms from a deep state, and
//! milliseconds where this machine is a VM and its host lets others run meanwhile. The kernel forgets what was asked when the file is
//! closed, however this process ends. A dispatch that runs counts as long as it goes on.

use std::fmt;
use std::fs;
use std::fs::File;
use std::io;
use std::io::Write;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use campanile_protocol::engine::scheduling::REALTIME_LASTS;

/// The kernel's file: 32 bits, µs.
const FILE: &str = "/dev/cpu_dma_latency";
/// How CPUs of this machine sleep; without an idle driver that knows several sleep states, limits have no effect.
const IDLE_DRIVER: &str = "/sys/devices/system/cpu/cpuidle/current_driver";
/// That of VMs, in which a CPU that sleeps is its host's to give to others.
const OF_VMS: &str = "haltpoll";
/// Lets CPUs halt, and no more than that, µs.
const HALTED: u32 = 10;
/// No limit, µs, as the kernel itself says it.
const UNLIMITED: u32 = 2_000_000_000;

/// How long CPUs may take to wake up while realtime work comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CpuLatency {
    /// 10 µs; 0 where the idle driver is haltpoll, that of VMs.
    #[default]
    Auto,
    /// As long as they like.
    Off,
    /// µs; at 0 they poll.
    Micros(u32),
}

impl fmt::Display for CpuLatency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Off => f.write_str("off"),
            Self::Micros(limit) => limit.fmt(f),
        }
    }
}

impl FromStr for CpuLatency {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let micros = || text.parse().ok().filter(|limit| *limit <= UNLIMITED).map(Self::Micros);
        match text {
            "auto" => Ok(Self::Auto),
            "off" => Ok(Self::Off),
            _ => micros().ok_or_else(|| format!("not auto, off, or microseconds up to {UNLIMITED}: {text}")),
        }
    }
}

/// What is asked of the kernel.
#[derive(Debug)]
pub struct Awake<F = File> {
    /// The file, and what to ask of it; none where nothing is asked.
    asks: Option<(F, u32)>,
    is_asked: bool,
    /// When realtime work last ran, of the monotonic clock; zero for never.
    last: Duration,
}

impl Awake {
    /// Nothing is ever asked.
    pub const fn off() -> Self {
        Self { asks: None, is_asked: false, last: Duration::ZERO }
    }

    /// Opens the kernel's file, which is root's. The log says what is asked, and why nothing is.
    ///
    /// # Errors
    /// The operator has named a limit, and the file cannot be had.
    pub fn open(latency: CpuLatency) -> io::Result<Self> {
        Self::open_at(latency, &fs::read_to_string(IDLE_DRIVER).unwrap_or_default(), Path::new(FILE))
    }

    /// The same, where the idle driver has this name and the kernel's file is `path`.
    fn open_at(latency: CpuLatency, driver: &str, path: &Path) -> io::Result<Self> {
        let limit = match (latency, driver.trim()) {
            (CpuLatency::Off, _) => return Ok(Self::off()),
            (CpuLatency::Micros(limit), _) => limit,
            (CpuLatency::Auto, OF_VMS) => 0,
            (CpuLatency::Auto, _) => HALTED,
        };
        match File::options().write(true).open(path) {
            Ok(file) => {
                log::info!("while realtime work comes, CPUs are to take at most {limit} us to wake up");
                if matches!(driver.trim(), "" | "none") {
                    log::info!("this machine has no idle driver that heeds that: {IDLE_DRIVER}");
                }
                Ok(Self::over(file, limit))
            }
            Err(error) if latency == CpuLatency::Auto => {
                log::info!("realtime work may wait for CPUs that sleep: {}: {error}", path.display());
                Ok(Self::off())
            }
            Err(error) => {
                let what = format!("--cpu-latency: {}: {error}", path.display());
                Err(io::Error::new(error.kind(), what))
            }
        }
    }
}

impl<F: Write> Awake<F> {
    /// Asks `file` for `limit`, µs.
    pub const fn over(file: F, limit: u32) -> Self {
        Self { asks: Some((file, limit)), is_asked: false, last: Duration::ZERO }
    }

    /// An engine says that realtime work last ran at `last`, which was read before `now`; both of the monotonic clock. A later word
    /// takes nothing back: else a VM could have CPUs change their state more than once a second. A time after `now` does not count.
    pub fn note_realtime(&mut self, last: Duration, now: Duration) {
        if last <= now {
            self.last = self.last.max(last);
        }
    }

    /// Asks for what is due `now`. After what time to look again, if at all.
    pub fn look(&mut self, now: Duration) -> Option<Duration> {
        let (file, limit) = self.asks.as_mut()?;
        let left = (self.last + REALTIME_LASTS).saturating_sub(now);
        let is_due = !self.last.is_zero() && !left.is_zero();
        if is_due != self.is_asked {
            self.is_asked = is_due;
            if let Err(error) = ask(file, if is_due { *limit } else { UNLIMITED }) {
                log::warn!("{FILE}: {error}; realtime work may wait for CPUs that sleep");
                self.asks = None;
                return None;
            }
        }
        is_due.then_some(left)
    }
}

fn ask(file: &mut impl Write, limit: u32) -> io::Result<()> {
    file.write_all(&limit.to_ne_bytes())
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::io::Write;
    use std::time::Duration;

    use super::Awake;
    use super::CpuLatency;
    use super::REALTIME_LASTS;
    use super::UNLIMITED;

    const MOMENT: Duration = Duration::from_nanos(1);

    fn look(awake: &mut Awake<impl Write>, last: Duration, now: Duration) -> Option<Duration> {
        awake.note_realtime(last, now);
        awake.look(now)
    }

    #[test]
    fn cpus_stay_awake_until_a_second_after_the_last_realtime_work() {
        let mut asked = Vec::new();
        let mut awake = Awake::over(&mut asked, 3);
        let (begin, later) = (Duration::from_secs(100), Duration::from_millis(100_700));
        assert_eq!(look(&mut awake, Duration::ZERO, begin), None, "none ran so far");
        assert_eq!(look(&mut awake, begin, begin), Some(REALTIME_LASTS));
        assert_eq!(look(&mut awake, begin, later), Some(begin + REALTIME_LASTS - later));
        assert_eq!(
            look(&mut awake, later, begin + REALTIME_LASTS),
            Some(later - begin),
            "more of it has run"
        );
        assert_eq!(look(&mut awake, later, later + REALTIME_LASTS - MOMENT), Some(MOMENT));
        assert_eq!(look(&mut awake, later, later + REALTIME_LASTS), None);
        assert_eq!(look(&mut awake, later, later + REALTIME_LASTS * 2), None);
        assert_eq!(asked, [3u32, UNLIMITED].map(u32::to_ne_bytes).concat(), "each is asked for once");
    }

    #[test]
    fn realtime_work_is_not_taken_back_by_an_engine_that_denies_it_or_is_gone() {
        let mut asked = Vec::new();
        let mut awake = Awake::over(&mut asked, 3);
        let (begin, later) = (Duration::from_secs(100), Duration::from_millis(100_700));
        assert_eq!(look(&mut awake, begin, begin), Some(REALTIME_LASTS));
        assert_eq!(look(&mut awake, Duration::ZERO, later), Some(begin + REALTIME_LASTS - later));
        assert_eq!(asked, 3u32.to_ne_bytes());
    }

    #[test]
    fn realtime_work_that_is_said_to_have_run_in_the_future_did_not_run() {
        let mut awake = Awake::over(io::sink(), 0);
        let now = Duration::from_millis(500);
        for last in [Duration::MAX, now + MOMENT, Duration::ZERO] {
            assert_eq!(look(&mut awake, last, now), None);
        }
        // Nor does it hide what another engine says.
        awake.note_realtime(now, now);
        assert_eq!(look(&mut awake, Duration::MAX, now), Some(REALTIME_LASTS));
    }

    #[test]
    fn a_kernel_that_refuses_is_not_asked_again() {
        struct Refuses(u32);
        impl Write for Refuses {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                self.0 += 1;
                assert_eq!(self.0, 1);
                Err(io::ErrorKind::PermissionDenied.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let mut awake = Awake::over(Refuses(0), 0);
        let now = Duration::from_secs(5);
        assert_eq!(look(&mut awake, now, now), None);
        assert_eq!(look(&mut awake, now + MOMENT, now + MOMENT), None);
    }

    #[test]
    fn what_is_asked_depends_on_the_operator_and_on_how_cpus_sleep_here() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let asked = |latency, driver| {
            let awake = Awake::open_at(latency, driver, file.path()).unwrap();
            awake.asks.map(|(_, limit)| limit)
        };
        assert_eq!(asked(CpuLatency::Off, "haltpoll\n"), None);
        assert_eq!(asked(CpuLatency::Auto, "haltpoll\n"), Some(0));
        assert_eq!(asked(CpuLatency::Auto, "intel_idle\n"), Some(10));
        assert_eq!(asked(CpuLatency::Micros(70), "haltpoll\n"), Some(70));
    }

    #[test]
    fn a_limit_that_cannot_be_asked_for_is_an_error_only_where_the_operator_named_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("none");
        let open = |latency| Awake::open_at(latency, "intel_idle", &path);
        assert!(open(CpuLatency::Auto).unwrap().asks.is_none());
        assert!(open(CpuLatency::Off).unwrap().asks.is_none());
        let error = open(CpuLatency::Micros(70)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        let said = error.to_string();
        assert!(said.starts_with("--cpu-latency: ") && said.contains(&*path.to_string_lossy()), "{said}");
    }

    #[test]
    fn a_latency_is_written_as_it_is_read() {
        for text in ["auto", "off", "0", "10", "2000000000"] {
            assert_eq!(text.parse::<CpuLatency>().unwrap().to_string(), text);
        }
        for text in ["", "-1", "2000000001", "1ms", "Auto"] {
            assert!(text.parse::<CpuLatency>().unwrap_err().contains("microseconds up to"), "{text}");
        }
    }
}
