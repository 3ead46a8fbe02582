//! Each way in which memory is shared with a device, tried with kernels.

use std::sync::Arc;

use crate::memory::mapping::Access;
use crate::memory::mapping::Mapping;
use crate::memory::vram::create_memfd;
use crate::vulkan::check::kernels;
use crate::vulkan::driver::Driver;
use crate::vulkan::error::VulkanError;
use crate::vulkan::import::HostRange;
use crate::vulkan::info::Handle;
use crate::vulkan::local::Copier;

/// Bytes of each trial.
const LENGTH: u64 = kernels::STEP_BYTES;

/// Zeroed host memory in a memfd, mapped twice: to import, and to look at.
pub(super) fn host_memory(length: u64) -> Result<[Arc<Mapping>; 2], VulkanError> {
    let failed = |e: &dyn std::error::Error| VulkanError::SelfTest { reason: e.to_string() };
    let file = create_memfd("campanile-check-gpu", length).map_err(|e| failed(&e))?;
    let map = |file| Mapping::new(file, 0, length, Access::ReadWrite).map(Arc::new);
    let seen = map(file.try_clone().map_err(|e| failed(&e))?).map_err(|e| failed(&e))?;
    Ok([map(file).map_err(|e| failed(&e))?, seen])
}

/// Imports host memory as video memory is, by its address or as a copy; a kernel writes it, and another mapping of it is looked at.
///
/// # Errors
/// The driver refuses, or the kernel's writes are not seen.
pub fn host(driver: &mut Driver) -> Result<(), VulkanError> {
    let [imported, seen] = host_memory(LENGTH)?;
    let import = driver.import(&HostRange::whole(&imported, Access::ReadWrite))?;
    let pipeline = kernels::pipeline(driver, kernels::STEP)?;
    let ticket = kernels::step(driver, &pipeline, &import, LENGTH)?;
    driver.wait(ticket)?;
    driver.settle()?;
    kernels::check(&seen, LENGTH, 1, "imported host memory after a kernel")
}

/// Has a kernel write memory of the device's own, exports it, drops it, imports it in another device instance, has a kernel
/// write it again there, and looks at a copy.
///
/// # Errors
/// The driver refuses, or contents do not survive.
pub fn exported(driver: &mut Driver, other: &mut Driver, handle: Handle) -> Result<(), VulkanError> {
    let [imported, seen] = host_memory(LENGTH)?;
    let local = driver.allocate(LENGTH, Some(handle))?;
    // What is in it is undefined at first.
    let zeroes = driver.import(&HostRange::whole(&imported, Access::ReadWrite))?;
    Copier::new(driver)?.copy(&zeroes, &local, LENGTH)?;
    let pipeline = kernels::pipeline(driver, kernels::STEP)?;
    let ticket = kernels::step(driver, &pipeline, &local, LENGTH)?;
    driver.wait(ticket)?;
    driver.settle()?;
    let exported = local.export(handle)?;
    drop((local, zeroes));
    let again = other.import_exported(exported)?;
    let pipeline = kernels::pipeline(other, kernels::STEP)?;
    let ticket = kernels::step(other, &pipeline, &again, LENGTH)?;
    other.wait(ticket)?;
    other.settle()?;
    let target = other.import(&HostRange::whole(&imported, Access::ReadWrite))?;
    Copier::new(other)?.copy(&again, &target, LENGTH)?;
    kernels::check(&seen, LENGTH, 2, "device memory that was exported and imported")
}
