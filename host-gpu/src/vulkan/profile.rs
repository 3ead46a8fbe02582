//! What guests are told of a device: the least of what it, the engine and the guard take.

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
use crate::vulkan::info::Info;
use crate::vulkan::info::Kind;
use crate::vulkan::info::Limits;

/// The profile of a device.
pub(super) fn of(info: &Info, limits: &Limits, features: &Features) -> Profile {
    let [workgroup, groups] = [limits.workgroup, limits.groups];
    let least = |limit: u32, ours: u64| u32::try_from(ours).unwrap_or(u32::MAX).min(limit);
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
        reserved: [0; 11],
        device_uuid: identity.device_uuid,
        driver_uuid: identity.driver_uuid,
        name: name_field(&info.name),
        driver: name_field(&format!("{} {}", info.driver, info.driver_version)),
    }
}

fn features_of(features: &Features, limits: &Limits) -> u64 {
    let named = [
        (features.storage_8, profile::FEATURE_STORAGE_8),
        (features.uniform_8, profile::FEATURE_UNIFORM_8),
        (features.push_8, profile::FEATURE_PUSH_8),
        (features.storage_16, profile::FEATURE_STORAGE_16),
        (features.uniform_16, profile::FEATURE_UNIFORM_16),
        (features.push_16, profile::FEATURE_PUSH_16),
        (features.int_8, profile::FEATURE_INT_8),
        (features.int_16, profile::FEATURE_INT_16),
        (features.int_64, profile::FEATURE_INT_64),
        (features.float_16, profile::FEATURE_FLOAT_16),
        (features.float_64, profile::FEATURE_FLOAT_64),
        (features.atomic_64, profile::FEATURE_ATOMIC_64),
        (features.memory_model, profile::FEATURE_MEMORY_MODEL),
        (features.memory_model_device, profile::FEATURE_MEMORY_MODEL_DEVICE),
        (features.integer_dot, profile::FEATURE_INTEGER_DOT),
        (features.buffer_arrays, profile::FEATURE_BUFFER_ARRAYS),
        (features.subgroup.extended, profile::FEATURE_SUBGROUP_EXTENDED),
        (limits.subgroup_sizes != [0; 2], profile::FEATURE_SUBGROUP_SIZES),
        (features.uniform_standard, profile::FEATURE_UNIFORM_STANDARD),
        (features.scalar_layout, profile::FEATURE_SCALAR_LAYOUT),
        (features.atomic_float, profile::FEATURE_ATOMIC_FLOAT),
    ];
    sum(named)
}

/// In the order of `VkSubgroupFeatureFlagBits`.
fn operations_of(features: &Features) -> u32 {
    let it = features.subgroup;
    let bits =
        [it.basic, it.vote, it.arithmetic, it.ballot, it.shuffle, it.shuffle_relative, it.clustered, it.quad];
    (0..).zip(bits).filter(|(_, has)| *has).fold(0, |sum, (bit, _)| sum | 1 << bit)
}

fn sum<const N: usize>(named: [(bool, u64); N]) -> u64 {
    named.into_iter().filter(|(has, _)| *has).fold(0, |sum, (_, bit)| sum | bit)
}

#[cfg(test)]
mod tests {
    use campanile_protocol::profile;

    use super::features_of;
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
            workgroup: [pick(256, 2048), pick(128, 2048), pick(32, 2048)],
            invocations: pick(512, 2048),
            workgroup_memory: pick(16 << 10, 64 << 10),
            sets: pick(4, 32),
            storage_buffers: pick(17, 1000),
            uniform_buffers: pick(12, 1000),
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
        let large = of(&info(), &limits(true), &Features::default());
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
        assert_eq!(features_of(&Features::ALL, &limits(false)), (1 << 21) - 1);
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
}
