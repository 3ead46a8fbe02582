//! Namespaces, limits and the account of an engine process: between `fork` and `execve`, and around them.

#![allow(unsafe_code)]

use std::fs;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process;
use std::process::Child;
use std::process::Command;
use std::sync::Arc;

use super::limits;

/// An account, in the kernel's terms.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    /// The user.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// The groups that it is in besides, such as those of GPU device nodes.
    pub groups: Vec<u32>,
    /// Processes and threads that the user may have in all, where nothing else has this user; none for no such limit.
    pub tasks: Option<u64>,
}

/// Processes and threads of an engine with a pid namespace of its own: those of a driver are a few for each CPU.
pub(super) const MAX_THREADS: u64 = 4095;
/// One more than the largest number that its namespace gives out.
const PID_MAX: &[u8] = b"4096";

/// Whether each pid namespace has a limit of its own (Linux 6.14). Before that the file was that of the whole machine.
pub(super) fn has_own_pid_max() -> bool {
    fs::read_to_string("/proc/sys/kernel/osrelease").is_ok_and(|release| is_since_6_14(&release))
}

fn is_since_6_14(release: &str) -> bool {
    let mut numbers = release.split(|letter: char| !letter.is_ascii_digit()).map(str::parse::<u32>);
    matches!((numbers.next(), numbers.next()), (Some(Ok(major)), Some(Ok(minor))) if (major, minor) >= (6, 14))
}

/// Has `command` leave the daemon's net and ipc namespaces, where it may; take its limits and become the account, or not
/// start; and end with the thread that starts it, whatever program it is, unless it may outlive that.
pub(super) fn before_exec(
    command: &mut Command,
    memory: Option<u64>,
    namespaces: bool,
    account: Option<Arc<Account>>,
    outlives: bool,
) {
    let bounds_threads = namespaces && has_own_pid_max();
    let parent = process::id();
    let prepare = move || {
        if namespaces {
            // Where one is refused the process goes on; what it has is read from outside.
            for namespace in [libc::CLONE_NEWNET, libc::CLONE_NEWIPC] {
                let _refused = unshare(namespace);
            }
        }
        // SAFETY: the call returns a number.
        if bounds_threads && unsafe { libc::getpid() } == 1 {
            let _refused = limit_threads();
        }
        // A session of its own is a group of its own for the scheduler (autogroup), where that is how CPU time is shared.
        // SAFETY: the call takes nothing. It fails where the process leads a group already, which a child does not.
        let _session = unsafe { libc::setsid() };
        limits::limit_own(memory, account.as_ref().and_then(|account| account.tasks))?;
        account.as_ref().map_or(Ok(()), |account| become_account(account))?;
        // The kernel forgets it where the account changes: so it comes last.
        if outlives { Ok(()) } else { end_with_parent(parent) }
    };
    // SAFETY: between `fork` and `execve` the closure makes system calls on memory that was there before, and reads `errno`;
    // it takes no lock and allocates nothing.
    unsafe { command.pre_exec(prepare) };
}

/// Limits the pid namespace that the calling process is the first of. It allocates nothing.
fn limit_threads() -> io::Result<()> {
    // SAFETY: the path ends with a zero byte.
    let file = unsafe { libc::open(c"/proc/sys/kernel/pid_max".as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC) };
    check(file.min(0))?;
    // SAFETY: the pointer is that of as many bytes as are named.
    let written = unsafe { libc::write(file, PID_MAX.as_ptr().cast(), PID_MAX.len()) };
    // SAFETY: the descriptor was opened above, and is used no more.
    check(unsafe { libc::close(file) })?;
    if written == 4 { Ok(()) } else { Err(io::Error::from(io::ErrorKind::WriteZero)) }
}

/// Starts it as the first process of a pid namespace of its own, where that may be made and is wanted.
pub(super) fn spawn(command: &mut Command, namespaces: bool) -> io::Result<Child> {
    let own = if namespaces { File::open("/proc/thread-self/ns/pid").ok() } else { None };
    let Some(own) = own.filter(|_| unshare(libc::CLONE_NEWPID).is_ok()) else { return command.spawn() };
    let child = command.spawn();
    // As long as its children would be elsewhere this thread cannot start another.
    // SAFETY: the call changes where children of this thread begin, and touches no memory.
    if unsafe { libc::setns(own.as_raw_fd(), libc::CLONE_NEWPID) } == 0 {
        return child;
    }
    let error = io::Error::last_os_error();
    let mut child = child?;
    child.kill()?;
    child.wait()?;
    Err(error)
}

fn unshare(namespace: libc::c_int) -> io::Result<()> {
    // SAFETY: none of these flags changes what memory or which descriptors the thread has.
    check(unsafe { libc::unshare(namespace) })
}

/// Capabilities go with root's id, and those of a daemon that is another user with the program that is executed: none is
/// inherited.
fn become_account(account: &Account) -> io::Result<()> {
    let Account { uid, gid, groups, .. } = account;
    // SAFETY: the call takes numbers.
    check(unsafe { libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) })?;
    // SAFETY: the pointer is that of as many ids as are named.
    check(unsafe { libc::setgroups(groups.len(), groups.as_ptr()) })?;
    // SAFETY: the call takes numbers.
    check(unsafe { libc::setresgid(*gid, *gid, *gid) })?;
    // SAFETY: the call takes numbers.
    check(unsafe { libc::setresuid(*uid, *uid, *uid) })
}

/// Has the kernel kill the calling process when the thread ends that has started it. An error where `parent`, the process of
/// that thread, is gone by now. It allocates nothing.
fn end_with_parent(parent: u32) -> io::Result<()> {
    // SAFETY: the call takes numbers.
    check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0) })?;
    // SAFETY: the call returns a number: 0 for a parent outside of the pid namespace.
    let now = unsafe { libc::getppid() };
    if now == 0 || now.cast_unsigned() == parent {
        Ok(())
    } else {
        Err(io::Error::from_raw_os_error(libc::ESRCH))
    }
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::is_since_6_14;

    #[test]
    fn the_limit_of_the_whole_machine_is_not_touched_where_a_namespace_has_none() {
        for release in ["6.14.0", "6.14-rc1", "6.18.44-fc", "7.0.0\n", "10.1"] {
            assert!(is_since_6_14(release), "{release}");
        }
        for release in ["6.13.12", "6.6.1", "5.15.0-generic", "", "6", "x.y", "4.20"] {
            assert!(!is_since_6_14(release), "{release}");
        }
    }
}
