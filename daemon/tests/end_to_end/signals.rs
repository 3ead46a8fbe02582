//! Processes that are stopped and killed from outside: just so, or while they run nobody's work.

use std::fs;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::Ordering;

use campanile_host_gpu::memory::mapping::Access;
use campanile_host_gpu::memory::mapping::Mapping;
use campanile_protocol::engine::block;
use campanile_protocol::engine::progress::Progress;
use campanile_protocol::engine::progress::Work;
use rustix::process::Pid;
use rustix::process::Signal;
use rustix::process::kill_process;

use crate::until;

/// Sends a signal to a process that may be gone.
pub(crate) fn try_signal(pid: u32, signal: Signal) -> rustix::io::Result<()> {
    kill_process(Pid::from_raw(i32::try_from(pid).unwrap()).unwrap(), signal)
}

/// Sends a signal.
pub(crate) fn signal(pid: u32, signal: Signal) {
    try_signal(pid, signal).unwrap();
}

/// Ends a process as a crash does.
pub(crate) fn kill(pid: u32) {
    signal(pid, Signal::KILL);
}

/// Ends an engine as a crash does that is nobody's fault.
pub(crate) fn kill_at_rest(pid: u32) {
    let _stopped = stop_at_rest(pid);
    kill(pid);
}

/// What stands behind the name in a stat file of /proc: state, parent, …
pub(crate) fn stat(path: &str) -> Option<Vec<String>> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.rsplit_once(") ")?.1.split(' ').map(str::to_owned).collect())
}

/// A process that does not run until this is dropped.
#[derive(Debug)]
pub(crate) struct Stopped {
    pid: u32,
}

impl Stopped {
    /// Stops a process; returns when every thread of it stands still.
    pub(crate) fn new(pid: u32) -> Self {
        signal(pid, Signal::STOP);
        until("a process that stands still", || {
            let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
            tasks.flatten().all(|task| {
                let stat = stat(&task.path().join("stat").to_string_lossy());
                stat.is_some_and(|stat| stat[0] == "T")
            })
        });
        Self { pid }
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        // The daemon may have ended it meanwhile.
        let _gone = try_signal(self.pid, Signal::CONT);
    }
}

/// Stops an engine while it runs nothing: of what it runs, its process is to blame. Work still counts as running for a
/// moment after its fence, and a kernel-mode buffer that waits whenever it is looked at.
pub(crate) fn stop_at_rest(engine: u32) -> Stopped {
    let shared = shared_block(engine);
    let progress = shared.word(block::PROGRESS).unwrap();
    let rests = || Progress::from_word(progress.load(Ordering::Acquire)).work == Work::Nothing;
    loop {
        until("an engine that runs nothing", rests);
        let stopped = Stopped::new(engine);
        if rests() {
            return stopped;
        }
    }
}

/// The shared block of an engine: of those that its parent has open, the one that the engine has mapped.
fn shared_block(engine: u32) -> Mapping {
    let maps = fs::read_to_string(format!("/proc/{engine}/maps")).unwrap();
    let line = maps.lines().find(|line| line.contains(BLOCK)).unwrap();
    let inode: u64 = line.split_whitespace().nth(4).unwrap().parse().unwrap();
    let parent: u32 = stat(&format!("/proc/{engine}/stat")).unwrap()[1].parse().unwrap();
    let mut blocks = memfds(parent, BLOCK).into_iter();
    let (_, file) = blocks.find(|(its_inode, _)| *its_inode == inode).unwrap();
    Mapping::new(file, 0, block::BLOCK_BYTES, Access::ReadWrite).unwrap()
}

/// The name of an engine's shared block.
pub(crate) const BLOCK: &str = "campanile-engine-block";

/// The memory files of this name that a process has open, each once, with their inodes.
pub(crate) fn memfds(pid: u32, name: &str) -> Vec<(u64, File)> {
    let mut found: Vec<(u64, File)> = Vec::new();
    for entry in fs::read_dir(format!("/proc/{pid}/fd")).unwrap() {
        let path = entry.unwrap().path();
        let Ok(target) = fs::read_link(&path) else { continue };
        if !target.to_string_lossy().contains(name) {
            continue;
        }
        let inode = fs::metadata(&path).unwrap().ino();
        if found.iter().all(|(other, _)| *other != inode) {
            found.push((inode, File::options().read(true).write(true).open(&path).unwrap()));
        }
    }
    found
}
