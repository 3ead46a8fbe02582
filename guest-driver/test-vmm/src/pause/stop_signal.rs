//! The realtime signal that stops a virtual CPU.
#![allow(unsafe_code, reason = "no safe wrapper sets a handler with SA_RESTART, or signals one thread")]

use std::sync::Once;

use super::section;

/// Which of the realtime signals; away from the first ones, which debuggers and runtimes like.
const PLACE: i32 = 7;

fn number() -> i32 {
    libc::SIGRTMIN() + PLACE
}

extern "C" fn on_stop(_signal: libc::c_int) {
    section::stop_here_or_later();
}

/// Sets the handler, once a process. System calls that it interrupts are begun again where the kernel can.
pub(super) fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: all-zero bytes are a valid sigaction: no flags, an empty mask, the default handler.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        let handler: extern "C" fn(libc::c_int) = on_stop;
        action.sa_sigaction = handler as libc::sighandler_t;
        action.sa_flags = libc::SA_RESTART;
        // SAFETY: `action` is valid, the handler has the type that a handler without SA_SIGINFO has, and is
        // async-signal-safe: it touches words of its thread and calls futex. No old action is asked for.
        let result = unsafe { libc::sigaction(number(), &raw const action, std::ptr::null_mut()) };
        if result != 0 {
            log::error!(
                "no handler for the signal that stops guest threads: {}",
                std::io::Error::last_os_error()
            );
        }
    });
}

/// Sends the signal to a thread of this process. One that has ended needs none.
pub(super) fn send(thread: rustix::thread::Pid) {
    let process = rustix::process::getpid().as_raw_nonzero().get();
    let thread = thread.as_raw_nonzero().get();
    // SAFETY: tgkill takes three numbers and touches no memory. The signal has a handler: virtual CPUs install it
    // before they are on the roster.
    let result = unsafe { libc::syscall(libc::SYS_tgkill, process, thread, number()) };
    if result != 0 {
        log::debug!("stopping thread {thread}: {}", std::io::Error::last_os_error());
    }
}
