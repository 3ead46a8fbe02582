//! Texel buffers: views of buffers in a format, which kernels are bound to like buffers.

use ash::vk;
use campanile_protocol::profile;
use campanile_protocol::texels;
use campanile_protocol::texels::Format;

use crate::abi;
use crate::abi::handle;
use crate::buffer::Buffer;
use crate::device::Device;
use crate::physical::PhysicalDevice;
use crate::report::report;

/// A view of a buffer as texels.
#[derive(Debug)]
pub(crate) struct View {
    /// GPU virtual address of the first texel.
    pub(crate) va: u64,
    /// Bytes, of whole texels.
    pub(crate) length: u64,
    /// Code of the format.
    pub(crate) format: u16,
}

handle!(View, vk::BufferView);

/// Whether a profile with these features has the formats that not every device has.
pub(crate) fn is_extended(features: u64) -> bool {
    features & profile::FEATURE_TEXEL_FORMATS != 0
}

/// What is known of a format, where the profile says that there are texel buffers of it.
fn known(features: u64, format: vk::Format) -> Option<&'static Format> {
    let code = u16::try_from(format.as_raw()).ok().filter(|_| features & profile::FEATURE_TEXEL_BUFFERS != 0);
    code.and_then(texels::find).filter(|known| known.uniform.is_there(is_extended(features)))
}

/// What buffers in a format are good for.
pub(crate) fn features(physical: &PhysicalDevice, format: vk::Format) -> vk::FormatFeatureFlags2 {
    use vk::FormatFeatureFlags2 as Flag;
    let Some(known) = known(physical.profile.features, format) else { return Flag::empty() };
    let mut features = Flag::UNIFORM_TEXEL_BUFFER;
    let mut add = |is_there: bool, more| {
        if is_there {
            features |= more;
        }
    };
    let is_storage = known.storage.is_there(is_extended(physical.profile.features));
    add(is_storage, Flag::STORAGE_TEXEL_BUFFER);
    add(known.has_atomics(), Flag::STORAGE_TEXEL_BUFFER_ATOMIC);
    let has = |feature| is_storage && physical.has(feature);
    add(has(profile::FEATURE_READ_WITHOUT_FORMAT), Flag::STORAGE_READ_WITHOUT_FORMAT);
    add(has(profile::FEATURE_WRITE_WITHOUT_FORMAT), Flag::STORAGE_WRITE_WITHOUT_FORMAT);
    features
}

/// Bytes of the whole texels among `bytes`.
fn whole(bytes: u64, format: &Format) -> u64 {
    bytes / u64::from(format.bytes) * u64::from(format.bytes)
}

pub(crate) extern "system" fn create(
    device: vk::Device,
    info: *const vk::BufferViewCreateInfo<'_>,
    _allocator: *const vk::AllocationCallbacks<'_>,
    out: *mut vk::BufferView,
) -> vk::Result {
    abi::command("vkCreateBufferView", || {
        let info = abi::read(info);
        let Some(format) = known(Device::of(device).profile.features, info.format) else {
            report!("vkCreateBufferView: no texel buffer has the format {:?}", info.format);
            return Err(vk::Result::ERROR_FORMAT_NOT_SUPPORTED);
        };
        let buffer = abi::get::<Buffer>(info.buffer);
        let length = whole(buffer.range(info.offset, info.range), format);
        abi::give(View { va: buffer.va(info.offset), length, format: format.code }, out);
        Ok(())
    })
}

pub(crate) extern "system" fn destroy(
    _device: vk::Device,
    view: vk::BufferView,
    _allocator: *const vk::AllocationCallbacks<'_>,
) {
    abi::quiet("vkDestroyBufferView", || drop(abi::take::<View>(view)));
}

#[cfg(test)]
mod tests {
    use ash::vk;
    use campanile_protocol::profile;
    use campanile_protocol::texels;

    use super::known;
    use super::whole;

    #[test]
    fn formats_are_known_where_the_profile_has_texel_buffers() {
        let all = profile::FEATURE_TEXEL_BUFFERS | profile::FEATURE_TEXEL_FORMATS;
        assert_eq!(known(all, vk::Format::R8G8B8A8_UNORM).map(|format| format.name), Some("R8G8B8A8_UNORM"));
        assert_eq!(known(!profile::FEATURE_TEXEL_BUFFERS, vk::Format::R8G8B8A8_UNORM), None);
        // Not every device has it.
        let least = profile::FEATURE_TEXEL_BUFFERS;
        let names =
            [all, least].map(|features| known(features, vk::Format::R16_UNORM).map(|known| known.name));
        assert_eq!(names, [Some("R16_UNORM"), None]);
        // As many numbers as Vulkan gives them.
        for format in [vk::Format::UNDEFINED, vk::Format::R64_UINT, vk::Format::G8B8G8R8_422_UNORM] {
            assert_eq!(known(all, format), None, "{format:?}");
        }
        for format in texels::FORMATS {
            let name = format!("{:?}", vk::Format::from_raw(format.code.into()));
            assert_eq!(name, format.name);
        }
    }

    #[test]
    fn the_last_texel_of_a_view_is_a_whole_one() {
        let format = |code| texels::find(code).unwrap();
        assert_eq!([0, 15, 16, 17, 47].map(|bytes| whole(bytes, format(109))), [0, 0, 16, 16, 32]);
        assert_eq!([5, 4].map(|bytes| whole(bytes, format(9))), [5, 4]);
    }
}
