//! Memory of engine processes that no rlimit counts, where there is no cgroup: it is looked at from time to time.
//!
//! ```text
//!   spawn ── begin ─▶ WATCHED ◀── round, 4 times a second ── "engines" (or "engine-memory", where that is not there)
//!                                   │  /proc/PID/status: private memory, resident and swapped out
//!                                   │  /proc/PID/maps, /proc/PID/fd: shared memory, whether resident or not,
//!                                   │                                but for files that the daemon has too
//!                                   └─ twice beyond the limit: SIGKILL; its session sees a lost engine
//! ```
//!
//! What a driver has the kernel allocate for a GPU is none of these, and not counted. A process is ended some time after it has
//! passed the limit, at the third look at the latest: the limit bounds what it keeps, and not what it has for a moment.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::Duration;
use std::time::Instant;

use rustix::event::PollFd;
use rustix::event::PollFlags;
use rustix::event::Timespec;
use rustix::event::poll;
use rustix::fs::makedev;
use rustix::process::Pid;
use rustix::process::PidfdFlags;
use rustix::process::Signal;
use rustix::process::pidfd_open;
use rustix::process::pidfd_send_signal;

use crate::outside;

/// Between two looks.
const INTERVAL: Duration = Duration::from_millis(250);
/// A look takes at most this part of the time of its thread.
const SHARE: u32 = 50;
/// How the kernel calls shared memory without a file, or of a file that is only memory.
const SHARED: [&str; 4] = ["/dev/zero", "/memfd:", "/SYSV", "/dev/shm/"];

static WATCHED: Mutex<Watched> = Mutex::new(Watched { processes: Vec::new(), due: None });

#[derive(Debug)]
struct Watched {
    processes: Vec<Process>,
    due: Option<Instant>,
}

#[derive(Debug)]
struct Process {
    pid: u32,
    pidfd: OwnedFd,
    limit: u64,
    /// It was beyond the limit at the last look.
    was_over: bool,
}

/// A file of shared memory, by device and number.
type Inode = (u64, u64);

/// Watches a child of this process, from now until it ends.
///
/// # Errors
/// No descriptor or thread for it could be had.
pub(super) fn begin(pid: u32, limit: u64) -> io::Result<()> {
    let id = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let id = id.ok_or_else(|| io::Error::other("a process without an id"))?;
    let pidfd = pidfd_open(id, PidfdFlags::empty())?;
    let mut watched = WATCHED.lock().unwrap_or_else(PoisonError::into_inner);
    // Those that ended since the last look: a guest may lose engines faster than that.
    watched.processes.retain(Process::is_there);
    watched.processes.push(Process { pid, pidfd, limit, was_over: false });
    drop(watched);
    outside::again(round)
}

/// Looks at all, where that is due; when it is due next, where there are any.
fn round() -> Option<Duration> {
    let mut watched = WATCHED.lock().unwrap_or_else(PoisonError::into_inner);
    let now = Instant::now();
    if let Some(left) = watched.due.and_then(|due| due.checked_duration_since(now)) {
        return Some(left);
    }
    watched.processes.retain_mut(|process| process.is_there() && !process.look());
    watched.due = (!watched.processes.is_empty()).then(|| {
        let done = Instant::now();
        done + INTERVAL.max((done - now) * SHARE)
    });
    watched.due.map(|due| due.saturating_duration_since(now))
}

impl Process {
    fn is_there(&self) -> bool {
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(&self.pidfd, PollFlags::IN)], Some(&at_once)).is_ok_and(|ready| ready == 0)
    }

    /// Whether it was ended.
    fn look(&mut self) -> bool {
        let is_over = match allocated(self.pid, self.limit) {
            Ok(bytes) => bytes > self.limit,
            Err(error) => {
                // It has just ended, most likely.
                log::debug!("engine process {}: its memory cannot be seen: {error}", self.pid);
                false
            }
        };
        if !(is_over && self.was_over) {
            self.was_over = is_over;
            return false;
        }
        log::warn!(
            "engine process {} is ended: with shared memory it has more than {} MiB (--engine-memory)",
            self.pid,
            self.limit >> 20
        );
        if let Err(error) = pidfd_send_signal(&self.pidfd, Signal::KILL) {
            log::error!("engine process {} cannot be ended: {error}", self.pid);
        }
        true
    }
}

/// Bytes that a process has allocated; with those of files that are not its own, where that is not more than `enough`.
fn allocated(pid: u32, enough: u64) -> io::Result<u64> {
    let process = format!("/proc/{pid}");
    let private = private(&fs::read_to_string(format!("{process}/status"))?);
    let mut shared = shared(Path::new(&process))?;
    let total = |shared: &BTreeMap<Inode, u64>| {
        shared.values().fold(private, |sum, bytes| sum.saturating_add(*bytes))
    };
    if total(&shared) > enough {
        // What the daemon has too it was given.
        let given: BTreeSet<Inode> = self::shared(Path::new("/proc/self"))?.into_keys().collect();
        shared.retain(|inode, _| !given.contains(inode));
    }
    Ok(total(&shared))
}

/// Private memory of a process, resident and swapped out; none where it is gone.
pub fn allocated_by(pid: u32) -> Option<u64> {
    fs::read_to_string(format!("/proc/{pid}/status")).ok().map(|status| private(&status))
}

/// Private memory, resident and swapped out.
fn private(status: &str) -> u64 {
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().strip_suffix(" kB")?.parse::<u64>().ok()
    };
    ["RssAnon:", "VmSwap:"].into_iter().filter_map(field).fold(0, u64::saturating_add).saturating_mul(1024)
}

/// Files of shared memory that a process has mapped, or open, and the bytes of each: of what is mapped up to the end of that,
/// of what is open those that are allocated.
fn shared(process: &Path) -> io::Result<BTreeMap<Inode, u64>> {
    let mut files = mapped(&fs::read_to_string(process.join("maps"))?);
    for entry in fs::read_dir(process.join("fd"))?.flatten() {
        // Closed by now, it is not its any more.
        let Ok(name) = fs::read_link(entry.path()) else { continue };
        if !name.to_str().is_some_and(is_shared_memory) {
            continue;
        }
        let Ok(metadata) = fs::metadata(entry.path()) else { continue };
        let bytes = files.entry((metadata.dev(), metadata.ino())).or_default();
        *bytes = (*bytes).max(metadata.blocks().saturating_mul(512));
    }
    Ok(files)
}

fn is_shared_memory(name: &str) -> bool {
    SHARED.iter().any(|start| name.starts_with(start))
}

/// Those that a `maps` file names.
fn mapped(maps: &str) -> BTreeMap<Inode, u64> {
    let mut files: BTreeMap<Inode, u64> = BTreeMap::new();
    for line in maps.lines() {
        if let Some((inode, end)) = shared_mapping(line) {
            let bytes = files.entry(inode).or_default();
            *bytes = (*bytes).max(end);
        }
    }
    files
}

/// `from-to rwxs offset major:minor inode name`: the file and where the mapping ends in it.
fn shared_mapping(line: &str) -> Option<(Inode, u64)> {
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    let mut words = line.split_ascii_whitespace();
    let (from, to) = words.next()?.split_once('-')?;
    let is_shared = words.next()?.ends_with('s');
    let offset = hex(words.next()?)?;
    let (major, minor) = words.next()?.split_once(':')?;
    let inode = words.next()?.parse().ok()?;
    if !is_shared || !is_shared_memory(words.next()?) {
        return None;
    }
    let device = makedev(u32::try_from(hex(major)?).ok()?, u32::try_from(hex(minor)?).ok()?);
    Some(((device, inode), offset.saturating_add(hex(to)?.checked_sub(hex(from)?)?)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing test stops here")]

    use super::allocated;
    use super::mapped;
    use super::private;
    use crate::memory::vram::create_memfd;

    #[test]
    fn shared_memory_counts_once_for_each_file_and_up_to_the_end_of_what_is_mapped() {
        let maps = "\
            7f0000000000-7f0000002000 rw-s 00000000 00:01 12 /dev/zero (deleted)\n\
            7f0000010000-7f0000011000 rw-s 00004000 00:01 13 /memfd:a (deleted)\n\
            7f0000020000-7f0000021000 r--s 00001000 00:01 13 /memfd:a (deleted)\n\
            7f0000030000-7f0000090000 rw-p 00000000 00:01 14 /memfd:private (deleted)\n\
            7f00000a0000-7f00000b0000 rw-s 100000000 00:06 99 /dev/dri/renderD128\n\
            7f00000c0000-7f00000d0000 rw-p 00000000 00:00 0 [heap]\n\
            7f00000e0000-7f00000e1000 rw-s 00000000 00:1a 12 /SYSV00000000 (deleted)\n\
            no line of such a file\n";
        let files: Vec<_> = mapped(maps).into_iter().collect();
        assert_eq!(files, [((1, 12), 0x2000), ((1, 13), 0x5000), ((0x1a, 12), 0x1000)]);
    }

    #[test]
    fn private_memory_is_what_is_resident_and_what_is_swapped_out() {
        assert_eq!(
            private("VmRSS:\t  900 kB\nRssAnon:\t  100 kB\nRssShmem:\t 800 kB\nVmSwap:\t  28 kB\n"),
            128 << 10
        );
        assert_eq!(private(""), 0);
    }

    #[test]
    fn what_this_process_has_is_given_and_does_not_count() {
        let own = std::process::id();
        let file = create_memfd("campanile-watched", 4 << 30).unwrap();
        let counts = |enough| allocated(own, enough).unwrap();
        let given = counts(0);
        assert!(given < 4 << 30, "{given}");
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, 8 << 20).unwrap();
        assert!(counts(u64::MAX) >= 8 << 20, "it is counted as long as that is not too much");
    }
}
