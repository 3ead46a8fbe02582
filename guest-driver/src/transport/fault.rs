//! Handlers of signals that say that memory cannot be touched: what is none of theirs goes to the handler that was
//! there before.
//!
//! JUSTIFICATION: signal handlers.
#![allow(unsafe_code, reason = "sigaction with SA_SIGINFO: no safe wrapper exists")]

use std::io;
use std::sync::OnceLock;

/// What a handler is.
pub(super) type Handler = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);

/// One signal, and the handler that it had before.
pub(super) struct FaultSignal {
    signal: libc::c_int,
    before: OnceLock<libc::sigaction>,
}

/// The address that could not be touched.
pub(super) fn address(info: *mut libc::siginfo_t) -> usize {
    // SAFETY: the kernel gives a handler with SA_SIGINFO the description of its signal.
    let info = unsafe { &*info };
    // SAFETY: that of a fault has an address.
    unsafe { info.si_addr() }.addr()
}

/// Why it could not be touched.
pub(super) fn code(info: *mut libc::siginfo_t) -> libc::c_int {
    // SAFETY: the kernel gives a handler with SA_SIGINFO the description of its signal.
    unsafe { (*info).si_code }
}

/// Does what may change errno, which what was interrupted sees as it was.
pub(super) fn keeping_errno<T>(what: impl FnOnce() -> T) -> T {
    // SAFETY: the address of this thread's own word.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: it is valid, and used by nothing else.
    let errno = unsafe { *place };
    let outcome = what();
    // SAFETY: as above.
    unsafe { *place = errno };
    outcome
}

impl FaultSignal {
    pub(super) const fn new(signal: libc::c_int) -> Self {
        Self { signal, before: OnceLock::new() }
    }

    /// Sets the handler, once a process. It may do what is async-signal-safe.
    pub(super) fn install(&self, handler: Handler) -> io::Result<()> {
        if self.before.get().is_some() {
            return Ok(());
        }
        // SAFETY: all-zero bytes are a valid sigaction.
        let (mut action, mut before): (libc::sigaction, libc::sigaction) = unsafe { std::mem::zeroed() };
        action.sa_sigaction = handler as libc::sighandler_t;
        // On the stack for signals, as the handler before may need it that looks for a stack that is too deep.
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
        // SAFETY: both are valid; the handler is of the type that SA_SIGINFO says.
        let result = unsafe { libc::sigaction(self.signal, &raw const action, &raw mut before) };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        let _only_once = self.before.set(before);
        Ok(())
    }

    /// A fault of the program's own.
    pub(super) fn hand_on(&self, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
        let before = self.before.get();
        let handler = before.map_or((libc::SIG_DFL, 0), |before| (before.sa_sigaction, before.sa_flags));
        match handler {
            (libc::SIG_DFL | libc::SIG_IGN, _) => {
                // SAFETY: sets the default, with which the fault ends the process when it is taken again.
                unsafe { libc::signal(self.signal, libc::SIG_DFL) };
            }
            (handler, flags) if flags & libc::SA_SIGINFO != 0 => {
                // SAFETY: its owner has said by SA_SIGINFO that it is of this type.
                let handler = unsafe { std::mem::transmute::<libc::sighandler_t, Handler>(handler) };
                handler(self.signal, info, context);
            }
            (handler, _) => {
                // SAFETY: a handler without SA_SIGINFO is of this type.
                let handler =
                    unsafe { std::mem::transmute::<libc::sighandler_t, extern "C" fn(libc::c_int)>(handler) };
                handler(self.signal);
            }
        }
    }
}
