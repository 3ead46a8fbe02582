//! Features: those of the profile. A device is created with those alone.

use ash::vk;
use campanile_protocol::profile;

use crate::abi;
use crate::abi::Outcome;
use crate::graphics;
use crate::image::support;
use crate::physical::PhysicalDevice;
use crate::report::report;

impl PhysicalDevice {
    fn feature(&self, feature: u64) -> vk::Bool32 {
        vk::Bool32::from(self.has(feature))
    }
}

fn core(physical: &PhysicalDevice) -> vk::PhysicalDeviceFeatures {
    let images = vk::Bool32::from(support::has_images(&physical.profile));
    let mut features = vk::PhysicalDeviceFeatures {
        robust_buffer_access: vk::TRUE,
        image_cube_array: images,
        shader_sampled_image_array_dynamic_indexing: images,
        shader_storage_image_array_dynamic_indexing: images,
        shader_storage_image_extended_formats: vk::Bool32::from(support::has_further_formats(
            &physical.profile,
        )),
        shader_int16: physical.feature(profile::FEATURE_INT_16),
        shader_int64: physical.feature(profile::FEATURE_INT_64),
        shader_float64: physical.feature(profile::FEATURE_FLOAT_64),
        shader_storage_buffer_array_dynamic_indexing: physical.feature(profile::FEATURE_BUFFER_ARRAYS),
        shader_uniform_buffer_array_dynamic_indexing: physical.feature(profile::FEATURE_BUFFER_ARRAYS),
        shader_storage_image_read_without_format: physical.feature(profile::FEATURE_READ_WITHOUT_FORMAT),
        shader_storage_image_write_without_format: physical.feature(profile::FEATURE_WRITE_WITHOUT_FORMAT),
        ..Default::default()
    };
    if physical.claims.graphics {
        graphics::claim_features(&mut features);
    }
    features
}

/// A structure of features of which those of a physical device are known.
trait Known: vk::TaggedStructure + Default {
    /// Sets those that the physical device has; all others are clear.
    fn set(&mut self, physical: &PhysicalDevice);
}

/// Fields of a structure that are there always, that follow a feature of the profile (`name: FEATURE`), and that are there with addresses
/// of buffers.
macro_rules! known {
    ($($structure:ident { $($always:ident),* ; $($field:ident: $feature:ident),* $(,)? $(; $addresses:ident)? })*) => {
        $(impl Known for vk::$structure<'_> {
            fn set(&mut self, _physical: &PhysicalDevice) {
                $(self.$always = vk::TRUE;)*
                $(self.$field = _physical.feature(profile::$feature);)*
                $(self.$addresses = vk::Bool32::from(_physical.claims.addresses);)?
            }
        })*

        /// Fills a structure, if it is one of features that are known.
        fn fill(physical: &PhysicalDevice, structure: *mut vk::BaseOutStructure<'static>) {
            $(if let Some(features) = abi::as_type::<vk::$structure<'_>>(structure) {
                *features = vk::$structure { p_next: features.p_next, ..Default::default() };
                features.set(physical);
            })*
        }

        /// Whether a structure asks for no feature that the physical device lacks.
        fn has_all(physical: &PhysicalDevice, structure: *mut vk::BaseOutStructure<'static>) -> bool {
            $(if let Some(wanted) = abi::as_type::<vk::$structure<'_>>(structure) {
                let mut there = vk::$structure::default();
                there.set(physical);
                let end = std::mem::offset_of!(vk::$structure<'static>, _marker);
                return is_within(abi::words(wanted, end), abi::words(&there, end));
            })*
            true
        }
    };
}

known! {
    PhysicalDeviceVulkan11Features { ;
        storage_buffer16_bit_access: FEATURE_STORAGE_16,
        uniform_and_storage_buffer16_bit_access: FEATURE_UNIFORM_16,
        storage_push_constant16: FEATURE_PUSH_16,
    }
    PhysicalDeviceVulkan12Features {
        host_query_reset, timeline_semaphore, subgroup_broadcast_dynamic_id, runtime_descriptor_array;
        shader_sampled_image_array_non_uniform_indexing: FEATURE_TEXEL_BUFFERS,
        shader_storage_image_array_non_uniform_indexing: FEATURE_TEXEL_BUFFERS,
        storage_buffer8_bit_access: FEATURE_STORAGE_8,
        uniform_and_storage_buffer8_bit_access: FEATURE_UNIFORM_8,
        storage_push_constant8: FEATURE_PUSH_8,
        shader_buffer_int64_atomics: FEATURE_ATOMIC_64,
        shader_shared_int64_atomics: FEATURE_ATOMIC_64,
        shader_float16: FEATURE_FLOAT_16,
        shader_int8: FEATURE_INT_8,
        shader_subgroup_extended_types: FEATURE_SUBGROUP_EXTENDED,
        uniform_buffer_standard_layout: FEATURE_UNIFORM_STANDARD,
        scalar_block_layout: FEATURE_SCALAR_LAYOUT,
        vulkan_memory_model: FEATURE_MEMORY_MODEL,
        vulkan_memory_model_device_scope: FEATURE_MEMORY_MODEL_DEVICE;
        buffer_device_address
    }
    PhysicalDeviceVulkan13Features {
        pipeline_creation_cache_control, private_data, synchronization2, inline_uniform_block,
        shader_zero_initialize_workgroup_memory, maintenance4,
        // Of what no compute kernel has.
        shader_demote_to_helper_invocation, shader_terminate_invocation, robust_image_access;
        subgroup_size_control: FEATURE_SUBGROUP_SIZES,
        compute_full_subgroups: FEATURE_SUBGROUP_SIZES,
        shader_integer_dot_product: FEATURE_INTEGER_DOT,
    }
    PhysicalDevice16BitStorageFeatures { ;
        storage_buffer16_bit_access: FEATURE_STORAGE_16,
        uniform_and_storage_buffer16_bit_access: FEATURE_UNIFORM_16,
        storage_push_constant16: FEATURE_PUSH_16,
    }
    PhysicalDevice8BitStorageFeatures { ;
        storage_buffer8_bit_access: FEATURE_STORAGE_8,
        uniform_and_storage_buffer8_bit_access: FEATURE_UNIFORM_8,
        storage_push_constant8: FEATURE_PUSH_8,
    }
    PhysicalDeviceShaderFloat16Int8Features { ;
        shader_float16: FEATURE_FLOAT_16,
        shader_int8: FEATURE_INT_8,
    }
    PhysicalDeviceShaderAtomicInt64Features { ;
        shader_buffer_int64_atomics: FEATURE_ATOMIC_64,
        shader_shared_int64_atomics: FEATURE_ATOMIC_64,
    }
    PhysicalDeviceShaderAtomicFloatFeaturesEXT { ;
        shader_buffer_float32_atomics: FEATURE_ATOMIC_FLOAT,
        shader_buffer_float32_atomic_add: FEATURE_ATOMIC_FLOAT,
        shader_shared_float32_atomics: FEATURE_ATOMIC_FLOAT,
        shader_shared_float32_atomic_add: FEATURE_ATOMIC_FLOAT,
    }
    PhysicalDeviceVulkanMemoryModelFeatures { ;
        vulkan_memory_model: FEATURE_MEMORY_MODEL,
        vulkan_memory_model_device_scope: FEATURE_MEMORY_MODEL_DEVICE,
    }
    PhysicalDeviceShaderSubgroupExtendedTypesFeatures { ;
        shader_subgroup_extended_types: FEATURE_SUBGROUP_EXTENDED,
    }
    PhysicalDeviceShaderIntegerDotProductFeatures { ;
        shader_integer_dot_product: FEATURE_INTEGER_DOT,
    }
    PhysicalDeviceSubgroupSizeControlFeatures { ;
        subgroup_size_control: FEATURE_SUBGROUP_SIZES,
        compute_full_subgroups: FEATURE_SUBGROUP_SIZES,
    }
    PhysicalDeviceTimelineSemaphoreFeatures { timeline_semaphore; }
    PhysicalDeviceHostQueryResetFeatures { host_query_reset; }
    PhysicalDeviceUniformBufferStandardLayoutFeatures { ;
        uniform_buffer_standard_layout: FEATURE_UNIFORM_STANDARD,
    }
    PhysicalDeviceScalarBlockLayoutFeatures { ;
        scalar_block_layout: FEATURE_SCALAR_LAYOUT,
    }
    PhysicalDeviceSynchronization2Features { synchronization2; }
    PhysicalDeviceMaintenance4Features { maintenance4; }
    PhysicalDevicePipelineCreationCacheControlFeatures { pipeline_creation_cache_control; }
    PhysicalDevicePrivateDataFeatures { private_data; }
    PhysicalDeviceRobustness2FeaturesEXT { robust_buffer_access2; }
    PhysicalDeviceZeroInitializeWorkgroupMemoryFeatures { shader_zero_initialize_workgroup_memory; }
    PhysicalDeviceVariablePointersFeatures { ; }
    PhysicalDeviceMultiviewFeatures { ; }
    PhysicalDeviceSamplerYcbcrConversionFeatures { ; }
    PhysicalDeviceProtectedMemoryFeatures { ; }
    PhysicalDeviceShaderDrawParametersFeatures { ; }
    PhysicalDeviceBufferDeviceAddressFeatures { ; ; buffer_device_address }
    PhysicalDeviceDescriptorIndexingFeatures {
        runtime_descriptor_array;
        shader_sampled_image_array_non_uniform_indexing: FEATURE_TEXEL_BUFFERS,
        shader_storage_image_array_non_uniform_indexing: FEATURE_TEXEL_BUFFERS,
    }
    PhysicalDeviceImagelessFramebufferFeatures { ; }
    PhysicalDeviceSeparateDepthStencilLayoutsFeatures { ; }
    PhysicalDeviceImageRobustnessFeatures { robust_image_access; }
    PhysicalDevicePipelineRobustnessFeaturesEXT { pipeline_robustness; }
    PhysicalDeviceShaderExpectAssumeFeaturesKHR { shader_expect_assume; }
    PhysicalDeviceInlineUniformBlockFeatures { inline_uniform_block; }
    PhysicalDeviceDynamicRenderingFeatures { ; }
    PhysicalDeviceShaderTerminateInvocationFeatures { shader_terminate_invocation; }
    PhysicalDeviceShaderDemoteToHelperInvocationFeatures { shader_demote_to_helper_invocation; }
    PhysicalDeviceTextureCompressionASTCHDRFeatures { ; }
}

/// Whether no word of `wanted` is set that is clear in `there`.
fn is_within(wanted: &[u32], there: &[u32]) -> bool {
    wanted.iter().zip(there).all(|(wanted, there)| *wanted == 0 || *there != 0)
}

/// Refuses a device with features that there are not.
pub(crate) fn check(physical: &PhysicalDevice, info: &vk::DeviceCreateInfo<'_>) -> Outcome {
    let there = core(physical);
    let plain = abi::read_optional(info.p_enabled_features);
    let chained =
        abi::chained::<vk::PhysicalDeviceFeatures2<'_>>(info.p_next).map(|features| &features.features);
    for wanted in [plain, chained].into_iter().flatten() {
        if !is_within(abi::plain_words(wanted), abi::plain_words(&there)) {
            report!("vkCreateDevice: a core feature is wanted that is not there");
            return Err(vk::Result::ERROR_FEATURE_NOT_PRESENT);
        }
    }
    for structure in abi::chain(info.p_next) {
        if !has_all(physical, structure) {
            report!(
                "vkCreateDevice: a feature of {:?} is wanted that is not there",
                abi::read(structure).s_type
            );
            return Err(vk::Result::ERROR_FEATURE_NOT_PRESENT);
        }
    }
    Ok(())
}

pub(crate) extern "system" fn get(physical: vk::PhysicalDevice, out: *mut vk::PhysicalDeviceFeatures) {
    abi::quiet("vkGetPhysicalDeviceFeatures", || abi::write(out, core(PhysicalDevice::of(physical))));
}

pub(crate) extern "system" fn get2(physical: vk::PhysicalDevice, out: *mut vk::PhysicalDeviceFeatures2<'_>) {
    abi::quiet("vkGetPhysicalDeviceFeatures2", || {
        let (physical, out) = (PhysicalDevice::of(physical), abi::filled(out));
        out.features = core(physical);
        abi::chain(out.p_next).for_each(|structure| fill(physical, structure));
    });
}

#[cfg(test)]
#[allow(unsafe_code)]
mod tests {
    use std::mem::MaybeUninit;
    use std::mem::offset_of;

    use ash::vk;

    use super::is_within;
    use crate::abi;

    type Timeline = vk::PhysicalDeviceTimelineSemaphoreFeatures<'static>;

    #[test]
    fn what_lies_behind_the_last_field_of_a_structure_is_no_feature() {
        // As a program has it on its stack: the padding holds anything.
        let mut dirty = MaybeUninit::<Timeline>::uninit();
        // SAFETY: all of its bytes, and each of its fields may be of any bytes.
        unsafe { dirty.as_mut_ptr().cast::<u8>().write_bytes(0xff, size_of::<Timeline>()) };
        // SAFETY: as above.
        let wanted = unsafe { dirty.assume_init_ref() };
        let end = offset_of!(Timeline, _marker);
        assert!(end < size_of::<Timeline>(), "there is padding");
        assert_eq!(abi::words(wanted, end), [u32::MAX]);
        let there = Timeline { timeline_semaphore: vk::TRUE, ..Default::default() };
        assert!(is_within(abi::words(wanted, end), abi::words(&there, end)));
        let there = Timeline::default();
        assert!(!is_within(abi::words(wanted, end), abi::words(&there, end)));
    }
}
