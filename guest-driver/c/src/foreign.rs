//! Bytes and text that the caller points to.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::ffi::c_char;

use crate::failure::Failure;

/// The `count` items at `pointer`, which may be NULL where there are none.
///
/// # Safety
/// `pointer` is NULL, or `count` initialised items lie there that are not changed while `'a` lasts.
pub(crate) unsafe fn items<'a, T>(pointer: *const T, count: usize, name: &str) -> Result<&'a [T], Failure> {
    if count == 0 {
        return Ok(&[]);
    }
    check(pointer, count, name)?;
    // SAFETY: not NULL, aligned, and of a possible size, by `check`; the items are there, by this function's contract.
    Ok(unsafe { std::slice::from_raw_parts(pointer, count) })
}

/// Room for `count` bytes at `pointer`, zeroed first: what was there need not be initialised.
///
/// # Safety
/// `pointer` is NULL, or `count` bytes lie there that are the caller's to write, and that nothing else uses while `'a`
/// lasts.
pub(crate) unsafe fn room<'a>(pointer: *mut u8, count: usize, name: &str) -> Result<&'a mut [u8], Failure> {
    if count == 0 {
        return Ok(&mut []);
    }
    check(pointer, count, name)?;
    // SAFETY: not NULL and of a possible size, by `check`; writable, by this function's contract.
    unsafe { std::ptr::write_bytes(pointer, 0, count) };
    // SAFETY: as above, and initialised by now; nothing else uses it, by this function's contract.
    Ok(unsafe { std::slice::from_raw_parts_mut(pointer, count) })
}

/// The string at `pointer`, without its NUL; none where `pointer` is NULL.
///
/// # Safety
/// `pointer` is NULL, or a string with a NUL at its end lies there that is not changed while `'a` lasts.
pub(crate) unsafe fn string<'a>(pointer: *const c_char) -> Option<&'a CStr> {
    if pointer.is_null() {
        return None;
    }
    // SAFETY: not NULL, and ended by a NUL, by this function's contract.
    Some(unsafe { CStr::from_ptr(pointer) })
}

/// The string as UTF-8.
pub(crate) fn utf8<'a>(string: &'a CStr, name: &str) -> Result<&'a str, Failure> {
    string.to_str().map_err(|error| Failure::argument(format_args!("{name} is not UTF-8: {error}")))
}

fn check<T>(pointer: *const T, count: usize, name: &str) -> Result<(), Failure> {
    if pointer.is_null() {
        return Err(Failure::null(name));
    }
    if !pointer.is_aligned() {
        return Err(Failure::argument(format_args!("{name} is not aligned to {} bytes", align_of::<T>())));
    }
    match count.checked_mul(size_of::<T>()) {
        Some(bytes) if isize::try_from(bytes).is_ok() => Ok(()),
        _ => Err(Failure::argument(format_args!("{name}: {count} items do not fit into memory"))),
    }
}

#[cfg(test)]
mod tests {
    use super::items;
    use super::room;
    use super::string;

    #[test]
    fn null_is_refused_unless_nothing_is_there() {
        // SAFETY: NULL, which is allowed.
        assert!(unsafe { items::<u64>(std::ptr::null(), 1, "x") }.is_err());
        // SAFETY: NULL, which is allowed.
        assert!(unsafe { items::<u64>(std::ptr::null(), 0, "x") }.unwrap().is_empty());
        // SAFETY: NULL, which is allowed.
        assert!(unsafe { room(std::ptr::null_mut(), 1, "x") }.is_err());
        // SAFETY: NULL, which is allowed.
        assert!(unsafe { string(std::ptr::null()) }.is_none());
    }

    #[test]
    fn impossible_sizes_are_refused() {
        let word = 0_u64;
        // SAFETY: refused for its size before anything is read.
        let found = unsafe { items(&raw const word, usize::MAX / 2, "x") };
        assert!(found.unwrap_err().text.contains("do not fit"));
    }
}
