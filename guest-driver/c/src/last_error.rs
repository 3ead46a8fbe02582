//! The words of a thread's last failure.
#![allow(unsafe_code)]

use std::cell::RefCell;
use std::ffi::CString;
use std::ffi::c_char;

use crate::failure::Failure;

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// What went wrong in the last call of this thread that failed, as UTF-8, with the name of that call; "" where none
/// has. Valid until the next failing call of this thread, and never to be freed.
#[unsafe(no_mangle)]
pub extern "C" fn campanile_last_error() -> *const c_char {
    // A thread that is ending has no words any more.
    LAST.try_with(|last| last.try_borrow().map_or(c"".as_ptr(), |last| last.as_ptr())).unwrap_or(c"".as_ptr())
}

/// Keeps a failure of the call `name`.
pub(crate) fn keep(name: &str, failure: &Failure) {
    let mut text = format!("{name}: {}", failure.text).into_bytes();
    text.retain(|byte| *byte != 0);
    // A thread that is ending is not asked any more.
    let _ = LAST.try_with(|last| {
        if let (Ok(mut last), Ok(text)) = (last.try_borrow_mut(), CString::new(text)) {
            *last = text;
        }
    });
}

/// What [`campanile_last_error`] points to.
#[cfg(test)]
pub(crate) fn words() -> String {
    LAST.with(|last| last.borrow().to_str().unwrap().to_owned())
}
