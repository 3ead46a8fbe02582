//! Memory that program and GPU share.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::mem::MaybeUninit;

use campanile_guest_driver::buffer::Buffer;
use campanile_guest_driver::transport::blob::BlobMemory;

use crate::boundary::given;
use crate::boundary::guarded;
use crate::boundary::release;
use crate::device::CampanileDevice;
use crate::failure::Failure;
use crate::foreign::items;
use crate::foreign::room;
use crate::result::CampanileResult;

/// Memory of a buffer: video memory, which the CPU sees through the aperture.
pub const CAMPANILE_MEMORY_VRAM: u32 = 0;
/// Memory of a buffer: the VM's own, which the GPU reads and writes in place.
pub const CAMPANILE_MEMORY_GUEST: u32 = 1;

/// As a length: from the offset to the end of the buffer.
pub const CAMPANILE_WHOLE: u64 = 0xFFFF_FFFF_FFFF_FFFF;

/// A buffer, mapped for the CPU and for the GPU.
#[derive(Debug)]
pub struct CampanileBuffer(pub(crate) Buffer);

/// Bytes that a kernel sees as one of its bindings. `campanile_buffer_bind` fills it in.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct CampanileBinding {
    /// GPU virtual address, a multiple of 256.
    pub va: u64,
    /// Bytes, a multiple of 4.
    pub length: u64,
    /// The kernel's binding number within `set`, 0 to 63.
    pub slot: u32,
    /// The kernel's descriptor set, a `@group` in WGSL, 0 to 7. `campanile_buffer_bind` stores 0.
    pub set: u16,
    /// Which buffer of a binding that is an array of them. `campanile_buffer_bind` stores 0.
    pub element: u16,
}

pub(crate) fn memory(kind: u32) -> Result<BlobMemory, Failure> {
    match kind {
        CAMPANILE_MEMORY_VRAM => Ok(BlobMemory::Vram),
        CAMPANILE_MEMORY_GUEST => Ok(BlobMemory::GuestRam),
        _ => Err(Failure::argument(format_args!("memory {kind} is no CAMPANILE_MEMORY_…"))),
    }
}

/// A length, with `CAMPANILE_WHOLE` resolved.
fn length_of(buffer: &Buffer, offset: u64, length: u64) -> u64 {
    if length == CAMPANILE_WHOLE { buffer.size().saturating_sub(offset) } else { length }
}

/// Makes a buffer of at least `size` bytes, zeroed, in `memory_kind`, a `CAMPANILE_MEMORY_…`.
/// `CAMPANILE_OUT_OF_RESOURCES` where that memory, the aperture or the address space is full.
#[unsafe(no_mangle)]
pub extern "C" fn campanile_buffer_create(
    device: Option<&CampanileDevice>,
    memory_kind: u32,
    size: u64,
    buffer: Option<&mut MaybeUninit<Box<CampanileBuffer>>>,
) -> CampanileResult {
    guarded("campanile_buffer_create", || {
        let (device, place) = (given(device, "device")?, given(buffer, "buffer")?);
        let made = match memory(memory_kind)? {
            BlobMemory::Vram | BlobMemory::Local => device.0.create_buffer(size),
            BlobMemory::GuestRam => device.0.create_guest_buffer(size),
        };
        place.write(Box::new(CampanileBuffer(made?)));
        Ok(())
    })
}

/// Frees a buffer; NULL is nothing. Pointers into it are dead from here on; work that still uses it faults, and the
/// device is lost.
#[unsafe(no_mangle)]
pub extern "C" fn campanile_buffer_destroy(buffer: Option<Box<CampanileBuffer>>) {
    release("campanile_buffer_destroy", buffer);
}

/// Bytes of the buffer, a multiple of 4096; 0 for NULL.
#[unsafe(no_mangle)]
pub extern "C" fn campanile_buffer_size(buffer: Option<&CampanileBuffer>) -> u64 {
    buffer.map_or(0, |buffer| buffer.0.size())
}

/// GPU virtual address of the first byte, never 0; 0 for NULL.
#[unsafe(no_mangle)]
pub extern "C" fn campanile_buffer_va(buffer: Option<&CampanileBuffer>) -> u64 {
    buffer.map_or(0, |buffer| buffer.0.va())
}

/// The number of the buffer's virtio-gpu resource, never 0; 0 for NULL.
#[unsafe(no_mangle)]
pub extern "C" fn campanile_buffer_resource_id(buffer: Option<&CampanileBuffer>) -> u32 {
    buffer.map_or(0, |buffer| buffer.0.resource_id())
}

/// Where the CPU sees the bytes `offset` to `offset + length`: they may be read and written there at any time until
/// the buffer is destroyed, and there is nothing to unmap. Device and CPU see each other's stores in the order of
/// fences: read results after a wait said `CAMPANILE_OK`. `CAMPANILE_NOT_SUPPORTED` where the bytes are not in one
/// piece for the CPU; a range within one page of 4096 bytes always is.
#[unsafe(no_mangle)]
pub extern "C" fn campanile_buffer_map(
    buffer: Option<&CampanileBuffer>,
    offset: u64,
    length: u64,
    pointer: Option<&mut MaybeUninit<*mut c_void>>,
) -> CampanileResult {
    guarded("campanile_buffer_map", || {
        let (buffer, place) = (&given(buffer, "buffer")?.0, given(pointer, "pointer")?);
        let length = length_of(buffer, offset, length);
        // For its check of the range.
        buffer.binding_range(0, offset, length)?;
        let Some(bytes) = buffer.memory().slice(offset, length) else {
            let words = format_args!("bytes {offset}..{} are not in one piece", offset + length);
            return Err(Failure::new(CampanileResult::CampanileNotSupported, words));
        };
        place.write(bytes.ptr_guard_mut().as_ptr().cast());
        Ok(())
    })
}

/// Copies `size` bytes out, from `offset` on. On failure `bytes` may have been overwritten.
///
/// # Safety
/// `bytes` is NULL, or room for `size` bytes that nothing else uses meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn campanile_buffer_read(
    buffer: Option<&CampanileBuffer>,
    offset: u64,
    bytes: *mut c_void,
    size: usize,
) -> CampanileResult {
    guarded("campanile_buffer_read", || {
        let buffer = given(buffer, "buffer")?;
        // SAFETY: NULL or the caller's room, by this function's contract.
        let bytes = unsafe { room(bytes.cast(), size, "bytes") }?;
        Ok(buffer.0.read(offset, bytes)?)
    })
}

/// Copies `size` bytes in, from `offset` on.
///
/// # Safety
/// `bytes` is NULL, or `size` bytes lie there that are not changed meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn campanile_buffer_write(
    buffer: Option<&CampanileBuffer>,
    offset: u64,
    bytes: *const c_void,
    size: usize,
) -> CampanileResult {
    guarded("campanile_buffer_write", || {
        let buffer = given(buffer, "buffer")?;
        // SAFETY: NULL or the caller's bytes, by this function's contract.
        let bytes = unsafe { items(bytes.cast(), size, "bytes") }?;
        Ok(buffer.0.write(offset, bytes)?)
    })
}

/// The bytes `offset` (a multiple of 256) to `offset + length` (a multiple of 4) as binding number `slot` of a kernel.
/// `length` may be `CAMPANILE_WHOLE`. Does not block.
#[unsafe(no_mangle)]
pub extern "C" fn campanile_buffer_bind(
    buffer: Option<&CampanileBuffer>,
    slot: u32,
    offset: u64,
    length: u64,
    binding: Option<&mut MaybeUninit<CampanileBinding>>,
) -> CampanileResult {
    guarded("campanile_buffer_bind", || {
        let (buffer, place) = (&given(buffer, "buffer")?.0, given(binding, "binding")?);
        let bound = buffer.binding_range(slot, offset, length_of(buffer, offset, length))?;
        place.write(CampanileBinding {
            va: bound.va,
            length: bound.length,
            slot: bound.slot.into(),
            set: bound.set,
            element: bound.element,
        });
        Ok(())
    })
}
