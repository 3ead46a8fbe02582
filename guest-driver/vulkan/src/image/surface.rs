//! How the texels of an image lie in its memory.

use ash::vk;
use campanile_protocol::packet::BINDING_ALIGNMENT;
use campanile_protocol::texels;
use campanile_protocol::texels::Format;

/// Bytes of the largest image.
const MOST: u64 = 1 << 40;

/// The sizes of an image, which say where each texel lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Surface {
    kind: vk::ImageType,
    extent: [u32; 3],
    pub(crate) levels: u32,
    pub(crate) layers: u32,
    pub(crate) colours: Colours,
}

/// What is known of the format of an image: how its texels are stored, and how their numbers are meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Colours {
    /// The format of texel buffers that is stored in the same way.
    pub(crate) format: &'static Format,
    /// Whether red, green and blue are of sRGB: kernels read the light that they stand for, and write nothing.
    pub(crate) is_srgb: bool,
}

impl Colours {
    /// Of a format, if images may have it.
    pub(crate) fn of(format: vk::Format) -> Option<Self> {
        let linear = match format {
            vk::Format::R8_SRGB => vk::Format::R8_UNORM,
            vk::Format::R8G8_SRGB => vk::Format::R8G8_UNORM,
            vk::Format::R8G8B8A8_SRGB => vk::Format::R8G8B8A8_UNORM,
            vk::Format::B8G8R8A8_SRGB => vk::Format::B8G8R8A8_UNORM,
            vk::Format::A8B8G8R8_SRGB_PACK32 => vk::Format::A8B8G8R8_UNORM_PACK32,
            linear => linear,
        };
        let found = u16::try_from(linear.as_raw()).ok().and_then(texels::find)?;
        Some(Self { format: found, is_srgb: linear != format })
    }
}

impl Surface {
    /// Of an image of a format that is known, with one sample, if its bytes can be counted.
    pub(crate) fn of(info: &vk::ImageCreateInfo<'_>) -> Option<Self> {
        let vk::Extent3D { width, height, depth } = info.extent;
        let surface = Self {
            kind: info.image_type,
            extent: [width, height, depth],
            levels: info.mip_levels,
            layers: info.array_layers,
            colours: Colours::of(info.format)?,
        };
        let factors = [width, height, depth, info.array_layers, surface.colours.format.bytes];
        let bytes = factors.iter().try_fold(2_u64, |all, factor| all.checked_mul(u64::from(*factor)));
        let is_plain = info.samples == vk::SampleCountFlags::TYPE_1 && info.mip_levels <= 32;
        bytes.filter(|bytes| is_plain && *bytes <= MOST).map(|_| surface)
    }

    /// Width, height and depth of a level.
    pub(crate) fn extent(&self, level: u32) -> [u32; 3] {
        self.extent.map(|side| side.checked_shr(level).unwrap_or(0).max(1))
    }

    /// Whether its slices are those of one 3D image, and fewer in each level.
    pub(crate) fn is_volume(&self) -> bool {
        self.kind == vk::ImageType::TYPE_3D
    }

    /// Slices of a level: layers, or the depth.
    pub(crate) fn slices(&self, level: u32) -> u32 {
        if self.is_volume() { self.extent(level)[2] } else { self.layers }
    }

    /// Bytes of a texel.
    pub(crate) fn texel(&self) -> u64 {
        u64::from(self.colours.format.bytes)
    }

    /// Bytes of a row.
    pub(crate) fn row(&self, level: u32) -> u64 {
        u64::from(self.extent(level)[0]) * self.texel()
    }

    /// Bytes of the rows of a slice.
    pub(crate) fn rows(&self, level: u32) -> u64 {
        self.row(level) * u64::from(self.extent(level)[1])
    }

    /// Bytes from one slice to the next.
    pub(crate) fn slice(&self, level: u32) -> u64 {
        self.rows(level).next_multiple_of(BINDING_ALIGNMENT)
    }

    /// Bytes of a level.
    pub(crate) fn level(&self, level: u32) -> u64 {
        self.slice(level) * u64::from(self.slices(level))
    }

    /// The first byte of a slice.
    pub(crate) fn offset(&self, level: u32, slice: u32) -> u64 {
        let before: u64 = (0..level).map(|level| self.level(level)).sum();
        before + self.slice(level) * u64::from(slice)
    }

    /// Bytes of all levels.
    pub(crate) fn bytes(&self) -> u64 {
        self.offset(self.levels, 0)
    }
}

/// Levels and layers of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) level: u32,
    pub(crate) levels: u32,
    pub(crate) layer: u32,
    pub(crate) layers: u32,
}

impl Part {
    /// Those of a range, of which there may be as many as are left.
    pub(crate) fn of(surface: &Surface, range: &vk::ImageSubresourceRange) -> Self {
        let (level, layer) = (range.base_mip_level, range.base_array_layer);
        let or_rest = |count, all: u32, first| {
            if count == vk::REMAINING_MIP_LEVELS { all.saturating_sub(first) } else { count }
        };
        let (levels, layers) = (
            or_rest(range.level_count, surface.levels, level),
            or_rest(range.layer_count, surface.layers, layer),
        );
        Self { level, levels, layer, layers }
    }

    /// Those of a copy.
    pub(crate) fn of_layers(layers: &vk::ImageSubresourceLayers) -> Self {
        let (level, layer) = (layers.mip_level, layers.base_array_layer);
        Self { level, levels: 1, layer, layers: layers.layer_count }
    }

    /// Whether an image has them.
    pub(crate) fn is_in(&self, surface: &Surface) -> bool {
        let ends =
            |first: u32, count: u32, all| count > 0 && first.checked_add(count).is_some_and(|end| end <= all);
        ends(self.level, self.levels, surface.levels) && ends(self.layer, self.layers, surface.layers)
    }
}

#[cfg(test)]
mod tests {
    use ash::vk;
    use campanile_protocol::texels;

    use super::Colours;
    use super::Surface;

    fn surface(kind: vk::ImageType, [width, height, depth]: [u32; 3], levels: u32, layers: u32) -> Surface {
        let info = vk::ImageCreateInfo {
            image_type: kind,
            format: vk::Format::R8G8B8A8_UNORM,
            extent: vk::Extent3D { width, height, depth },
            mip_levels: levels,
            array_layers: layers,
            samples: vk::SampleCountFlags::TYPE_1,
            ..Default::default()
        };
        Surface::of(&info).unwrap()
    }

    #[test]
    fn slices_begin_where_kernels_can_be_bound_and_rows_have_no_gaps() {
        let layers = surface(vk::ImageType::TYPE_2D, [10, 7, 1], 3, 5);
        assert_eq!([0, 1, 2].map(|level| layers.extent(level)), [[10, 7, 1], [5, 3, 1], [2, 1, 1]]);
        assert_eq!((layers.row(0), layers.rows(0), layers.slice(0)), (40, 280, 512));
        assert_eq!(layers.offset(0, 4), 4 * 512);
        assert_eq!(layers.offset(1, 0), 5 * 512);
        assert_eq!(layers.offset(2, 1), 5 * 512 + 5 * 256 + 256);
        assert_eq!(layers.bytes(), 5 * 512 + 5 * 256 + 5 * 256);
    }

    #[test]
    fn levels_of_a_volume_have_fewer_slices() {
        let volume = surface(vk::ImageType::TYPE_3D, [64, 1, 9], 4, 1);
        assert_eq!([0, 1, 2, 3].map(|level| volume.slices(level)), [9, 4, 2, 1]);
        assert_eq!(volume.bytes(), 16 * 256);
    }

    #[test]
    fn formats_of_srgb_are_stored_as_those_of_the_same_name() {
        for format in texels::FORMATS {
            let linear = Colours::of(vk::Format::from_raw(format.code.into())).unwrap();
            assert_eq!(linear, Colours { format, is_srgb: false });
        }
        let all =
            (0..185).map(vk::Format::from_raw).filter_map(|format| Some((format, Colours::of(format)?)));
        let of_srgb: Vec<(vk::Format, Colours)> = all.filter(|(_, colours)| colours.is_srgb).collect();
        for (format, colours) in &of_srgb {
            assert_eq!(format!("{format:?}").replace("SRGB", "UNORM"), colours.format.name);
        }
        assert_eq!(of_srgb.len(), 5);
    }

    #[test]
    fn what_no_memory_holds_or_is_of_no_known_format_is_none() {
        let mut info = vk::ImageCreateInfo {
            format: vk::Format::R8_UNORM,
            extent: vk::Extent3D { width: 1, height: 1, depth: 1 },
            mip_levels: 1,
            array_layers: 1,
            samples: vk::SampleCountFlags::TYPE_1,
            ..Default::default()
        };
        assert!(Surface::of(&info).is_some());
        info.samples = vk::SampleCountFlags::TYPE_4;
        assert!(Surface::of(&info).is_none());
        info.samples = vk::SampleCountFlags::TYPE_1;
        info.format = vk::Format::E5B9G9R9_UFLOAT_PACK32;
        assert!(Surface::of(&info).is_none());
        info.format = vk::Format::R8_UNORM;
        info.extent = vk::Extent3D { width: u32::MAX, height: u32::MAX, depth: u32::MAX };
        assert!(Surface::of(&info).is_none());
    }
}
