//! What can go wrong between us and a Vulkan driver: the host's faults.

use ash::vk;

use crate::vulkan::info::Handle;

/// How to get a driver that is right, for messages.
pub(super) const REMEDY: &str =
    "Mesa ≥ 25.0.7 is needed: run ci/setup, or on Debian 12 install bookworm-backports' mesa-vulkan-drivers";

/// Why the GPU cannot be used, or no longer.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say what the fields are")]
pub enum VulkanError {
    /// The loader library is not there.
    #[error("the Vulkan loader could not be opened ({reason}): install Debian's package libvulkan1")]
    NoLoader {
        /// What the dynamic linker said.
        reason: String,
    },
    /// The loader found no driver, or the drivers found no device.
    #[error(
        "the Vulkan loader found no device: install Debian's package mesa-vulkan-drivers ≥ 25.0.7 (or run ci/setup), \
         and see that VK_DRIVER_FILES, where set, names its manifest"
    )]
    NoDevice,
    /// No device has the name that was asked for.
    #[error("no Vulkan device is called `{wanted}`: there are {found}")]
    NoDeviceOfThatName {
        /// What was asked for, a part of a name, perhaps with a number.
        wanted: String,
        /// The names of what there is.
        found: String,
    },
    /// No device can do what is demanded.
    #[error("no Vulkan device is suitable: {reasons}. {REMEDY}")]
    Unsuitable {
        /// Per device, what is missing.
        reasons: String,
    },
    /// The device has less than the profile of the vGPU.
    #[error("{device} cannot serve GPU profile {profile}: {lacks}")]
    Profile {
        /// Its name and driver.
        device: String,
        /// The name of the profile.
        profile: &'static str,
        /// Per field, what the profile has, and what the device has.
        lacks: String,
    },
    /// A driver computed something wrong in the self-test.
    #[error("{device} with driver {driver} computes wrongly: {what}. {REMEDY}")]
    WrongResult {
        /// The device's name.
        device: String,
        /// The driver's name and version.
        driver: String,
        /// Which result was wrong.
        what: String,
    },
    /// The self-test could not be prepared.
    #[error("the self-test could not be prepared: {reason}")]
    SelfTest {
        /// What was missing.
        reason: String,
    },
    /// A range of host memory cannot be imported.
    #[error("host memory of {length} bytes at offset {offset} of its mapping cannot be imported: {reason}")]
    Import {
        /// Bytes asked for.
        length: u64,
        /// Offset asked for, bytes.
        offset: u64,
        /// What is wrong with it.
        reason: String,
    },
    /// A device that imports host memory does not take this, as a driver that takes no pages of files.
    #[error(
        "the device takes no such host memory as the {length} bytes at offset {offset} of its mapping: {reason}"
    )]
    NotTaken {
        /// Bytes asked for.
        length: u64,
        /// Offset asked for, bytes.
        offset: u64,
        /// What it says.
        reason: String,
    },
    /// The device's own memory cannot be had.
    #[error("{length} bytes of the device's own memory cannot be allocated: {reason}")]
    Allocate {
        /// Bytes asked for.
        length: u64,
        /// What is wrong.
        reason: String,
    },
    /// Memory of a device cannot be exported, or imported from its descriptor.
    #[error("device memory of {length} bytes cannot be shared as {handle}: {reason}")]
    Share {
        /// Bytes of the allocation.
        length: u64,
        /// As what it was to be shared.
        handle: Handle,
        /// What is wrong.
        reason: String,
    },
    /// A kernel asks for more than the device has.
    #[error("the kernel needs {wanted} {what}, the device has {limit}")]
    KernelTooBig {
        /// What there is too little of, in words.
        what: &'static str,
        /// How much the kernel needs.
        wanted: u64,
        /// How much there is.
        limit: u64,
    },
    /// A kernel asks for subgroups of a size that the device has not.
    #[error("the kernel asks for subgroups of {size}, the device has powers of two from {least} to {most}")]
    SubgroupSize {
        /// What the kernel asks for.
        size: u32,
        /// The smallest there are; 0 where no kernel may ask.
        least: u32,
        /// The largest there are.
        most: u32,
    },
    /// The device is lost and everything on it: the process must be replaced.
    #[error("the Vulkan device was lost in {call}: the engine process must be replaced")]
    DeviceLost {
        /// The call that said so.
        call: &'static str,
    },
    /// Any other call that failed.
    #[error("{call} failed: {result}; the engine may be out of memory or over its limits")]
    Call {
        call: &'static str,
        /// What it returned.
        result: vk::Result,
    },
}

impl VulkanError {
    /// Whether nothing runs on the device any more, since it was lost.
    pub(super) fn is_device_lost(&self) -> bool {
        matches!(self, Self::DeviceLost { .. })
    }
}

/// Turns the result of `call` into an error.
pub(super) fn failed(call: &'static str) -> impl Fn(vk::Result) -> VulkanError {
    move |result| match result {
        vk::Result::ERROR_DEVICE_LOST => VulkanError::DeviceLost { call },
        result => VulkanError::Call { call, result },
    }
}
