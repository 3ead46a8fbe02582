//! The extensions that the driver has, by name.

use std::ffi::CStr;

use ash::vk;

use crate::abi;

/// A name and the version of its specification.
pub(crate) type Extension = (&'static CStr, u32);

/// Of instances.
pub(crate) const INSTANCE: &[Extension] = &[
    (c"VK_KHR_device_group_creation", 1),
    (c"VK_KHR_external_fence_capabilities", 1),
    (c"VK_KHR_external_memory_capabilities", 1),
    (c"VK_KHR_external_semaphore_capabilities", 1),
    (c"VK_KHR_get_physical_device_properties2", 2),
];

/// Those that the loader implements, and passes on nevertheless.
const OF_THE_LOADER: &[&CStr] = &[
    c"VK_EXT_debug_report",
    c"VK_EXT_debug_utils",
    c"VK_KHR_portability_enumeration",
    c"VK_LUNARG_direct_driver_loading",
];

/// Of devices, whatever their profile.
pub(crate) const DEVICE: &[Extension] = &[
    (c"VK_EXT_host_query_reset", 1),
    (c"VK_EXT_image_robustness", 1),
    (c"VK_EXT_inline_uniform_block", 1),
    (c"VK_EXT_memory_budget", 1),
    (c"VK_EXT_pipeline_creation_cache_control", 3),
    (c"VK_EXT_pipeline_creation_feedback", 1),
    (c"VK_EXT_pipeline_robustness", 1),
    (c"VK_EXT_private_data", 1),
    (c"VK_EXT_robustness2", 1),
    (c"VK_EXT_shader_demote_to_helper_invocation", 1),
    (c"VK_EXT_tooling_info", 1),
    (c"VK_KHR_bind_memory2", 1),
    (c"VK_KHR_copy_commands2", 1),
    (c"VK_KHR_dedicated_allocation", 3),
    (c"VK_KHR_descriptor_update_template", 1),
    (c"VK_KHR_device_group", 4),
    (c"VK_KHR_driver_properties", 1),
    (c"VK_KHR_external_fence", 1),
    (c"VK_KHR_external_memory", 1),
    (c"VK_KHR_external_memory_fd", 1),
    (c"VK_KHR_external_semaphore", 1),
    (c"VK_KHR_format_feature_flags2", 2),
    (c"VK_KHR_get_memory_requirements2", 1),
    (c"VK_KHR_maintenance1", 2),
    (c"VK_KHR_maintenance2", 1),
    (c"VK_KHR_maintenance3", 1),
    (c"VK_KHR_maintenance4", 2),
    (c"VK_KHR_map_memory2", 1),
    (c"VK_KHR_push_descriptor", 2),
    (c"VK_KHR_relaxed_block_layout", 1),
    (c"VK_KHR_shader_expect_assume", 1),
    (c"VK_KHR_shader_float_controls", 4),
    (c"VK_KHR_shader_non_semantic_info", 1),
    (c"VK_KHR_shader_terminate_invocation", 1),
    (c"VK_KHR_spirv_1_4", 1),
    (c"VK_KHR_storage_buffer_storage_class", 1),
    (c"VK_KHR_synchronization2", 1),
    (c"VK_KHR_timeline_semaphore", 2),
    (c"VK_KHR_zero_initialize_workgroup_memory", 1),
];

/// As Vulkan lists them.
pub(crate) fn properties(extensions: &[Extension]) -> Vec<vk::ExtensionProperties> {
    let property = |(name, version): &Extension| vk::ExtensionProperties {
        extension_name: abi::text(name.to_str().unwrap_or_default()),
        spec_version: *version,
    };
    extensions.iter().map(property).collect()
}

/// Whether an instance may be created with it.
pub(crate) fn is_known_to_instances(name: &CStr) -> bool {
    INSTANCE.iter().any(|(known, _)| *known == name) || OF_THE_LOADER.contains(&name)
}
