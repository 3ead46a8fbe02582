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

impl Sampler {
    fn of(_info: &vk::SamplerCreateInfo<'_>) -> Self {
        Self { record: Words::default() }
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
