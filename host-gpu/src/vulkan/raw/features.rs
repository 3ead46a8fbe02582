//! What a device offers kernels beyond the least, asked of it and enabled.
#![allow(unsafe_code)]

use ash::vk;
use campanile_protocol::texels::FORMATS;

use crate::shader::profile::Profile;
use crate::shader::profile::Subgroup;

/// What `device`, one of `instance` with Vulkan 1.3, offers. A device of an older version is refused later.
pub(super) fn profile(instance: &ash::Instance, device: vk::PhysicalDevice) -> Profile {
    let mut v11 = vk::PhysicalDeviceVulkan11Features::default();
    let mut v12 = vk::PhysicalDeviceVulkan12Features::default();
    let mut v13 = vk::PhysicalDeviceVulkan13Features::default();
    let mut floats = vk::PhysicalDeviceShaderAtomicFloatFeaturesEXT::default();
    let mut features = vk::PhysicalDeviceFeatures2::default()
        .push_next(&mut v11)
        .push_next(&mut v12)
        .push_next(&mut v13)
        .push_next(&mut floats);
    // SAFETY: the handle is the instance's. A structure that the device does not know stays as it is: false.
    unsafe { instance.get_physical_device_features2(device, &mut features) };
    let base = features.features;
    let mut known = vk::PhysicalDeviceVulkan11Properties::default();
    let mut properties = vk::PhysicalDeviceProperties2::default().push_next(&mut known);
    // SAFETY: as above.
    unsafe { instance.get_physical_device_properties2(device, &mut properties) };
    let on = |flag: vk::Bool32| flag == vk::TRUE;
    let in_kernels = known.subgroup_supported_stages.contains(vk::ShaderStageFlags::COMPUTE);
    let has = |group| in_kernels && known.subgroup_supported_operations.contains(group);
    Profile {
        storage_8: on(v12.storage_buffer8_bit_access),
        uniform_8: on(v12.uniform_and_storage_buffer8_bit_access),
        push_8: on(v12.storage_push_constant8),
        storage_16: on(v11.storage_buffer16_bit_access),
        uniform_16: on(v11.uniform_and_storage_buffer16_bit_access),
        push_16: on(v11.storage_push_constant16),
        int_8: on(v12.shader_int8),
        int_16: on(base.shader_int16),
        int_64: on(base.shader_int64),
        float_16: on(v12.shader_float16),
        float_64: on(base.shader_float64),
        atomic_64: on(v12.shader_buffer_int64_atomics) && on(v12.shader_shared_int64_atomics),
        atomic_float: on(floats.shader_buffer_float32_atomics)
            && on(floats.shader_buffer_float32_atomic_add)
            && on(floats.shader_shared_float32_atomics)
            && on(floats.shader_shared_float32_atomic_add),
        memory_model: on(v12.vulkan_memory_model),
        memory_model_device: on(v12.vulkan_memory_model_device_scope),
        integer_dot: on(v13.shader_integer_dot_product),
        // No name for its feature yet.
        mixed_dot: false,
        buffer_arrays: on(base.shader_storage_buffer_array_dynamic_indexing)
            && on(base.shader_uniform_buffer_array_dynamic_indexing),
        uniform_standard: on(v12.uniform_buffer_standard_layout),
        scalar_layout: on(v12.scalar_block_layout),
        texel_buffers: has_texels(instance, device, false),
        texel_formats: has_texels(instance, device, true),
        read_without_format: on(base.shader_storage_image_read_without_format),
        write_without_format: on(base.shader_storage_image_write_without_format),
        subgroup: Subgroup {
            basic: has(vk::SubgroupFeatureFlags::BASIC),
            vote: has(vk::SubgroupFeatureFlags::VOTE),
            arithmetic: has(vk::SubgroupFeatureFlags::ARITHMETIC),
            ballot: has(vk::SubgroupFeatureFlags::BALLOT),
            shuffle: has(vk::SubgroupFeatureFlags::SHUFFLE),
            shuffle_relative: has(vk::SubgroupFeatureFlags::SHUFFLE_RELATIVE),
            clustered: has(vk::SubgroupFeatureFlags::CLUSTERED),
            quad: has(vk::SubgroupFeatureFlags::QUAD),
            extended: on(v12.shader_subgroup_extended_types),
        },
    }
}

/// Whether kernels of `device`, one of `instance` with Vulkan 1.3, may ask for the size of their subgroups, and for full ones.
pub(super) fn has_subgroup_sizes(instance: &ash::Instance, device: vk::PhysicalDevice) -> bool {
    let mut v13 = vk::PhysicalDeviceVulkan13Features::default();
    let mut features = vk::PhysicalDeviceFeatures2::default().push_next(&mut v13);
    // SAFETY: the handle is the instance's. A structure that the device does not know stays as it is: false.
    unsafe { instance.get_physical_device_features2(device, &mut features) };
    v13.subgroup_size_control == vk::TRUE && v13.compute_full_subgroups == vk::TRUE
}

/// Whether `device`, one of `instance`, has texel buffers of all formats that guests are told of; of further ones, too, where `is_extended`.
fn has_texels(instance: &ash::Instance, device: vk::PhysicalDevice, is_extended: bool) -> bool {
    FORMATS.iter().all(|format| {
        let code = vk::Format::from_raw(i32::from(format.code));
        // SAFETY: the handle is the instance's.
        let properties = unsafe { instance.get_physical_device_format_properties(device, code) };
        let mut wanted = vk::FormatFeatureFlags::empty();
        if format.uniform.is_there(is_extended) {
            wanted |= vk::FormatFeatureFlags::UNIFORM_TEXEL_BUFFER;
        }
        if format.storage.is_there(is_extended) {
            wanted |= vk::FormatFeatureFlags::STORAGE_TEXEL_BUFFER;
        }
        if format.has_atomics() {
            wanted |= vk::FormatFeatureFlags::STORAGE_TEXEL_BUFFER_ATOMIC;
        }
        properties.buffer_features.contains(wanted)
    })
}

/// The features of Vulkan 1.0 that `profile` needs.
pub(super) fn base(profile: &Profile) -> vk::PhysicalDeviceFeatures {
    vk::PhysicalDeviceFeatures::default()
        .shader_int16(profile.int_16)
        .shader_int64(profile.int_64)
        .shader_float64(profile.float_64)
        .shader_storage_buffer_array_dynamic_indexing(profile.buffer_arrays)
        .shader_uniform_buffer_array_dynamic_indexing(profile.buffer_arrays)
        .shader_storage_image_read_without_format(profile.read_without_format)
        .shader_storage_image_write_without_format(profile.write_without_format)
}

/// Those of Vulkan 1.1.
pub(super) fn v11(profile: &Profile) -> vk::PhysicalDeviceVulkan11Features<'static> {
    vk::PhysicalDeviceVulkan11Features::default()
        .storage_buffer16_bit_access(profile.storage_16)
        .uniform_and_storage_buffer16_bit_access(profile.uniform_16)
        .storage_push_constant16(profile.push_16)
}

/// Those of Vulkan 1.2.
pub(super) fn v12(profile: &Profile) -> vk::PhysicalDeviceVulkan12Features<'static> {
    vk::PhysicalDeviceVulkan12Features::default()
        .storage_buffer8_bit_access(profile.storage_8)
        .uniform_and_storage_buffer8_bit_access(profile.uniform_8)
        .storage_push_constant8(profile.push_8)
        .shader_int8(profile.int_8)
        .shader_float16(profile.float_16)
        .shader_buffer_int64_atomics(profile.atomic_64)
        .shader_shared_int64_atomics(profile.atomic_64)
        .vulkan_memory_model(profile.memory_model)
        .vulkan_memory_model_device_scope(profile.memory_model_device)
        .uniform_buffer_standard_layout(profile.uniform_standard)
        .scalar_block_layout(profile.scalar_layout)
        .shader_subgroup_extended_types(profile.subgroup.extended)
        // No device of this version lacks it.
        .subgroup_broadcast_dynamic_id(true)
}

/// Those of Vulkan 1.3.
pub(super) fn v13(profile: &Profile) -> vk::PhysicalDeviceVulkan13Features<'static> {
    vk::PhysicalDeviceVulkan13Features::default().shader_integer_dot_product(profile.integer_dot)
}

/// Those of `VK_EXT_shader_atomic_float`, which a device is created with if `profile` needs any.
pub(super) fn atomic_float() -> vk::PhysicalDeviceShaderAtomicFloatFeaturesEXT<'static> {
    vk::PhysicalDeviceShaderAtomicFloatFeaturesEXT::default()
        .shader_buffer_float32_atomics(true)
        .shader_buffer_float32_atomic_add(true)
        .shader_shared_float32_atomics(true)
        .shader_shared_float32_atomic_add(true)
}
