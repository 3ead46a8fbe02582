//! What the program passes by pointer and handle.
//!
//! A Vulkan program promises valid usage: handles that it was given and has not destroyed, pointers to what the specification
//! names, or NULL where it allows that. Nothing here can check more of it, so each unsafe block of this file rests on that promise,
//! and no other file of the crate follows a pointer of the program's but through these functions.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::ffi::c_char;
use std::ffi::c_void;
use std::panic::AssertUnwindSafe;
use std::panic::catch_unwind;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use ash::vk;
use ash::vk::Handle;
use ash::vk::TaggedStructure;

use crate::report::report;
use crate::words;

/// What the loader expects in the first word of a dispatchable object, which it overwrites with its own.
const LOADER_MAGIC: usize = 0x01CD_C0DE;

/// Outcome of the body of a command.
pub(crate) type Outcome<T = ()> = Result<T, vk::Result>;

/// A type of which programs hold handles, and use them on any thread.
pub(crate) trait Object: Sized + Send + Sync {
    /// The handle's type.
    type Handle: Handle + Copy;
}

/// An object that the loader dispatches by: its own word comes first.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Dispatchable<T> {
    /// Not the driver's from the moment it is given out: other threads may use the object meanwhile.
    loader: AtomicUsize,
    /// The object.
    pub(crate) object: T,
}

impl<T> Dispatchable<T> {
    /// With what the loader looks for.
    pub(crate) const fn new(object: T) -> Self {
        Self { loader: AtomicUsize::new(LOADER_MAGIC), object }
    }
}

/// Names the type of an object's handle.
macro_rules! handle {
    ($object:ty, $handle:ty) => {
        impl $crate::abi::Object for $object {
            type Handle = $handle;
        }
    };
}
pub(crate) use handle;

/// Runs the body of a command: no panic crosses the border.
pub(crate) fn command(name: &'static str, body: impl FnOnce() -> Outcome) -> vk::Result {
    command_with(name, || body().map(|()| vk::Result::SUCCESS))
}

/// As [`command`], for one that succeeds in more than one way.
pub(crate) fn command_with(name: &'static str, body: impl FnOnce() -> Outcome<vk::Result>) -> vk::Result {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(success)) => success,
        Ok(Err(error)) => {
            report!("{name}: {error:?}");
            error
        }
        Err(payload) => {
            report!("{name}: internal error");
            // A payload can panic when it is dropped.
            std::mem::forget(payload);
            vk::Result::ERROR_UNKNOWN
        }
    }
}

/// Runs the body of a command without a result.
pub(crate) fn quiet(name: &'static str, body: impl FnOnce()) {
    let _reported = command(name, || {
        body();
        Ok(())
    });
}

/// Gives an object out.
pub(crate) fn give<T: Object>(object: T, out: *mut T::Handle) {
    let raw = Arc::into_raw(Arc::new(object)).expose_provenance();
    write(out, T::Handle::from_raw(raw as u64));
}

/// A pointer that was given out.
fn pointer<T>(raw: u64) -> *const T {
    std::ptr::with_exposed_provenance(usize::try_from(raw).unwrap_or(0))
}

/// The object behind a handle; none for VK_NULL_HANDLE.
pub(crate) fn find<'a, T: Object>(handle: T::Handle) -> Option<&'a T> {
    // SAFETY: NULL, or given out by `give` and not taken back, by valid usage.
    unsafe { pointer::<T>(handle.as_raw()).as_ref() }
}

/// The object behind a handle that may not be VK_NULL_HANDLE.
pub(crate) fn get<'a, T: Object>(handle: T::Handle) -> &'a T {
    // SAFETY: given out by `give` and not taken back, by valid usage.
    unsafe { &*pointer::<T>(handle.as_raw()) }
}

/// The object behind a handle, kept for longer than the handle may live.
pub(crate) fn share<T: Object>(handle: T::Handle) -> Arc<T> {
    let object = pointer::<T>(handle.as_raw());
    // SAFETY: given out by `give` and not taken back, by valid usage.
    unsafe { Arc::increment_strong_count(object) };
    // SAFETY: as above; the count was raised for this one.
    unsafe { Arc::from_raw(object) }
}

/// Takes an object back; nothing for VK_NULL_HANDLE.
pub(crate) fn take<T: Object>(handle: T::Handle) -> Option<Arc<T>> {
    let object = pointer::<T>(handle.as_raw());
    if object.is_null() {
        return None;
    }
    words::forget(handle.as_raw());
    // SAFETY: given out by `give`, and taken back once, by valid usage.
    Some(unsafe { Arc::from_raw(object) })
}

/// What a pointer shows that may not be NULL.
pub(crate) fn read<'a, T>(pointer: *const T) -> &'a T {
    // SAFETY: valid usage.
    unsafe { &*pointer }
}

/// What a pointer shows, if it is not NULL.
pub(crate) fn read_optional<'a, T>(pointer: *const T) -> Option<&'a T> {
    // SAFETY: NULL or valid, by valid usage.
    unsafe { pointer.as_ref() }
}

/// What lies where a program stores the address of a structure to be filled.
pub(crate) fn filled<'a, T>(pointer: *mut T) -> &'a mut T {
    // SAFETY: valid usage: sType and pNext are initialised, the rest is plain words, and no other thread uses it during the call.
    unsafe { &mut *pointer }
}

/// Stores at a place of the program's.
pub(crate) fn write<T>(pointer: *mut T, value: T) {
    // SAFETY: valid usage.
    unsafe { pointer.write(value) };
}

/// The `count` items at `pointer`, which may be NULL where there are none.
pub(crate) fn items<'a, T>(pointer: *const T, count: impl TryInto<usize>) -> &'a [T] {
    let count = count.try_into().unwrap_or(0);
    if pointer.is_null() || count == 0 {
        return &[];
    }
    // SAFETY: so many are there, by valid usage.
    unsafe { std::slice::from_raw_parts(pointer, count) }
}

/// The same, to be filled.
pub(crate) fn room<'a, T>(pointer: *mut T, count: impl TryInto<usize>) -> &'a mut [T] {
    let count = count.try_into().unwrap_or(0);
    if pointer.is_null() || count == 0 {
        return &mut [];
    }
    // SAFETY: there is room for so many, by valid usage, initialised as far as the caller of this looks.
    unsafe { std::slice::from_raw_parts_mut(pointer, count) }
}

/// The item of type `T` at byte `offset` of `data`.
pub(crate) fn item_at<T: Copy>(data: *const c_void, offset: usize) -> T {
    // SAFETY: within what the program passed, by valid usage.
    let place = unsafe { data.cast::<u8>().add(offset) };
    // SAFETY: an item of this type lies there, by valid usage.
    unsafe { place.cast::<T>().read_unaligned() }
}

/// A string of the program's; empty where it is NULL.
pub(crate) fn string<'a>(pointer: *const c_char) -> &'a CStr {
    if pointer.is_null() {
        return c"";
    }
    // SAFETY: ended by a NUL, by valid usage.
    unsafe { CStr::from_ptr(pointer) }
}

/// Answers a command that is called once for the count and once for the items.
pub(crate) fn list<T: Copy>(all: &[T], count: *mut u32, out: *mut T) -> vk::Result {
    let there = u32::try_from(all.len()).unwrap_or(u32::MAX);
    if out.is_null() {
        write(count, there);
        return vk::Result::SUCCESS;
    }
    let given = (*read(count)).min(there);
    room(out, given).copy_from_slice(&all[..given as usize]);
    write(count, given);
    if given < there { vk::Result::INCOMPLETE } else { vk::Result::SUCCESS }
}

/// The structure of type `T` in the chain that begins at `next`.
pub(crate) fn chained<'a, T: TaggedStructure>(next: *const c_void) -> Option<&'a T> {
    let mut at = next.cast::<vk::BaseInStructure<'_>>();
    while let Some(base) = read_optional(at) {
        if base.s_type == T::STRUCTURE_TYPE {
            return read_optional(at.cast::<T>());
        }
        at = base.p_next;
    }
    None
}

/// Each structure of the chain that begins at `next`, to be filled or read.
pub(crate) fn chain(next: *const c_void) -> impl Iterator<Item = *mut vk::BaseOutStructure<'static>> {
    let mut at = next.cast_mut().cast::<vk::BaseOutStructure<'static>>();
    std::iter::from_fn(move || {
        let found = at;
        at = read_optional(found)?.p_next;
        Some(found)
    })
}

/// A structure of the chain as what it is, if it is a `T`.
pub(crate) fn as_type<'a, T: TaggedStructure>(base: *mut vk::BaseOutStructure<'static>) -> Option<&'a mut T> {
    (read(base).s_type == T::STRUCTURE_TYPE).then(|| filled(base.cast::<T>()))
}

/// The words of a structure behind its sType and pNext, as far as byte `end`: what may lie behind its last field is padding,
/// which is not initialised.
pub(crate) fn words<T: TaggedStructure>(structure: &T, end: usize) -> &[u32] {
    let (head, word) = (size_of::<vk::BaseInStructure<'_>>(), size_of::<u32>());
    let first = std::ptr::from_ref(structure).cast::<u32>().wrapping_add(head / word);
    items(first, end.min(size_of::<T>()).saturating_sub(head) / word)
}

/// As [`words`], for a structure of words alone.
pub(crate) fn plain_words<T>(structure: &T) -> &[u32] {
    items(std::ptr::from_ref(structure).cast::<u32>(), size_of::<T>() / size_of::<u32>())
}

/// A fixed field of text.
pub(crate) fn text<const N: usize>(text: &str) -> [c_char; N] {
    let mut field = [0; N];
    for (place, byte) in field.iter_mut().zip(text.bytes().take(N - 1)) {
        *place = byte.cast_signed();
    }
    field
}
