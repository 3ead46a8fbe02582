//! What the whole process gives up.

use std::fs;

use nix::unistd::Uid;
use nix::unistd::getegid;
use nix::unistd::geteuid;
use nix::unistd::setgroups;
use nix::unistd::setresgid;
use nix::unistd::setresuid;
use rustix::process::DumpableBehavior;
use rustix::process::Resource;
use rustix::process::Rlimit;
use rustix::thread::CapabilitySet;
use rustix::thread::CapabilitySets;

use super::error::ConfineError;
use super::identity::Identity;

/// Becomes `identity`, where one is given, and gives up new privileges, core dumps, and that other processes of its user
/// look into it (`/proc/PID/mem`, ptrace). Call it before the first thread: others would keep what this one gives up.
///
/// Engines inherit all of it but the last: a program that is executed is dumpable again, which dirty tracking needs of them.
///
/// # Errors
/// There are other threads, this is not root and `identity` another account, or the kernel refuses.
pub fn confine_process(identity: Option<&Identity>) -> Result<(), ConfineError> {
    let threads = fs::read_dir("/proc/self/task").map_err(ConfineError::of("counting threads"))?.count();
    if threads != 1 {
        return Err(ConfineError::Threads { threads });
    }
    match identity {
        Some(identity) => become_user(identity)?,
        None if geteuid().is_root() => log::warn!(
            "running as root: guests are served with its rights. --user NAME gives them up once all is open that needs \
             them: /dev/cpu_dma_latency, for bands=realtime, and the TLS key"
        ),
        None => {}
    }
    close_process()
}

/// Gives up new privileges, core dumps, and that other processes of its user look into it.
///
/// # Errors
/// The kernel refuses.
pub fn close_process() -> Result<(), ConfineError> {
    rustix::thread::set_no_new_privs(true).map_err(ConfineError::of("giving up new privileges"))?;
    let no_core = Rlimit { current: Some(0), maximum: Some(0) };
    rustix::process::setrlimit(Resource::Core, no_core).map_err(ConfineError::of("giving up core dumps"))?;
    // After the change of user, which resets it.
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .map_err(ConfineError::of("closing this process to others of its user"))
}

/// Leaves this process so many bytes for itself (RLIMIT_DATA: private memory that can be written), so that it ends when it asks for more. Processes
/// that it starts may take that back.
///
/// # Errors
/// The kernel refuses.
pub fn limit_memory(bytes: u64) -> Result<(), ConfineError> {
    let Rlimit { maximum, .. } = rustix::process::getrlimit(Resource::Data);
    let current = Some(maximum.map_or(bytes, |maximum| maximum.min(bytes)));
    rustix::process::setrlimit(Resource::Data, Rlimit { current, maximum })
        .map_err(ConfineError::of("limiting memory"))
}

fn become_user(identity: &Identity) -> Result<(), ConfineError> {
    let Identity { uid, gid, groups } = identity;
    if !geteuid().is_root() {
        if (geteuid(), getegid()) == (*uid, *gid) {
            return give_up_capabilities();
        }
        let why = format!("only root can become another user, and this is user {}", geteuid());
        return Err(ConfineError::User { name: format!("{uid}:{gid}"), why });
    }
    setgroups(groups).map_err(ConfineError::of("taking the groups of --user"))?;
    setresgid(*gid, *gid, *gid).map_err(ConfineError::of("becoming the group of --user"))?;
    setresuid(*uid, *uid, *uid).map_err(ConfineError::of("becoming --user"))?;
    give_up_capabilities()?;
    // As root it would succeed.
    if setresuid(Uid::from_raw(0), Uid::from_raw(0), Uid::from_raw(0)).is_ok() {
        let why = "the kernel lets this user become root again".to_owned();
        return Err(ConfineError::User { name: uid.to_string(), why });
    }
    log::info!(
        "{identity} from here on: sockets and state files are made, and GPU device nodes opened, with its rights"
    );
    Ok(())
}

/// Leaves the calling thread those of `kept` that it has, and nothing to inherit beyond them.
pub(super) fn keep_capabilities(kept: CapabilitySet) -> Result<(), ConfineError> {
    let failed = || ConfineError::of("giving up capabilities");
    let has = rustix::thread::capabilities(None).map_err(failed())?.permitted;
    let sets =
        CapabilitySets { effective: has & kept, permitted: has & kept, inheritable: CapabilitySet::empty() };
    rustix::thread::set_capabilities(None, sets).map_err(failed())
}

fn give_up_capabilities() -> Result<(), ConfineError> {
    let none = CapabilitySet::empty();
    let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
    // None left in these sets means none in the ambient one either.
    rustix::thread::set_capabilities(None, sets).map_err(ConfineError::of("giving up capabilities"))
}
