//! Which commands a device gives out by their names: those of the version that the program has asked for, and of the extensions that it has enabled.

use std::ffi::CStr;

use ash::vk;

/// Commands that came with a version of Vulkan after the first.
const VERSIONS: &[(u32, &[&CStr])] = &[
    (
        vk::API_VERSION_1_1,
        &[
            c"vkBindBufferMemory2",
            c"vkBindImageMemory2",
            c"vkCmdDispatchBase",
            c"vkCmdSetDeviceMask",
            c"vkCreateDescriptorUpdateTemplate",
            c"vkCreateSamplerYcbcrConversion",
            c"vkDestroyDescriptorUpdateTemplate",
            c"vkDestroySamplerYcbcrConversion",
            c"vkGetBufferMemoryRequirements2",
            c"vkGetDescriptorSetLayoutSupport",
            c"vkGetDeviceGroupPeerMemoryFeatures",
            c"vkGetDeviceQueue2",
            c"vkGetImageMemoryRequirements2",
            c"vkGetImageSparseMemoryRequirements2",
            c"vkTrimCommandPool",
            c"vkUpdateDescriptorSetWithTemplate",
        ],
    ),
    (
        vk::API_VERSION_1_2,
        &[
            c"vkCmdBeginRenderPass2",
            c"vkCmdDrawIndexedIndirectCount",
            c"vkCmdDrawIndirectCount",
            c"vkCmdEndRenderPass2",
            c"vkCmdNextSubpass2",
            c"vkCreateRenderPass2",
            c"vkGetBufferDeviceAddress",
            c"vkGetBufferOpaqueCaptureAddress",
            c"vkGetDeviceMemoryOpaqueCaptureAddress",
            c"vkGetSemaphoreCounterValue",
            c"vkResetQueryPool",
            c"vkSignalSemaphore",
            c"vkWaitSemaphores",
        ],
    ),
    (
        vk::API_VERSION_1_3,
        &[
            c"vkCmdBeginRendering",
            c"vkCmdBindVertexBuffers2",
            c"vkCmdBlitImage2",
            c"vkCmdCopyBuffer2",
            c"vkCmdCopyBufferToImage2",
            c"vkCmdCopyImage2",
            c"vkCmdCopyImageToBuffer2",
            c"vkCmdEndRendering",
            c"vkCmdPipelineBarrier2",
            c"vkCmdResetEvent2",
            c"vkCmdResolveImage2",
            c"vkCmdSetCullMode",
            c"vkCmdSetDepthBiasEnable",
            c"vkCmdSetDepthBoundsTestEnable",
            c"vkCmdSetDepthCompareOp",
            c"vkCmdSetDepthTestEnable",
            c"vkCmdSetDepthWriteEnable",
            c"vkCmdSetEvent2",
            c"vkCmdSetFrontFace",
            c"vkCmdSetPrimitiveRestartEnable",
            c"vkCmdSetPrimitiveTopology",
            c"vkCmdSetRasterizerDiscardEnable",
            c"vkCmdSetScissorWithCount",
            c"vkCmdSetStencilOp",
            c"vkCmdSetStencilTestEnable",
            c"vkCmdSetViewportWithCount",
            c"vkCmdWaitEvents2",
            c"vkCmdWriteTimestamp2",
            c"vkCreatePrivateDataSlot",
            c"vkDestroyPrivateDataSlot",
            c"vkGetDeviceBufferMemoryRequirements",
            c"vkGetDeviceImageMemoryRequirements",
            c"vkGetDeviceImageSparseMemoryRequirements",
            c"vkGetPrivateData",
            c"vkQueueSubmit2",
            c"vkSetPrivateData",
        ],
    ),
];

/// The commands that an extension of devices brings along.
pub(crate) const EXTENSIONS: &[(&CStr, &[&CStr])] = &[
    (c"VK_EXT_host_query_reset", &[c"vkResetQueryPoolEXT"]),
    (
        c"VK_EXT_private_data",
        &[
            c"vkCreatePrivateDataSlotEXT",
            c"vkDestroyPrivateDataSlotEXT",
            c"vkGetPrivateDataEXT",
            c"vkSetPrivateDataEXT",
        ],
    ),
    (c"VK_KHR_bind_memory2", &[c"vkBindBufferMemory2KHR", c"vkBindImageMemory2KHR"]),
    (
        c"VK_KHR_buffer_device_address",
        &[
            c"vkGetBufferDeviceAddressKHR",
            c"vkGetBufferOpaqueCaptureAddressKHR",
            c"vkGetDeviceMemoryOpaqueCaptureAddressKHR",
        ],
    ),
    (
        c"VK_KHR_copy_commands2",
        &[
            c"vkCmdBlitImage2KHR",
            c"vkCmdCopyBuffer2KHR",
            c"vkCmdCopyBufferToImage2KHR",
            c"vkCmdCopyImage2KHR",
            c"vkCmdCopyImageToBuffer2KHR",
            c"vkCmdResolveImage2KHR",
        ],
    ),
    (
        c"VK_KHR_descriptor_update_template",
        &[
            c"vkCreateDescriptorUpdateTemplateKHR",
            c"vkDestroyDescriptorUpdateTemplateKHR",
            c"vkUpdateDescriptorSetWithTemplateKHR",
        ],
    ),
    (
        c"VK_KHR_device_group",
        &[c"vkCmdDispatchBaseKHR", c"vkCmdSetDeviceMaskKHR", c"vkGetDeviceGroupPeerMemoryFeaturesKHR"],
    ),
    (c"VK_KHR_external_memory_fd", &[c"vkGetMemoryFdKHR", c"vkGetMemoryFdPropertiesKHR"]),
    (
        c"VK_KHR_get_memory_requirements2",
        &[
            c"vkGetBufferMemoryRequirements2KHR",
            c"vkGetImageMemoryRequirements2KHR",
            c"vkGetImageSparseMemoryRequirements2KHR",
        ],
    ),
    (c"VK_KHR_maintenance1", &[c"vkTrimCommandPoolKHR"]),
    (c"VK_KHR_maintenance3", &[c"vkGetDescriptorSetLayoutSupportKHR"]),
    (
        c"VK_KHR_maintenance4",
        &[
            c"vkGetDeviceBufferMemoryRequirementsKHR",
            c"vkGetDeviceImageMemoryRequirementsKHR",
            c"vkGetDeviceImageSparseMemoryRequirementsKHR",
        ],
    ),
    (c"VK_KHR_map_memory2", &[c"vkMapMemory2KHR", c"vkUnmapMemory2KHR"]),
    (c"VK_KHR_push_descriptor", &[c"vkCmdPushDescriptorSetKHR", c"vkCmdPushDescriptorSetWithTemplateKHR"]),
    (c"VK_KHR_swapchain", &[c"vkCreateSwapchainKHR"]),
    (
        c"VK_KHR_synchronization2",
        &[
            c"vkCmdPipelineBarrier2KHR",
            c"vkCmdResetEvent2KHR",
            c"vkCmdSetEvent2KHR",
            c"vkCmdWaitEvents2KHR",
            c"vkCmdWriteTimestamp2KHR",
            c"vkQueueSubmit2KHR",
        ],
    ),
    (
        c"VK_KHR_timeline_semaphore",
        &[c"vkGetSemaphoreCounterValueKHR", c"vkSignalSemaphoreKHR", c"vkWaitSemaphoresKHR"],
    ),
];

/// What a program has asked for of a device.
#[derive(Debug)]
pub(crate) struct Offered {
    /// The lower of what the program asked for and what the device does, without a patch.
    version: u32,
    /// Those whose commands are known here.
    extensions: Vec<&'static CStr>,
}

impl Offered {
    /// By a version, and the extensions that are enabled.
    pub(crate) fn new<'a>(version: u32, enabled: impl Iterator<Item = &'a CStr>) -> Self {
        let (major, minor) = (vk::api_version_major(version), vk::api_version_minor(version));
        let known = |name| EXTENSIONS.iter().map(|(extension, _)| *extension).find(|known| *known == name);
        Self {
            version: vk::make_api_version(0, major, minor, 0),
            extensions: enabled.filter_map(known).collect(),
        }
    }

    /// Whether a command of this name, which the driver has, is given out.
    pub(crate) fn has(&self, name: &CStr) -> bool {
        if is_of_an_extension(name) {
            let mut all = EXTENSIONS.iter().filter(|(extension, _)| self.extensions.contains(extension));
            return all.any(|(_, names)| names.contains(&name));
        }
        let mut newer = VERSIONS.iter().filter(|(version, _)| *version > self.version);
        newer.all(|(_, names)| !names.contains(&name))
    }
}

/// Whether a command is named as those of extensions are.
fn is_of_an_extension(name: &CStr) -> bool {
    [b"KHR", b"EXT"].iter().any(|suffix| name.to_bytes().ends_with(*suffix))
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;

    use ash::vk;

    use super::EXTENSIONS;
    use super::Offered;
    use super::VERSIONS;
    use super::is_of_an_extension;
    use crate::extensions;

    fn offered(version: u32) -> Offered {
        Offered::new(version, extensions::DEVICE.iter().map(|(name, _)| *name))
    }

    #[test]
    fn commands_are_given_out_by_version() {
        for (patch, version) in [(0, vk::API_VERSION_1_0), (250, vk::make_api_version(0, 1, 1, 250))] {
            let offered = offered(version);
            assert!(offered.has(c"vkCreateBuffer") && !offered.has(c"vkWaitSemaphores"));
            assert_eq!(offered.has(c"vkTrimCommandPool"), patch > 0);
        }
        let newest = offered(vk::API_VERSION_1_3);
        assert!(VERSIONS.iter().all(|(_, names)| names.iter().all(|name| newest.has(name))));
        assert!(!offered(vk::API_VERSION_1_2).has(c"vkQueueSubmit2"));
    }

    #[test]
    fn commands_of_extensions_are_given_out_where_these_are_enabled() {
        let none = Offered::new(vk::API_VERSION_1_3, std::iter::empty());
        for (extension, names) in EXTENSIONS {
            let one = Offered::new(vk::API_VERSION_1_0, [*extension, c"VK_EXT_memory_budget"].into_iter());
            for name in EXTENSIONS.iter().flat_map(|(_, names)| names.iter()) {
                assert_eq!(one.has(name), names.contains(name), "{extension:?}: {name:?}");
                assert!(!none.has(name) && is_of_an_extension(name), "{name:?}");
            }
        }
    }

    /// What is behind `c"` in the tables of commands, line by line.
    fn lines() -> Vec<Vec<CString>> {
        let text = [include_str!("table.rs"), include_str!("command/drawing.rs")].concat();
        let tables =
            text.lines().filter(|line| line.trim_start().starts_with("c\"vk") && line.contains("PFN_"));
        let names = |line: &str| {
            let name = |part: &str| CString::new(part.split('"').next().unwrap()).unwrap();
            line.split("c\"").skip(1).map(name).collect()
        };
        tables.map(names).collect()
    }

    #[test]
    fn every_command_that_came_later_is_listed() {
        let versions: Vec<_> = VERSIONS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        let of_extensions: Vec<_> = EXTENSIONS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        // Of instances and of what they have; and of extensions that no device has here: instances alone give these out.
        let others = ["PhysicalDevice", "RenderPass2", "Subpass2", "IndirectCount", "SamplerYcbcr"];
        let is_other = |name: &str| others.iter().any(|other| name.contains(other));
        let lines = lines();
        assert!(lines.len() > 200, "{}", lines.len());
        for names in &lines {
            for name in names {
                let is_known = if is_of_an_extension(name) {
                    of_extensions.contains(&name.as_c_str())
                } else {
                    // What has another name was an extension before it came with a version.
                    names.len() == 1 || versions.contains(&name.as_c_str())
                };
                assert!(is_known || is_other(name.to_str().unwrap()), "{name:?}");
            }
        }
        for name in versions.iter().chain(&of_extensions) {
            assert!(lines.iter().flatten().any(|known| known.as_c_str() == *name), "{name:?}");
        }
    }
}
