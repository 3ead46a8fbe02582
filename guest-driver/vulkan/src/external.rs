//! Memory of other drivers and for them, by file descriptors: there is none. Programs enable the extension for what they may do with it on other
//! GPUs, as those that can hand their memory to CUDA do, and no type of handle is told to be good for anything.

use std::ffi::c_int;

use ash::vk;

use crate::abi;
use crate::abi::Outcome;
use crate::report::report;

/// Refuses an allocation that would take over memory.
pub(crate) fn check(info: &vk::MemoryAllocateInfo<'_>) -> Outcome {
    let imported = abi::chained::<vk::ImportMemoryFdInfoKHR<'_>>(info.p_next);
    if imported.is_some_and(|imported| !imported.handle_type.is_empty()) {
        report!("vkAllocateMemory: no memory of other drivers is taken over");
        return Err(vk::Result::ERROR_INVALID_EXTERNAL_HANDLE);
    }
    Ok(())
}

pub(crate) extern "system" fn memory_fd(
    _device: vk::Device,
    _info: *const vk::MemoryGetFdInfoKHR<'_>,
    out: *mut c_int,
) -> vk::Result {
    abi::command("vkGetMemoryFdKHR", || {
        abi::write(out, -1);
        report!("vkGetMemoryFdKHR: no memory is for other drivers");
        Err(vk::Result::ERROR_UNKNOWN)
    })
}

pub(crate) extern "system" fn fd_properties(
    _device: vk::Device,
    _kind: vk::ExternalMemoryHandleTypeFlags,
    _fd: c_int,
    out: *mut vk::MemoryFdPropertiesKHR<'_>,
) -> vk::Result {
    abi::command("vkGetMemoryFdPropertiesKHR", || {
        abi::filled(out).memory_type_bits = 0;
        Err(vk::Result::ERROR_INVALID_EXTERNAL_HANDLE)
    })
}
