//! Keeps the machine's CPUs awake while realtime work comes.
//!
//! ```text
//!   engine ── realtime work ran, at … ──▶ supervisor ──▶ /dev/cpu_dma_latency: "no CPU may take longer than … to wake up"
//!                                             └── a second after the last ──▶ "as long as it likes"
//! ```
//!
//! Several threads wake up between ring and first packet, and a CPU that sleeps takes its time: 0.1 ms from a deep state, and
//! milliseconds where this machine is a VM and its host lets others run meanwhile. The kernel forgets what was asked when the file is
//! closed, however this process ends.

use std::fmt;
use std::fs;
use std::fs::File;
use std::io;
use std::io::Write;
use std::str::FromStr;
use std::time::Duration;

/// The kernel's file: 32 bits, µs.
const FILE: &str = "/dev/cpu_dma_latency";
/// How CPUs of this machine sleep.
const IDLE_DRIVER: &str = "/sys/devices/system/cpu/cpuidle/current_driver";
/// That of VMs, in which a CPU that sleeps is its host's to give to others.
const OF_VMS: &str = "haltpoll";
/// Lets CPUs halt, and no more than that.
const HALTED: u32 = 10;
/// No limit, as the kernel itself says it.
const UNLIMITED: u32 = 2_000_000_000;
/// For how long after realtime work more of it is likely to come.
const LASTS: Duration = Duration::from_secs(1);

/// How long CPUs may take to wake up while realtime work comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CpuLatency {
    /// 10 µs; in a VM they do not sleep at all.
    #[default]
    Auto,
    /// As long as they like.
    Off,
    /// µs; at 0 they do not sleep at all.
    Micros(u32),
}

impl CpuLatency {
    /// The limit, µs; none where there is none.
    fn limit(self) -> Option<u32> {
        match self {
            Self::Auto => {
                let is_vm = fs::read_to_string(IDLE_DRIVER).is_ok_and(|driver| driver.trim() == OF_VMS);
                Some(if is_vm { 0 } else { HALTED })
            }
            Self::Off => None,
            Self::Micros(limit) => Some(limit),
        }
    }
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

/// What was asked of the kernel.
#[derive(Debug)]
pub struct Awake<F = File> {
    /// The file, and what to ask of it; none where nothing is asked.
    asks: Option<(F, u32)>,
    is_asked: bool,
}

impl Awake {
    /// Nothing is ever asked.
    pub const fn off() -> Self {
        Self { asks: None, is_asked: false }
    }

    /// Opens the kernel's file, which is root's; where that cannot be had, the log says so, and nothing is asked.
    pub fn open(latency: CpuLatency) -> Self {
        let Some(limit) = latency.limit() else { return Self::off() };
        match File::options().write(true).open(FILE) {
            Ok(file) => {
                log::info!("while realtime work comes, CPUs take at most {limit} us to wake up");
                Self::over(file, limit)
            }
            Err(error) => {
                log::info!("realtime work may wait for CPUs that sleep: {FILE}: {error}");
                Self::off()
            }
        }
    }
}

impl<F: Write> Awake<F> {
    /// Asks `file` for `limit`, µs.
    pub const fn over(file: F, limit: u32) -> Self {
        Self { asks: Some((file, limit)), is_asked: false }
    }

    /// Whether anything is ever asked.
    pub const fn is_on(&self) -> bool {
        self.asks.is_some()
    }

    /// Asks for what is due `now`, when realtime work last ran at `last`; both of the monotonic clock. After what time to look
    /// again, if at all.
    pub fn look(&mut self, last: Duration, now: Duration) -> Option<Duration> {
        // Nobody has run work later than now, whatever an engine says.
        let left = (last.min(now) + LASTS).saturating_sub(now);
        let is_due = !left.is_zero();
        if is_due != self.is_asked
            && let Some((file, limit)) = &mut self.asks
        {
            self.is_asked = is_due;
            if let Err(error) = ask(file, if is_due { *limit } else { UNLIMITED }) {
                log::warn!("{FILE}: {error}; realtime work may wait for CPUs that sleep");
                self.asks = None;
            }
        }
        (self.is_on() && is_due).then_some(left)
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
    use super::LASTS;
    use super::UNLIMITED;

    const MOMENT: Duration = Duration::from_nanos(1);

    #[test]
    fn cpus_stay_awake_until_a_second_after_the_last_realtime_work() {
        let mut asked = Vec::new();
        let mut awake = Awake::over(&mut asked, 3);
        let (begin, later) = (Duration::from_secs(100), Duration::from_millis(100_700));
        assert_eq!(awake.look(Duration::ZERO, begin), None, "none ran so far");
        assert_eq!(awake.look(begin, begin), Some(LASTS));
        assert_eq!(awake.look(begin, later), Some(begin + LASTS - later));
        assert_eq!(awake.look(later, begin + LASTS), Some(later - begin), "more of it has run");
        assert_eq!(awake.look(later, later + LASTS - MOMENT), Some(MOMENT));
        assert_eq!(awake.look(later, later + LASTS), None);
        assert_eq!(awake.look(later, later + LASTS * 2), None);
        assert_eq!(asked, [3u32, UNLIMITED].map(u32::to_ne_bytes).concat(), "each is asked for once");
    }

    #[test]
    fn an_engine_that_speaks_of_the_future_is_believed_for_the_present() {
        let mut awake = Awake::over(io::sink(), 0);
        let now = Duration::from_secs(5);
        assert_eq!(awake.look(Duration::MAX, now), Some(LASTS));
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
        assert_eq!(awake.look(now, now), None);
        assert!(!awake.is_on());
        assert_eq!(awake.look(now + LASTS, now + LASTS), None);
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
