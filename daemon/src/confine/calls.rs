//! The system calls of the daemon's threads, by role. Data only; [`super::system_calls`] makes it hold.
//!
//! Found by running the end-to-end tests with a filter that logs what is not here.

use libc::c_long;

use super::roles::Role;

/// What every thread does: wait, wake others, read the clock, allocate, log, start threads of its role, end. `clone`, `prctl`,
/// `tgkill` and `sched_setattr` are in [`super::system_calls`], since their arguments matter.
pub(super) const COMMON: &[c_long] = &[
    // Eventfds, standard error, pipes.
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_close,
    libc::SYS_ppoll,
    libc::SYS_eventfd2,
    // Memory.
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_brk,
    // Threads.
    libc::SYS_futex,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_membarrier,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    // Ids: calls that cannot fail, as libraries expect.
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    // Time.
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
    // Memory files that arrive, or that the daemon makes; none has a name.
    libc::SYS_memfd_create,
    libc::SYS_ftruncate,
    libc::SYS_fallocate,
    libc::SYS_lseek,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_preadv,
    libc::SYS_pwritev,
    libc::SYS_readv,
    libc::SYS_fstat,
    libc::SYS_fstatfs,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_fcntl,
    libc::SYS_dup,
    libc::SYS_dup3,
    // What it opens is Landlock's business; libc tries to count CPUs in a file when threads are many.
    libc::SYS_openat,
    libc::SYS_readlinkat,
];

/// Calls of [`COMMON`] that other processors do not have.
#[cfg(target_arch = "x86_64")]
pub(super) const COMMON_OLD: &[c_long] =
    &[libc::SYS_poll, libc::SYS_open, libc::SYS_stat, libc::SYS_lstat, libc::SYS_readlink];
#[cfg(not(target_arch = "x86_64"))]
pub(super) const COMMON_OLD: &[c_long] = &[];

/// Sockets that exist, and those that they accept.
const STREAMS: &[c_long] = &[
    libc::SYS_accept4,
    libc::SYS_recvmsg,
    libc::SYS_sendmsg,
    libc::SYS_recvfrom,
    libc::SYS_sendto,
    libc::SYS_shutdown,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    // Whether it blocks; and the scan of page maps.
    libc::SYS_ioctl,
];

/// The supervisor listens to each engine by an eventfd of its own.
const LISTENING: &[c_long] = &[libc::SYS_epoll_create1, libc::SYS_epoll_ctl, libc::SYS_epoll_pwait];

/// Signs of life, also to what has come in the place of what was connected, and then what a keeper has kept.
const SIGNS: &[c_long] = &[libc::SYS_sendto, libc::SYS_sendmsg];

/// What the C library makes of `epoll_wait`, where the processor has that.
#[cfg(target_arch = "x86_64")]
const EPOLL_OLD: &[c_long] = &[libc::SYS_epoll_wait];
#[cfg(not(target_arch = "x86_64"))]
const EPOLL_OLD: &[c_long] = &[];

/// One VM: its event loop, its engines.
const VM: &[c_long] = &[
    // Descriptors that the VMM sends stay with the daemon.
    libc::SYS_close_range,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_settime,
    // Channels to engines, and their ends.
    libc::SYS_socketpair,
    libc::SYS_pidfd_open,
    libc::SYS_pidfd_send_signal,
    libc::SYS_kill,
    libc::SYS_wait4,
    libc::SYS_waitid,
    libc::SYS_msync,
    libc::SYS_mincore,
];

/// Files with names: reports, side files, snapshots.
const FILES: &[c_long] = &[
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_unlinkat,
    libc::SYS_mkdirat,
    libc::SYS_getdents64,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_copy_file_range,
];

/// Calls of [`FILES`] that other processors do not have.
#[cfg(target_arch = "x86_64")]
const FILES_OLD: &[c_long] = &[libc::SYS_rename, libc::SYS_unlink, libc::SYS_mkdir];
#[cfg(not(target_arch = "x86_64"))]
const FILES_OLD: &[c_long] = &[];

/// Reaching a peer, and looking its name up.
pub(super) const PEERS: &[c_long] =
    &[libc::SYS_socket, libc::SYS_connect, libc::SYS_bind, libc::SYS_sendmmsg, libc::SYS_uname];

/// What a role does besides [`COMMON`].
pub(super) const fn of(role: Role) -> &'static [&'static [c_long]] {
    match role {
        Role::Schedule => &[LISTENING, EPOLL_OLD, SIGNS],
        Role::Turns => &[STREAMS, LISTENING, EPOLL_OLD],
        Role::Front => &[STREAMS, VM, EPOLL_OLD, FILES, FILES_OLD],
        Role::Operator => &[STREAMS, FILES, FILES_OLD],
        Role::Arrivals | Role::Metrics => &[STREAMS],
    }
}

/// What no thread of a role ever does, and what code that was taken over would: it ends the process at once, so that it is not
/// tried again. Any other call that is not listed fails with `ENOSYS`, as libraries and new kernels may have reasons for it.
/// Processes are in [`super::system_calls`] too: `clone` without a thread's flags.
pub(super) const FATAL: &[c_long] = &[
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    libc::SYS_setuid,
    libc::SYS_setgid,
    libc::SYS_setreuid,
    libc::SYS_setregid,
    libc::SYS_setresuid,
    libc::SYS_setresgid,
    libc::SYS_setgroups,
    libc::SYS_capset,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_setns,
    libc::SYS_unshare,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_reboot,
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_mknodat,
    libc::SYS_open_by_handle_at,
];

/// Calls of [`FATAL`] that other processors do not have.
#[cfg(target_arch = "x86_64")]
pub(super) const FATAL_OLD: &[c_long] = &[libc::SYS_fork, libc::SYS_vfork, libc::SYS_mknod];
#[cfg(not(target_arch = "x86_64"))]
pub(super) const FATAL_OLD: &[c_long] = &[];
