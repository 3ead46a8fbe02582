//! Namespaces, limits and the account of an engine process: between `fork` and `execve`, and around them.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::Child;
use std::process::Command;

use super::Containment;
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
}

/// Has `command` leave the daemon's net and ipc namespaces, where it may; take its limits and become the account, or not
/// start.
pub(super) fn before_exec(command: &mut Command, containment: &Containment) {
    let Containment { memory, namespaces, account, .. } = containment.clone();
    let prepare = move || {
        if namespaces {
            // Where one is refused the process goes on; what it has is read from outside.
            for namespace in [libc::CLONE_NEWNET, libc::CLONE_NEWIPC] {
                let _refused = unshare(namespace);
            }
        }
        limits::limit_own(memory)?;
        account.as_ref().map_or(Ok(()), |account| become_account(account))
    };
    // SAFETY: between `fork` and `execve` the closure makes system calls on memory that was there before, and reads `errno`;
    // it takes no lock and allocates nothing.
    unsafe { command.pre_exec(prepare) };
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

/// Capabilities go with root's id.
fn become_account(account: &Account) -> io::Result<()> {
    let Account { uid, gid, groups } = account;
    // SAFETY: the pointer is that of as many ids as are named.
    check(unsafe { libc::setgroups(groups.len(), groups.as_ptr()) })?;
    // SAFETY: the call takes numbers.
    check(unsafe { libc::setresgid(*gid, *gid, *gid) })?;
    // SAFETY: the call takes numbers.
    check(unsafe { libc::setresuid(*uid, *uid, *uid) })
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
