//! The profile of a vGPU's compute node: what kernels may use of the device behind it, and how much (version 1.1).
//!
//! It says what engine *and* guard take, which is less than the device offers where one of them takes less. A guest driver reports
//! from it, and from nothing else. It stays as it is while the vGPU lives, moves included.

use zerocopy::FromBytes;
use zerocopy::Immutable;
use zerocopy::IntoBytes;
use zerocopy::KnownLayout;

/// Version of [`Profile`]. A higher one only adds, in what is reserved.
///
/// | Version | What it added |
/// |---|---|
/// | 1 | all that is not named below |
/// | 2 | texel buffers |
pub const PROFILE_VERSION: u32 = 2;

/// None of those below.
pub const KIND_OTHER: u32 = 0;
/// Shares the host's memory.
pub const KIND_INTEGRATED: u32 = 1;
/// A card with memory of its own.
pub const KIND_DISCRETE: u32 = 2;
/// Lent by another host.
pub const KIND_VIRTUAL: u32 = 3;
/// A driver that runs kernels on CPUs.
pub const KIND_CPU: u32 = 4;

/// Bytes of a name, with the zeros behind it.
pub const NAME_BYTES: usize = 256;

/// `storageBuffer8BitAccess`.
pub const FEATURE_STORAGE_8: u64 = 1 << 0;
/// `uniformAndStorageBuffer8BitAccess`.
pub const FEATURE_UNIFORM_8: u64 = 1 << 1;
/// `storagePushConstant8`.
pub const FEATURE_PUSH_8: u64 = 1 << 2;
/// `storageBuffer16BitAccess`.
pub const FEATURE_STORAGE_16: u64 = 1 << 3;
/// `uniformAndStorageBuffer16BitAccess`.
pub const FEATURE_UNIFORM_16: u64 = 1 << 4;
/// `storagePushConstant16`.
pub const FEATURE_PUSH_16: u64 = 1 << 5;
/// `shaderInt8`.
pub const FEATURE_INT_8: u64 = 1 << 6;
/// `shaderInt16`.
pub const FEATURE_INT_16: u64 = 1 << 7;
/// `shaderInt64`.
pub const FEATURE_INT_64: u64 = 1 << 8;
/// `shaderFloat16`.
pub const FEATURE_FLOAT_16: u64 = 1 << 9;
/// `shaderFloat64`.
pub const FEATURE_FLOAT_64: u64 = 1 << 10;
/// `shaderBufferInt64Atomics` and `shaderSharedInt64Atomics`.
pub const FEATURE_ATOMIC_64: u64 = 1 << 11;
/// `vulkanMemoryModel`.
pub const FEATURE_MEMORY_MODEL: u64 = 1 << 12;
/// `vulkanMemoryModelDeviceScope`.
pub const FEATURE_MEMORY_MODEL_DEVICE: u64 = 1 << 13;
/// `shaderIntegerDotProduct`.
pub const FEATURE_INTEGER_DOT: u64 = 1 << 14;
/// `shaderStorageBufferArrayDynamicIndexing` and `shaderUniformBufferArrayDynamicIndexing`.
pub const FEATURE_BUFFER_ARRAYS: u64 = 1 << 15;
/// `shaderSubgroupExtendedTypes`.
pub const FEATURE_SUBGROUP_EXTENDED: u64 = 1 << 16;
/// `subgroupSizeControl`: [`Profile::subgroup_sizes`] may be asked for.
pub const FEATURE_SUBGROUP_SIZES: u64 = 1 << 17;
/// `uniformBufferStandardLayout`.
pub const FEATURE_UNIFORM_STANDARD: u64 = 1 << 18;
/// `scalarBlockLayout`, in all buffers and push constants.
pub const FEATURE_SCALAR_LAYOUT: u64 = 1 << 19;
/// `shaderBufferFloat32Atomics`, `shaderBufferFloat32AtomicAdd`, and the same of `Shared`.
pub const FEATURE_ATOMIC_FLOAT: u64 = 1 << 20;

/// Texel buffers, of those of [`crate::texels::FORMATS`] that every device has, with integer atomics where a format has them. Since version 2.
pub const FEATURE_TEXEL_BUFFERS: u64 = 1 << 21;
/// `shaderStorageImageReadWithoutFormat`, of storage texel buffers.
pub const FEATURE_READ_WITHOUT_FORMAT: u64 = 1 << 22;
/// `shaderStorageImageWriteWithoutFormat`, of storage texel buffers.
pub const FEATURE_WRITE_WITHOUT_FORMAT: u64 = 1 << 23;
/// Texel buffers of those of [`crate::texels::FORMATS`] that not every device has ([`crate::texels::Offer::Extended`]), too.
pub const FEATURE_TEXEL_FORMATS: u64 = 1 << 24;

/// Answers QUERY_PROFILE.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Profile {
    /// [`PROFILE_VERSION`].
    pub version: u32,
    /// `KIND_*`.
    pub kind: u32,
    /// The device's `vendorID`.
    pub vendor: u32,
    /// The device's `deviceID`.
    pub device: u32,
    /// The Vulkan version that the device implements, as in `VkPhysicalDeviceProperties::apiVersion`.
    pub api_version: u32,
    /// The driver's version, in its own encoding.
    pub driver_version: u32,
    /// `FEATURE_*`.
    pub features: u64,
    /// The longest range of a storage buffer, bytes.
    pub storage_range: u64,
    /// The longest range of a uniform buffer, bytes.
    pub uniform_range: u64,
    /// Workgroups in x, y and z.
    pub groups: [u32; 3],
    /// Invocations of a workgroup in x, y and z.
    pub workgroup: [u32; 3],
    /// Invocations of a workgroup in all.
    pub invocations: u32,
    /// Bytes of workgroup memory.
    pub workgroup_memory: u32,
    /// Descriptor sets of a kernel.
    pub sets: u32,
    /// Binding numbers of a set.
    pub bindings: u32,
    /// Buffers that a kernel binds, of all kinds.
    pub buffers: u32,
    /// Storage buffers among them.
    pub storage_buffers: u32,
    /// Uniform buffers among them.
    pub uniform_buffers: u32,
    /// Bytes of constants.
    pub constants: u32,
    /// Where a binding may begin: at multiples of this, bytes.
    pub binding_alignment: u32,
    /// Invocations of a subgroup where a kernel asks for none.
    pub subgroup_size: u32,
    /// The fewest and the most that a kernel may ask for, powers of two.
    pub subgroup_sizes: [u32; 2],
    /// Bits of `VkSubgroupFeatureFlagBits`, in compute kernels.
    pub subgroup_operations: u32,
    /// Texels of a texel buffer; 0 where there are none, as in the next two. Since version 2.
    pub texel_elements: u32,
    /// Uniform texel buffers among `buffers`.
    pub uniform_texels: u32,
    /// Storage texel buffers among `buffers`.
    pub storage_texels: u32,
    /// Zero.
    pub reserved: [u32; 8],
    /// `deviceUUID`.
    pub device_uuid: [u8; 16],
    /// `driverUUID`.
    pub driver_uuid: [u8; 16],
    /// The device's name, UTF-8, with zeros behind it.
    pub name: [u8; NAME_BYTES],
    /// The driver's name and version, UTF-8, with zeros behind it.
    pub driver: [u8; NAME_BYTES],
}

/// `text` as a field of names: cut at a character where it is too long.
pub fn name_field(text: &str) -> [u8; NAME_BYTES] {
    let mut field = [0; NAME_BYTES];
    let end = text.floor_char_boundary(NAME_BYTES - 1);
    for (place, byte) in field.iter_mut().zip(text.bytes().take(end)) {
        *place = byte;
    }
    field
}

/// What a field of names holds; empty where it is no UTF-8.
pub fn name_of(field: &[u8; NAME_BYTES]) -> &str {
    let text = field.split(|byte| *byte == 0).next().unwrap_or_default();
    core::str::from_utf8(text).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use zerocopy::FromZeros;
    use zerocopy::IntoBytes;

    use super::NAME_BYTES;
    use super::Profile;
    use super::name_field;
    use super::name_of;
    use crate::control::reply::MAX_PAYLOAD;

    #[test]
    fn it_fits_into_a_response_and_its_layout_stays() {
        assert_eq!(size_of::<Profile>(), 712);
        assert!(size_of::<Profile>() <= MAX_PAYLOAD);
        let mut profile = Profile::new_zeroed();
        profile.features = 0x1122;
        profile.subgroup_operations = 0x33;
        profile.device_uuid = [0x44; 16];
        profile.name = name_field("a GPU");
        let bytes = profile.as_bytes();
        assert_eq!(bytes[24..26], [0x22, 0x11]);
        assert_eq!(bytes[120], 0x33);
        assert_eq!(bytes[168..184], [0x44; 16]);
        assert_eq!(&bytes[200..206], b"a GPU\0");
    }

    #[test]
    fn names_are_cut_at_a_character_and_read_back() {
        for text in ["", "a GPU", "größe"] {
            assert_eq!(name_of(&name_field(text)), text);
        }
        let long = "ö".repeat(200);
        assert_eq!(name_of(&name_field(&long)), "ö".repeat(127), "a zero is left behind it");
        assert_eq!(name_of(&[0xff; NAME_BYTES]), "", "no UTF-8");
    }
}
