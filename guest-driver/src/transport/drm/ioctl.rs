//! The ioctls of the stock driver, one function each.
//!
//! JUSTIFICATION: the kernel offers no other way, and no crate wraps these. Pointers go to the kernel only from here,
//! and only to locals and slices that outlive the call.
#![allow(unsafe_code, reason = "ioctls of the virtio-gpu driver: no safe wrapper exists")]

use std::os::fd::BorrowedFd;
use std::os::fd::FromRawFd;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::ioctl::Opcode;
use rustix::ioctl::Updater;
use rustix::ioctl::opcode;

use super::wire;

/// `DRM_IOCTL_BASE`.
const GROUP: u8 = b'd';
/// `DRM_COMMAND_BASE`: numbers of the driver's own ioctls begin here.
const OWN: u8 = 0x40;

const VERSION: Opcode = opcode::read_write::<wire::Version>(GROUP, 0x00);
const GEM_CLOSE: Opcode = opcode::write::<wire::GemClose>(GROUP, 0x09);
const MAP: Opcode = opcode::read_write::<wire::Map>(GROUP, OWN + 0x01);
const EXECBUFFER: Opcode = opcode::read_write::<wire::ExecBuffer>(GROUP, OWN + 0x02);
const GETPARAM: Opcode = opcode::read_write::<wire::GetParam>(GROUP, OWN + 0x03);
const GET_CAPS: Opcode = opcode::read_write::<wire::GetCaps>(GROUP, OWN + 0x09);
const RESOURCE_CREATE_BLOB: Opcode = opcode::read_write::<wire::CreateBlob>(GROUP, OWN + 0x0a);
const CONTEXT_INIT: Opcode = opcode::read_write::<wire::ContextInit>(GROUP, OWN + 0x0b);

/// One ioctl, again where a signal or a full queue interrupted it (as libdrm does).
///
/// # Safety
/// `T` is the structure that the kernel knows for `OPCODE`, and every address in it is that of memory which lives
/// through the call, is as long as the structure says, and is writable where the kernel writes.
unsafe fn call<const OPCODE: Opcode, T>(node: BorrowedFd<'_>, argument: &mut T) -> Result<(), Errno> {
    loop {
        // SAFETY: by this function's contract `T` is what the kernel reads and writes for this opcode.
        let request = unsafe { Updater::<OPCODE, T>::new(argument) };
        // SAFETY: by this function's contract the addresses in the structure are valid for what the kernel does.
        let done = unsafe { rustix::ioctl::ioctl(node, request) };
        match done {
            Err(Errno::INTR | Errno::AGAIN) => {}
            done => return done,
        }
    }
}

/// The name of the driver behind a render node.
pub(super) fn driver_name(node: BorrowedFd<'_>) -> Result<String, Errno> {
    let mut name = [0u8; 32];
    let mut version = wire::Version {
        numbers: [0; 3],
        name_length: name.len(),
        name: name.as_mut_ptr().addr() as u64,
        date_length: 0,
        date: 0,
        description_length: 0,
        description: 0,
    };
    name.as_mut_ptr().expose_provenance();
    // SAFETY: the structure is `drm_version`; `name` lives through the call and is `name_length` bytes long; the
    // kernel writes nothing to the two fields of length zero.
    unsafe { call::<VERSION, _>(node, &mut version)? };
    let length = version.name_length.min(name.len());
    Ok(String::from_utf8_lossy(&name[..length]).into_owned())
}

/// A parameter of the driver; `EINVAL` where it is too old to know it.
pub(super) fn parameter(node: BorrowedFd<'_>, param: u64) -> Result<i32, Errno> {
    let mut value = 0i32;
    let address = std::ptr::from_mut(&mut value).expose_provenance() as u64;
    let mut request = wire::GetParam { param, value: address };
    // SAFETY: the structure is `drm_virtgpu_getparam`; the kernel writes one `int` to the address, which is a local's.
    unsafe { call::<GETPARAM, _>(node, &mut request)? };
    // SAFETY: the local lives, is initialised, and nothing else uses it.
    Ok(unsafe { std::ptr::from_ref(&value).read_volatile() })
}

/// A capability set, as many bytes as the device and `bytes` have.
pub(super) fn capset(node: BorrowedFd<'_>, id: u32, version: u32, bytes: &mut [u8]) -> Result<(), Errno> {
    let size = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    let address = bytes.as_mut_ptr().expose_provenance() as u64;
    let mut request = wire::GetCaps { id, version, address, size, padding: 0 };
    // SAFETY: the structure is `drm_virtgpu_get_caps`; the kernel writes at most `size` bytes to the slice, which
    // is at least that long and borrowed mutably for the call.
    unsafe { call::<GET_CAPS, _>(node, &mut request) }
}

/// Makes the opened node's context one of this capability set, with so many timelines.
pub(super) fn init_context(node: BorrowedFd<'_>, capset: u32, rings: u64) -> Result<(), Errno> {
    let param = |param, value| wire::ContextParam { param, value };
    let params = [
        param(wire::CONTEXT_CAPSET_ID, u64::from(capset)),
        param(wire::CONTEXT_NUM_RINGS, rings),
        param(wire::CONTEXT_POLL_RINGS_MASK, 0),
    ];
    let address = params.as_ptr().expose_provenance() as u64;
    let mut request = wire::ContextInit { param_count: 3, padding: 0, params: address };
    // SAFETY: the structure is `drm_virtgpu_context_init`; the kernel reads `param_count` entries of the array.
    unsafe { call::<CONTEXT_INIT, _>(node, &mut request) }
}

/// Creates a blob, by the name that the device knows it by, or 0; returns its GEM handle and resource id.
pub(super) fn create_blob(
    node: BorrowedFd<'_>,
    memory: u32,
    flags: u32,
    size: u64,
    name: u64,
) -> Result<(u32, u32), Errno> {
    let mut request = wire::CreateBlob {
        memory,
        flags,
        bo_handle: 0,
        resource: 0,
        size,
        padding: 0,
        command_size: 0,
        command: 0,
        blob_id: name,
    };
    // SAFETY: the structure is `drm_virtgpu_resource_create_blob`; it carries no command, so the kernel follows
    // no address.
    unsafe { call::<RESOURCE_CREATE_BLOB, _>(node, &mut request)? };
    Ok((request.bo_handle, request.resource))
}

/// Where in the node's file a blob can be mapped.
pub(super) fn map_offset(node: BorrowedFd<'_>, handle: u32) -> Result<u64, Errno> {
    let mut request = wire::Map { offset: 0, handle, padding: 0 };
    // SAFETY: the structure is `drm_virtgpu_map` and has no address in it.
    unsafe { call::<MAP, _>(node, &mut request)? };
    Ok(request.offset)
}

/// Lets go of a blob.
pub(super) fn close(node: BorrowedFd<'_>, handle: u32) -> Result<(), Errno> {
    let mut request = wire::GemClose { handle, padding: 0 };
    // SAFETY: the structure is `drm_gem_close` and has no address in it.
    unsafe { call::<GEM_CLOSE, _>(node, &mut request) }
}

/// Sends `command`; with a ring index, returns the sync file of its fence.
pub(super) fn execute(
    node: BorrowedFd<'_>,
    command: &[u8],
    ring_index: Option<u8>,
) -> Result<Option<OwnedFd>, Errno> {
    let mut request = wire::ExecBuffer {
        flags: ring_index.map_or(0, |_| wire::EXEC_FENCE_FD_OUT | wire::EXEC_RING_IDX),
        size: u32::try_from(command.len()).map_err(|_| Errno::TOOBIG)?,
        command: command.as_ptr().expose_provenance() as u64,
        bo_handles: 0,
        bo_handle_count: 0,
        fence_fd: -1,
        ring_index: u32::from(ring_index.unwrap_or(0)),
        padding: 0,
    };
    // SAFETY: the structure is the first part of `drm_virtgpu_execbuffer`, which the kernel completes with zeroes; it
    // reads `size` bytes of `command`, which is that long, and nothing else.
    unsafe { call::<EXECBUFFER, _>(node, &mut request)? };
    if ring_index.is_none() || request.fence_fd < 0 {
        return Ok(None);
    }
    // SAFETY: the kernel has just opened this descriptor for this call, and nothing else knows of it.
    Ok(Some(unsafe { OwnedFd::from_raw_fd(request.fence_fd) }))
}
