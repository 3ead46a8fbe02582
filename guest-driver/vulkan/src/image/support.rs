//! What a device has of images: formats, and how large they may be.

use ash::vk;
use campanile_protocol::profile;
use campanile_protocol::profile::Profile;
use campanile_protocol::texels::Number;

use super::surface::Colours;
use crate::physical::PhysicalDevice;
use crate::texels;

/// Texels of the largest image of the least sizes that Vulkan allows: a device whose kernels see fewer has no images.
const LEAST: u32 = 4096 * 4096;
/// Sides of an image beyond which levels have no place in a record.
const SIDE: u32 = 16384;
/// Layers of an image.
pub(crate) const LAYERS: u32 = 256;
/// What Vulkan says that an image may be as large as, though a device need not have one that is.
const BYTES: u64 = 1 << 31;

/// Usages by which kernels see an image: it is no longer than a texel buffer then.
pub(crate) const SEEN: vk::ImageUsageFlags = vk::ImageUsageFlags::from_raw(
    vk::ImageUsageFlags::STORAGE.as_raw() | vk::ImageUsageFlags::SAMPLED.as_raw(),
);

/// Bytes of the most common texel, by which sides are told; images of larger ones may have fewer.
const COMMON: u64 = 4;

/// Bytes of the longest texel buffer of texels of these bytes: what is bound is no longer than a storage buffer, too.
pub(crate) fn longest(profile: &Profile, texel: u64) -> u64 {
    profile.storage_range.min(u64::from(profile.texel_elements) * texel)
}

/// Common texels of the longest texel buffer.
fn texels(profile: &Profile) -> u32 {
    u32::try_from(longest(profile, COMMON) / COMMON).unwrap_or(u32::MAX)
}

/// Whether kernels have images: texel buffers, of as many texels as an image may have.
pub(crate) fn has_images(profile: &Profile) -> bool {
    profile.features & profile::FEATURE_TEXEL_BUFFERS != 0 && texels(profile) >= LEAST
}

/// Whether kernels may name the formats of storage images that Vulkan does not ask of every device: they become texel buffers without a
/// format.
pub(crate) fn has_further_formats(profile: &Profile) -> bool {
    let bare = profile::FEATURE_READ_WITHOUT_FORMAT | profile::FEATURE_WRITE_WITHOUT_FORMAT;
    has_images(profile) && texels::is_extended(profile.features) && profile.features & bare == bare
}

/// The largest power of two whose power is no more than `texels`.
fn side(texels: u32, power: u32) -> u32 {
    let fits = |side: &u32| side.checked_pow(power).is_some_and(|all| all <= texels);
    (0..16).map(|bit| 1_u32 << bit).take_while(fits).last().unwrap_or(1)
}

/// The largest sides of images of one or two dimensions, and of three.
pub(crate) fn sides(profile: &Profile) -> [u32; 2] {
    let texels = texels(profile).max(LEAST);
    [side(texels, 2).min(SIDE), side(texels, 3).min(2048)]
}

/// What images of a format are good for, however they are tiled.
pub(crate) fn features(physical: &PhysicalDevice, format: vk::Format) -> vk::FormatFeatureFlags2 {
    use vk::FormatFeatureFlags2 as Flag;
    let is_extended = texels::is_extended(physical.profile.features);
    let Some(Colours { format: known, is_srgb }) = Colours::of(format)
        .filter(|colours| has_images(&physical.profile) && colours.format.uniform.is_there(is_extended))
    else {
        return Flag::empty();
    };
    let mut features = Flag::TRANSFER_SRC | Flag::TRANSFER_DST | Flag::SAMPLED_IMAGE;
    let mut add = |is_there: bool, more| {
        if is_there {
            features |= more;
        }
    };
    // What kernels write is not encoded.
    let is_storage = known.storage.is_there(is_extended) && !is_srgb;
    let has = |feature| is_storage && physical.has(feature);
    let (reads, writes) =
        (has(profile::FEATURE_READ_WITHOUT_FORMAT), has(profile::FEATURE_WRITE_WITHOUT_FORMAT));
    // Where kernels name no format because texel buffers have none of that name, they need both.
    add(is_storage && (known.image.is_some() || reads && writes), Flag::STORAGE_IMAGE);
    add(known.has_atomics(), Flag::STORAGE_IMAGE_ATOMIC);
    add(known.number == Number::Float, Flag::SAMPLED_IMAGE_FILTER_LINEAR);
    add(reads, Flag::STORAGE_READ_WITHOUT_FORMAT);
    add(writes, Flag::STORAGE_WRITE_WITHOUT_FORMAT);
    features
}

/// The usages of images that features allow.
fn usages(features: vk::FormatFeatureFlags2) -> vk::ImageUsageFlags {
    use vk::FormatFeatureFlags2 as Flag;
    use vk::ImageUsageFlags as Usage;
    let pairs = [
        (Flag::TRANSFER_SRC, Usage::TRANSFER_SRC),
        (Flag::TRANSFER_DST, Usage::TRANSFER_DST),
        (Flag::SAMPLED_IMAGE, Usage::SAMPLED),
        (Flag::STORAGE_IMAGE, Usage::STORAGE),
    ];
    pairs
        .iter()
        .filter(|(flag, _)| features.contains(*flag))
        .fold(Usage::empty(), |all, (_, usage)| all | *usage)
}

/// How large images of these properties may be; none where there are no such images.
pub(crate) fn properties(
    physical: &PhysicalDevice,
    info: &vk::PhysicalDeviceImageFormatInfo2<'_>,
) -> Option<vk::ImageFormatProperties> {
    use vk::ImageCreateFlags as Flag;
    let allowed = Flag::MUTABLE_FORMAT | Flag::CUBE_COMPATIBLE | Flag::ALIAS | Flag::EXTENDED_USAGE;
    let features = features(physical, info.format);
    // A view may be of another format, which is good for more.
    let is_extended = info.flags.contains(Flag::MUTABLE_FORMAT | Flag::EXTENDED_USAGE);
    let wished = if is_extended { vk::FormatFeatureFlags2::from_raw(u64::MAX) } else { features };
    let is_cube = info.flags.contains(Flag::CUBE_COMPATIBLE);
    let is_volume = info.ty == vk::ImageType::TYPE_3D;
    let is_linear = info.tiling == vk::ImageTiling::LINEAR;
    let fits = !features.is_empty()
        && allowed.contains(info.flags)
        && usages(wished).contains(info.usage)
        && (is_linear || info.tiling == vk::ImageTiling::OPTIMAL)
        && (!is_cube || info.ty == vk::ImageType::TYPE_2D);
    if !fits {
        return None;
    }
    let [flat, deep] = sides(&physical.profile);
    let (width, height, depth) = match info.ty {
        vk::ImageType::TYPE_1D => (flat, 1, 1),
        vk::ImageType::TYPE_2D => (flat, flat, 1),
        _ => (deep, deep, deep),
    };
    let bytes = Colours::of(info.format).map_or(1, |colours| u64::from(colours.format.bytes));
    Some(vk::ImageFormatProperties {
        max_extent: vk::Extent3D { width, height, depth },
        max_mip_levels: if is_linear { 1 } else { width.ilog2() + 1 },
        max_array_layers: if is_linear || is_volume { 1 } else { LAYERS },
        sample_counts: vk::SampleCountFlags::TYPE_1,
        max_resource_size: largest(longest(&physical.profile, bytes), info.usage, physical.video_memory()),
    })
}

/// Bytes of the largest image, where a texel buffer has `longest` at the most, and there are `memory` bytes. Vulkan has no driver say less than
/// 2 GiB: what is larger than kernels can see then is refused when it is made.
fn largest(longest: u64, usage: vk::ImageUsageFlags, memory: u64) -> u64 {
    (if usage.intersects(SEEN) { longest } else { memory }).max(BYTES)
}

#[cfg(test)]
mod tests {
    use ash::vk;

    use super::BYTES;
    use super::LEAST;
    use super::largest;
    use super::side;

    #[test]
    fn no_image_is_said_to_be_larger_than_kernels_or_memory_allow_but_for_vulkans_least() {
        let (seen, copied) = (vk::ImageUsageFlags::SAMPLED, vk::ImageUsageFlags::TRANSFER_SRC);
        assert_eq!([1, 3, 4].map(|longest| largest(longest << 30, seen, 9 << 30)), [BYTES, 3 << 30, 4 << 30]);
        assert_eq!([5, 1].map(|memory| largest(1 << 30, copied, memory << 30)), [5 << 30, BYTES]);
    }

    #[test]
    fn an_image_of_the_largest_sides_has_no_more_texels_than_a_kernel_sees() {
        assert_eq!((side(LEAST, 2), side(LEAST, 3)), (4096, 256));
        assert_eq!((side((1 << 26) - 1, 2), side(1 << 26, 2)), (4096, 8192));
        assert_eq!((side(u32::MAX, 2), side(u32::MAX, 3)), (32768, 1024));
        assert_eq!(side(0, 2), 1);
    }
}
