//! Which system calls are left to a role: seccomp.
//!
//! ```text
//!   call ──▶ allowed filter: listed in calls ──▶ runs
//!       │                    anything else   ──▶ fails with ENOSYS
//!       └──▶ fatal filter:   FATAL, a process, executable memory ──▶ kills the process, whatever the other says
//! ```

use std::collections::BTreeMap;
use std::env;

use rustix::time::ClockId;
use rustix::time::clock_gettime;
use seccompiler::BackendError;
use seccompiler::BpfProgram;
use seccompiler::SeccompAction;
use seccompiler::SeccompCmpArgLen;
use seccompiler::SeccompCmpOp;
use seccompiler::SeccompCondition;
use seccompiler::SeccompFilter;
use seccompiler::SeccompRule;

use super::calls;
use super::error::ConfineError;
use super::roles::Reach;
use super::roles::Role;

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// Leaves the calling thread, and those that it starts, the system calls of `role` with this reach. Irrevocable.
///
/// # Errors
/// This kernel takes no filter, or none can be made for this processor.
pub fn restrict(role: Role, reach: &Reach) -> Result<(), ConfineError> {
    // The first look at the clock finds the vDSO with a prctl that is refused from here on.
    let _found = clock_gettime(ClockId::Monotonic);
    for program in [fatal()?, allowed(role, reach)?] {
        seccompiler::apply_filter(&program)?;
    }
    Ok(())
}

fn allowed(role: Role, reach: &Reach) -> Result<BpfProgram, BackendError> {
    let mut rules = Rules::new();
    let lists = [calls::COMMON, calls::COMMON_OLD].into_iter().chain(calls::of(role).iter().copied());
    for calls in lists.chain(reach.has_peers.then_some(calls::PEERS)) {
        rules.extend(calls.iter().map(|call| (*call, Vec::new())));
    }
    // `clone3`, whose flags a filter cannot see, fails, and libc falls back to this.
    let thread = bits(libc::CLONE_THREAD);
    rules.insert(libc::SYS_clone, vec![argument(0, SeccompCmpOp::MaskedEq(thread), thread)?]);
    // Of the calling thread only, as is the niceness of one that packs pages.
    let own_nice = vec![
        condition(0, SeccompCmpOp::Eq, u64::from(libc::PRIO_PROCESS))?,
        condition(1, SeccompCmpOp::Eq, 0)?,
    ];
    rules.insert(libc::SYS_setpriority, vec![SeccompRule::new(own_nice)?]);
    for call in [libc::SYS_sched_getattr, libc::SYS_sched_setattr] {
        rules.insert(call, vec![argument(0, SeccompCmpOp::Eq, 0)?]);
    }
    let of_process = [libc::PR_SET_NAME, libc::PR_GET_DUMPABLE].map(bits);
    let of_process = of_process.map(|command| argument(0, SeccompCmpOp::Eq, command));
    rules.insert(libc::SYS_prctl, of_process.into_iter().collect::<Result<_, _>>()?);
    // `abort` and `raise`: signals to this process only.
    let own = u64::from(std::process::id());
    rules.insert(libc::SYS_tgkill, vec![argument(0, SeccompCmpOp::Eq, own)?]);
    let otherwise = SeccompAction::Errno(libc::ENOSYS.unsigned_abs());
    compile(rules, otherwise, SeccompAction::Allow)
}

fn fatal() -> Result<BpfProgram, BackendError> {
    let mut rules: Rules =
        calls::FATAL.iter().chain(calls::FATAL_OLD).map(|call| (*call, Vec::new())).collect();
    rules.insert(libc::SYS_clone, vec![argument(0, SeccompCmpOp::MaskedEq(bits(libc::CLONE_THREAD)), 0)?]);
    // The daemon compiles nothing and loads nothing late but what looks names up, which is not writable.
    let code = bits(libc::PROT_WRITE | libc::PROT_EXEC);
    for call in [libc::SYS_mmap, libc::SYS_mprotect, libc::SYS_pkey_mprotect] {
        rules.insert(call, vec![argument(2, SeccompCmpOp::MaskedEq(code), code)?]);
    }
    compile(rules, SeccompAction::Allow, SeccompAction::KillProcess)
}

fn compile(
    rules: Rules,
    otherwise: SeccompAction,
    listed: SeccompAction,
) -> Result<BpfProgram, BackendError> {
    SeccompFilter::new(rules, otherwise, listed, env::consts::ARCH.try_into()?)?.try_into()
}

/// A rule on the lower 32 bits of one argument, all that the kernel reads of an `int`.
fn argument(index: u8, operator: SeccompCmpOp, value: u64) -> Result<SeccompRule, BackendError> {
    SeccompRule::new(vec![condition(index, operator, value)?])
}

fn condition(index: u8, operator: SeccompCmpOp, value: u64) -> Result<SeccompCondition, BackendError> {
    SeccompCondition::new(index, SeccompCmpArgLen::Dword, operator, value)
}

fn bits(constant: i32) -> u64 {
    u64::from(constant.unsigned_abs())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::Role;
    use super::calls;

    #[test]
    fn no_call_is_both_a_roles_and_fatal() {
        let fatal: BTreeSet<_> = calls::FATAL.iter().chain(calls::FATAL_OLD).collect();
        for role in Role::ALL {
            let lists = [calls::COMMON, calls::COMMON_OLD, calls::PEERS];
            for call in lists.iter().chain(calls::of(role)).copied().flatten() {
                assert!(!fatal.contains(call), "{call} of {role:?}");
            }
        }
    }
}
