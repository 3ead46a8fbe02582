//! All devices that the loader knows, whether or not they can run kernels of guests.

use std::sync::Arc;
use std::time::Duration;

use campanile_protocol::profile::Profile;

use crate::vulkan::driver::Driver;
use crate::vulkan::driver::open_gpu;
use crate::vulkan::error::VulkanError;
use crate::vulkan::info::Handles;
use crate::vulkan::info::Hardware;
use crate::vulkan::info::Info;
use crate::vulkan::info::Limits;
use crate::vulkan::options::Executor;
use crate::vulkan::raw::instance::Candidate;
use crate::vulkan::raw::instance::Instance;

/// The devices, in the loader's order.
pub struct Devices {
    candidates: Vec<Candidate>,
    instance: Arc<Instance>,
}

/// One of them, as Vulkan describes it.
#[derive(Debug, Clone)]
pub struct Found {
    /// Its names and versions.
    pub info: Info,
    /// How much a dispatch may ask for.
    pub limits: Limits,
    /// What it lacks; a device that lacks nothing can serve.
    pub missing: Vec<String>,
    /// Its memory and queues.
    pub hardware: Hardware,
    /// How its memory can be exported.
    pub handles: Handles,
    /// What guests are told of it, where their vGPU has no named profile.
    pub profile: Profile,
}

impl Devices {
    /// Asks the loader.
    ///
    /// # Errors
    /// There is no loader, or no device at all.
    pub fn find() -> Result<Self, VulkanError> {
        let instance = Instance::open()?;
        let candidates = instance.candidates()?;
        if candidates.is_empty() {
            return Err(VulkanError::NoDevice);
        }
        Ok(Self { candidates, instance: Arc::new(instance) })
    }

    /// What Vulkan says of each.
    pub fn found(&self) -> Vec<Found> {
        let found = |candidate: &Candidate| Found {
            info: candidate.info.clone(),
            limits: candidate.limits,
            missing: candidate.missing.clone(),
            hardware: self.instance.hardware(candidate),
            handles: candidate.handles,
            profile: candidate.told(),
        };
        self.candidates.iter().map(found).collect()
    }

    /// Opens device `index` of [`Self::found`], to look at its counter for `spin` before sleeping on it. Also why it copies host memory where it says that it
    /// imports some.
    ///
    /// # Errors
    /// There is no such device, it lacks something, or the driver fails.
    pub fn open(&self, index: usize, spin: Duration) -> Result<(Driver, Option<VulkanError>), VulkanError> {
        let mut candidate = self.candidates.get(index).ok_or(VulkanError::NoDevice)?.clone();
        if !candidate.missing.is_empty() {
            let reasons = format!("{} lacks {}", candidate.info, candidate.missing.join(", "));
            return Err(VulkanError::Unsuitable { reasons });
        }
        let executor = Executor::of(candidate.info.kind);
        let (gpu, refused) = open_gpu(&self.instance, &mut candidate, executor, false)?;
        let told = Box::new(candidate.told());
        Ok((Driver::of(gpu, candidate.info, spin, executor, told)?, refused))
    }
}

impl std::fmt::Debug for Devices {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Devices").field("count", &self.candidates.len()).finish_non_exhaustive()
    }
}
