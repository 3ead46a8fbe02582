//! Properties and limits: those of the profile, and the least that Vulkan allows where nothing here uses them.

use ash::vk;
use campanile_protocol::packet::BINDING_ALIGNMENT;
use campanile_protocol::packet::MAX_CONSTANTS;
use campanile_protocol::profile;
use campanile_protocol::profile::Profile;

use crate::abi;
use crate::descriptor::inline::BLOCKS;
use crate::descriptor::inline::MOST;
use crate::graphics;
use crate::image::sampler::BIAS;
use crate::image::support;
use crate::instance::API_VERSION;
use crate::physical::PhysicalDevice;

/// Khronos has given this driver no id, and there is none that says so. Programs read ids to work around what is wrong in drivers, by that of the other
/// driver of guests whose kernels a host's driver compiles, if by any; the name says whose driver this is. It has passed no release of the conformance
/// tests: the version of those is 0.
const DRIVER: vk::DriverId = vk::DriverId::MESA_VENUS;

/// How far the values of a timeline semaphore may be apart.
const TIMELINE_DIFFERENCE: u64 = 1 << 62;

/// How many buffers of a set may take dynamic offsets, of each kind.
const DYNAMIC: u32 = 8;

/// Alignment of views of buffers as texels: that of whatever a kernel is bound to.
const TEXEL_ALIGNMENT: u64 = BINDING_ALIGNMENT;

fn narrow(value: u64) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

/// What a program is told that the device is. A CPU behind it is no CPU of the guest's: programs that pass over CPUs may use it.
fn kind(profile: &Profile) -> vk::PhysicalDeviceType {
    match profile.kind {
        profile::KIND_INTEGRATED => vk::PhysicalDeviceType::INTEGRATED_GPU,
        profile::KIND_DISCRETE => vk::PhysicalDeviceType::DISCRETE_GPU,
        _ => vk::PhysicalDeviceType::VIRTUAL_GPU,
    }
}

/// The version that a device can do: what the one behind it does, and what this driver speaks.
pub(crate) fn api_version(profile: &Profile) -> u32 {
    API_VERSION.min(profile.api_version)
}

/// Uniform texel buffers of a kernel, which Vulkan counts as sampled images, and has some of in any case.
fn sampled(profile: &Profile) -> u32 {
    profile.uniform_texels.max(16)
}

/// Storage texel buffers of a kernel, which it counts as storage images.
fn stored(profile: &Profile) -> u32 {
    profile.storage_texels.max(4)
}

/// The least of uniform buffers that Vulkan allows.
const UNIFORM: u32 = 12;

/// Uniform buffers of a kernel beside inline uniform blocks; where there are images, one more holds their records.
fn uniform(profile: &Profile) -> u32 {
    let others = BLOCKS + u32::from(support::has_images(profile));
    profile.uniform_buffers.saturating_sub(others).max(UNIFORM.min(profile.uniform_buffers))
}

/// Bytes of an inline uniform block.
fn block_bytes(profile: &Profile) -> u32 {
    MOST.min(narrow(profile.uniform_range))
}

/// All that a kernel is bound to, in the same way.
fn resources(profile: &Profile) -> u32 {
    profile.buffers.saturating_sub(u32::from(support::has_images(profile)))
}

/// The sampler limits of a kernel, and of a set: samplers are words in memory.
const SAMPLERS: u32 = 16;
const SET_SAMPLERS: u32 = 96;

fn limits(profile: &Profile) -> vk::PhysicalDeviceLimits {
    let single = vk::SampleCountFlags::TYPE_1;
    let [flat, deep] = support::sides(profile);
    vk::PhysicalDeviceLimits {
        max_image_dimension1_d: flat,
        max_image_dimension2_d: flat,
        max_image_dimension3_d: deep,
        max_image_dimension_cube: flat,
        max_image_array_layers: support::LAYERS,
        max_texel_buffer_elements: profile.texel_elements.max(65536),
        max_uniform_buffer_range: narrow(profile.uniform_range),
        max_storage_buffer_range: narrow(profile.storage_range),
        max_push_constants_size: profile.constants.min(MAX_CONSTANTS),
        max_memory_allocation_count: 4096,
        max_sampler_allocation_count: 4000,
        buffer_image_granularity: 4096,
        max_bound_descriptor_sets: profile.sets,
        max_per_stage_descriptor_samplers: SAMPLERS,
        max_per_stage_descriptor_uniform_buffers: uniform(profile),
        max_per_stage_descriptor_storage_buffers: profile.storage_buffers,
        max_per_stage_descriptor_sampled_images: sampled(profile),
        max_per_stage_descriptor_storage_images: stored(profile),
        max_per_stage_descriptor_input_attachments: 4,
        max_per_stage_resources: resources(profile),
        max_descriptor_set_samplers: SET_SAMPLERS,
        max_descriptor_set_uniform_buffers: uniform(profile),
        max_descriptor_set_uniform_buffers_dynamic: uniform(profile).min(DYNAMIC),
        max_descriptor_set_storage_buffers: profile.storage_buffers,
        max_descriptor_set_storage_buffers_dynamic: profile.storage_buffers.min(DYNAMIC),
        max_descriptor_set_sampled_images: sampled(profile).max(96),
        max_descriptor_set_storage_images: stored(profile).max(24),
        max_descriptor_set_input_attachments: 4,
        max_vertex_input_attributes: 16,
        max_vertex_input_bindings: 16,
        max_vertex_input_attribute_offset: 2047,
        max_vertex_input_binding_stride: 2048,
        max_vertex_output_components: 64,
        max_fragment_input_components: 64,
        max_fragment_output_attachments: 4,
        max_fragment_combined_output_resources: 4,
        max_compute_shared_memory_size: profile.workgroup_memory,
        max_compute_work_group_count: profile.groups,
        max_compute_work_group_invocations: profile.invocations,
        max_compute_work_group_size: profile.workgroup,
        sub_pixel_precision_bits: 4,
        sub_texel_precision_bits: 4,
        mipmap_precision_bits: 4,
        max_draw_indexed_index_value: (1 << 24) - 1,
        max_draw_indirect_count: 1,
        max_sampler_lod_bias: BIAS,
        max_sampler_anisotropy: 1.0,
        max_viewports: 1,
        max_viewport_dimensions: [4096; 2],
        viewport_bounds_range: [-8192.0, 8191.0],
        min_memory_map_alignment: 4096,
        min_texel_buffer_offset_alignment: TEXEL_ALIGNMENT,
        min_uniform_buffer_offset_alignment: u64::from(profile.binding_alignment),
        min_storage_buffer_offset_alignment: u64::from(profile.binding_alignment),
        min_texel_offset: -8,
        max_texel_offset: 7,
        max_framebuffer_width: 4096,
        max_framebuffer_height: 4096,
        max_framebuffer_layers: 256,
        framebuffer_color_sample_counts: single,
        framebuffer_depth_sample_counts: single,
        framebuffer_stencil_sample_counts: single,
        framebuffer_no_attachments_sample_counts: single,
        max_color_attachments: 4,
        sampled_image_color_sample_counts: single,
        sampled_image_integer_sample_counts: single,
        sampled_image_depth_sample_counts: single,
        sampled_image_stencil_sample_counts: single,
        storage_image_sample_counts: single,
        max_sample_mask_words: 1,
        timestamp_compute_and_graphics: vk::TRUE,
        timestamp_period: 1.0,
        discrete_queue_priorities: 2,
        point_size_range: [1.0; 2],
        line_width_range: [1.0; 2],
        standard_sample_locations: vk::TRUE,
        optimal_buffer_copy_offset_alignment: 64,
        optimal_buffer_copy_row_pitch_alignment: 64,
        non_coherent_atom_size: 64,
        ..Default::default()
    }
}

fn properties(physical: &PhysicalDevice) -> vk::PhysicalDeviceProperties {
    let profile = &*physical.profile;
    let mut limits = limits(profile);
    if physical.claims.graphics {
        graphics::claim_limits(&mut limits);
    }
    vk::PhysicalDeviceProperties {
        api_version: api_version(profile),
        driver_version: vk::make_api_version(0, 0, 1, 0),
        vendor_id: profile.vendor,
        device_id: profile.device,
        device_type: kind(profile),
        device_name: abi::text(&format!("Campanile ({})", profile::name_of(&profile.name))),
        pipeline_cache_uuid: profile.driver_uuid,
        limits,
        sparse_properties: vk::PhysicalDeviceSparseProperties::default(),
    }
}

pub(crate) extern "system" fn get(physical: vk::PhysicalDevice, out: *mut vk::PhysicalDeviceProperties) {
    abi::quiet("vkGetPhysicalDeviceProperties", || abi::write(out, properties(PhysicalDevice::of(physical))));
}

pub(crate) extern "system" fn get2(
    physical: vk::PhysicalDevice,
    out: *mut vk::PhysicalDeviceProperties2<'_>,
) {
    abi::quiet("vkGetPhysicalDeviceProperties2", || {
        let (physical, out) = (PhysicalDevice::of(physical), abi::filled(out));
        out.properties = properties(physical);
        abi::chain(out.p_next).for_each(|structure| fill(physical, structure));
    });
}

/// Bytes that one allocation can have.
fn largest(physical: &PhysicalDevice) -> u64 {
    physical.video_memory()
}

/// Subgroups that a workgroup can have.
fn largest_group(profile: &Profile) -> u32 {
    profile.invocations / profile.subgroup_sizes[0].max(1)
}

/// Stages in which the size of subgroups may be asked for.
fn sized_stages(physical: &PhysicalDevice) -> vk::ShaderStageFlags {
    if physical.has(profile::FEATURE_SUBGROUP_SIZES) {
        vk::ShaderStageFlags::COMPUTE
    } else {
        vk::ShaderStageFlags::empty()
    }
}

fn fill(physical: &PhysicalDevice, structure: *mut vk::BaseOutStructure<'static>) {
    let profile = &*physical.profile;
    let operations = vk::SubgroupFeatureFlags::from_raw(profile.subgroup_operations);
    let compute = vk::ShaderStageFlags::COMPUTE;
    let (stages, conformance_version) = if physical.claims.graphics {
        (compute | vk::ShaderStageFlags::FRAGMENT, graphics::CONFORMANCE)
    } else {
        (compute, vk::ConformanceVersion::default())
    };
    if let Some(p) = abi::as_type::<vk::PhysicalDeviceVulkan11Properties<'_>>(structure) {
        (p.device_uuid, p.driver_uuid) = (profile.device_uuid, profile.driver_uuid);
        (p.device_luid, p.device_node_mask, p.device_luid_valid) = ([0; vk::LUID_SIZE], 0, vk::FALSE);
        (p.subgroup_size, p.subgroup_supported_stages) = (profile.subgroup_size, stages);
        p.subgroup_supported_operations = operations;
        p.subgroup_quad_operations_in_all_stages = vk::FALSE;
        p.point_clipping_behavior = vk::PointClippingBehavior::ALL_CLIP_PLANES;
        (p.max_multiview_view_count, p.max_multiview_instance_index) = (0, 0);
        p.protected_no_fault = vk::FALSE;
        (p.max_per_set_descriptors, p.max_memory_allocation_size) =
            (profile.buffers.max(1024), largest(physical));
    }
    if let Some(p) = abi::as_type::<vk::PhysicalDeviceVulkan12Properties<'_>>(structure) {
        let (storage, uniform) = (profile.storage_buffers, uniform(profile));
        *p = vk::PhysicalDeviceVulkan12Properties {
            p_next: p.p_next,
            driver_id: DRIVER,
            driver_name: abi::text("Campanile"),
            driver_info: abi::text(profile::name_of(&profile.driver)),
            conformance_version,
            max_timeline_semaphore_value_difference: TIMELINE_DIFFERENCE,
            supported_depth_resolve_modes: vk::ResolveModeFlags::SAMPLE_ZERO,
            supported_stencil_resolve_modes: vk::ResolveModeFlags::SAMPLE_ZERO,
            framebuffer_integer_color_sample_counts: vk::SampleCountFlags::TYPE_1,
            denorm_behavior_independence: vk::ShaderFloatControlsIndependence::NONE,
            rounding_mode_independence: vk::ShaderFloatControlsIndependence::NONE,
            // No descriptor is updated after it is bound; these are the limits of all that are not, too.
            max_per_stage_descriptor_update_after_bind_samplers: SAMPLERS,
            max_descriptor_set_update_after_bind_samplers: SET_SAMPLERS,
            max_per_stage_descriptor_update_after_bind_uniform_buffers: uniform,
            max_per_stage_descriptor_update_after_bind_storage_buffers: storage,
            max_per_stage_descriptor_update_after_bind_sampled_images: sampled(profile),
            max_per_stage_descriptor_update_after_bind_storage_images: stored(profile),
            max_per_stage_update_after_bind_resources: resources(profile),
            max_descriptor_set_update_after_bind_sampled_images: sampled(profile).max(96),
            max_descriptor_set_update_after_bind_storage_images: stored(profile).max(24),
            max_descriptor_set_update_after_bind_uniform_buffers: uniform,
            max_descriptor_set_update_after_bind_uniform_buffers_dynamic: uniform.min(DYNAMIC),
            max_descriptor_set_update_after_bind_storage_buffers: storage,
            max_descriptor_set_update_after_bind_storage_buffers_dynamic: storage.min(DYNAMIC),
            ..Default::default()
        };
    }
    if let Some(p) = abi::as_type::<vk::PhysicalDeviceVulkan13Properties<'_>>(structure) {
        let [min_subgroup_size, max_subgroup_size] = profile.subgroup_sizes;
        *p = vk::PhysicalDeviceVulkan13Properties {
            p_next: p.p_next,
            min_subgroup_size,
            max_subgroup_size,
            max_compute_workgroup_subgroups: largest_group(profile),
            required_subgroup_size_stages: sized_stages(physical),
            storage_texel_buffer_offset_alignment_bytes: TEXEL_ALIGNMENT,
            uniform_texel_buffer_offset_alignment_bytes: TEXEL_ALIGNMENT,
            max_buffer_size: largest(physical),
            max_inline_uniform_block_size: block_bytes(profile),
            max_per_stage_descriptor_inline_uniform_blocks: BLOCKS,
            max_per_stage_descriptor_update_after_bind_inline_uniform_blocks: BLOCKS,
            max_descriptor_set_inline_uniform_blocks: BLOCKS,
            max_descriptor_set_update_after_bind_inline_uniform_blocks: BLOCKS,
            max_inline_uniform_total_size: BLOCKS * block_bytes(profile),
            ..Default::default()
        };
    }
    if let Some(p) = abi::as_type::<vk::PhysicalDeviceTexelBufferAlignmentProperties<'_>>(structure) {
        p.storage_texel_buffer_offset_alignment_bytes = TEXEL_ALIGNMENT;
        p.storage_texel_buffer_offset_single_texel_alignment = vk::FALSE;
        p.uniform_texel_buffer_offset_alignment_bytes = TEXEL_ALIGNMENT;
        p.uniform_texel_buffer_offset_single_texel_alignment = vk::FALSE;
    }
    if let Some(p) = abi::as_type::<vk::PhysicalDeviceIDProperties<'_>>(structure) {
        (p.device_uuid, p.driver_uuid) = (profile.device_uuid, profile.driver_uuid);
        (p.device_luid, p.device_node_mask, p.device_luid_valid) = ([0; vk::LUID_SIZE], 0, vk::FALSE);
    }
    if let Some(p) = abi::as_type::<vk::PhysicalDeviceSubgroupProperties<'_>>(structure) {
        (p.subgroup_size, p.supported_stages) = (profile.subgroup_size, stages);
        (p.supported_operations, p.quad_operations_in_all_stages) = (operations, vk::FALSE);
    }
    if let Some(p) = abi::as_type::<vk::PhysicalDeviceMaintenance3Properties<'_>>(structure) {
        (p.max_per_set_descriptors, p.max_memory_allocation_size) =
            (profile.buffers.max(1024), largest(physical));
    }
    if let Some(p) = abi::as_type::<vk::PhysicalDeviceMaintenance4Properties<'_>>(structure) {
        p.max_buffer_size = largest(physical);
    }
    if let Some(p) = abi::as_type::<vk::PhysicalDeviceDriverProperties<'_>>(structure) {
        p.driver_id = DRIVER;
        p.driver_name = abi::text("Campanile");
        p.driver_info = abi::text(profile::name_of(&profile.driver));
        p.conformance_version = conformance_version;
    }
    if let Some(p) = abi::as_type::<vk::PhysicalDeviceTimelineSemaphoreProperties<'_>>(structure) {
        p.max_timeline_semaphore_value_difference = TIMELINE_DIFFERENCE;
    }
    if let Some(p) = abi::as_type::<vk::PhysicalDevicePushDescriptorPropertiesKHR<'_>>(structure) {
        p.max_push_descriptors = profile.buffers;
    }
    if let Some(p) = abi::as_type::<vk::PhysicalDevicePointClippingProperties<'_>>(structure) {
        p.point_clipping_behavior = vk::PointClippingBehavior::ALL_CLIP_PLANES;
    }
    // Of 1.1 and 1.2, and of what is not there.
    if let Some(p) = abi::as_type::<vk::PhysicalDeviceMultiviewProperties<'_>>(structure) {
        (p.max_multiview_view_count, p.max_multiview_instance_index) = (0, 0);
    }
    if let Some(p) = abi::as_type::<vk::PhysicalDeviceProtectedMemoryProperties<'_>>(structure) {
        p.protected_no_fault = vk::FALSE;
    }
    if let Some(p) = abi::as_type::<vk::PhysicalDeviceDepthStencilResolveProperties<'_>>(structure) {
        let only = vk::ResolveModeFlags::SAMPLE_ZERO;
        (p.supported_depth_resolve_modes, p.supported_stencil_resolve_modes) = (only, only);
        (p.independent_resolve_none, p.independent_resolve) = (vk::FALSE, vk::FALSE);
    }
    if let Some(p) = abi::as_type::<vk::PhysicalDeviceSamplerFilterMinmaxProperties<'_>>(structure) {
        p.filter_minmax_single_component_formats = vk::FALSE;
        p.filter_minmax_image_component_mapping = vk::FALSE;
    }
    if let Some(p) = abi::as_type::<vk::PhysicalDeviceDescriptorIndexingProperties<'_>>(structure) {
        let (storage, uniform) = (profile.storage_buffers, uniform(profile));
        *p = vk::PhysicalDeviceDescriptorIndexingProperties {
            p_next: p.p_next,
            max_per_stage_descriptor_update_after_bind_samplers: SAMPLERS,
            max_descriptor_set_update_after_bind_samplers: SET_SAMPLERS,
            max_per_stage_descriptor_update_after_bind_uniform_buffers: uniform,
            max_per_stage_descriptor_update_after_bind_storage_buffers: storage,
            max_per_stage_descriptor_update_after_bind_sampled_images: sampled(profile),
            max_per_stage_descriptor_update_after_bind_storage_images: stored(profile),
            max_per_stage_update_after_bind_resources: resources(profile),
            max_descriptor_set_update_after_bind_sampled_images: sampled(profile).max(96),
            max_descriptor_set_update_after_bind_storage_images: stored(profile).max(24),
            max_descriptor_set_update_after_bind_uniform_buffers: uniform,
            max_descriptor_set_update_after_bind_uniform_buffers_dynamic: uniform.min(DYNAMIC),
            max_descriptor_set_update_after_bind_storage_buffers: storage,
            max_descriptor_set_update_after_bind_storage_buffers_dynamic: storage.min(DYNAMIC),
            ..Default::default()
        };
    }
    if let Some(p) = abi::as_type::<vk::PhysicalDeviceSubgroupSizeControlProperties<'_>>(structure) {
        [p.min_subgroup_size, p.max_subgroup_size] = profile.subgroup_sizes;
        p.max_compute_workgroup_subgroups = largest_group(profile);
        p.required_subgroup_size_stages = sized_stages(physical);
    }
    if let Some(p) = abi::as_type::<vk::PhysicalDeviceShaderIntegerDotProductProperties<'_>>(structure) {
        // Whether any is fast is not known.
        *p = vk::PhysicalDeviceShaderIntegerDotProductProperties { p_next: p.p_next, ..Default::default() };
    }
    if let Some(p) = abi::as_type::<vk::PhysicalDeviceInlineUniformBlockProperties<'_>>(structure) {
        p.max_inline_uniform_block_size = block_bytes(profile);
        p.max_per_stage_descriptor_inline_uniform_blocks = BLOCKS;
        p.max_per_stage_descriptor_update_after_bind_inline_uniform_blocks = BLOCKS;
        p.max_descriptor_set_inline_uniform_blocks = BLOCKS;
        p.max_descriptor_set_update_after_bind_inline_uniform_blocks = BLOCKS;
    }
    if let Some(p) = abi::as_type::<vk::PhysicalDeviceRobustness2PropertiesEXT<'_>>(structure) {
        // Ranges end at whole words; of uniform buffers the host may round them up further.
        (p.robust_storage_buffer_access_size_alignment, p.robust_uniform_buffer_access_size_alignment) =
            (4, 256);
    }
    if let Some(p) = abi::as_type::<vk::PhysicalDevicePipelineRobustnessPropertiesEXT<'_>>(structure) {
        // The most that a pipeline can ask for, which each has.
        let buffers = vk::PipelineRobustnessBufferBehaviorEXT::ROBUST_BUFFER_ACCESS_2;
        p.default_robustness_storage_buffers = buffers;
        p.default_robustness_uniform_buffers = buffers;
        p.default_robustness_vertex_inputs = buffers;
        p.default_robustness_images = vk::PipelineRobustnessImageBehaviorEXT::ROBUST_IMAGE_ACCESS;
    }
    if let Some(p) = abi::as_type::<vk::PhysicalDeviceFloatControlsProperties<'_>>(structure) {
        *p = vk::PhysicalDeviceFloatControlsProperties {
            p_next: p.p_next,
            denorm_behavior_independence: vk::ShaderFloatControlsIndependence::NONE,
            rounding_mode_independence: vk::ShaderFloatControlsIndependence::NONE,
            ..Default::default()
        };
    }
}
