//! The opened device: its queue, and the counter that says how far the queue has come.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::Duration;

use ash::ext;
use ash::khr;
use ash::vk;

use crate::shader::profile::Profile;
use crate::vulkan::error::VulkanError;
use crate::vulkan::error::failed;
use crate::vulkan::info::Handles;
use crate::vulkan::info::ImportMethod;
use crate::vulkan::info::Limits;
use crate::vulkan::options::Executor;
use crate::vulkan::priority::GlobalPriority;
use crate::vulkan::priority_request;
use crate::vulkan::raw::features;
use crate::vulkan::raw::instance::CONDITIONS;
use crate::vulkan::raw::instance::Candidate;
use crate::vulkan::raw::instance::Clock;
use crate::vulkan::raw::instance::EXTENSIONS;
use crate::vulkan::raw::instance::HOST_MEMORY;
use crate::vulkan::raw::instance::Instance;

/// An opened device with one compute queue.
pub(in crate::vulkan) struct Gpu {
    pub(super) device: ash::Device,
    /// Where host memory can be imported.
    pub(super) host_memory: Option<ext::external_memory_host::Device>,
    /// Where dispatches can be skipped, and are looked at when they begin: no more than a CPU driver is known to.
    pub(in crate::vulkan) conditions: Option<ext::conditional_rendering::Device>,
    /// How the queue tells the time, where it does.
    pub(super) clock: Option<Clock>,
    /// Where memory can be exported.
    pub(super) external_fds: Option<khr::external_memory_fd::Device>,
    pub(super) handles: Handles,
    pub(super) memory_types: vk::PhysicalDeviceMemoryProperties,
    pub(super) family: u32,
    pub(in crate::vulkan) limits: Limits,
    /// What kernels may use, all of which is enabled.
    pub(in crate::vulkan) profile: Profile,
    /// The global priority of its queue, where one was asked for and is had.
    pub(in crate::vulkan) priority: Option<GlobalPriority>,
    /// Submission needs external synchronisation.
    queue: Mutex<vk::Queue>,
    pub(super) physical: vk::PhysicalDevice,
    // Last: destroyed after the device.
    pub(super) instance: Arc<Instance>,
}

/// What of a device is used beyond what every device must have.
#[derive(Clone, Copy)]
struct Chosen {
    family: u32,
    import: ImportMethod,
    has_conditions: bool,
    clock: Option<Clock>,
    handles: Handles,
    priority: Option<GlobalPriority>,
}

impl Gpu {
    /// Opens `candidate`, which comes from `instance` and misses nothing. Where it is for realtime work, its queue has the highest
    /// global priority that this process can have, and the log says which.
    pub(in crate::vulkan) fn open(
        instance: Arc<Instance>,
        candidate: &Candidate,
        executor: Executor,
        is_realtime: bool,
    ) -> Result<Arc<Self>, VulkanError> {
        let Candidate { info, device, family, limits, profile, has_conditions, clock, handles, .. } =
            candidate;
        let has_conditions = *has_conditions && executor == Executor::Cpu;
        let (import, clock, handles) = (info.import, *clock, *handles);
        let chosen = Chosen { family: *family, import, has_conditions, clock, handles, priority: None };
        let create = |priority| {
            let instance = Arc::clone(&instance);
            Self::create(instance, *device, *limits, *profile, Chosen { priority, ..chosen })
        };
        if !is_realtime {
            return create(None);
        }
        let offered = candidate.offered_priorities();
        let (gpu, refused) = priority_request::first(offered.above_usual(), create)?;
        log::info!("{}: {}", info.name, priority_request::outcome(gpu.priority, &refused));
        Ok(gpu)
    }

    /// The same device opened once more, with a queue of its own, of the same global priority where that is still granted.
    pub(in crate::vulkan) fn secondary(&self) -> Result<Arc<Self>, VulkanError> {
        let has_conditions = self.conditions.is_some();
        let import = self.import();
        let instance = Arc::clone(&self.instance);
        let Self { physical, family, limits, profile, clock, handles, priority, .. } = *self;
        let chosen = Chosen { family, import, has_conditions, clock, handles, priority };
        let create = |priority| {
            Self::create(Arc::clone(&instance), physical, limits, profile, Chosen { priority, ..chosen })
        };
        let (gpu, refused) = priority_request::first(priority.into_iter(), create)?;
        if !refused.is_empty() {
            log::info!("a queue more: {}", priority_request::outcome(None, &refused));
        }
        Ok(gpu)
    }

    /// How it gets at host memory.
    pub(in crate::vulkan) fn import(&self) -> ImportMethod {
        if self.host_memory.is_some() { ImportMethod::HostPointer } else { ImportMethod::Copy }
    }

    /// UUIDs of device and driver: memory that one exports as an opaque fd is imported by none that has others.
    pub(super) fn uuids(&self) -> [[u8; 16]; 2] {
        let mut known = vk::PhysicalDeviceVulkan11Properties::default();
        let mut properties = vk::PhysicalDeviceProperties2::default().push_next(&mut known);
        // SAFETY: the physical device is the instance's.
        unsafe { self.instance.raw.get_physical_device_properties2(self.physical, &mut properties) };
        [known.device_uuid, known.driver_uuid]
    }

    fn create(
        instance: Arc<Instance>,
        physical: vk::PhysicalDevice,
        limits: Limits,
        profile: Profile,
        chosen: Chosen,
    ) -> Result<Arc<Self>, VulkanError> {
        let Chosen { family, import, has_conditions, clock, handles, priority } = chosen;
        let has_host_memory = import == ImportMethod::HostPointer;
        let mut queue =
            vk::DeviceQueueCreateInfo::default().queue_family_index(family).queue_priorities(&[1.0]);
        let mut global = vk::DeviceQueueGlobalPriorityCreateInfoKHR::default();
        if let Some(priority) = priority {
            global = global.global_priority(priority.raw());
            queue = queue.push_next(&mut global);
        }
        let queues = [queue];
        let has_fds = handles.opaque_fd || handles.dma_buf;
        let optional = [
            has_host_memory.then_some(HOST_MEMORY),
            has_conditions.then_some(CONDITIONS),
            has_fds.then_some(khr::external_memory_fd::NAME),
            handles.dma_buf.then_some(ext::external_memory_dma_buf::NAME),
            profile.atomic_float.then_some(ext::shader_atomic_float::NAME),
            priority.map(|_| khr::global_priority::NAME),
        ];
        let optional = optional.into_iter().flatten();
        let extensions: Vec<_> = EXTENSIONS.into_iter().chain(optional).map(std::ffi::CStr::as_ptr).collect();
        // Never bufferDeviceAddress: on a CPU device it would hand out pointers into this process.
        let base = features::base(&profile).robust_buffer_access(true);
        let mut robustness = vk::PhysicalDeviceRobustness2FeaturesEXT::default().robust_buffer_access2(true);
        let mut v11 = features::v11(&profile);
        let mut v12 = features::v12(&profile).timeline_semaphore(true).host_query_reset(clock.is_some());
        let mut v13 = features::v13(&profile)
            .shader_zero_initialize_workgroup_memory(true)
            .subgroup_size_control(limits.subgroup_sizes != [0; 2])
            .compute_full_subgroups(limits.subgroup_sizes != [0; 2]);
        let mut conditions =
            vk::PhysicalDeviceConditionalRenderingFeaturesEXT::default().conditional_rendering(true);
        let mut info = vk::DeviceCreateInfo::default()
            .queue_create_infos(&queues)
            .enabled_extension_names(&extensions)
            .enabled_features(&base)
            .push_next(&mut robustness)
            .push_next(&mut v11)
            .push_next(&mut v12)
            .push_next(&mut v13);
        if has_conditions {
            info = info.push_next(&mut conditions);
        }
        let mut floats = features::atomic_float();
        if profile.atomic_float {
            info = info.push_next(&mut floats);
        }
        // SAFETY: the physical device is the instance's, offers all that `info` enables, and `info` outlives the call.
        let device = unsafe { instance.raw.create_device(physical, &info, None) };
        let device = device.map_err(failed("vkCreateDevice"))?;
        // SAFETY: the device was just created with one queue of this family.
        let queue = unsafe { device.get_device_queue(family, 0) };
        // SAFETY: the physical device is the instance's.
        let memory_types = unsafe { instance.raw.get_physical_device_memory_properties(physical) };
        Ok(Arc::new(Self {
            host_memory: has_host_memory
                .then(|| ext::external_memory_host::Device::new(&instance.raw, &device)),
            conditions: has_conditions
                .then(|| ext::conditional_rendering::Device::new(&instance.raw, &device)),
            clock,
            external_fds: has_fds.then(|| khr::external_memory_fd::Device::new(&instance.raw, &device)),
            handles,
            memory_types,
            family,
            limits,
            profile,
            priority,
            queue: Mutex::new(queue),
            device,
            physical,
            instance,
        }))
    }

    /// Submits a recorded command buffer that raises `timeline` to `value`.
    ///
    /// # Safety
    ///
    /// `commands` is of this device, fully recorded and not pending; it and all that it uses stay alive until
    /// `timeline` reaches `value`, which is above every value given before.
    pub(super) unsafe fn submit(
        &self,
        commands: vk::CommandBuffer,
        timeline: &Timeline,
        value: u64,
    ) -> Result<(), VulkanError> {
        let (commands, semaphores, values) = ([commands], [timeline.semaphore], [value]);
        let mut signal = vk::TimelineSemaphoreSubmitInfo::default().signal_semaphore_values(&values);
        let submits = [vk::SubmitInfo::default()
            .command_buffers(&commands)
            .signal_semaphores(&semaphores)
            .push_next(&mut signal)];
        // The queue is a handle: a panic elsewhere cannot have left it half changed.
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the queue is locked; the rest is this function's contract.
        unsafe { self.device.queue_submit(*queue, &submits, vk::Fence::null()) }
            .map_err(failed("vkQueueSubmit"))
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        // SAFETY: whatever was made from the device holds an `Arc` of this, so nothing is left, running or not.
        unsafe { self.device.destroy_device(None) };
    }
}

/// A counter that submissions raise in order.
pub(in crate::vulkan) struct Timeline {
    gpu: Arc<Gpu>,
    semaphore: vk::Semaphore,
}

impl Timeline {
    /// A counter at zero.
    pub(in crate::vulkan) fn new(gpu: &Arc<Gpu>) -> Result<Self, VulkanError> {
        let mut kind = vk::SemaphoreTypeCreateInfo::default().semaphore_type(vk::SemaphoreType::TIMELINE);
        let info = vk::SemaphoreCreateInfo::default().push_next(&mut kind);
        // SAFETY: `info` outlives the call.
        let semaphore = unsafe { gpu.device.create_semaphore(&info, None) };
        Ok(Self { gpu: Arc::clone(gpu), semaphore: semaphore.map_err(failed("vkCreateSemaphore"))? })
    }

    /// How far the queue has come.
    pub(in crate::vulkan) fn reached(&self) -> Result<u64, VulkanError> {
        // SAFETY: the semaphore is alive and a timeline.
        let value = unsafe { self.gpu.device.get_semaphore_counter_value(self.semaphore) };
        value.map_err(failed("vkGetSemaphoreCounterValue"))
    }

    /// Sleeps until `value` is reached, or for `limit` (`None`: for ever). Whether it was reached.
    pub(in crate::vulkan) fn wait(&self, value: u64, limit: Option<Duration>) -> Result<bool, VulkanError> {
        let (semaphores, values) = ([self.semaphore], [value]);
        let info = vk::SemaphoreWaitInfo::default().semaphores(&semaphores).values(&values);
        let nanoseconds = limit.map_or(u64::MAX, |limit| u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX));
        // SAFETY: the semaphore is alive and a timeline; `info` outlives the call.
        match unsafe { self.gpu.device.wait_semaphores(&info, nanoseconds) } {
            Ok(()) => Ok(true),
            Err(vk::Result::TIMEOUT) => Ok(false),
            Err(result) => Err(failed("vkWaitSemaphores")(result)),
        }
    }
}

impl Drop for Timeline {
    fn drop(&mut self) {
        // SAFETY: slots that have a submission pending on this hold an `Arc` of it and wait before they let go.
        unsafe { self.gpu.device.destroy_semaphore(self.semaphore, None) };
    }
}
