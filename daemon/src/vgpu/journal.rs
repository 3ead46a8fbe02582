//! Log lines that a guest can cause: as many as tell what happens, and never so many that they fill a disk.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use std::time::Instant;

use campanile_host_gpu::log_limit::LogLimit;
use log::Level;

/// Lines that may come in one go.
const BURST: u32 = 64;
/// How long one more line takes to be allowed.
const PER_LINE: Duration = Duration::from_secs(5);

/// The log of one session.
#[derive(Debug)]
pub struct Journal {
    vgpu: String,
    limit: Arc<LogLimit>,
    allowed: u32,
    counted: Instant,
    left_out: u64,
}

impl Journal {
    /// For the vGPU of this name, within the limit of its VM.
    pub fn new(vgpu: &str, limit: Arc<LogLimit>) -> Self {
        Self { vgpu: vgpu.to_owned(), limit, allowed: BURST, counted: Instant::now(), left_out: 0 }
    }

    /// Writes a line, or counts it where there were too many of late.
    pub fn line(&mut self, level: Level, text: fmt::Arguments<'_>) {
        let Some(left_out) = self.admit(Instant::now()) else { return self.limit.leave_out() };
        let vgpu = &self.vgpu;
        self.limit.within(|| {
            if left_out > 0 {
                log::warn!("{vgpu}: {left_out} lines were left out here, the guest causes too many");
            }
            log::log!(target: "campanile_daemon::vgpu", level, "{vgpu}: {text}");
        });
    }

    /// Whether a line may be written at `now`, and how many were left out before it.
    fn admit(&mut self, now: Instant) -> Option<u64> {
        let earned = now.saturating_duration_since(self.counted).as_secs() / PER_LINE.as_secs();
        if let Ok(earned) = u32::try_from(earned) {
            self.allowed = self.allowed.saturating_add(earned).min(BURST);
            self.counted += PER_LINE * earned;
        }
        if self.allowed == 0 {
            self.left_out += 1;
            return None;
        }
        self.allowed -= 1;
        Some(std::mem::take(&mut self.left_out))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Instant;

    use campanile_host_gpu::log_limit::LogLimit;
    use log::Level;

    use super::BURST;
    use super::Journal;
    use super::PER_LINE;

    #[test]
    fn a_flood_is_cut_off_and_counted() {
        let limit = LogLimit::new("a");
        let mut journal = Journal::new("a", Arc::clone(&limit));
        let begun = Instant::now();
        assert!((0..BURST).all(|_| journal.admit(begun) == Some(0)));
        assert!((0..1000).all(|_| journal.admit(begun).is_none()));
        journal.line(Level::Info, format_args!("one more"));
        assert_eq!(limit.left_out(), 1, "the operator is told");
        assert_eq!(journal.admit(begun + 2 * PER_LINE), Some(1001));
        assert_eq!(journal.admit(begun + 2 * PER_LINE), Some(0));
        assert_eq!(journal.admit(begun + 2 * PER_LINE), None);
    }
}
