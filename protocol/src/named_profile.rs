//! Named profiles: sets of limits and features that stay the same whatever device a vGPU runs on.
//!
//! A profile is to the GPU what a CPU model is to a VM. That of the host is as its device is, and such a vGPU moves to the same device
//! only. A named one has a fixed [`Profile`], which is all that guests are told and all that engines take; a vGPU with it moves
//! between all hosts whose devices have at least that. The number at the end of a name is its version: a set never changes under
//! its name.

use core::error::Error;
use core::fmt;
use core::str::FromStr;

use crate::profile;
use crate::profile::Profile;
use crate::profile::name_field;

/// Which profile a vGPU has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, PartialOrd, Ord, Hash)]
pub enum GpuProfile {
    /// What the host's device offers, as far as engine and guard take it.
    #[default]
    Host,
    /// What Vulkan 1.3 drivers of lavapipe, AMD (GFX9 on), Intel and NVIDIA (Turing on) have in common: see [`campanile_1`].
    Campanile1,
}

impl GpuProfile {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Host, Self::Campanile1];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Campanile1 => "campanile-1",
        }
    }

    /// By which engines are told of it.
    pub const fn number(self) -> u32 {
        match self {
            Self::Host => 0,
            Self::Campanile1 => 1,
        }
    }

    /// The one of this number.
    pub fn of_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|profile| profile.number() == number)
    }

    /// The set that it fixes; none where that is the device's.
    pub fn fixed(self) -> Option<Profile> {
        match self {
            Self::Host => None,
            Self::Campanile1 => Some(campanile_1()),
        }
    }
}

impl fmt::Display for GpuProfile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// No profile has this name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoSuchProfile;

impl fmt::Display for NoSuchProfile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("it is no GPU profile; host and campanile-1 are")
    }
}

impl Error for NoSuchProfile {}

impl FromStr for GpuProfile {
    type Err = NoSuchProfile;

    fn from_str(name: &str) -> Result<Self, NoSuchProfile> {
        Self::ALL.into_iter().find(|profile| profile.name() == name).ok_or(NoSuchProfile)
    }
}

/// `FEATURE_*`, by Vulkan's names.
const FEATURES: [(u64, &str); 25] = [
    (profile::FEATURE_STORAGE_8, "storageBuffer8BitAccess"),
    (profile::FEATURE_UNIFORM_8, "uniformAndStorageBuffer8BitAccess"),
    (profile::FEATURE_PUSH_8, "storagePushConstant8"),
    (profile::FEATURE_STORAGE_16, "storageBuffer16BitAccess"),
    (profile::FEATURE_UNIFORM_16, "uniformAndStorageBuffer16BitAccess"),
    (profile::FEATURE_PUSH_16, "storagePushConstant16"),
    (profile::FEATURE_INT_8, "shaderInt8"),
    (profile::FEATURE_INT_16, "shaderInt16"),
    (profile::FEATURE_INT_64, "shaderInt64"),
    (profile::FEATURE_FLOAT_16, "shaderFloat16"),
    (profile::FEATURE_FLOAT_64, "shaderFloat64"),
    (profile::FEATURE_ATOMIC_64, "shaderBufferInt64Atomics and shaderSharedInt64Atomics"),
    (profile::FEATURE_MEMORY_MODEL, "vulkanMemoryModel"),
    (profile::FEATURE_MEMORY_MODEL_DEVICE, "vulkanMemoryModelDeviceScope"),
    (profile::FEATURE_INTEGER_DOT, "shaderIntegerDotProduct"),
    (
        profile::FEATURE_BUFFER_ARRAYS,
        "shaderStorageBufferArrayDynamicIndexing and shaderUniformBufferArrayDynamicIndexing",
    ),
    (profile::FEATURE_SUBGROUP_EXTENDED, "shaderSubgroupExtendedTypes"),
    (profile::FEATURE_SUBGROUP_SIZES, "subgroupSizeControl"),
    (profile::FEATURE_UNIFORM_STANDARD, "uniformBufferStandardLayout"),
    (profile::FEATURE_SCALAR_LAYOUT, "scalarBlockLayout"),
    (profile::FEATURE_ATOMIC_FLOAT, "shaderBufferFloat32AtomicAdd and shaderSharedFloat32AtomicAdd"),
    (profile::FEATURE_TEXEL_BUFFERS, "texel buffers"),
    (profile::FEATURE_READ_WITHOUT_FORMAT, "shaderStorageImageReadWithoutFormat"),
    (profile::FEATURE_WRITE_WITHOUT_FORMAT, "shaderStorageImageWriteWithoutFormat"),
    (profile::FEATURE_TEXEL_FORMATS, "texel buffers of the formats of shaderStorageImageExtendedFormats"),
];

/// Groups of subgroup operations, by `VkSubgroupFeatureFlagBits`.
const OPERATIONS: [(u32, &str); 8] = [
    (1 << 0, "VK_SUBGROUP_FEATURE_BASIC_BIT"),
    (1 << 1, "VK_SUBGROUP_FEATURE_VOTE_BIT"),
    (1 << 2, "VK_SUBGROUP_FEATURE_ARITHMETIC_BIT"),
    (1 << 3, "VK_SUBGROUP_FEATURE_BALLOT_BIT"),
    (1 << 4, "VK_SUBGROUP_FEATURE_SHUFFLE_BIT"),
    (1 << 5, "VK_SUBGROUP_FEATURE_SHUFFLE_RELATIVE_BIT"),
    (1 << 6, "VK_SUBGROUP_FEATURE_CLUSTERED_BIT"),
    (1 << 7, "VK_SUBGROUP_FEATURE_QUAD_BIT"),
];

/// Version 1 of the set that drivers have in common.
///
/// The reason of each value is in `docs/book/vulkan.md`. Where there is none beside it, it is what Vulkan 1.3 or 1.4 demands of
/// every device, or what engine and guard take at the most.
pub fn campanile_1() -> Profile {
    Profile {
        // What later versions added is not in it.
        version: 1,
        // Programs that pass over CPUs take it, and none believes that it shares memory with it.
        kind: profile::KIND_VIRTUAL,
        // Those of a virtio-gpu device, which it is for the guest: no program has work-arounds for them.
        vendor: 0x1af4,
        device: 0x1050,
        // Vulkan 1.3.0.
        api_version: 1 << 22 | 3 << 12,
        driver_version: 1,
        // None of float64 (Intel since Xe-LP), atomics on 64 bits in workgroup memory (Intel), atomics on floats (AMD before GFX11).
        features: profile::FEATURE_STORAGE_8
            | profile::FEATURE_UNIFORM_8
            | profile::FEATURE_PUSH_8
            | profile::FEATURE_STORAGE_16
            | profile::FEATURE_UNIFORM_16
            | profile::FEATURE_PUSH_16
            | profile::FEATURE_INT_8
            | profile::FEATURE_INT_16
            | profile::FEATURE_INT_64
            | profile::FEATURE_FLOAT_16
            | profile::FEATURE_MEMORY_MODEL
            | profile::FEATURE_MEMORY_MODEL_DEVICE
            | profile::FEATURE_INTEGER_DOT
            | profile::FEATURE_BUFFER_ARRAYS
            | profile::FEATURE_UNIFORM_STANDARD
            | profile::FEATURE_SCALAR_LAYOUT,
        // Lavapipe's, and the least of Vulkan.
        storage_range: 128 << 20,
        uniform_range: 64 << 10,
        groups: [65535; 3],
        // All of these drivers have it; the least of Vulkan is an eighth.
        workgroup: [1024, 1024, 64],
        invocations: 1024,
        workgroup_memory: 32 << 10,
        sets: 8,
        bindings: 64,
        buffers: 64,
        // What every device must have that serves at all.
        storage_buffers: 16,
        uniform_buffers: 12,
        constants: 256,
        binding_alignment: 256,
        // Devices have 4 to 64, and no size in common. Without operations no kernel can tell: this is for the tiling of programs.
        subgroup_size: 32,
        subgroup_sizes: [0; 2],
        subgroup_operations: 0,
        texel_elements: 0,
        uniform_texels: 0,
        storage_texels: 0,
        reserved: [0; 8],
        device_uuid: *b"campanile-1:gpu\0",
        driver_uuid: *b"campanile-1:drv\0",
        name: name_field("campanile-1"),
        driver: name_field("GPU profile campanile-1"),
    }
}

/// What a device lacks of a profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lack {
    /// A feature, by Vulkan's name.
    Feature(&'static str),
    /// A limit: the field of [`Profile`], what the profile has, and what the device has.
    Limit(&'static str, u64, u64),
}

impl fmt::Display for Lack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Feature(name) => write!(f, "{name}: the profile has it, the device does not"),
            Self::Limit(field, profile, device) => {
                write!(f, "{field}: the profile has {profile}, the device {device}")
            }
        }
    }
}

/// What `device`, a host's own profile, lacks of `wanted`, in the order of the fields. Names and numbers are the profile's
/// alone, and its Vulkan version is what every device must have that serves.
pub fn lacks(wanted: &Profile, device: &Profile) -> impl Iterator<Item = Lack> {
    let missing = wanted.features & !device.features;
    let features = FEATURES.into_iter().filter(move |(bit, _)| missing & bit != 0);
    let missing = wanted.subgroup_operations & !device.subgroup_operations;
    let operations = OPERATIONS.into_iter().filter(move |(bit, _)| missing & bit != 0);
    let features = features.map(|(_, name)| name).chain(operations.map(|(_, name)| name));
    let at_least = |field, of: fn(&Profile) -> u64| (field, of(wanted), of(device));
    let limits = [
        at_least("storage_range", |it| it.storage_range),
        at_least("uniform_range", |it| it.uniform_range),
        at_least("groups in x", |it| it.groups[0].into()),
        at_least("groups in y", |it| it.groups[1].into()),
        at_least("groups in z", |it| it.groups[2].into()),
        at_least("workgroup in x", |it| it.workgroup[0].into()),
        at_least("workgroup in y", |it| it.workgroup[1].into()),
        at_least("workgroup in z", |it| it.workgroup[2].into()),
        at_least("invocations", |it| it.invocations.into()),
        at_least("workgroup_memory", |it| it.workgroup_memory.into()),
        at_least("sets", |it| it.sets.into()),
        at_least("bindings", |it| it.bindings.into()),
        at_least("buffers", |it| it.buffers.into()),
        at_least("storage_buffers", |it| it.storage_buffers.into()),
        at_least("uniform_buffers", |it| it.uniform_buffers.into()),
        at_least("constants", |it| it.constants.into()),
        at_least("texel_elements", |it| it.texel_elements.into()),
        at_least("uniform_texels", |it| it.uniform_texels.into()),
        at_least("storage_texels", |it| it.storage_texels.into()),
    ];
    let fewer = limits.into_iter().filter(|(_, wanted, has)| has < wanted);
    // Powers of two: one that is no smaller is a multiple.
    let alignment = [at_least("binding_alignment", |it| it.binding_alignment.into())];
    let coarser = alignment.into_iter().filter(|(_, wanted, has)| has > wanted);
    let limits = fewer.chain(coarser).map(|(field, wanted, has)| Lack::Limit(field, wanted, has));
    features.map(Lack::Feature).chain(limits)
}

#[cfg(test)]
mod tests {
    use super::FEATURES;
    use super::GpuProfile;
    use super::Lack;
    use super::NoSuchProfile;
    use super::campanile_1;
    use super::lacks;
    use crate::profile::FEATURE_FLOAT_16;
    use crate::profile::FEATURE_FLOAT_64;
    use crate::profile::Profile;
    use crate::profile::name_of;

    #[test]
    fn names_and_numbers_are_read_back_and_no_two_are_the_same() {
        for profile in GpuProfile::ALL {
            assert_eq!(profile.to_string().parse(), Ok(profile));
            assert_eq!(GpuProfile::of_number(profile.number()), Some(profile));
        }
        assert_eq!(GpuProfile::of_number(2), None);
        for none in ["", "campanile", "campanile-2", "Host"] {
            assert_eq!(none.parse::<GpuProfile>(), Err(NoSuchProfile), "{none}");
        }
        let told = NoSuchProfile.to_string();
        assert!(GpuProfile::ALL.iter().all(|profile| told.contains(profile.name())), "{told}");
    }

    #[test]
    fn a_named_profile_has_its_own_name_and_identity_and_that_of_the_host_fixes_nothing() {
        assert_eq!(GpuProfile::Host.fixed(), None);
        let fixed = GpuProfile::Campanile1.fixed().unwrap();
        assert_eq!(name_of(&fixed.name), GpuProfile::Campanile1.name());
        assert_ne!(fixed.device_uuid, fixed.driver_uuid);
        assert!(fixed.device_uuid.starts_with(GpuProfile::Campanile1.name().as_bytes()));
    }

    #[test]
    fn a_set_never_changes_under_its_name() {
        let bytes = zerocopy::IntoBytes::as_bytes(&campanile_1()).to_vec();
        // FNV-1a. Another value needs another name: guests have seen this one.
        let sum = bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum: u64, byte| {
            (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
        });
        assert_eq!(sum, 0xeace_229f_9a33_2a22, "{sum:#x}");
    }

    #[test]
    fn each_feature_has_a_name_and_what_is_missing_is_named() {
        let known = FEATURES.iter().fold(0, |sum, (bit, _)| sum | bit);
        assert_eq!((known, known.count_ones()), ((1 << 25) - 1, 25));
        for (bit, name) in FEATURES {
            let wanted = Profile { features: bit, ..campanile_1() };
            let device = Profile { features: !bit, ..campanile_1() };
            assert_eq!(lacks(&wanted, &device).collect::<Vec<_>>(), [Lack::Feature(name)]);
        }
        let wanted = Profile { subgroup_operations: 0x81, ..campanile_1() };
        let device = Profile { subgroup_operations: 0x7e, ..campanile_1() };
        let names = lacks(&wanted, &device).map(|lack| lack.to_string()).collect::<Vec<_>>().join("; ");
        assert_eq!(names.matches("VK_SUBGROUP_FEATURE").count(), 2, "{names}");
        assert!(
            names.contains("BASIC_BIT: the profile has it, the device does not") && names.contains("QUAD")
        );
    }

    /// A device that has less of one thing, and how that is told.
    type Row = (&'static str, fn(&mut Profile), [u64; 2]);

    /// Every limit.
    const ROWS: [Row; 17] = [
        ("storage_range", |it| it.storage_range -= 1, [134_217_728, 134_217_727]),
        ("uniform_range", |it| it.uniform_range -= 1, [65536, 65535]),
        ("groups in x", |it| it.groups[0] -= 1, [65535, 65534]),
        ("groups in y", |it| it.groups[1] -= 1, [65535, 65534]),
        ("groups in z", |it| it.groups[2] -= 1, [65535, 65534]),
        ("workgroup in x", |it| it.workgroup[0] -= 1, [1024, 1023]),
        ("workgroup in y", |it| it.workgroup[1] -= 1, [1024, 1023]),
        ("workgroup in z", |it| it.workgroup[2] -= 1, [64, 63]),
        ("invocations", |it| it.invocations -= 1, [1024, 1023]),
        ("workgroup_memory", |it| it.workgroup_memory -= 1, [32768, 32767]),
        ("sets", |it| it.sets -= 1, [8, 7]),
        ("bindings", |it| it.bindings -= 1, [64, 63]),
        ("buffers", |it| it.buffers -= 1, [64, 63]),
        ("storage_buffers", |it| it.storage_buffers -= 1, [16, 15]),
        ("uniform_buffers", |it| it.uniform_buffers -= 1, [12, 11]),
        ("constants", |it| it.constants -= 1, [256, 255]),
        ("binding_alignment", |it| it.binding_alignment *= 2, [256, 512]),
    ];

    #[test]
    fn each_limit_that_a_device_lacks_is_told_with_both_values_and_more_is_none() {
        let wanted = campanile_1();
        for (field, change, [profile, has]) in ROWS {
            let mut device = wanted;
            change(&mut device);
            let found: Vec<_> = lacks(&wanted, &device).collect();
            assert_eq!(found, [Lack::Limit(field, profile, has)]);
            assert_eq!(found[0].to_string(), format!("{field}: the profile has {profile}, the device {has}"));
            assert_eq!(lacks(&device, &wanted).count(), 0, "{field}: more is enough");
        }
        let mut device = wanted;
        ROWS.iter().for_each(|row| (row.1)(&mut device));
        device.features &= !FEATURE_FLOAT_16;
        assert_eq!(lacks(&wanted, &device).count(), 18, "all of them");
    }

    #[test]
    fn texel_buffers_are_told_where_a_profile_has_them() {
        let wanted = Profile { texel_elements: 5, uniform_texels: 6, storage_texels: 7, ..campanile_1() };
        let device = Profile { texel_elements: 4, uniform_texels: 6, storage_texels: 0, ..campanile_1() };
        let found: Vec<_> = lacks(&wanted, &device).collect();
        assert_eq!(found, [Lack::Limit("texel_elements", 5, 4), Lack::Limit("storage_texels", 7, 0)]);
        assert_eq!(lacks(&campanile_1(), &wanted).count(), 0);
    }

    #[test]
    fn a_device_has_its_own_name_numbers_and_whatever_is_in_no_profile() {
        let wanted = campanile_1();
        let device = Profile {
            kind: 4,
            vendor: 1,
            device: 2,
            driver_version: 3,
            features: wanted.features | FEATURE_FLOAT_64,
            subgroup_size: 8,
            subgroup_sizes: [8, 8],
            subgroup_operations: 0xff,
            device_uuid: [7; 16],
            driver_uuid: [8; 16],
            name: [b'x'; 256],
            driver: [b'y'; 256],
            ..wanted
        };
        assert_eq!(lacks(&wanted, &device).count(), 0);
    }
}
