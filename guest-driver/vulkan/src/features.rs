//! Features: those of the profile. A device is created with those alone.

use std::mem::offset_of;

use ash::vk;
use campanile_protocol::profile;

use crate::abi;
use crate::abi::Outcome;
use crate::physical::PhysicalDevice;
use crate::report::report;

impl PhysicalDevice {
    fn feature(&self, feature: u64) -> vk::Bool32 {
        vk::Bool32::from(self.has(feature))
    }
}

fn core(physical: &PhysicalDevice) -> vk::PhysicalDeviceFeatures {
    vk::PhysicalDeviceFeatures {
        robust_buffer_access: vk::TRUE,
        shader_int16: physical.feature(profile::FEATURE_INT_16),
        shader_int64: physical.feature(profile::FEATURE_INT_64),
        shader_float64: physical.feature(profile::FEATURE_FLOAT_64),
        shader_storage_buffer_array_dynamic_indexing: physical.feature(profile::FEATURE_BUFFER_ARRAYS),
        shader_uniform_buffer_array_dynamic_indexing: physical.feature(profile::FEATURE_BUFFER_ARRAYS),
        ..Default::default()
    }
}

/// A structure of features of which those of a physical device are known.
trait Known: vk::TaggedStructure + Default {
    /// Sets those that the physical device has; all others are clear.
    fn set(&mut self, physical: &PhysicalDevice);
}

/// Words of sType and pNext.
const HEAD: usize = size_of::<vk::BaseInStructure<'_>>() / size_of::<u32>();

/// Structures up to their last field; fields that follow a feature of the profile (`name: FEATURE`), or are there always (`name`).
macro_rules! known {
    ($($structure:ident to $last:ident { $($always:ident),* ; $($field:ident: $feature:ident),* $(,)? })*) => {
        $(impl Known for vk::$structure<'_> {
            fn set(&mut self, _physical: &PhysicalDevice) {
                $(self.$always = vk::TRUE;)*
                $(self.$field = _physical.feature(profile::$feature);)*
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
                // Behind the last field may be bytes that nobody has set.
                let end = (offset_of!(vk::$structure<'_>, $last) + size_of::<vk::Bool32>()) / size_of::<u32>();
                return is_within(&abi::words(wanted)[HEAD..end], &abi::words(&there)[HEAD..end]);
            })*
            true
        }
    };
}

known! {
    PhysicalDeviceVulkan11Features to shader_draw_parameters { ;
        storage_buffer16_bit_access: FEATURE_STORAGE_16,
        uniform_and_storage_buffer16_bit_access: FEATURE_UNIFORM_16,
        storage_push_constant16: FEATURE_PUSH_16,
    }
    PhysicalDeviceVulkan12Features to subgroup_broadcast_dynamic_id {
        uniform_buffer_standard_layout, host_query_reset, timeline_semaphore, subgroup_broadcast_dynamic_id;
        storage_buffer8_bit_access: FEATURE_STORAGE_8,
        uniform_and_storage_buffer8_bit_access: FEATURE_UNIFORM_8,
        storage_push_constant8: FEATURE_PUSH_8,
        shader_buffer_int64_atomics: FEATURE_ATOMIC_64,
        shader_shared_int64_atomics: FEATURE_ATOMIC_64,
        shader_float16: FEATURE_FLOAT_16,
        shader_int8: FEATURE_INT_8,
        shader_subgroup_extended_types: FEATURE_SUBGROUP_EXTENDED,
        vulkan_memory_model: FEATURE_MEMORY_MODEL,
        vulkan_memory_model_device_scope: FEATURE_MEMORY_MODEL_DEVICE,
    }
    PhysicalDevice16BitStorageFeatures to storage_input_output16 { ;
        storage_buffer16_bit_access: FEATURE_STORAGE_16,
        uniform_and_storage_buffer16_bit_access: FEATURE_UNIFORM_16,
        storage_push_constant16: FEATURE_PUSH_16,
    }
    PhysicalDevice8BitStorageFeatures to storage_push_constant8 { ;
        storage_buffer8_bit_access: FEATURE_STORAGE_8,
        uniform_and_storage_buffer8_bit_access: FEATURE_UNIFORM_8,
        storage_push_constant8: FEATURE_PUSH_8,
    }
    PhysicalDeviceShaderFloat16Int8Features to shader_int8 { ;
        shader_float16: FEATURE_FLOAT_16,
        shader_int8: FEATURE_INT_8,
    }
    PhysicalDeviceShaderAtomicInt64Features to shader_shared_int64_atomics { ;
        shader_buffer_int64_atomics: FEATURE_ATOMIC_64,
        shader_shared_int64_atomics: FEATURE_ATOMIC_64,
    }
    PhysicalDeviceVulkanMemoryModelFeatures to vulkan_memory_model_availability_visibility_chains { ;
        vulkan_memory_model: FEATURE_MEMORY_MODEL,
        vulkan_memory_model_device_scope: FEATURE_MEMORY_MODEL_DEVICE,
    }
    PhysicalDeviceShaderSubgroupExtendedTypesFeatures to shader_subgroup_extended_types { ;
        shader_subgroup_extended_types: FEATURE_SUBGROUP_EXTENDED,
    }
    PhysicalDeviceShaderIntegerDotProductFeatures to shader_integer_dot_product { ;
        shader_integer_dot_product: FEATURE_INTEGER_DOT,
    }
    PhysicalDeviceSubgroupSizeControlFeatures to compute_full_subgroups { ;
        subgroup_size_control: FEATURE_SUBGROUP_SIZES,
        compute_full_subgroups: FEATURE_SUBGROUP_SIZES,
    }
    PhysicalDeviceTimelineSemaphoreFeatures to timeline_semaphore { timeline_semaphore; }
    PhysicalDeviceHostQueryResetFeatures to host_query_reset { host_query_reset; }
    PhysicalDeviceUniformBufferStandardLayoutFeatures to uniform_buffer_standard_layout { uniform_buffer_standard_layout; }
    PhysicalDeviceSynchronization2Features to synchronization2 { synchronization2; }
    PhysicalDeviceMaintenance4Features to maintenance4 { maintenance4; }
    PhysicalDeviceVariablePointersFeatures to variable_pointers { ; }
    PhysicalDeviceMultiviewFeatures to multiview_tessellation_shader { ; }
    PhysicalDeviceSamplerYcbcrConversionFeatures to sampler_ycbcr_conversion { ; }
    PhysicalDeviceProtectedMemoryFeatures to protected_memory { ; }
    PhysicalDeviceShaderDrawParametersFeatures to shader_draw_parameters { ; }
    PhysicalDeviceBufferDeviceAddressFeatures to buffer_device_address_multi_device { ; }
    PhysicalDeviceDescriptorIndexingFeatures to runtime_descriptor_array { ; }
    PhysicalDeviceScalarBlockLayoutFeatures to scalar_block_layout { ; }
    PhysicalDeviceImagelessFramebufferFeatures to imageless_framebuffer { ; }
    PhysicalDeviceSeparateDepthStencilLayoutsFeatures to separate_depth_stencil_layouts { ; }
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
        if !is_within(abi::words(wanted), abi::words(&there)) {
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
