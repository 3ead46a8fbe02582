//! Samplers: the words that kernels sample by.

use ash::vk;

use crate::abi;
use crate::abi::handle;
use crate::lower::records::SAMPLER;
use crate::lower::records::VECTOR;

/// Words of a sampler's record.
pub(crate) type Words = [u32; SAMPLER as usize * VECTOR];

/// A sampler.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Sampler {
    /// Its record.
    pub(crate) record: Words,
}

handle!(Sampler, vk::Sampler);

/// How far a sampler may move levels, as the limits say.
pub(crate) const BIAS: f32 = 2.0;

/// Flags of the first word, as the library of kernels reads them: filters, coordinates in texels, and address modes by their numbers
/// in Vulkan.
fn flags(info: &vk::SamplerCreateInfo<'_>) -> u32 {
    let linear = |filter| u32::from(filter == vk::Filter::LINEAR);
    let levels = u32::from(info.mipmap_mode == vk::SamplerMipmapMode::LINEAR);
    let is_in_texels = u32::from(info.unnormalized_coordinates != vk::FALSE);
    let mode = |mode: vk::SamplerAddressMode| mode.as_raw().cast_unsigned() & 7;
    linear(info.mag_filter)
        | linear(info.min_filter) << 1
        | levels << 2
        | is_in_texels << 3
        | mode(info.address_mode_u) << 8
        | mode(info.address_mode_v) << 11
        | mode(info.address_mode_w) << 14
}

fn border(colour: vk::BorderColor) -> [u32; 4] {
    let one = 1.0_f32.to_bits();
    match colour {
        vk::BorderColor::FLOAT_OPAQUE_BLACK => [0, 0, 0, one],
        vk::BorderColor::INT_OPAQUE_BLACK => [0, 0, 0, 1],
        vk::BorderColor::FLOAT_OPAQUE_WHITE => [one; 4],
        vk::BorderColor::INT_OPAQUE_WHITE => [1; 4],
        _ => [0; 4],
    }
}

impl Sampler {
    fn of(info: &vk::SamplerCreateInfo<'_>) -> Self {
        let bias = info.mip_lod_bias.clamp(-BIAS, BIAS);
        let [r, g, b, a] = border(info.border_color);
        let levels = [bias, info.min_lod, info.max_lod].map(f32::to_bits);
        Self { record: [flags(info), levels[0], levels[1], levels[2], r, g, b, a] }
    }
}

pub(crate) extern "system" fn create(
    _device: vk::Device,
    info: *const vk::SamplerCreateInfo<'_>,
    _allocator: *const vk::AllocationCallbacks<'_>,
    out: *mut vk::Sampler,
) -> vk::Result {
    abi::command("vkCreateSampler", || {
        abi::give(Sampler::of(abi::read(info)), out);
        Ok(())
    })
}

pub(crate) extern "system" fn destroy(
    _device: vk::Device,
    sampler: vk::Sampler,
    _allocator: *const vk::AllocationCallbacks<'_>,
) {
    abi::quiet("vkDestroySampler", || drop(abi::take::<Sampler>(sampler)));
}
