//! The physical device: a vGPU, as its profile describes it.

use std::ffi::CStr;

use ash::vk;
use campanile_guest_driver::device::Device as Gpu;
use campanile_protocol::capset::Capset;
use campanile_protocol::profile;
use campanile_protocol::profile::Profile;

use crate::abi;
use crate::abi::Dispatchable;
use crate::abi::Outcome;
use crate::abi::handle;
use crate::claims::Claims;
use crate::extensions;
use crate::extensions::Extension;
use crate::failure::failed;
use crate::graphics;
use crate::machine;

/// Memory type of video memory that no CPU sees; of guest RAM where the transport has no video memory without a window.
pub(crate) const LOCAL: u32 = 0;
/// Memory type of video memory in the window; without one it is another name of guest RAM.
pub(crate) const WINDOW: u32 = 1;
/// Memory type of guest RAM. Its pages lie here and there, and the engine sees them in one run, so kernels may be bound to it.
pub(crate) const GUEST_RAM: u32 = 2;

/// Bits of the memory types, each of which is good for all buffers.
pub(crate) const ALL_TYPES: u32 = 1 << LOCAL | 1 << WINDOW | 1 << GUEST_RAM;

/// The vGPU of this machine.
#[derive(Debug)]
pub(crate) struct PhysicalDevice {
    /// What kernels may use.
    pub(crate) profile: Box<Profile>,
    /// What it says beside.
    pub(crate) claims: Claims,
    /// The version of Vulkan that the program has asked for.
    pub(crate) asked: u32,
    capset: Capset,
    /// Asked for budgets; devices open their own.
    gpu: Gpu,
}

handle!(Dispatchable<PhysicalDevice>, vk::PhysicalDevice);

impl PhysicalDevice {
    /// What `gpu` shows, to a program that looks for some claims and has asked for a version.
    pub(crate) fn on(gpu: Gpu, claims: Claims, asked: u32) -> Outcome<Self> {
        let profile = gpu.profile().map_err(failed("QUERY_PROFILE"))?;
        Ok(Self { profile, claims, asked, capset: *gpu.capset(), gpu })
    }

    /// The object behind a handle.
    pub(crate) fn of<'a>(handle: vk::PhysicalDevice) -> &'a Self {
        &abi::get::<Dispatchable<Self>>(handle).object
    }

    /// Whether the profile has all of these features.
    pub(crate) fn has(&self, features: u64) -> bool {
        self.profile.features & features == features
    }

    /// The extensions of its devices.
    pub(crate) fn extensions(&self) -> Vec<Extension> {
        const BY_FEATURE: &[(u64, CStrVersion)] = &[
            (profile::FEATURE_STORAGE_16, (c"VK_KHR_16bit_storage", 1)),
            (profile::FEATURE_STORAGE_8, (c"VK_KHR_8bit_storage", 1)),
            (profile::FEATURE_ATOMIC_64, (c"VK_KHR_shader_atomic_int64", 1)),
            (profile::FEATURE_ATOMIC_FLOAT, (c"VK_EXT_shader_atomic_float", 1)),
            (profile::FEATURE_INTEGER_DOT, (c"VK_KHR_shader_integer_dot_product", 1)),
            (profile::FEATURE_SUBGROUP_EXTENDED, (c"VK_KHR_shader_subgroup_extended_types", 1)),
            (profile::FEATURE_SUBGROUP_SIZES, (c"VK_EXT_subgroup_size_control", 2)),
            (profile::FEATURE_MEMORY_MODEL, (c"VK_KHR_vulkan_memory_model", 3)),
            (profile::FEATURE_UNIFORM_STANDARD, (c"VK_KHR_uniform_buffer_standard_layout", 1)),
            (profile::FEATURE_SCALAR_LAYOUT, (c"VK_EXT_scalar_block_layout", 1)),
        ];
        type CStrVersion = (&'static CStr, u32);
        let mut all = extensions::DEVICE.to_vec();
        all.extend(
            BY_FEATURE.iter().filter(|(feature, _)| self.has(*feature)).map(|(_, extension)| *extension),
        );
        if self.profile.features & (profile::FEATURE_FLOAT_16 | profile::FEATURE_INT_8) != 0 {
            all.push((c"VK_KHR_shader_float16_int8", 1));
        }
        if self.claims.addresses {
            all.push((c"VK_KHR_buffer_device_address", 1));
        }
        if self.claims.graphics {
            all.push((c"VK_KHR_swapchain", 70));
        }
        all.sort_unstable();
        all
    }

    /// Bytes of video memory.
    pub(crate) fn video_memory(&self) -> u64 {
        self.capset.vram_bytes
    }
}

pub(crate) extern "system" fn enumerate_extensions(
    physical: vk::PhysicalDevice,
    layer: *const std::ffi::c_char,
    count: *mut u32,
    out: *mut vk::ExtensionProperties,
) -> vk::Result {
    abi::command_with("vkEnumerateDeviceExtensionProperties", || {
        if !layer.is_null() {
            return Err(vk::Result::ERROR_LAYER_NOT_PRESENT);
        }
        let all = PhysicalDevice::of(physical).extensions();
        Ok(abi::list(&extensions::properties(&all), count, out))
    })
}

pub(crate) extern "system" fn enumerate_layers(
    _physical: vk::PhysicalDevice,
    count: *mut u32,
    out: *mut vk::LayerProperties,
) -> vk::Result {
    abi::command_with("vkEnumerateDeviceLayerProperties", || Ok(abi::list(&[], count, out)))
}

/// There are no tools in the driver.
pub(crate) extern "system" fn tools(
    _physical: vk::PhysicalDevice,
    count: *mut u32,
    _out: *mut vk::PhysicalDeviceToolProperties<'_>,
) -> vk::Result {
    abi::command("vkGetPhysicalDeviceToolProperties", || {
        abi::write(count, 0);
        Ok(())
    })
}

/// The one family: compute and copies, on one queue.
fn family(physical: vk::PhysicalDevice) -> vk::QueueFamilyProperties {
    let graphics = graphics::queue_flags(PhysicalDevice::of(physical).claims.graphics);
    vk::QueueFamilyProperties {
        queue_flags: vk::QueueFlags::COMPUTE | vk::QueueFlags::TRANSFER | graphics,
        queue_count: 1,
        timestamp_valid_bits: 64,
        min_image_transfer_granularity: vk::Extent3D { width: 1, height: 1, depth: 1 },
    }
}

pub(crate) extern "system" fn queue_families(
    physical: vk::PhysicalDevice,
    count: *mut u32,
    out: *mut vk::QueueFamilyProperties,
) {
    abi::quiet("vkGetPhysicalDeviceQueueFamilyProperties", || {
        let _complete = abi::list(&[family(physical)], count, out);
    });
}

pub(crate) extern "system" fn queue_families2(
    physical: vk::PhysicalDevice,
    count: *mut u32,
    out: *mut vk::QueueFamilyProperties2<'_>,
) {
    abi::quiet("vkGetPhysicalDeviceQueueFamilyProperties2", || {
        if out.is_null() {
            return abi::write(count, 1);
        }
        let given = (*abi::read(count)).min(1);
        for properties in abi::room(out, given) {
            properties.queue_family_properties = family(physical);
        }
        abi::write(count, given);
    });
}

fn memory(physical: &PhysicalDevice) -> vk::PhysicalDeviceMemoryProperties {
    use vk::MemoryPropertyFlags as Flag;
    let visible = Flag::HOST_VISIBLE | Flag::HOST_COHERENT;
    let guest_ram = (visible | Flag::HOST_CACHED, 1);
    let window = if physical.gpu.sees_video_memory() { (Flag::DEVICE_LOCAL | visible, 0) } else { guest_ram };
    let types = [(Flag::DEVICE_LOCAL, 0), window, guest_ram];
    let heaps = [
        (physical.video_memory(), vk::MemoryHeapFlags::DEVICE_LOCAL),
        (machine::ram_bytes(), vk::MemoryHeapFlags::empty()),
    ];
    let mut memory = vk::PhysicalDeviceMemoryProperties {
        memory_type_count: 3,
        memory_heap_count: 2,
        ..Default::default()
    };
    for (place, (property_flags, heap_index)) in memory.memory_types.iter_mut().zip(types) {
        *place = vk::MemoryType { property_flags, heap_index };
    }
    for (place, (size, flags)) in memory.memory_heaps.iter_mut().zip(heaps) {
        *place = vk::MemoryHeap { size, flags };
    }
    memory
}

pub(crate) extern "system" fn memory_properties(
    physical: vk::PhysicalDevice,
    out: *mut vk::PhysicalDeviceMemoryProperties,
) {
    abi::quiet("vkGetPhysicalDeviceMemoryProperties", || {
        abi::write(out, memory(PhysicalDevice::of(physical)))
    });
}

pub(crate) extern "system" fn memory_properties2(
    physical: vk::PhysicalDevice,
    out: *mut vk::PhysicalDeviceMemoryProperties2<'_>,
) {
    abi::quiet("vkGetPhysicalDeviceMemoryProperties2", || {
        let (physical, out) = (PhysicalDevice::of(physical), abi::filled(out));
        out.memory_properties = memory(physical);
        for structure in abi::chain(out.p_next) {
            if let Some(budget) = abi::as_type::<vk::PhysicalDeviceMemoryBudgetPropertiesEXT<'_>>(structure) {
                let used = physical.gpu.memory_info().map_or(0, |info| info.committed);
                budget.heap_budget = [0; vk::MAX_MEMORY_HEAPS];
                budget.heap_usage = [0; vk::MAX_MEMORY_HEAPS];
                (budget.heap_budget[0], budget.heap_usage[0]) = (physical.gpu.budget(), used);
                budget.heap_budget[1] = machine::ram_bytes();
            }
        }
    });
}
