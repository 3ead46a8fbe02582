//! What a device offers of SPIR-V beyond 32-bit arithmetic, and which capabilities and extensions that allows.

use spirv::Capability;

/// Features that the device was opened with. Everything off is the least that every device has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "Vulkan has features of the same names")]
pub struct Profile {
    pub storage_8: bool,
    pub uniform_8: bool,
    pub push_8: bool,
    pub storage_16: bool,
    pub uniform_16: bool,
    pub push_16: bool,
    pub int_8: bool,
    pub int_16: bool,
    pub int_64: bool,
    pub float_16: bool,
    pub float_64: bool,
    /// `shaderBufferInt64Atomics` and `shaderSharedInt64Atomics`.
    pub atomic_64: bool,
    /// Loads, stores, exchanges and sums of 32-bit floats in buffers and workgroup memory: `shaderBufferFloat32Atomics`,
    /// `shaderBufferFloat32AtomicAdd` and the like for `Shared`.
    pub atomic_float: bool,
    pub memory_model: bool,
    pub memory_model_device: bool,
    pub integer_dot: bool,
    /// Mixed dot products of `SPV_VALVE_mixed_float_dot_product`.
    pub mixed_dot: bool,
    /// `shaderStorageBufferArrayDynamicIndexing` and the like for uniform buffers.
    pub buffer_arrays: bool,
    /// `uniformBufferStandardLayout`.
    pub uniform_standard: bool,
    /// `scalarBlockLayout`.
    pub scalar_layout: bool,
    /// Those of [`campanile_protocol::texels`] that every device has.
    pub texel_buffers: bool,
    /// The others of them.
    pub texel_formats: bool,
    /// `shaderStorageImageReadWithoutFormat`.
    pub read_without_format: bool,
    /// `shaderStorageImageWriteWithoutFormat`.
    pub write_without_format: bool,
    /// Subgroup operations of compute kernels.
    pub subgroup: Subgroup,
}

/// Groups of subgroup operations, as in `VkSubgroupFeatureFlagBits`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Subgroup {
    /// Elect, sizes and indices.
    pub basic: bool,
    /// All, any, all equal.
    pub vote: bool,
    /// Reductions and scans.
    pub arithmetic: bool,
    /// Ballots and broadcasts.
    pub ballot: bool,
    /// Shuffles by any lane.
    pub shuffle: bool,
    /// Shuffles by a distance.
    pub shuffle_relative: bool,
    /// Reductions over clusters.
    pub clustered: bool,
    /// Quads.
    pub quad: bool,
    /// All of these on 8, 16 and 64 bits: `shaderSubgroupExtendedTypes`.
    pub extended: bool,
}

impl Profile {
    /// Everything that the guard knows.
    pub const ALL: Self = Self {
        storage_8: true,
        uniform_8: true,
        push_8: true,
        storage_16: true,
        uniform_16: true,
        push_16: true,
        int_8: true,
        int_16: true,
        int_64: true,
        float_16: true,
        float_64: true,
        atomic_64: true,
        atomic_float: true,
        memory_model: true,
        memory_model_device: true,
        integer_dot: true,
        mixed_dot: true,
        buffer_arrays: true,
        uniform_standard: true,
        scalar_layout: true,
        texel_buffers: true,
        texel_formats: true,
        read_without_format: true,
        write_without_format: true,
        subgroup: Subgroup {
            basic: true,
            vote: true,
            arithmetic: true,
            ballot: true,
            shuffle: true,
            shuffle_relative: true,
            clustered: true,
            quad: true,
            extended: true,
        },
    };

    /// Whether a module may declare `code`. `None`: never, whatever the device.
    pub(super) fn offers(&self, code: u32) -> Option<bool> {
        if code == MIXED_DOT {
            return Some(self.mixed_dot);
        }
        if is_dropped(code) {
            return Some(true);
        }
        let Subgroup { basic, vote, arithmetic, ballot, shuffle, shuffle_relative, clustered, quad, .. } =
            self.subgroup;
        Some(match Capability::from_u32(code)? {
            Capability::Shader | Capability::Matrix | Capability::DeviceGroup => true,
            Capability::Int8 => self.int_8,
            Capability::Int16 => self.int_16,
            Capability::Int64 => self.int_64,
            Capability::Float16 => self.float_16,
            Capability::Float64 => self.float_64,
            Capability::Int64Atomics => self.atomic_64,
            Capability::AtomicFloat32AddEXT => self.atomic_float,
            Capability::StorageBuffer8BitAccess => self.storage_8,
            Capability::UniformAndStorageBuffer8BitAccess => self.uniform_8,
            Capability::StoragePushConstant8 => self.push_8,
            Capability::StorageBuffer16BitAccess => self.storage_16,
            Capability::UniformAndStorageBuffer16BitAccess => self.uniform_16,
            Capability::StoragePushConstant16 => self.push_16,
            Capability::VulkanMemoryModel => self.memory_model,
            Capability::VulkanMemoryModelDeviceScope => self.memory_model_device,
            Capability::DotProduct
            | Capability::DotProductInputAll
            | Capability::DotProductInput4x8Bit
            | Capability::DotProductInput4x8BitPacked => self.integer_dot,
            Capability::StorageBufferArrayDynamicIndexing | Capability::UniformBufferArrayDynamicIndexing => {
                self.buffer_arrays
            }
            Capability::SampledBuffer | Capability::ImageBuffer | Capability::ImageQuery => {
                self.texel_buffers
            }
            Capability::StorageImageReadWithoutFormat => self.texel_buffers && self.read_without_format,
            Capability::StorageImageWriteWithoutFormat => self.texel_buffers && self.write_without_format,
            Capability::GroupNonUniform => basic,
            Capability::GroupNonUniformVote => vote,
            Capability::GroupNonUniformArithmetic => arithmetic,
            Capability::GroupNonUniformBallot => ballot,
            Capability::GroupNonUniformShuffle => shuffle,
            Capability::GroupNonUniformShuffleRelative => shuffle_relative,
            Capability::GroupNonUniformClustered => clustered,
            Capability::GroupNonUniformQuad => quad,
            _ => return None,
        })
    }
}

/// `FDot2MixAcc32VALVE` and its capability, which the `spirv` crate does not know yet.
pub(super) const MIXED_DOT: u32 = 6912;
pub(super) const MIXED_DOT_OP: u32 = 6916;

/// Capabilities that any module may declare, and that no result has: compilers declare them for whole programs, and what needs them is refused where it
/// stands, or dropped.
pub(super) fn is_dropped(code: u32) -> bool {
    matches!(
        Capability::from_u32(code),
        Some(
            Capability::VariablePointers
                | Capability::VariablePointersStorageBuffer
                | Capability::DemoteToHelperInvocation
                | Capability::ExpectAssumeKHR
                | Capability::StorageImageExtendedFormats
                | Capability::Sampled1D
                | Capability::Image1D
        )
    )
}

/// The extension that a capability needs in some version of SPIR-V from 1.3 on.
pub(super) fn extension(code: u32) -> Option<&'static str> {
    if code == MIXED_DOT {
        return Some("SPV_VALVE_mixed_float_dot_product");
    }
    Some(match Capability::from_u32(code)? {
        Capability::StorageBuffer8BitAccess
        | Capability::UniformAndStorageBuffer8BitAccess
        | Capability::StoragePushConstant8 => "SPV_KHR_8bit_storage",
        Capability::VulkanMemoryModel | Capability::VulkanMemoryModelDeviceScope => {
            "SPV_KHR_vulkan_memory_model"
        }
        Capability::DotProduct
        | Capability::DotProductInputAll
        | Capability::DotProductInput4x8Bit
        | Capability::DotProductInput4x8BitPacked => "SPV_KHR_integer_dot_product",
        Capability::AtomicFloat32AddEXT => "SPV_EXT_shader_atomic_float_add",
        _ => return None,
    })
}

/// What a capability implies, as the specification lists it.
pub(super) fn implied(code: u32) -> &'static [Capability] {
    match Capability::from_u32(code) {
        Some(Capability::UniformAndStorageBuffer8BitAccess) => &[Capability::StorageBuffer8BitAccess],
        Some(Capability::UniformAndStorageBuffer16BitAccess) => &[Capability::StorageBuffer16BitAccess],
        Some(Capability::Shader) => &[Capability::Matrix],
        Some(Capability::ImageBuffer) => &[Capability::SampledBuffer],
        Some(
            Capability::GroupNonUniformVote
            | Capability::GroupNonUniformArithmetic
            | Capability::GroupNonUniformBallot
            | Capability::GroupNonUniformShuffle
            | Capability::GroupNonUniformShuffleRelative
            | Capability::GroupNonUniformClustered
            | Capability::GroupNonUniformQuad,
        ) => &[Capability::GroupNonUniform],
        Some(Capability::DotProductInput4x8Bit) => &[Capability::Int8],
        _ => &[],
    }
}
