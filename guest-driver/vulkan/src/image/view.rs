//! Views of images: what a kernel is bound to, and the record that it reads.

use ash::vk;

use super::object::Image;
use super::surface::Colours;
use super::surface::Part;
use super::surface::Surface;
use crate::abi;
use crate::abi::handle;
use crate::device::Device;
use crate::lower::records::LEVELS;
use crate::lower::records::ONE;
use crate::lower::records::SAMPLED;
use crate::lower::records::SRGB;
use crate::lower::records::VECTOR;
use crate::lower::records::ZERO;
use crate::texels;

/// A view.
#[derive(Debug)]
pub(crate) struct View {
    /// What it shows; nothing of an image without contents.
    pub(crate) shown: Option<Shown>,
    /// Whether kernels may write its format.
    pub(crate) is_stored: bool,
}

/// The texels of a view.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Shown {
    /// GPU virtual address of the first texel.
    pub(crate) va: u64,
    /// Bytes, of whole texels.
    pub(crate) length: u64,
    /// Code of the format.
    pub(crate) format: u16,
    /// Words of its record.
    pub(crate) record: [u32; SAMPLED as usize * VECTOR],
}

handle!(View, vk::ImageView);

/// The components of a texel in the order of a view, a byte each.
fn order(components: &vk::ComponentMapping) -> u32 {
    let vk::ComponentMapping { r, g, b, a } = *components;
    let byte = |(own, component): (u32, vk::ComponentSwizzle)| match component {
        vk::ComponentSwizzle::ZERO => ZERO,
        vk::ComponentSwizzle::ONE => ONE,
        vk::ComponentSwizzle::R => 0,
        vk::ComponentSwizzle::G => 1,
        vk::ComponentSwizzle::B => 2,
        vk::ComponentSwizzle::A => 3,
        _ => own,
    };
    [(3, a), (2, b), (1, g), (0, r)].into_iter().map(byte).fold(0, |all, byte| all << 8 | byte)
}

impl Shown {
    /// A part of an image at `va`, in a format whose texels are as large as the image's.
    pub(crate) fn of(surface: &Surface, va: u64, part: Part, colours: Colours, order: u32) -> Option<Self> {
        let format = colours.format;
        if u64::from(format.bytes) != surface.texel() || !part.is_in(surface) {
            return None;
        }
        let Part { level, levels, layer, layers } = part;
        let slices = |level| if surface.is_volume() { surface.slices(level) } else { layers };
        let first = surface.offset(level, layer);
        let last = level + levels - 1;
        let end = surface.offset(last, layer + slices(last) - 1) + surface.rows(last);
        let [width, height, _] = surface.extent(level);
        let texels = |bytes: u64| u32::try_from(bytes / surface.texel()).ok();
        let mask = texels(campanile_protocol::packet::BINDING_ALIGNMENT)?.checked_sub(1)?;
        let mut record = [0; SAMPLED as usize * VECTOR];
        let shrink = u32::from(surface.is_volume());
        let parts = format.components() | if colours.is_srgb { SRGB } else { 0 };
        let head = [width, height, slices(level), levels, mask, order, shrink, parts];
        record[..head.len()].copy_from_slice(&head);
        for (place, below) in record[head.len()..].iter_mut().zip(0..levels.min(LEVELS)) {
            *place = texels(surface.offset(level + below, layer) - first)?;
        }
        Some(Self { va: va + first, length: end - first, format: format.code, record })
    }
}

impl View {
    fn of(info: &vk::ImageViewCreateInfo<'_>, is_extended: bool) -> Self {
        let colours = Colours::of(info.format).filter(|it| it.format.uniform.is_there(is_extended));
        let shown = || {
            let (surface, va) = abi::get::<Image>(info.image).contents()?;
            let part = Part::of(surface, &info.subresource_range);
            Shown::of(surface, va, part, colours?, order(&info.components))
        };
        Self { shown: shown(), is_stored: colours.is_some_and(|it| it.format.storage.is_there(is_extended)) }
    }
}

pub(crate) extern "system" fn create(
    device: vk::Device,
    info: *const vk::ImageViewCreateInfo<'_>,
    _allocator: *const vk::AllocationCallbacks<'_>,
    out: *mut vk::ImageView,
) -> vk::Result {
    abi::command("vkCreateImageView", || {
        let is_extended = texels::is_extended(Device::of(device).profile.features);
        abi::give(View::of(abi::read(info), is_extended), out);
        Ok(())
    })
}

pub(crate) extern "system" fn destroy(
    _device: vk::Device,
    view: vk::ImageView,
    _allocator: *const vk::AllocationCallbacks<'_>,
) {
    abi::quiet("vkDestroyImageView", || drop(abi::take::<View>(view)));
}
