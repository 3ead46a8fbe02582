//! Memory as a device sees it, host memory and its own, and buffers over it.
#![allow(unsafe_code)]

use std::os::fd::AsFd;
use std::os::fd::AsRawFd;
use std::os::fd::BorrowedFd;
use std::os::fd::FromRawFd;
use std::os::fd::IntoRawFd;
use std::os::fd::OwnedFd;
use std::os::fd::RawFd;
use std::sync::Arc;

use ash::vk;
use vm_memory::VolatileSlice;

use crate::memory::mapping::Mapping;
use crate::vulkan::error::VulkanError;
use crate::vulkan::error::failed;
use crate::vulkan::info::Budget;
use crate::vulkan::info::Handle;
use crate::vulkan::raw::device::Gpu;
use crate::vulkan::raw::mapped::Mapped;
use crate::vulkan::raw::memory_types::largest_heap;
use crate::vulkan::raw::memory_types::local_type;
use crate::vulkan::raw::memory_types::shared_type;

const HOST_POINTER: vk::ExternalMemoryHandleTypeFlags =
    vk::ExternalMemoryHandleTypeFlags::HOST_ALLOCATION_EXT;
/// What every buffer of guests and of copies may be used for.
pub(super) const USAGE: vk::BufferUsageFlags = vk::BufferUsageFlags::from_raw(
    vk::BufferUsageFlags::STORAGE_BUFFER.as_raw()
        | vk::BufferUsageFlags::UNIFORM_BUFFER.as_raw()
        | vk::BufferUsageFlags::UNIFORM_TEXEL_BUFFER.as_raw()
        | vk::BufferUsageFlags::STORAGE_TEXEL_BUFFER.as_raw()
        | vk::BufferUsageFlags::TRANSFER_SRC.as_raw()
        | vk::BufferUsageFlags::TRANSFER_DST.as_raw(),
);

/// What allocations of a device's own memory are multiples of, bytes.
const GRANULE: u64 = 0x1_0000;

/// Vulkan's name of a handle.
pub(super) const fn handle_type(handle: Handle) -> vk::ExternalMemoryHandleTypeFlags {
    match handle {
        Handle::OpaqueFd => vk::ExternalMemoryHandleTypeFlags::OPAQUE_FD,
        Handle::DmaBuf => vk::ExternalMemoryHandleTypeFlags::DMA_BUF_EXT,
    }
}

/// A device's memory as a descriptor, and all that an import of it must know. The contents are there as long as it is.
#[derive(Debug)]
pub struct Exported {
    /// What was exported.
    pub descriptor: OwnedFd,
    /// As what.
    pub handle: Handle,
    /// Bytes of the allocation.
    pub length: u64,
    /// Vulkan's index of its type.
    pub type_index: u32,
    /// UUIDs of device and driver.
    pub uuids: [[u8; 16]; 2],
}

/// Host memory as the device sees it, or memory of the device's own.
pub(in crate::vulkan) struct Memory {
    gpu: Arc<Gpu>,
    raw: vk::DeviceMemory,
    type_index: u32,
    length: u64,
    /// What it was imported from or can be exported as.
    handles: vk::ExternalMemoryHandleTypeFlags,
    /// The pages that an import works on; none of the device's own memory.
    _pages: Option<Arc<Mapping>>,
    /// Where the host sees memory of the device's own, as long as it is there.
    mapped: Option<Mapped>,
}

impl Memory {
    /// Imports `length` bytes of `mapping` from `offset` with `VK_EXT_external_memory_host`.
    pub(in crate::vulkan) fn import_host_pointer(
        gpu: &Arc<Gpu>,
        mapping: &Arc<Mapping>,
        offset: u64,
        length: u64,
    ) -> Result<Self, VulkanError> {
        let refused = |reason: String| VulkanError::Import { length, offset, reason };
        let not_taken = |reason: String| VulkanError::NotTaken { length, offset, reason };
        let not_imported = |call: &str, result: vk::Result| {
            let says = format!("{call} says {result}");
            if result == vk::Result::ERROR_INVALID_EXTERNAL_HANDLE { not_taken(says) } else { refused(says) }
        };
        let inside = length > 0 && mapping.slice(offset, length).is_some();
        let start = usize::try_from(offset).ok().filter(|_| inside);
        let start = start.ok_or_else(|| refused(format!("the mapping has {} bytes", mapping.len())))?;
        let pointer = mapping.host_pointer().wrapping_add(start);
        let host_memory = gpu.host_memory.as_ref();
        let host_memory = host_memory.ok_or_else(|| refused("the device imports none".to_owned()))?;
        let alignment = gpu.limits.import_alignment;
        if !(pointer.addr() as u64).is_multiple_of(alignment) || !length.is_multiple_of(alignment) {
            return Err(refused(format!("address and length must be multiples of {alignment}")));
        }
        let pointer = pointer.cast::<std::ffi::c_void>();

        let mut offered = vk::MemoryHostPointerPropertiesEXT::default();
        let query = host_memory.fp().get_memory_host_pointer_properties_ext;
        // SAFETY: the device is alive, the pointer is to mapped memory, and `offered` outlives the call.
        unsafe { query(gpu.device.handle(), HOST_POINTER, pointer, &raw mut offered) }
            .result()
            .map_err(|result| not_imported("vkGetMemoryHostPointerPropertiesEXT", result))?;
        let type_index = shared_type(&gpu.memory_types, offered.memory_type_bits)
            .ok_or_else(|| not_taken("the device would not see it coherently".to_owned()))?;

        let mut import =
            vk::ImportMemoryHostPointerInfoEXT::default().handle_type(HOST_POINTER).host_pointer(pointer);
        let info = vk::MemoryAllocateInfo::default()
            .allocation_size(length)
            .memory_type_index(type_index)
            .push_next(&mut import);
        // SAFETY: the range is mapped, aligned as demanded, and stays so as long as `_pages` is held.
        let raw = unsafe { gpu.device.allocate_memory(&info, None) }
            .map_err(|result| not_imported("vkAllocateMemory", result))?;
        let (gpu, _pages) = (Arc::clone(gpu), Some(Arc::clone(mapping)));
        Ok(Self { gpu, raw, type_index, length, handles: HOST_POINTER, _pages, mapped: None })
    }

    /// Allocates at least `length` bytes of the device's own memory; what is in it is undefined. It can be exported as `handle`.
    pub(in crate::vulkan) fn allocate_local(
        gpu: &Arc<Gpu>,
        length: u64,
        handle: Option<Handle>,
    ) -> Result<Self, VulkanError> {
        let refused = |reason: String| VulkanError::Allocate { length, reason };
        if let Some(handle) = handle.filter(|handle| !gpu.handles.has(*handle)) {
            return Err(refused(format!("the device exports none as {handle}")));
        }
        let handles = handle.map_or(vk::ExternalMemoryHandleTypeFlags::empty(), handle_type);
        let bits = buffer_types(gpu, handles)?;
        let whole = length.checked_next_multiple_of(GRANULE).filter(|_| length > 0);
        let whole = whole.ok_or_else(|| refused("there is no memory of that size".to_owned()))?;
        let type_index = local_type(&gpu.memory_types, bits, whole).ok_or_else(|| {
            let largest = largest_heap(&gpu.memory_types, bits) >> 20;
            refused(format!("the largest heap of its own memory that buffers can have has {largest} MiB"))
        })?;
        if let Some(budget) = local_budget(gpu, type_index).filter(|budget| budget.left() < whole) {
            let [may_have, has] = [budget.may_have, budget.has].map(|bytes| bytes >> 20);
            return Err(refused(format!(
                "its budget is {may_have} MiB now, of which {has} are taken: the rest of the device's memory is in other use"
            )));
        }
        let mut export = vk::ExportMemoryAllocateInfo::default().handle_types(handles);
        let mut info = vk::MemoryAllocateInfo::default().allocation_size(whole).memory_type_index(type_index);
        if handle.is_some() {
            info = info.push_next(&mut export);
        }
        // SAFETY: `info` outlives the call, and its type is one of the device's.
        let raw = unsafe { gpu.device.allocate_memory(&info, None) }
            .map_err(|result| refused(why_not(gpu, result, whole)))?;
        Ok(Self { gpu: Arc::clone(gpu), raw, type_index, length: whole, handles, _pages: None, mapped: None })
    }

    /// Allocates `length` bytes that device and host both see; what is in it is undefined. [`Self::slice`] is what the host sees.
    pub(in crate::vulkan) fn allocate_shared(gpu: &Arc<Gpu>, length: u64) -> Result<Self, VulkanError> {
        let refused = |reason: String| VulkanError::Allocate { length, reason };
        let handles = vk::ExternalMemoryHandleTypeFlags::empty();
        let type_index = shared_type(&gpu.memory_types, buffer_types(gpu, handles)?)
            .ok_or_else(|| refused("the device has no memory that the host sees coherently".to_owned()))?;
        let info = vk::MemoryAllocateInfo::default().allocation_size(length).memory_type_index(type_index);
        // SAFETY: `info` outlives the call, and its type is one of the device's.
        let raw = unsafe { gpu.device.allocate_memory(&info, None) }
            .map_err(|result| refused(why_not(gpu, result, length)))?;
        let mut memory =
            Self { gpu: Arc::clone(gpu), raw, type_index, length, handles, _pages: None, mapped: None };
        // SAFETY: the memory was just allocated, of a type that the host can map, and is not mapped. Freeing it ends that.
        let mapped = unsafe { gpu.device.map_memory(raw, 0, vk::WHOLE_SIZE, vk::MemoryMapFlags::empty()) };
        let mapped = mapped.map_err(|result| refused(format!("vkMapMemory says {result}")))?;
        // SAFETY: all of the memory is mapped, until `drop` frees it, behind which nothing uses `mapped`.
        memory.mapped = unsafe { Mapped::new(mapped.cast(), length) };
        Ok(memory)
    }

    /// What the host sees of the bytes `offset .. offset + length`; none where that is not all inside, or the host sees nothing of it.
    pub(in crate::vulkan) fn slice(&self, offset: u64, length: u64) -> Option<VolatileSlice<'_>> {
        self.mapped.as_ref()?.slice(offset, length)
    }

    /// A descriptor of memory that was allocated to be exported as `handle`.
    pub(in crate::vulkan) fn export(&self, handle: Handle) -> Result<Exported, VulkanError> {
        let refused = |reason: String| VulkanError::Share { length: self.length, handle, reason };
        let fds = self.gpu.external_fds.as_ref().filter(|_| self.handles == handle_type(handle));
        let fds = fds.ok_or_else(|| refused("it was not allocated for that".to_owned()))?;
        let info = vk::MemoryGetFdInfoKHR::default().memory(self.raw).handle_type(handle_type(handle));
        // SAFETY: the memory is alive and was allocated to be exported as this handle.
        let raw = unsafe { fds.get_memory_fd(&info) }
            .map_err(|result| refused(format!("vkGetMemoryFdKHR says {result}")))?;
        // SAFETY: the descriptor was made for this call and is used nowhere else.
        let descriptor = unsafe { OwnedFd::from_raw_fd(raw) };
        let (type_index, uuids) = (self.type_index, self.gpu.uuids());
        Ok(Exported { descriptor, handle, length: self.length, type_index, uuids })
    }

    /// Imports what another device instance exported, by a descriptor that the driver takes.
    pub(in crate::vulkan) fn import_exported(
        gpu: &Arc<Gpu>,
        exported: Exported,
    ) -> Result<Self, VulkanError> {
        let Exported { descriptor, handle, length, type_index, uuids } = exported;
        let refused = |reason: String| VulkanError::Share { length, handle, reason };
        let fds = gpu.external_fds.as_ref().filter(|_| gpu.handles.has(handle));
        let fds = fds.ok_or_else(|| refused("the device imports none".to_owned()))?;
        if handle == Handle::OpaqueFd && uuids != gpu.uuids() {
            return Err(refused("it is of another device or another version of its driver".to_owned()));
        }
        // Drivers without files behind their descriptors say 0.
        let size = rustix::fs::fstat(&descriptor).map_err(|error| refused(error.to_string()))?.st_size;
        if u64::try_from(size).is_ok_and(|size| (1..length).contains(&size)) {
            return Err(refused(format!("the file behind its descriptor has {size} bytes")));
        }
        let handles = handle_type(handle);
        let mut bits = buffer_types(gpu, handles)?;
        let mut type_index = Some(type_index).filter(|index| *index < 32 && bits & (1 << index) != 0);
        if handle == Handle::DmaBuf {
            let mut offered = vk::MemoryFdPropertiesKHR::default();
            // SAFETY: the descriptor is open, and `offered` outlives the call.
            unsafe { fds.get_memory_fd_properties(handles, descriptor.as_raw_fd(), &mut offered) }
                .map_err(|result| refused(format!("vkGetMemoryFdPropertiesKHR says {result}")))?;
            bits &= offered.memory_type_bits;
            type_index = local_type(&gpu.memory_types, bits, length);
        }
        let type_index = type_index.ok_or_else(|| refused("the device has no such memory".to_owned()))?;
        let given = descriptor.try_clone().map_err(|error| refused(error.to_string()))?.into_raw_fd();
        let mut import = vk::ImportMemoryFdInfoKHR::default().handle_type(handles).fd(given);
        let info = vk::MemoryAllocateInfo::default()
            .allocation_size(length)
            .memory_type_index(type_index)
            .push_next(&mut import);
        // SAFETY: `info` outlives the call; the descriptor is open, and what it is of the driver looks at itself.
        let raw = unsafe { gpu.device.allocate_memory(&info, None) }.map_err(|result| {
            take_back(given, &descriptor);
            refused(format!("vkAllocateMemory says {result}"))
        })?;
        Ok(Self { gpu: Arc::clone(gpu), raw, type_index, length, handles, _pages: None, mapped: None })
    }
}

/// Closes `given`, a duplicate of `descriptor` that a driver refused, unless the driver has closed it: Vulkan says that it leaves
/// it open, and lavapipe does not.
fn take_back(given: RawFd, descriptor: &OwnedFd) {
    // SAFETY: the number is not closed while it is borrowed, by no other thread either: none knows it.
    let borrowed = unsafe { BorrowedFd::borrow_raw(given) };
    let file =
        |fd: BorrowedFd<'_>| rustix::fs::fstat(fd).map(|stat| (stat.st_dev, stat.st_ino, stat.st_rdev));
    if file(borrowed).is_ok_and(|found| file(descriptor.as_fd()) == Ok(found)) {
        // SAFETY: the number is open still, and of the file that it was made of.
        drop(unsafe { OwnedFd::from_raw_fd(given) });
    }
}

/// The memory types that a buffer of [`USAGE`] over memory with these handles may have: the same for every size.
fn buffer_types(gpu: &Gpu, handles: vk::ExternalMemoryHandleTypeFlags) -> Result<u32, VulkanError> {
    let mut external = vk::ExternalMemoryBufferCreateInfo::default().handle_types(handles);
    let info = vk::BufferCreateInfo::default().size(GRANULE).usage(USAGE).push_next(&mut external);
    // SAFETY: `info` outlives the call.
    let buffer = unsafe { gpu.device.create_buffer(&info, None) }.map_err(failed("vkCreateBuffer"))?;
    // SAFETY: the buffer was just created.
    let needs = unsafe { gpu.device.get_buffer_memory_requirements(buffer) };
    // SAFETY: nothing uses it.
    unsafe { gpu.device.destroy_buffer(buffer, None) };
    Ok(needs.memory_type_bits)
}

/// Why a driver has refused to allocate so many bytes. It may allocate more at once than it promises, so that is tried first.
fn why_not(gpu: &Gpu, result: vk::Result, length: u64) -> String {
    let promised = gpu.limits.allocation_length;
    let hint = if length > promised {
        format!(
            "; one allocation has at most {} MiB on this device (maxMemoryAllocationSize)",
            promised >> 20
        )
    } else {
        String::new()
    };
    format!("vkAllocateMemory says {result}{hint}")
}

/// What may be had of the heap of a memory type.
fn local_budget(gpu: &Gpu, type_index: u32) -> Option<Budget> {
    let kind = gpu.memory_types.memory_types_as_slice().get(type_index as usize)?;
    gpu.budget(kind.heap_index)
}

/// What may be had of memory of the device's own now; none where the driver does not say.
pub(in crate::vulkan) fn local_left(gpu: &Gpu) -> Option<u64> {
    local_budget(gpu, local_type(&gpu.memory_types, u32::MAX, GRANULE)?).map(|budget| budget.left())
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: every buffer bound to this holds an `Arc` of it, so none is left.
        unsafe { self.gpu.device.free_memory(self.raw, None) };
    }
}

/// A buffer over part of a [`Memory`].
pub(in crate::vulkan) struct Buffer {
    memory: Arc<Memory>,
    pub(super) raw: vk::Buffer,
    length: u64,
}

impl Buffer {
    /// A buffer that kernels bind as storage or uniform buffer or as texels, and that is copied from and to, over the bytes `offset .. offset + length` of `memory`.
    pub(in crate::vulkan) fn new(
        memory: &Arc<Memory>,
        offset: u64,
        length: u64,
    ) -> Result<Self, VulkanError> {
        Self::create(memory, offset, length, USAGE)
    }

    /// A buffer over all of `memory`, to copy words in it, and have dispatches skipped by them.
    pub(in crate::vulkan) fn of_conditions(memory: &Arc<Memory>) -> Result<Self, VulkanError> {
        let copies = vk::BufferUsageFlags::TRANSFER_SRC | vk::BufferUsageFlags::TRANSFER_DST;
        Self::create(memory, 0, memory.length, copies | vk::BufferUsageFlags::CONDITIONAL_RENDERING_EXT)
    }

    fn create(
        memory: &Arc<Memory>,
        offset: u64,
        length: u64,
        usage: vk::BufferUsageFlags,
    ) -> Result<Self, VulkanError> {
        let device = &memory.gpu.device;
        let mut external = vk::ExternalMemoryBufferCreateInfo::default().handle_types(memory.handles);
        let info = vk::BufferCreateInfo::default()
            .size(length)
            .usage(usage)
            .sharing_mode(vk::SharingMode::EXCLUSIVE)
            .push_next(&mut external);
        // SAFETY: `info` outlives the call.
        let raw = unsafe { device.create_buffer(&info, None) }.map_err(failed("vkCreateBuffer"))?;
        // From here on, `Drop` destroys it, bound or not.
        let buffer = Self { memory: Arc::clone(memory), raw, length };
        // SAFETY: the buffer was just created.
        let needs = unsafe { device.get_buffer_memory_requirements(raw) };
        let fits = offset.checked_add(needs.size).is_some_and(|end| end <= memory.length);
        let usable = needs.memory_type_bits & (1 << memory.type_index) != 0;
        if !fits || !usable || !offset.is_multiple_of(needs.alignment.max(1)) {
            let reason = format!("the device wants a buffer there to have {needs:?}");
            return Err(VulkanError::Import { length, offset, reason });
        }
        // SAFETY: checked just now: size, type and alignment are as required; the buffer is not bound yet.
        unsafe { device.bind_buffer_memory(raw, memory.raw, offset) }
            .map_err(failed("vkBindBufferMemory"))?;
        Ok(buffer)
    }

    /// The device that it is of.
    pub(super) fn gpu(&self) -> &Gpu {
        &self.memory.gpu
    }

    /// Bytes in the buffer.
    pub(in crate::vulkan) fn len(&self) -> u64 {
        self.length
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: a slot holds an `Arc` of every buffer that its pending work uses.
        unsafe { self.memory.gpu.device.destroy_buffer(self.raw, None) };
    }
}
