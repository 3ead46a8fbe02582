//! Resource limits of an engine process, and the cgroup that it is in.
//!
//! `RLIMIT_AS` would count what an engine only maps: a reservation as large as all guest RAM, and the whole aperture of a
//! GPU. `RLIMIT_DATA` counts private writable memory: the heap, stacks, what a compiler makes. `RLIMIT_FSIZE` is the same
//! for each memory file of a driver. How many threads there are its pid
//! namespace limits ([`super::isolation`]), where it has one and the kernel can, and `RLIMIT_NPROC`, which counts all processes and
//! threads of a user, where no other vGPU's engines have this user; sealed engines start none. What it allocates as
//! shared memory is looked at from time to time ([`super::watch`]). CPU time only a cgroup limits; without one, autogroup (where
//! the kernel does it) gives each engine what it gives any other session, whatever threads it has. `RLIMIT_CPU` is for
//! processes that are to end.

use std::fs::File;
use std::io;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;

use rustix::process::Resource;
use rustix::process::Rlimit;
use rustix::process::getrlimit;
use rustix::process::setrlimit;

/// The cgroup of a vGPU's engines, as cgroup v2 has it.
#[derive(Debug)]
pub struct Cgroup {
    processes: File,
    events: File,
    /// Processes that the kernel has ended for want of memory, as far as that was told.
    told: AtomicU64,
}

impl Cgroup {
    /// Opens what is needed later of a cgroup that is there and has its limits.
    ///
    /// # Errors
    /// A file of it cannot be opened.
    pub fn open(folder: &Path) -> io::Result<Self> {
        let processes = File::options().write(true).open(folder.join("cgroup.procs"))?;
        let events = File::open(folder.join("memory.events"))?;
        let cgroup = Self { processes, events, told: AtomicU64::new(0) };
        cgroup.has_new_kill()?;
        Ok(cgroup)
    }

    /// Puts a process into it that has done nothing yet.
    pub(super) fn take(&self, pid: u32) -> io::Result<()> {
        (&self.processes).write_all(pid.to_string().as_bytes())
    }

    /// Whether the kernel has ended a process of it for want of memory since this was last asked.
    ///
    /// # Errors
    /// The kernel does not say.
    pub(super) fn has_new_kill(&self) -> io::Result<bool> {
        let mut text = [0; 1024];
        let length = self.events.read_at(&mut text, 0)?;
        let text = String::from_utf8_lossy(&text[..length]);
        let kills = text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok());
        let kills = kills.ok_or_else(|| io::Error::other("memory.events without oom_kill"))?;
        Ok(self.told.swap(kills, Ordering::Relaxed) < kills)
    }
}

/// Leaves the calling process no more than these bytes, its user no more than these processes and threads, and no core file.
/// It allocates nothing.
pub(super) fn limit_own(memory: Option<u64>, tasks: Option<u64>) -> io::Result<()> {
    let limit = |resource, most: u64| {
        let both = Rlimit { current: Some(most), maximum: Some(most) };
        setrlimit(resource, both)
    };
    limit(Resource::Core, 0)?;
    if let Some(memory) = memory {
        limit(Resource::Data, memory)?;
        limit(Resource::Fsize, memory)?;
    } else {
        // What the daemon has left itself is not for engines.
        let maximum = getrlimit(Resource::Data).maximum;
        setrlimit(Resource::Data, Rlimit { current: maximum, maximum })?;
    }
    if let Some(tasks) = tasks {
        // Without CAP_SYS_RESOURCE it could not be raised.
        limit(Resource::Nproc, getrlimit(Resource::Nproc).maximum.map_or(tasks, |old| old.min(tasks)))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing test stops here")]

    use std::fs;

    use super::Cgroup;

    #[test]
    fn a_kill_for_want_of_memory_is_told_once() {
        let folder = tempfile::tempdir().unwrap();
        let events = folder.path().join("memory.events");
        let write = |kills: u64| fs::write(&events, format!("low 0\noom 9\noom_kill {kills}\n")).unwrap();
        fs::write(folder.path().join("cgroup.procs"), "").unwrap();
        write(3);
        let cgroup = Cgroup::open(folder.path()).unwrap();
        assert!(!cgroup.has_new_kill().unwrap(), "those of earlier daemons are not its own");
        write(4);
        assert_eq!([(); 2].map(|()| cgroup.has_new_kill().unwrap()), [true, false]);
        fs::write(&events, "low 0\n").unwrap();
        assert!(cgroup.has_new_kill().is_err());
    }
}
