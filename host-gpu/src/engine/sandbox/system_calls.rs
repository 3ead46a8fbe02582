//! Which system calls are left to an engine.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use libc::c_long;
use rustix::fs::SealFlags;
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

use super::Workload;
use super::driver_profiles::Requests;
use super::error::SandboxError;
use crate::code_cache::store::Descriptors;
use crate::dirty::protect::UFFDIO_REGISTER;
use crate::dirty::protect::UFFDIO_WRITEPROTECT;

/// What every engine does: serve its channel, map what arrives there, sleep, allocate, end.
const COMMON: &[c_long] = &[
    // Eventfds, the channel, the log.
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_ppoll,
    libc::SYS_recvmsg,
    libc::SYS_sendmsg,
    libc::SYS_close,
    // The list of runs and the sizes of files that are handed over. Opens nothing.
    libc::SYS_pread64,
    libc::SYS_lseek,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    // Memory; `mmap` and `mprotect` are below.
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_brk,
    // Threads that exist; time. A process that is stopped and continued restarts its sleep.
    libc::SYS_futex,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_membarrier,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_restart_syscall,
    libc::SYS_getrandom,
    // Ends, and crashes that report what they are.
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
];

/// Calls that other processors do not have.
#[cfg(target_arch = "x86_64")]
const COMMON_OLD: &[c_long] = &[libc::SYS_poll];
#[cfg(not(target_arch = "x86_64"))]
const COMMON_OLD: &[c_long] = &[];

/// What compiling for the CPU asks besides: how much memory the machine has.
const CPU: &[c_long] = &[libc::SYS_sysinfo];

/// What fails with `EACCES` in engines that open nothing, instead of killing them: libraries look late at files that
/// they can do without. glibc opens `/proc/sys/vm/overcommit_memory` at the first `free` in the process that gives
/// memory of an arena other than the first thread's back, and takes a refusal for "not strict". When that happens
/// depends on what guests have had compiled.
#[cfg(target_arch = "x86_64")]
const OPENING: &[c_long] = &[libc::SYS_openat, libc::SYS_open];
#[cfg(not(target_arch = "x86_64"))]
const OPENING: &[c_long] = &[libc::SYS_openat];

/// What fails with `EPERM` in engines with kernels on the CPU, instead of killing them. Mesa starts more threads for its cache when
/// the first has much to write, and goes on without; and those that were started before the process was sealed, and run for the
/// first time after it, make themselves nicer.
const LATE: &[c_long] = &[
    libc::SYS_clone,
    libc::SYS_clone3,
    libc::SYS_setpriority,
    libc::SYS_sched_setaffinity,
    libc::SYS_sched_setscheduler,
];

/// What fails with `ENOTTY` in such engines, as it would for lack of a terminal: C's stdio asks `isatty` at the first line that a
/// library writes to a character device, which the standard output of an engine is (`/dev/null`). glibc asks by the first or
/// the second of these, musl by the third.
const TERMINAL: [libc::Ioctl; 3] = [libc::TCGETS, libc::TCGETS2, libc::TIOCGWINSZ];

/// What drivers of GPUs are known or likely to call in a running process. Not measured on each of them, which is
/// why other calls fail instead of killing. Paths are Landlock's business.
const GPU: &[c_long] = &[
    libc::SYS_sysinfo,
    libc::SYS_uname,
    libc::SYS_openat,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_readlinkat,
    libc::SYS_getdents64,
    libc::SYS_statfs,
    libc::SYS_fstatfs,
    libc::SYS_pwrite64,
    libc::SYS_readv,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_eventfd2,
    libc::SYS_pipe2,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_settime,
    libc::SYS_mlock,
    libc::SYS_mlock2,
    libc::SYS_munlock,
    libc::SYS_mincore,
    libc::SYS_msync,
    libc::SYS_mbind,
    libc::SYS_get_mempolicy,
    libc::SYS_set_mempolicy,
    libc::SYS_sched_setaffinity,
    libc::SYS_sched_getparam,
    libc::SYS_sched_getscheduler,
    libc::SYS_getcpu,
    libc::SYS_getpriority,
    libc::SYS_getrusage,
    libc::SYS_times,
    libc::SYS_clock_getres,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_getppid,
];

/// GPU calls that other processors do not have.
#[cfg(target_arch = "x86_64")]
const GPU_OLD: &[c_long] = &[
    libc::SYS_open,
    libc::SYS_access,
    libc::SYS_readlink,
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_dup2,
    libc::SYS_pipe,
    libc::SYS_epoll_wait,
    libc::SYS_select,
    libc::SYS_time,
    libc::SYS_gettimeofday,
];
#[cfg(not(target_arch = "x86_64"))]
const GPU_OLD: &[c_long] = &[];

/// Leaves only the system calls that `workload` needs, to every thread there is. Irrevocable.
///
/// The driver must have run once: what it opens, starts or asks at its first kernel is refused from here on. `notes` is
/// the descriptor by which what is mapped later is write-protected, where that is done; `cache` are those of what it has compiled;
/// `requests` is what an engine with a GPU asks of its driver. FIONBIO is none of these, as it would take an eventfd's O_NONBLOCK away.
pub fn restrict_system_calls(
    workload: Workload,
    notes: Option<i32>,
    cache: Option<Descriptors>,
    requests: &[Requests],
) -> Result<(), SandboxError> {
    // The first look at the clock finds the vDSO with a prctl that is refused from here on; a TIMESTAMP would be it.
    let _found = clock_gettime(ClockId::Monotonic);
    let program = program(workload, &growable_files(), notes, cache, requests)?;
    if workload != Workload::KernelsOnGpu {
        // First, as the other allows no further filter.
        for failing in failing()? {
            seccompiler::apply_filter_all_threads(&failing)?;
        }
    }
    Ok(seccompiler::apply_filter_all_threads(&program)?)
}

/// Filters beside a [`program`] that kills. A filter has one answer to all that it refuses, and of the answers of two
/// filters the sterner counts: the program allows [`OPENING`], [`TERMINAL`] and [`LATE`], which these let fail.
fn failing() -> Result<[BpfProgram; 3], BackendError> {
    let filter = |rules: Rules, error: i32| {
        let refused = SeccompAction::Errno(error.unsigned_abs());
        SeccompFilter::new(rules, SeccompAction::Allow, refused, env::consts::ARCH.try_into()?)?.try_into()
    };
    let mut opening = Rules::new();
    allow(&mut opening, OPENING);
    let terminal = Rules::from([(libc::SYS_ioctl, each(1, TERMINAL.into_iter())?)]);
    let mut late = Rules::new();
    allow(&mut late, LATE);
    Ok([filter(opening, libc::EACCES)?, filter(terminal, libc::ENOTTY)?, filter(late, libc::EPERM)?])
}

fn program(
    workload: Workload,
    growable: &[u32],
    notes: Option<i32>,
    cache: Option<Descriptors>,
    requests: &[Requests],
) -> Result<BpfProgram, BackendError> {
    let otherwise = match workload {
        Workload::Copies | Workload::KernelsOnCpu => SeccompAction::KillProcess,
        Workload::KernelsOnGpu => SeccompAction::Errno(libc::ENOSYS.unsigned_abs()),
    };
    let rules = rules(workload, growable, notes, cache, requests)?;
    SeccompFilter::new(rules, otherwise, SeccompAction::Allow, env::consts::ARCH.try_into()?)?.try_into()
}

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

fn rules(
    workload: Workload,
    growable: &[u32],
    notes: Option<i32>,
    cache: Option<Descriptors>,
    requests: &[Requests],
) -> Result<Rules, BackendError> {
    let own = u64::from(std::process::id());
    let mut rules = Rules::new();
    allow(&mut rules, COMMON);
    allow(&mut rules, COMMON_OLD);
    let not_executable = || argument(2, SeccompCmpOp::MaskedEq(bits(libc::PROT_EXEC)), 0);
    let not_writable = || argument(2, SeccompCmpOp::MaskedEq(bits(libc::PROT_WRITE)), 0);
    let (protect, map, commands): (Vec<SeccompRule>, Vec<SeccompRule>, &[i32]) = match workload {
        Workload::Copies => {
            allow(&mut rules, OPENING);
            (vec![not_executable()?], limited_mapping()?, &COMMON_FILE_COMMANDS)
        }
        Workload::KernelsOnCpu => {
            allow(&mut rules, CPU);
            allow(&mut rules, LATE);
            allow(&mut rules, OPENING);
            (vec![not_executable()?, not_writable()?], limited_mapping()?, &COMMON_FILE_COMMANDS)
        }
        Workload::KernelsOnGpu => {
            allow(&mut rules, GPU);
            allow(&mut rules, GPU_OLD);
            // Threads, not processes. `clone3`, whose flags a filter cannot see, fails, and libc falls back to this.
            let thread = bits(libc::CLONE_THREAD);
            rules.insert(libc::SYS_clone, vec![argument(0, SeccompCmpOp::MaskedEq(thread), thread)?]);
            let mut asked = each(1, TERMINAL.into_iter())?;
            for (mask, value) in requests.iter().flat_map(Requests::masks) {
                asked.push(argument(1, SeccompCmpOp::MaskedEq(mask), value)?);
            }
            rules.insert(libc::SYS_ioctl, asked);
            (Vec::new(), Vec::new(), &GPU_FILE_COMMANDS)
        }
    };
    if workload != Workload::KernelsOnGpu {
        let mut requests = each(1, TERMINAL.into_iter())?;
        for command in notes.iter().flat_map(|_| [UFFDIO_REGISTER, UFFDIO_WRITEPROTECT]) {
            requests.push(SeccompRule::new(vec![
                condition(0, SeccompCmpOp::Eq, notes.map_or(0, bits))?,
                condition(1, SeccompCmpOp::Eq, command & 0xffff_ffff)?,
            ])?);
        }
        rules.insert(libc::SYS_ioctl, requests);
    }
    if let Some(Descriptors { locked, replaced, by }) = cache {
        // Locks of other files would reach other processes that have them.
        rules.insert(libc::SYS_flock, each(0, locked.into_iter().map(bits))?);
        if workload != Workload::KernelsOnGpu {
            let replace = |number| {
                SeccompRule::new(vec![
                    condition(0, SeccompCmpOp::Eq, bits(by))?,
                    condition(1, SeccompCmpOp::Eq, bits(number))?,
                ])
            };
            rules.insert(libc::SYS_dup3, replaced.into_iter().map(replace).collect::<Result<_, _>>()?);
        }
    }
    // An empty list of conditions allows all.
    rules.insert(libc::SYS_mmap, map);
    rules.insert(libc::SYS_mprotect, protect);
    let mut commands = each(1, commands.iter().map(|command| bits(*command)))?;
    if workload == Workload::KernelsOnGpu {
        // Eventfds have one O_NONBLOCK for the daemon and the engine: without it, a wake-up of this engine over a full counter
        // would stop the supervisor, and with it every VM.
        let nonblocking = bits(libc::O_NONBLOCK);
        commands.push(SeccompRule::new(vec![
            condition(1, SeccompCmpOp::Eq, bits(libc::F_SETFL))?,
            condition(2, SeccompCmpOp::MaskedEq(nonblocking), nonblocking)?,
        ])?);
    }
    rules.insert(libc::SYS_fcntl, commands);
    rules.insert(libc::SYS_prctl, vec![argument(0, SeccompCmpOp::Eq, bits(libc::PR_SET_NAME))?]);
    // `abort` and `raise`: signals to this process only.
    rules.insert(libc::SYS_tgkill, vec![argument(0, SeccompCmpOp::Eq, own)?]);
    if workload != Workload::Copies && !growable.is_empty() {
        rules.insert(libc::SYS_ftruncate, each(0, growable.iter().map(|file| u64::from(*file)))?);
    }
    Ok(rules)
}

/// Not executable, and not both shared and anonymous: such memory counts for no limit of the process.
fn limited_mapping() -> Result<Vec<SeccompRule>, BackendError> {
    let without = |kind| {
        SeccompRule::new(vec![
            condition(2, SeccompCmpOp::MaskedEq(bits(libc::PROT_EXEC)), 0)?,
            condition(3, SeccompCmpOp::MaskedEq(bits(kind)), 0)?,
        ])
    };
    Ok(vec![without(libc::MAP_SHARED)?, without(libc::MAP_ANONYMOUS)?])
}

/// No owner, no signal, no lease: those reach other processes.
const COMMON_FILE_COMMANDS: [i32; 3] = [libc::F_DUPFD_CLOEXEC, libc::F_GETFD, libc::F_GETFL];
const GPU_FILE_COMMANDS: [i32; 7] = [
    libc::F_DUPFD_CLOEXEC,
    libc::F_GETFD,
    libc::F_GETFL,
    libc::F_DUPFD,
    libc::F_SETFD,
    libc::F_ADD_SEALS,
    libc::F_GET_SEALS,
];

/// The memory files that a driver opened for itself and grows as it needs more. Those of the daemon are sealed;
/// those of guests come later, and cutting one short would kill each process that has it mapped.
fn growable_files() -> Vec<u32> {
    let entries = fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let growable = entries.filter(|entry| is_growable(&entry.path()));
    growable.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

fn is_growable(file: &Path) -> bool {
    fs::read_link(file).is_ok_and(|target| target.as_os_str().as_bytes().starts_with(b"/memfd:"))
        // The same file under a second descriptor: a descriptor of one's own cannot be borrowed by its number.
        && fs::File::open(file).is_ok_and(|same| {
            rustix::fs::fcntl_get_seals(&same).is_ok_and(|seals| !seals.intersects(SealFlags::SHRINK | SealFlags::GROW))
        })
}

fn allow(rules: &mut Rules, calls: &[c_long]) {
    rules.extend(calls.iter().map(|call| (*call, Vec::new())));
}

/// One rule for each of `values`: any of them will do.
fn each(index: u8, values: impl Iterator<Item = u64>) -> Result<Vec<SeccompRule>, BackendError> {
    values.map(|value| argument(index, SeccompCmpOp::Eq, value)).collect()
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
