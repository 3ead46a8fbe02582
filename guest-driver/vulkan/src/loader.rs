//! The names that the loader looks up in the library, and programs that load it without a loader.
#![allow(unsafe_code)]

use std::ffi::c_char;

use ash::vk;

use crate::abi;
use crate::table;

/// The newest version of the loader's interface that the driver speaks.
const NEWEST: u32 = 5;
/// The oldest: from it on the loader knows `vk_icdGetInstanceProcAddr`.
const OLDEST: u32 = 2;

/// A command by its name, as the loader and programs without one ask for it.
// SAFETY: the loader's interface defines the name and what it does; nothing else of this program has it.
#[unsafe(no_mangle)]
pub extern "system" fn vk_icdGetInstanceProcAddr(
    instance: vk::Instance,
    name: *const c_char,
) -> vk::PFN_vkVoidFunction {
    table::instance_command(instance, name)
}

/// A command of physical devices by its name, where it is the driver's.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "system" fn vk_icdGetPhysicalDeviceProcAddr(
    _instance: vk::Instance,
    name: *const c_char,
) -> vk::PFN_vkVoidFunction {
    let mut found = None;
    abi::quiet("vk_icdGetPhysicalDeviceProcAddr", || found = table::of_physical(abi::string(name)));
    found
}

/// Agrees upon a version of the loader's interface: the lower of both sides' newest.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "system" fn vk_icdNegotiateLoaderICDInterfaceVersion(version: *mut u32) -> vk::Result {
    abi::command("vk_icdNegotiateLoaderICDInterfaceVersion", || {
        let offered = *abi::read(version);
        if offered < OLDEST {
            return Err(vk::Result::ERROR_INCOMPATIBLE_DRIVER);
        }
        abi::write(version, offered.min(NEWEST));
        Ok(())
    })
}
