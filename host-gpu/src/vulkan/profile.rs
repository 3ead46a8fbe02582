//! What guests are told of a device: the least of what it, the engine and the guard take; and what is left of it under a named profile.

use campanile_protocol::named_profile::GpuProfile;
use campanile_protocol::named_profile::lacks;
use campanile_protocol::packet::BINDING_ALIGNMENT;
use campanile_protocol::profile;
use campanile_protocol::profile::PROFILE_VERSION;
use campanile_protocol::profile::Profile;
use campanile_protocol::profile::name_field;

use crate::kernel::interface::WORKGROUP_INVOCATIONS_LIMIT;
use crate::kernel::interface::WORKGROUP_SIZE_LIMIT;
use crate::kernel::memory::WORKGROUP_LIMIT;
use crate::kernel::program::BINDING_LIMIT;
use crate::kernel::program::CONSTANTS_LIMIT;
use crate::kernel::program::DESCRIPTOR_LIMIT;
use crate::kernel::program::SET_LIMIT;
use crate::shader::profile::Profile as Features;
use crate::shader::profile::Subgroup;
use crate::vulkan::error::VulkanError;
use crate::vulkan::info::Info;
use crate::vulkan::info::Kind;
use crate::vulkan::info::Limits;
use crate::vulkan::raw::instance::Candidate;

/// A feature, and where the guard has it.
type Bit = (u64, fn(&mut Features) -> &mut bool);

/// `FEATURE_*` of kernels.
const BITS: [Bit; 24] = [
    (profile::FEATURE_STORAGE_8, |it| &mut it.storage_8),
    (profile::FEATURE_UNIFORM_8, |it| &mut it.uniform_8),
    (profile::FEATURE_PUSH_8, |it| &mut it.push_8),
    (profile::FEATURE_STORAGE_16, |it| &mut it.storage_16),
    (profile::FEATURE_UNIFORM_16, |it| &mut it.uniform_16),
    (profile::FEATURE_PUSH_16, |it| &mut it.push_16),
    (profile::FEATURE_INT_8, |it| &mut it.int_8),
    (profile::FEATURE_INT_16, |it| &mut it.int_16),
    (profile::FEATURE_INT_64, |it| &mut it.int_64),
    (profile::FEATURE_FLOAT_16, |it| &mut it.float_16),
    (profile::FEATURE_FLOAT_64, |it| &mut it.float_64),
    (profile::FEATURE_ATOMIC_64, |it| &mut it.atomic_64),
    (profile::FEATURE_MEMORY_MODEL, |it| &mut it.memory_model),
    (profile::FEATURE_MEMORY_MODEL_DEVICE, |it| &mut it.memory_model_device),
    (profile::FEATURE_INTEGER_DOT, |it| &mut it.integer_dot),
    (profile::FEATURE_BUFFER_ARRAYS, |it| &mut it.buffer_arrays),
    (profile::FEATURE_SUBGROUP_EXTENDED, |it| &mut it.subgroup.extended),
    (profile::FEATURE_UNIFORM_STANDARD, |it| &mut it.uniform_standard),
    (profile::FEATURE_SCALAR_LAYOUT, |it| &mut it.scalar_layout),
    (profile::FEATURE_ATOMIC_FLOAT, |it| &mut it.atomic_float),
    (profile::FEATURE_TEXEL_BUFFERS, |it| &mut it.texel_buffers),
    (profile::FEATURE_READ_WITHOUT_FORMAT, |it| &mut it.read_without_format),
    (profile::FEATURE_WRITE_WITHOUT_FORMAT, |it| &mut it.write_without_format),
    (profile::FEATURE_TEXEL_FORMATS, |it| &mut it.texel_formats),
];

/// In the order of `VkSubgroupFeatureFlagBits`.
const OPERATIONS: [fn(&mut Subgroup) -> &mut bool; 8] = [
    |it| &mut it.basic,
    |it| &mut it.vote,
    |it| &mut it.arithmetic,
    |it| &mut it.ballot,
    |it| &mut it.shuffle,
    |it| &mut it.shuffle_relative,
    |it| &mut it.clustered,
    |it| &mut it.quad,
];

impl Candidate {
    /// What guests are told of the device, as it is.
    pub(super) fn told(&self) -> Profile {
        of(&self.info, &self.limits, &self.profile)
    }

    /// Leaves of it what `profile` has. What guests are told then.
    ///
    /// # Errors
    /// The device has less.
    pub(super) fn restrict(&mut self, profile: GpuProfile) -> Result<Box<Profile>, VulkanError> {
        let told = self.told();
        let Some(fixed) = profile.fixed() else { return Ok(Box::new(told)) };
        let lacks: Vec<String> = lacks(&fixed, &told).map(|lack| lack.to_string()).collect();
        if !lacks.is_empty() {
            let (device, lacks) = (self.info.to_string(), lacks.join("; "));
            return Err(VulkanError::Profile { device, profile: profile.name(), lacks });
        }
        self.limits = limits_within(&self.limits, &fixed);
        self.profile = features_within(&self.profile, &fixed);
        Ok(Box::new(fixed))
    }
}

/// The profile of a device.
pub(super) fn of(info: &Info, limits: &Limits, features: &Features) -> Profile {
    let [workgroup, groups] = [limits.workgroup, limits.groups];
    let least = |limit: u32, ours: u64| u32::try_from(ours).unwrap_or(u32::MAX).min(limit);
    let texels = |limit: u32| if features.texel_buffers { limit.min(DESCRIPTOR_LIMIT) } else { 0 };
    let identity = info.identity;
    Profile {
        version: PROFILE_VERSION,
        kind: match info.kind {
            Kind::Discrete => profile::KIND_DISCRETE,
            Kind::Integrated => profile::KIND_INTEGRATED,
            Kind::Virtual => profile::KIND_VIRTUAL,
            Kind::Cpu => profile::KIND_CPU,
            Kind::Other => profile::KIND_OTHER,
        },
        vendor: identity.vendor,
        device: identity.device,
        api_version: identity.api_version,
        driver_version: identity.driver_version,
        features: features_of(features, limits),
        storage_range: limits.binding_length,
        uniform_range: limits.uniform_length,
        groups,
        workgroup: [0, 1, 2].map(|side| workgroup[side].min(WORKGROUP_SIZE_LIMIT[side])),
        invocations: least(limits.invocations, WORKGROUP_INVOCATIONS_LIMIT),
        workgroup_memory: least(limits.workgroup_memory, WORKGROUP_LIMIT),
        sets: limits.sets.min(SET_LIMIT),
        bindings: BINDING_LIMIT,
        buffers: DESCRIPTOR_LIMIT,
        // One more holds the grid.
        storage_buffers: limits.storage_buffers.saturating_sub(1).min(DESCRIPTOR_LIMIT),
        uniform_buffers: limits.uniform_buffers.min(DESCRIPTOR_LIMIT),
        constants: limits.constants.min(CONSTANTS_LIMIT),
        binding_alignment: least(u32::MAX, BINDING_ALIGNMENT.max(limits.binding_alignment)),
        subgroup_size: limits.subgroup_size,
        subgroup_sizes: limits.subgroup_sizes,
        subgroup_operations: operations_of(features),
        texel_elements: if features.texel_buffers { limits.texel_elements } else { 0 },
        uniform_texels: texels(limits.uniform_texels),
        storage_texels: texels(limits.storage_texels),
        reserved: [0; 8],
        device_uuid: identity.device_uuid,
        driver_uuid: identity.driver_uuid,
        name: name_field(&info.name),
        driver: name_field(&format!("{} {}", info.driver, info.driver_version)),
    }
}

fn features_of(features: &Features, limits: &Limits) -> u64 {
    let mut features = *features;
    let sizes = if limits.subgroup_sizes == [0; 2] { 0 } else { profile::FEATURE_SUBGROUP_SIZES };
    BITS.into_iter().fold(sizes, |sum, (bit, field)| if *field(&mut features) { sum | bit } else { sum })
}

/// In the order of `VkSubgroupFeatureFlagBits`.
fn operations_of(features: &Features) -> u32 {
    let mut it = features.subgroup;
    (0..).zip(OPERATIONS).fold(0, |sum, (bit, field)| if *field(&mut it) { sum | 1 << bit } else { sum })
}

/// Of `features`, those that `to` has, too: a device offers more than a vGPU with a named profile may use.
pub(super) fn features_within(features: &Features, to: &Profile) -> Features {
    let mut features = Features { mixed_dot: false, ..*features };
    for (bit, field) in BITS {
        *field(&mut features) &= to.features & bit != 0;
    }
    for (bit, field) in (0..).zip(OPERATIONS) {
        *field(&mut features.subgroup) &= to.subgroup_operations & 1 << bit != 0;
    }
    features
}

/// The limits of `to`, on a device that has at least those.
pub(super) fn limits_within(limits: &Limits, to: &Profile) -> Limits {
    Limits {
        groups: to.groups,
        binding_length: to.storage_range,
        uniform_length: to.uniform_range,
        binding_alignment: to.binding_alignment.into(),
        // What guests do not see.
        import_alignment: limits.import_alignment,
        allocation_length: limits.allocation_length,
        workgroup: to.workgroup,
        invocations: to.invocations,
        workgroup_memory: to.workgroup_memory,
        sets: to.sets,
        // One more holds the grid.
        storage_buffers: to.storage_buffers + 1,
        uniform_buffers: to.uniform_buffers,
        texel_elements: to.texel_elements,
        uniform_texels: to.uniform_texels,
        storage_texels: to.storage_texels,
        constants: to.constants,
        subgroup_size: to.subgroup_size,
        subgroup_sizes: to.subgroup_sizes,
    }
}

#[cfg(test)]
mod tests {
    use campanile_protocol::profile;

    use campanile_protocol::named_profile::campanile_1;
    use campanile_protocol::named_profile::lacks;

    use super::features_of;
    use super::features_within;
    use super::limits_within;
    use super::of;
    use super::operations_of;
    use crate::shader::profile::Profile as Features;
    use crate::shader::profile::Subgroup;
    use crate::vulkan::info::Identity;
    use crate::vulkan::info::ImportMethod;
    use crate::vulkan::info::Info;
    use crate::vulkan::info::Kind;
    use crate::vulkan::info::Limits;

    fn info() -> Info {
        Info {
            name: "a card".to_owned(),
            driver: "d".to_owned(),
            driver_version: "3.1".to_owned(),
            api_version: [1, 3, 0],
            kind: Kind::Discrete,
            import: ImportMethod::HostPointer,
            identity: Identity {
                vendor: 1,
                device: 2,
                api_version: 3,
                driver_version: 4,
                device_uuid: [5; 16],
                driver_uuid: [6; 16],
            },
        }
    }

    /// Each a little more or less than what is taken at the most.
    fn limits(large: bool) -> Limits {
        let pick = |small: u32, much: u32| if large { much } else { small };
        Limits {
            groups: [7, 8, 9],
            binding_length: 10,
            uniform_length: 11,
            binding_alignment: if large { 512 } else { 16 },
            import_alignment: 4096,
            allocation_length: 1 << 30,
            workgroup: [pick(256, 2048), pick(128, 2048), pick(32, 2048)],
            invocations: pick(512, 2048),
            workgroup_memory: pick(16 << 10, 64 << 10),
            sets: pick(4, 32),
            storage_buffers: pick(17, 1000),
            uniform_buffers: pick(12, 1000),
            uniform_texels: pick(16, 1000),
            storage_texels: pick(4, 1000),
            texel_elements: 65536,
            constants: pick(128, 4096),
            subgroup_size: 32,
            subgroup_sizes: [8, 64],
        }
    }

    #[test]
    fn it_says_the_least_of_what_device_and_guard_take() {
        let small = of(&info(), &limits(false), &Features::default());
        assert_eq!(
            (small.workgroup, small.invocations, small.workgroup_memory),
            ([256, 128, 32], 512, 16 << 10)
        );
        assert_eq!((small.sets, small.storage_buffers, small.uniform_buffers), (4, 16, 12));
        assert_eq!((small.constants, small.binding_alignment), (128, 256));
        assert_eq!((small.texel_elements, small.uniform_texels, small.storage_texels), (0, 0, 0));
        let large = of(&info(), &limits(true), &Features::ALL);
        assert_eq!((large.texel_elements, large.uniform_texels, large.storage_texels), (65536, 64, 64));
        let few = of(&info(), &limits(false), &Features::ALL);
        assert_eq!((few.uniform_texels, few.storage_texels), (16, 4));
        assert_eq!(
            (large.workgroup, large.invocations, large.workgroup_memory),
            ([1024, 1024, 64], 1024, 32 << 10)
        );
        assert_eq!((large.sets, large.storage_buffers, large.uniform_buffers), (8, 64, 64));
        assert_eq!((large.constants, large.binding_alignment), (256, 512));
        for profile in [small, large] {
            assert_eq!((profile.groups, profile.storage_range, profile.uniform_range), ([7, 8, 9], 10, 11));
            assert_eq!((profile.buffers, profile.bindings), (64, 64));
            assert_eq!((profile.kind, profile.vendor, profile.device), (profile::KIND_DISCRETE, 1, 2));
            assert_eq!((profile.api_version, profile.driver_version), (3, 4));
            assert_eq!((profile.device_uuid, profile.driver_uuid), ([5; 16], [6; 16]));
            assert_eq!((profile.subgroup_size, profile.subgroup_sizes), (32, [8, 64]));
            assert_eq!(profile::name_of(&profile.name), "a card");
            assert_eq!(profile::name_of(&profile.driver), "d 3.1");
        }
    }

    #[test]
    fn each_feature_has_its_bit_and_no_other() {
        let none = Limits { subgroup_sizes: [0; 2], ..limits(false) };
        assert_eq!(features_of(&Features::default(), &none), 0);
        assert_eq!(features_of(&Features::default(), &limits(false)), profile::FEATURE_SUBGROUP_SIZES);
        assert_eq!(features_of(&Features::ALL, &limits(false)), (1 << 25) - 1);
        let only = |change: fn(&mut Features)| {
            let mut features = Features::default();
            change(&mut features);
            features_of(&features, &none)
        };
        assert_eq!(only(|it| it.storage_16 = true), profile::FEATURE_STORAGE_16);
        assert_eq!(only(|it| it.int_64 = true), profile::FEATURE_INT_64);
        assert_eq!(only(|it| it.uniform_standard = true), profile::FEATURE_UNIFORM_STANDARD);
        assert_eq!(only(|it| it.scalar_layout = true), profile::FEATURE_SCALAR_LAYOUT);
        assert_eq!(only(|it| it.atomic_float = true), profile::FEATURE_ATOMIC_FLOAT);
        assert_eq!(only(|it| it.float_16 = true), profile::FEATURE_FLOAT_16);
        assert_eq!(only(|it| it.subgroup.extended = true), profile::FEATURE_SUBGROUP_EXTENDED);
        let subgroup = Subgroup { ballot: true, quad: true, ..Subgroup::default() };
        assert_eq!(
            operations_of(&Features { subgroup, ..Features::default() }),
            0x88,
            "as Vulkan numbers them"
        );
        assert_eq!(operations_of(&Features::ALL), 0xff);
    }

    #[test]
    fn under_a_named_profile_a_device_with_more_is_told_to_be_just_that() {
        let fixed = campanile_1();
        let device = of(&info(), &limits(true), &Features::ALL);
        assert_eq!(
            lacks(&fixed, &device).map(|lack| lack.to_string()).collect::<Vec<_>>(),
            [
                "storage_range: the profile has 134217728, the device 10",
                "uniform_range: the profile has 65536, the device 11",
                "groups in x: the profile has 65535, the device 7",
                "groups in y: the profile has 65535, the device 8",
                "groups in z: the profile has 65535, the device 9",
                "binding_alignment: the profile has 256, the device 512",
            ]
        );
        let much = Limits {
            groups: [u32::MAX; 3],
            binding_length: 1 << 30,
            uniform_length: 1 << 30,
            binding_alignment: 4,
            ..limits(true)
        };
        assert_eq!(lacks(&fixed, &of(&info(), &much, &Features::ALL)).count(), 0);
        let (limits, features) = (limits_within(&much, &fixed), features_within(&Features::ALL, &fixed));
        let told = of(&info(), &limits, &features);
        let named = campanile_protocol::profile::Profile {
            version: told.version,
            kind: told.kind,
            vendor: told.vendor,
            device: told.device,
            api_version: told.api_version,
            driver_version: told.driver_version,
            device_uuid: told.device_uuid,
            driver_uuid: told.driver_uuid,
            name: told.name,
            driver: told.driver,
            ..fixed
        };
        assert_eq!(told, named, "limits and features are those of the profile, and nothing beside");
        assert!(!features.mixed_dot, "no profile names it");
        assert_eq!(limits.import_alignment, much.import_alignment, "which is the host's business");
        assert_eq!(features_within(&Features::default(), &fixed), Features::default(), "none is added");
    }
}
