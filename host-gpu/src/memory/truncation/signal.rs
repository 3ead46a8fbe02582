//! The handler of SIGBUS.
//!
//! JUSTIFICATION: a signal handler.
#![allow(unsafe_code, reason = "sigaction with SA_SIGINFO and mmap with MAP_FIXED: no safe wrapper exists")]

use std::io;
use std::sync::Mutex;
use std::sync::OnceLock;
use std::sync::PoisonError;

use super::registry::Found;
use super::registry::REGISTRY;

type Handler = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);

/// The page is behind the end of its file, or the file system has none to give.
const BUS_ADRERR: libc::c_int = 2;
/// A hardware memory error, and this thread has come across it.
const BUS_MCEERR_AR: libc::c_int = 4;

static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// Sets the handler, once a process.
pub(super) fn install() -> io::Result<()> {
    static INSTALLING: Mutex<()> = Mutex::new(());
    let _one_at_a_time = INSTALLING.lock().unwrap_or_else(PoisonError::into_inner);
    if BEFORE.get().is_some() {
        return Ok(());
    }
    // SAFETY: all-zero bytes are a valid sigaction.
    let (mut action, mut before): (libc::sigaction, libc::sigaction) = unsafe { std::mem::zeroed() };
    let handler: Handler = on_fault;
    action.sa_sigaction = handler as libc::sighandler_t;
    // On the signal stack, which the handler before needs: it recognises a stack that is too deep.
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
    // SAFETY: both are valid, and the handler is of the type that SA_SIGINFO says.
    if unsafe { libc::sigaction(libc::SIGBUS, &raw const action, &raw mut before) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let _only_once = BEFORE.set(before);
    Ok(())
}

/// Async-signal-safe: reads atomics, and calls mmap.
extern "C" fn on_fault(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel gives a handler with SA_SIGINFO the description of its signal.
    let description = unsafe { &*info };
    if !matches!(description.si_code, BUS_ADRERR | BUS_MCEERR_AR) {
        return hand_on(signal, info, context);
    }
    // SAFETY: the description of a fault has an address.
    let address = unsafe { description.si_addr() }.addr();
    let replaced = REGISTRY.find(address).is_some_and(|range| {
        REGISTRY.note_fault(range.domain, address);
        replace(range)
    });
    if !replaced {
        hand_on(signal, info, context);
    }
}

/// Maps zero pages over a range. Whether that worked.
fn replace(range: Found) -> bool {
    // SAFETY: the address of this thread's own word.
    let errno_at = unsafe { libc::__errno_location() };
    // SAFETY: it is valid, and no other thread's.
    let errno = unsafe { *errno_at };
    let start = std::ptr::with_exposed_provenance_mut(range.start);
    // SAFETY: the range is all of a mapping that is registered, and that the interrupted access shows to be there still. It
    // is only ever used as memory that may change at any time.
    let mapped = unsafe {
        libc::mmap(
            start,
            range.end - range.start,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    // SAFETY: as above.
    unsafe { *errno_at = errno };
    mapped != libc::MAP_FAILED
}

/// A fault that is none of a registered mapping.
fn hand_on(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let before = BEFORE.get();
    let (handler, flags) = before.map_or((libc::SIG_DFL, 0), |before| (before.sa_sigaction, before.sa_flags));
    match handler {
        libc::SIG_DFL | libc::SIG_IGN => {
            // SAFETY: sets the default, with which the fault ends the process when it is taken again.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
        handler if flags & libc::SA_SIGINFO != 0 => {
            // SAFETY: it was set with SA_SIGINFO, so that it is of this type.
            let handler = unsafe { std::mem::transmute::<libc::sighandler_t, Handler>(handler) };
            handler(signal, info, context);
        }
        handler => {
            // SAFETY: a handler without SA_SIGINFO is of this type.
            let handler =
                unsafe { std::mem::transmute::<libc::sighandler_t, extern "C" fn(libc::c_int)>(handler) };
            handler(signal);
        }
    }
}
