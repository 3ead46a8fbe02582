//! Commands on images: copies of rows, fills, and refusals of what would filter. Layouts of images are all one.

use ash::vk;

use super::buffer::record;
use super::recording::Recording;
use crate::abi;
use crate::abi::Outcome;
use crate::buffer::Buffer;
use crate::device::Core;
use crate::image::clear;
use crate::image::object::Image;
use crate::image::region::Grid;
use crate::image::region::Volume;
use crate::image::surface::Part;
use crate::image::surface::Surface;
use crate::report::report;

/// Bytes of a pattern that an image is filled with, where a word does not do.
const PATTERN: u64 = 64 << 10;

/// How an image lies, and where.
fn contents(image: vk::Image) -> Outcome<(&'static Surface, u64)> {
    abi::get::<Image>(image).contents().ok_or_else(|| {
        report!("an image is used that has no contents: no format of images is its own");
        vk::Result::ERROR_UNKNOWN
    })
}

/// A region of a copy between a buffer and an image, whichever command it came by.
#[derive(Clone, Copy)]
struct Region {
    offset: u64,
    pitch: [u32; 2],
    layers: vk::ImageSubresourceLayers,
    at: vk::Offset3D,
    extent: vk::Extent3D,
}

impl From<&vk::BufferImageCopy> for Region {
    fn from(region: &vk::BufferImageCopy) -> Self {
        Self {
            offset: region.buffer_offset,
            pitch: [region.buffer_row_length, region.buffer_image_height],
            layers: region.image_subresource,
            at: region.image_offset,
            extent: region.image_extent,
        }
    }
}

impl From<&vk::BufferImageCopy2<'_>> for Region {
    fn from(region: &vk::BufferImageCopy2<'_>) -> Self {
        Self {
            offset: region.buffer_offset,
            pitch: [region.buffer_row_length, region.buffer_image_height],
            layers: region.image_subresource,
            at: region.image_offset,
            extent: region.image_extent,
        }
    }
}

/// Which way a copy goes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    ToImage,
    ToBuffer,
}

/// A region of a copy between images.
#[derive(Clone, Copy)]
struct Pair {
    from: (vk::ImageSubresourceLayers, vk::Offset3D),
    to: (vk::ImageSubresourceLayers, vk::Offset3D),
    extent: vk::Extent3D,
}

/// Refuses levels and layers that an image has not.
fn check(surface: &Surface, layers: &vk::ImageSubresourceLayers) -> Outcome {
    if Part::of_layers(layers).is_in(surface) {
        return Ok(());
    }
    report!("a copy of level {} and {} layers that the image has not", layers.mip_level, layers.layer_count);
    Err(vk::Result::ERROR_UNKNOWN)
}

impl Recording {
    fn runs(&mut self, volume: Volume, from: Grid, to: Grid) {
        for run in volume.runs(from, to) {
            self.record(|packets| packets.copy(run.from, run.to, run.bytes));
        }
    }

    fn or_fail(&mut self, outcome: Outcome) {
        if let Err(failure) = outcome {
            self.fail(failure);
        }
    }

    fn buffer_and_image(
        &mut self,
        way: Way,
        buffer: vk::Buffer,
        image: vk::Image,
        regions: impl Iterator<Item = Region>,
    ) -> Outcome {
        let (surface, va) = contents(image)?;
        let buffer = abi::get::<Buffer>(buffer);
        for region in regions {
            check(surface, &region.layers)?;
            let inside = Grid::in_image(surface, va, &region.layers, region.at);
            let outside = Grid::in_buffer(surface, buffer.va(region.offset), region.pitch, region.extent);
            let volume = Volume::of(surface, region.layers.layer_count, region.extent);
            let (from, to) = if way == Way::ToImage { (outside, inside) } else { (inside, outside) };
            self.runs(volume, from, to);
        }
        Ok(())
    }

    fn images(&mut self, from: vk::Image, to: vk::Image, pairs: impl Iterator<Item = Pair>) -> Outcome {
        let ((from, from_va), (to, to_va)) = (contents(from)?, contents(to)?);
        if from.texel() != to.texel() {
            report!("a copy between images whose texels are of different sizes");
            return Err(vk::Result::ERROR_UNKNOWN);
        }
        for pair in pairs {
            check(from, &pair.from.0)?;
            check(to, &pair.to.0)?;
            // Layers of one may be the depth of the other.
            let volume = Volume::of(from, pair.from.0.layer_count, pair.extent);
            let source = Grid::in_image(from, from_va, &pair.from.0, pair.from.1);
            self.runs(volume, source, Grid::in_image(to, to_va, &pair.to.0, pair.to.1));
        }
        Ok(())
    }

    fn clear(
        &mut self,
        core: &Core,
        image: vk::Image,
        colour: [u32; 4],
        ranges: &[vk::ImageSubresourceRange],
    ) -> Outcome {
        let (surface, va) = contents(image)?;
        let texel = clear::texel(surface.colours, colour).ok_or(vk::Result::ERROR_UNKNOWN)?;
        for range in ranges {
            let part = Part::of(surface, range);
            if !part.is_in(surface) {
                return Err(vk::Result::ERROR_UNKNOWN);
            }
            for level in part.level..part.level + part.levels {
                let slices = if surface.is_volume() { surface.slices(level) } else { part.layers };
                let first = va + surface.offset(level, part.layer);
                self.fill_with(core, first, surface.slice(level) * u64::from(slices), &texel)?;
            }
        }
        Ok(())
    }

    /// Fills bytes, a multiple of 256, with a texel over and over.
    fn fill_with(&mut self, core: &Core, va: u64, bytes: u64, texel: &[u8]) -> Outcome {
        if let Some(word) = clear::word(texel) {
            self.record(|packets| packets.fill(va, bytes, word));
            return Ok(());
        }
        let length = bytes.min(PATTERN);
        let pattern: Vec<u8> =
            texel.iter().copied().cycle().take(usize::try_from(length).unwrap_or(0)).collect();
        let piece = core.heap.allocate(length)?;
        piece.write(0, &pattern)?;
        let mut at = 0;
        while at < bytes {
            let step = length.min(bytes - at);
            self.record(|packets| packets.copy(piece.va(), va + at, step));
            at += step;
        }
        self.inline.push(piece);
        Ok(())
    }
}

pub(crate) extern "system" fn from_buffer(
    buffer: vk::CommandBuffer,
    from: vk::Buffer,
    to: vk::Image,
    _layout: vk::ImageLayout,
    count: u32,
    regions: *const vk::BufferImageCopy,
) {
    record("vkCmdCopyBufferToImage", buffer, |recording, _| {
        let regions = abi::items(regions, count).iter().map(Region::from);
        let outcome = recording.buffer_and_image(Way::ToImage, from, to, regions);
        recording.or_fail(outcome);
    });
}

pub(crate) extern "system" fn from_buffer2(
    buffer: vk::CommandBuffer,
    info: *const vk::CopyBufferToImageInfo2<'_>,
) {
    record("vkCmdCopyBufferToImage2", buffer, |recording, _| {
        let info = abi::read(info);
        let regions = abi::items(info.p_regions, info.region_count).iter().map(Region::from);
        let outcome = recording.buffer_and_image(Way::ToImage, info.src_buffer, info.dst_image, regions);
        recording.or_fail(outcome);
    });
}

pub(crate) extern "system" fn to_buffer(
    buffer: vk::CommandBuffer,
    from: vk::Image,
    _layout: vk::ImageLayout,
    to: vk::Buffer,
    count: u32,
    regions: *const vk::BufferImageCopy,
) {
    record("vkCmdCopyImageToBuffer", buffer, |recording, _| {
        let regions = abi::items(regions, count).iter().map(Region::from);
        let outcome = recording.buffer_and_image(Way::ToBuffer, to, from, regions);
        recording.or_fail(outcome);
    });
}

pub(crate) extern "system" fn to_buffer2(
    buffer: vk::CommandBuffer,
    info: *const vk::CopyImageToBufferInfo2<'_>,
) {
    record("vkCmdCopyImageToBuffer2", buffer, |recording, _| {
        let info = abi::read(info);
        let regions = abi::items(info.p_regions, info.region_count).iter().map(Region::from);
        let outcome = recording.buffer_and_image(Way::ToBuffer, info.dst_buffer, info.src_image, regions);
        recording.or_fail(outcome);
    });
}

pub(crate) extern "system" fn copy(
    buffer: vk::CommandBuffer,
    from: vk::Image,
    _from_layout: vk::ImageLayout,
    to: vk::Image,
    _to_layout: vk::ImageLayout,
    count: u32,
    regions: *const vk::ImageCopy,
) {
    record("vkCmdCopyImage", buffer, |recording, _| {
        let pair = |region: &vk::ImageCopy| Pair {
            from: (region.src_subresource, region.src_offset),
            to: (region.dst_subresource, region.dst_offset),
            extent: region.extent,
        };
        let outcome = recording.images(from, to, abi::items(regions, count).iter().map(pair));
        recording.or_fail(outcome);
    });
}

pub(crate) extern "system" fn copy2(buffer: vk::CommandBuffer, info: *const vk::CopyImageInfo2<'_>) {
    record("vkCmdCopyImage2", buffer, |recording, _| {
        let pair = |region: &vk::ImageCopy2<'_>| Pair {
            from: (region.src_subresource, region.src_offset),
            to: (region.dst_subresource, region.dst_offset),
            extent: region.extent,
        };
        let info = abi::read(info);
        let regions = abi::items(info.p_regions, info.region_count);
        let outcome = recording.images(info.src_image, info.dst_image, regions.iter().map(pair));
        recording.or_fail(outcome);
    });
}

pub(crate) extern "system" fn clear(
    buffer: vk::CommandBuffer,
    image: vk::Image,
    _layout: vk::ImageLayout,
    colour: *const vk::ClearColorValue,
    count: u32,
    ranges: *const vk::ImageSubresourceRange,
) {
    record("vkCmdClearColorImage", buffer, |recording, core| {
        let colour = abi::item_at::<[u32; 4]>(colour.cast(), 0);
        let outcome = recording.clear(core, image, colour, abi::items(ranges, count));
        recording.or_fail(outcome);
    });
}

fn refuse(name: &'static str, buffer: vk::CommandBuffer) {
    record(name, buffer, |recording, _| {
        report!("{name}: no format is said to be good for it");
        recording.fail(vk::Result::ERROR_UNKNOWN);
    });
}

pub(crate) extern "system" fn blit2(buffer: vk::CommandBuffer, _info: *const vk::BlitImageInfo2<'_>) {
    refuse("vkCmdBlitImage2", buffer);
}

pub(crate) extern "system" fn resolve2(buffer: vk::CommandBuffer, _info: *const vk::ResolveImageInfo2<'_>) {
    refuse("vkCmdResolveImage2", buffer);
}
