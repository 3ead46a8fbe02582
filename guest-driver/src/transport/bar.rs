//! A bar before memory that changes hands: whoever touches it waits a moment, and goes on where it was.
//!
//! ```text
//!   mover:  range noted ─▶ no access to it ─▶ pages change hands ─▶ access ─▶ range forgotten
//!   others: load or store ─▶ fault ─▶ handler: in the range? sleep until it is forgotten ─▶ the same instruction again
//! ```
//!
//! The handler of SIGSEGV is set with the first bar, and hands on what is not its own. One range at a time is barred in a
//! process. A system call that is given a pointer into it fails with EFAULT meanwhile.
//!
//! JUSTIFICATION: a signal handler, and access rights of memory that others hold pointers into.
#![allow(unsafe_code, reason = "sigaction and mprotect: no safe wrapper exists")]

use std::io;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::OnceLock;
use std::sync::PoisonError;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering;

use rustix::mm::MprotectFlags;

use super::shared_memory::SharedMemory;

/// Who has the bar.
static MOVER: Mutex<()> = Mutex::new(());
/// The range: where it starts, and where it ends; nothing while that is 0.
static START: AtomicUsize = AtomicUsize::new(0);
static END: AtomicUsize = AtomicUsize::new(0);
/// The range before, of which faults may still be on their way.
static LAST_START: AtomicUsize = AtomicUsize::new(0);
static LAST_END: AtomicUsize = AtomicUsize::new(0);
/// Faults in a range that is barred no more, since the last bar.
static AGAIN: AtomicUsize = AtomicUsize::new(0);
/// More of them than this are faults of the program's own.
const MOST_AGAIN: usize = 100_000;
/// Nanoseconds between two looks.
const NAP: i64 = 50_000;

/// Who had SIGSEGV before.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

fn is_in(address: usize, start: &AtomicUsize, end: &AtomicUsize) -> bool {
    address < end.load(Ordering::Acquire) && address >= start.load(Ordering::Acquire)
}

fn errno() -> libc::c_int {
    // SAFETY: the address of this thread's own word.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: it is valid, and nobody else's.
    unsafe { *place }
}

/// What was interrupted sees the errno that it had.
fn set_errno(errno: libc::c_int) {
    // SAFETY: the address of this thread's own word.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: it is valid, and nobody else's.
    unsafe { *place = errno };
}

extern "C" fn on_fault(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel gives a handler with SA_SIGINFO the description of its signal.
    let info_ref = unsafe { &*info };
    // SAFETY: that of a fault has an address.
    let address = unsafe { info_ref.si_addr() }.addr();
    let mut has_waited = false;
    while is_in(address, &START, &END) {
        has_waited = true;
        let nap = libc::timespec { tv_sec: 0, tv_nsec: NAP };
        let errno = errno();
        // SAFETY: nanosleep is async-signal-safe, and takes a valid time.
        unsafe { libc::nanosleep(&raw const nap, std::ptr::null_mut()) };
        set_errno(errno);
    }
    let was_barred =
        is_in(address, &LAST_START, &LAST_END) && AGAIN.fetch_add(1, Ordering::Relaxed) < MOST_AGAIN;
    if !has_waited && !was_barred {
        hand_on(signal, info, context);
    }
}

/// A fault of the program's own.
fn hand_on(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let handler = BEFORE.get().map_or((libc::SIG_DFL, 0), |before| (before.sa_sigaction, before.sa_flags));
    match handler {
        (libc::SIG_DFL | libc::SIG_IGN, _) => {
            // SAFETY: sets the default, with which the fault ends the process when it is taken again.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
        (handler, flags) if flags & libc::SA_SIGINFO != 0 => {
            type Handler = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
            // SAFETY: whoever set it has said by SA_SIGINFO that it is of this type.
            let handler = unsafe { std::mem::transmute::<libc::sighandler_t, Handler>(handler) };
            handler(signal, info, context);
        }
        (handler, _) => {
            // SAFETY: a handler without SA_SIGINFO is of this type.
            let handler =
                unsafe { std::mem::transmute::<libc::sighandler_t, extern "C" fn(libc::c_int)>(handler) };
            handler(signal);
        }
    }
}

/// Sets the handler, once a process.
fn install() -> io::Result<()> {
    if BEFORE.get().is_some() {
        return Ok(());
    }
    // SAFETY: all-zero bytes are a valid sigaction.
    let (mut action, mut before): (libc::sigaction, libc::sigaction) = unsafe { std::mem::zeroed() };
    let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = on_fault;
    action.sa_sigaction = handler as libc::sighandler_t;
    // On the stack for signals, as the handler before may need it that looks for a stack that is too deep.
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
    // SAFETY: both are valid; the handler is of the type that SA_SIGINFO says, and touches atomics and sleeps.
    let result = unsafe { libc::sigaction(libc::SIGSEGV, &raw const action, &raw mut before) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    let _only_once = BEFORE.set(before);
    Ok(())
}

/// A bar. Dropping it lifts it: by then there is memory to read and write.
#[derive(Debug)]
pub(super) struct Bar<'a> {
    view: &'a SharedMemory,
    _mover: MutexGuard<'static, ()>,
}

fn protect(view: &SharedMemory, flags: MprotectFlags) -> io::Result<()> {
    let slice = view.slice(0, view.len()).ok_or(io::ErrorKind::InvalidInput)?;
    // SAFETY: the range is whole pages of one mapping that `view` keeps, and its memory stays what it is. Whoever touches it
    // while it has no access is stopped by the handler of this module.
    Ok(unsafe { rustix::mm::mprotect(slice.ptr_guard_mut().as_ptr().cast(), slice.len(), flags) }?)
}

impl<'a> Bar<'a> {
    /// Bars a view that is in one piece. From here on nobody but the kernel touches it.
    pub(super) fn before(view: &'a SharedMemory) -> io::Result<Self> {
        let mover = MOVER.lock().unwrap_or_else(PoisonError::into_inner);
        install()?;
        let slice = view.slice(0, view.len()).ok_or(io::ErrorKind::InvalidInput)?;
        let start = slice.ptr_guard_mut().as_ptr().addr();
        AGAIN.store(0, Ordering::Relaxed);
        START.store(start, Ordering::Release);
        END.store(start + slice.len(), Ordering::Release);
        let bar = Self { view, _mover: mover };
        protect(view, MprotectFlags::empty())?;
        Ok(bar)
    }
}

impl Drop for Bar<'_> {
    fn drop(&mut self) {
        if let Err(error) = protect(self.view, MprotectFlags::READ | MprotectFlags::WRITE) {
            log::error!("memory that changed hands cannot be touched: {error}");
        }
        LAST_END.store(0, Ordering::Release);
        LAST_START.store(START.load(Ordering::Relaxed), Ordering::Release);
        LAST_END.store(END.load(Ordering::Relaxed), Ordering::Release);
        END.store(0, Ordering::Release);
    }
}
