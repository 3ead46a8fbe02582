//! The loader, and what devices it knows.
#![allow(unsafe_code)]

use std::ffi::CStr;

use ash::ext;
use ash::vk;

use crate::kernel::program::CONSTANTS_EVERYWHERE;
use crate::shader::profile::Profile;
use crate::vulkan::error::VulkanError;
use crate::vulkan::error::failed;
use crate::vulkan::info::Handles;
use crate::vulkan::info::Identity;
use crate::vulkan::info::ImportMethod;
use crate::vulkan::info::Info;
use crate::vulkan::info::Kind;
use crate::vulkan::info::Limits;
use crate::vulkan::priority::GlobalPriorities;
use crate::vulkan::raw::features;

/// Storage buffers that a device must have: 16 of a guest, and the grid.
const STORAGE_BUFFERS: u32 = 17;

/// The longest binding on any device. Two of it are the longest buffer, see `import.rs`.
const BINDING_LENGTH_CAP: u64 = 1 << 30;

/// What every device must have.
pub(super) const EXTENSIONS: [&CStr; 1] = [ext::robustness2::NAME];

/// By this, host memory is imported. Without it, what work binds of that is copied.
pub(super) const HOST_MEMORY: &CStr = ext::external_memory_host::NAME;

/// What imports of host memory are multiples of where they are copies, bytes: the page.
const COPIED_ALIGNMENT: u64 = 4096;

/// By this, what has been submitted can be called off. Not every device has it.
pub(super) const CONDITIONS: &CStr = ext::conditional_rendering::NAME;

/// A clock of fewer bits starts again within seconds.
const CLOCK_BITS: u32 = 36;

/// How a queue tells the time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Clock {
    /// Of a tick.
    pub(super) nanoseconds: f32,
    /// That count in what is noted.
    pub(super) bits: u32,
}

/// A connection to the loader.
pub(in crate::vulkan) struct Instance {
    pub(super) raw: ash::Instance,
    // Dropped after `raw` was destroyed, because it unloads the library.
    _loader: ash::Entry,
}

/// A device that could be opened, or why not.
#[derive(Clone)]
pub(in crate::vulkan) struct Candidate {
    pub(in crate::vulkan) info: Info,
    pub(in crate::vulkan) limits: Limits,
    /// What its kernels may use.
    pub(in crate::vulkan) profile: Profile,
    /// What it lacks; empty for a device that will do.
    pub(in crate::vulkan) missing: Vec<String>,
    pub(super) device: vk::PhysicalDevice,
    pub(super) family: u32,
    /// Whether it can skip dispatches on a condition in memory.
    pub(super) has_conditions: bool,
    /// How its queue tells the time, where it does.
    pub(super) clock: Option<Clock>,
    /// How its memory can be exported.
    pub(in crate::vulkan) handles: Handles,
    /// Global priorities that queues of each of its families can have.
    pub(super) priorities: Vec<GlobalPriorities>,
}

impl Instance {
    /// Loads `libvulkan.so.1` and the drivers that it finds.
    pub(in crate::vulkan) fn open() -> Result<Self, VulkanError> {
        // SAFETY: the library found under this name is the system's Vulkan loader; its initialisers are sound.
        let loader =
            unsafe { ash::Entry::load() }.map_err(|e| VulkanError::NoLoader { reason: e.to_string() })?;
        let application = vk::ApplicationInfo::default()
            .application_name(c"campanile")
            .engine_name(c"campanile")
            .api_version(vk::API_VERSION_1_3);
        let info = vk::InstanceCreateInfo::default().application_info(&application);
        // SAFETY: `info` and what it points to live through the call.
        let raw = unsafe { loader.create_instance(&info, None) }.map_err(|result| match result {
            vk::Result::ERROR_INCOMPATIBLE_DRIVER => VulkanError::NoDevice,
            result => failed("vkCreateInstance")(result),
        })?;
        Ok(Self { raw, _loader: loader })
    }

    /// Every device, suitable or not.
    pub(in crate::vulkan) fn candidates(&self) -> Result<Vec<Candidate>, VulkanError> {
        // SAFETY: the instance is alive.
        let devices = unsafe { self.raw.enumerate_physical_devices() };
        let devices = devices.map_err(failed("vkEnumeratePhysicalDevices"))?;
        devices.into_iter().map(|device| self.candidate(device)).collect()
    }

    fn candidate(&self, device: vk::PhysicalDevice) -> Result<Candidate, VulkanError> {
        let mut driver = vk::PhysicalDeviceDriverProperties::default();
        let mut size = vk::PhysicalDeviceMaintenance4Properties::default();
        let mut host = vk::PhysicalDeviceExternalMemoryHostPropertiesEXT::default();
        let mut subgroups = vk::PhysicalDeviceSubgroupSizeControlProperties::default();
        let mut known = vk::PhysicalDeviceVulkan11Properties::default();
        let mut properties = vk::PhysicalDeviceProperties2::default()
            .push_next(&mut known)
            .push_next(&mut subgroups)
            .push_next(&mut driver)
            .push_next(&mut size)
            .push_next(&mut host);
        // SAFETY: the handle is the instance's. A structure that the device does not know stays as it is.
        unsafe { self.raw.get_physical_device_properties2(device, &mut properties) };
        let base = properties.properties;
        let extensions = self.extensions(device)?;
        let has = |name: &CStr| extensions.iter().any(|e| e.extension_name_as_c_str() == Ok(name));
        let import = if has(HOST_MEMORY) { ImportMethod::HostPointer } else { ImportMethod::Copy };
        let subgroups = features::has_subgroup_sizes(&self.raw, device).then_some(&subgroups);
        let mut limits = limits(&base.limits, &host, subgroups);
        limits.subgroup_size = known.subgroup_size;
        limits.allocation_length = known.max_memory_allocation_size;
        let mut missing = self.missing_features(device, base.api_version, &has);

        let family = self.compute_family(device);
        let mut demand = |met: bool, what: String| {
            if !met {
                missing.push(what)
            }
        };
        demand(family.is_some(), "a compute queue".to_owned());
        demand(
            limits.storage_buffers >= STORAGE_BUFFERS,
            format!("{STORAGE_BUFFERS} storage buffers per kernel"),
        );
        let constants = base.limits.max_push_constants_size;
        demand(constants >= CONSTANTS_EVERYWHERE, format!("{CONSTANTS_EVERYWHERE} bytes of push constants"));
        demand(size.max_buffer_size >= 2 * BINDING_LENGTH_CAP, "buffers of 2 GiB".to_owned());

        let info = describe(&base, &driver, &known, import);
        // They are words of host memory.
        let has_conditions =
            import == ImportMethod::HostPointer && has(CONDITIONS) && self.knows_conditions(device);
        let clock = family.and_then(|family| self.clock(device, family, base.limits.timestamp_period));
        let mut candidate = Candidate {
            info,
            limits,
            profile: features::profile(&self.raw, device),
            missing,
            device,
            family: family.unwrap_or(0),
            has_conditions,
            clock,
            handles: self.handles(device, &extensions),
            priorities: self.priorities(device, &extensions),
        };
        if import == ImportMethod::Copy {
            candidate.copy_memory();
        }
        Ok(candidate)
    }

    /// The extensions of a device of this instance.
    pub(super) fn extensions(
        &self,
        device: vk::PhysicalDevice,
    ) -> Result<Vec<vk::ExtensionProperties>, VulkanError> {
        // SAFETY: the handle is the instance's.
        let offered = unsafe { self.raw.enumerate_device_extension_properties(device) };
        offered.map_err(failed("vkEnumerateDeviceExtensionProperties"))
    }

    fn knows_conditions(&self, device: vk::PhysicalDevice) -> bool {
        let mut conditions = vk::PhysicalDeviceConditionalRenderingFeaturesEXT::default();
        let mut features = vk::PhysicalDeviceFeatures2::default().push_next(&mut conditions);
        // SAFETY: the handle is the instance's. A structure that the device does not know stays as it is: false.
        unsafe { self.raw.get_physical_device_features2(device, &mut features) };
        conditions.conditional_rendering == vk::TRUE
    }

    fn missing_features(
        &self,
        device: vk::PhysicalDevice,
        version: u32,
        has: &dyn Fn(&CStr) -> bool,
    ) -> Vec<String> {
        if version < vk::API_VERSION_1_3 {
            return vec!["Vulkan 1.3".to_owned()];
        }
        let absent = EXTENSIONS.into_iter().filter(|name| !has(name));
        let mut missing: Vec<String> = absent.map(|name| name.to_string_lossy().into_owned()).collect();

        let mut robustness = vk::PhysicalDeviceRobustness2FeaturesEXT::default();
        let mut v12 = vk::PhysicalDeviceVulkan12Features::default();
        let mut v13 = vk::PhysicalDeviceVulkan13Features::default();
        let mut features = vk::PhysicalDeviceFeatures2::default()
            .push_next(&mut robustness)
            .push_next(&mut v12)
            .push_next(&mut v13);
        // SAFETY: the handle is the instance's. A structure that the device does not know stays as it is: false.
        unsafe { self.raw.get_physical_device_features2(device, &mut features) };
        let base = features.features;
        for (offered, name) in [
            (base.robust_buffer_access, "robustBufferAccess"),
            (robustness.robust_buffer_access2, "robustBufferAccess2"),
            (v12.timeline_semaphore, "timelineSemaphore"),
            (v13.shader_zero_initialize_workgroup_memory, "shaderZeroInitializeWorkgroupMemory"),
        ] {
            if offered == vk::FALSE {
                missing.push(name.to_owned());
            }
        }
        missing
    }

    fn compute_family(&self, device: vk::PhysicalDevice) -> Option<u32> {
        // SAFETY: the handle is the instance's.
        let families = unsafe { self.raw.get_physical_device_queue_family_properties(device) };
        let computes = |f: &&vk::QueueFamilyProperties| f.queue_flags.contains(vk::QueueFlags::COMPUTE);
        let draws = |f: &vk::QueueFamilyProperties| f.queue_flags.contains(vk::QueueFlags::GRAPHICS);
        let all = || families.iter().enumerate().filter(|(_, family)| computes(family));
        // A launch is shorter on a queue that does not draw: 15 instead of 18 µs on an H100.
        let (index, _) = all().find(|(_, family)| !draws(family)).or_else(|| all().next())?;
        u32::try_from(index).ok()
    }

    /// The clock of a queue family, if hosts may reset what it notes.
    fn clock(&self, device: vk::PhysicalDevice, family: u32, nanoseconds: f32) -> Option<Clock> {
        let mut v12 = vk::PhysicalDeviceVulkan12Features::default();
        let mut features = vk::PhysicalDeviceFeatures2::default().push_next(&mut v12);
        // SAFETY: the handle is the instance's. A structure that the device does not know stays as it is: false.
        unsafe { self.raw.get_physical_device_features2(device, &mut features) };
        // SAFETY: the handle is the instance's.
        let families = unsafe { self.raw.get_physical_device_queue_family_properties(device) };
        let bits = families.get(family as usize)?.timestamp_valid_bits;
        (v12.host_query_reset == vk::TRUE && bits >= CLOCK_BITS).then_some(Clock { nanoseconds, bits })
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // SAFETY: a `Gpu` owns its instance and destroys its device first, so nothing made from this is left.
        unsafe { self.raw.destroy_instance(None) };
    }
}

impl Candidate {
    /// Host memory is to be copied, whatever the device offers.
    pub(in crate::vulkan) fn copy_memory(&mut self) {
        self.info.import = ImportMethod::Copy;
        self.limits.import_alignment = COPIED_ALIGNMENT;
        self.has_conditions = false;
    }

    /// The global priorities that the queue which runs kernels can have.
    pub(super) fn offered_priorities(&self) -> GlobalPriorities {
        self.priorities.get(self.family as usize).copied().unwrap_or_default()
    }
}

fn describe(
    base: &vk::PhysicalDeviceProperties,
    driver: &vk::PhysicalDeviceDriverProperties<'_>,
    known: &vk::PhysicalDeviceVulkan11Properties<'_>,
    import: ImportMethod,
) -> Info {
    let text =
        |name: Result<&CStr, _>| name.map_or_else(|_| String::new(), |n| n.to_string_lossy().into_owned());
    let version = base.api_version;
    Info {
        name: text(base.device_name_as_c_str()),
        driver: text(driver.driver_name_as_c_str()),
        driver_version: text(driver.driver_info_as_c_str()),
        api_version: [
            vk::api_version_major(version),
            vk::api_version_minor(version),
            vk::api_version_patch(version),
        ],
        kind: match base.device_type {
            vk::PhysicalDeviceType::DISCRETE_GPU => Kind::Discrete,
            vk::PhysicalDeviceType::INTEGRATED_GPU => Kind::Integrated,
            vk::PhysicalDeviceType::VIRTUAL_GPU => Kind::Virtual,
            vk::PhysicalDeviceType::CPU => Kind::Cpu,
            _ => Kind::Other,
        },
        import,
        identity: Identity {
            vendor: base.vendor_id,
            device: base.device_id,
            api_version: base.api_version,
            driver_version: base.driver_version,
            device_uuid: known.device_uuid,
            driver_uuid: known.driver_uuid,
        },
    }
}

fn limits(
    base: &vk::PhysicalDeviceLimits,
    host: &vk::PhysicalDeviceExternalMemoryHostPropertiesEXT<'_>,
    subgroups: Option<&vk::PhysicalDeviceSubgroupSizeControlProperties<'_>>,
) -> Limits {
    let range = u64::from(base.max_storage_buffer_range).min(BINDING_LENGTH_CAP);
    Limits {
        groups: base.max_compute_work_group_count,
        // A multiple of the page, so that buffers of it tile memory.
        binding_length: range & !0xfff,
        uniform_length: u64::from(base.max_uniform_buffer_range) & !0xf,
        // Loads and stores are of words, whatever finer offsets a device allows.
        binding_alignment: base
            .min_storage_buffer_offset_alignment
            .max(base.min_uniform_buffer_offset_alignment)
            .max(base.min_texel_buffer_offset_alignment)
            .max(4),
        import_alignment: host.min_imported_host_pointer_alignment.max(1),
        allocation_length: 0,
        workgroup: base.max_compute_work_group_size,
        invocations: base.max_compute_work_group_invocations,
        workgroup_memory: base.max_compute_shared_memory_size,
        sets: base.max_bound_descriptor_sets,
        storage_buffers: base
            .max_per_stage_descriptor_storage_buffers
            .min(base.max_descriptor_set_storage_buffers),
        uniform_buffers: base
            .max_per_stage_descriptor_uniform_buffers
            .min(base.max_descriptor_set_uniform_buffers),
        uniform_texels: base
            .max_per_stage_descriptor_sampled_images
            .min(base.max_descriptor_set_sampled_images),
        storage_texels: base
            .max_per_stage_descriptor_storage_images
            .min(base.max_descriptor_set_storage_images),
        texel_elements: base.max_texel_buffer_elements,
        constants: base.max_push_constants_size,
        subgroup_size: 0,
        subgroup_sizes: subgroups
            .filter(|sizes| sizes.required_subgroup_size_stages.contains(vk::ShaderStageFlags::COMPUTE))
            .map_or([0; 2], |sizes| [sizes.min_subgroup_size, sizes.max_subgroup_size]),
    }
}
