//! Formats of texel buffers, where the profile has them ([`crate::profile::FEATURE_TEXEL_BUFFERS`]): those that Vulkan asks of every
//! device, and those that it asks of devices with `shaderStorageImageExtendedFormats` ([`crate::profile::FEATURE_TEXEL_FORMATS`]), by their
//! numbers in Vulkan and in SPIR-V. Guest driver, guard and engine know these and no others.

/// What the components of a texel are read as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Number {
    /// Floats of 32 bits, whatever is stored.
    Float,
    /// Integers with a sign, of 32 bits.
    Signed,
    /// Integers without a sign, of 32 bits.
    Unsigned,
}

/// Which devices with texel buffers have a format for a kind of them: the more of them, the greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Offer {
    /// None.
    Never,
    /// Those with [`crate::profile::FEATURE_TEXEL_FORMATS`].
    Extended,
    /// All.
    Always,
}

impl Offer {
    /// Whether a device has it, which has the further formats or not.
    pub const fn is_there(self, is_extended: bool) -> bool {
        match self {
            Self::Always => true,
            Self::Extended => is_extended,
            Self::Never => false,
        }
    }
}

/// A format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Format {
    /// `VkFormat`; never 0.
    pub code: u16,
    /// Vulkan's name for it, without `VK_FORMAT_`.
    pub name: &'static str,
    /// Bytes of a texel.
    pub bytes: u32,
    /// What is read.
    pub number: Number,
    /// Whether uniform texel buffers may have it.
    pub uniform: Offer,
    /// Whether storage texel buffers may have it.
    pub storage: Offer,
    /// `Image Format` of SPIR-V that is the same, where a storage texel buffer can name it without further capabilities.
    pub image: Option<u32>,
}

impl Format {
    /// Whether kernels may do atomics on its texels: a word each.
    pub const fn has_atomics(&self) -> bool {
        matches!(self.code, 98 | 99)
    }

    /// How many components a texel has.
    pub const fn components(&self) -> u32 {
        match self.code {
            9..=14 | 70..=76 | 98..=100 => 1,
            16..=21 | 77..=83 | 101..=103 => 2,
            122 => 3,
            _ => 4,
        }
    }
}

const fn read(code: u16, name: &'static str, bytes: u32, number: Number) -> Format {
    Format { code, name, bytes, number, uniform: Offer::Always, storage: Offer::Never, image: None }
}

/// One that all devices read, and some write.
const fn often(code: u16, name: &'static str, bytes: u32, number: Number) -> Format {
    Format { storage: Offer::Extended, ..read(code, name, bytes, number) }
}

/// One that some devices read and write.
const fn seldom(code: u16, name: &'static str, bytes: u32, number: Number) -> Format {
    Format { uniform: Offer::Extended, ..often(code, name, bytes, number) }
}

const fn written(code: u16, name: &'static str, bytes: u32, number: Number, image: Option<u32>) -> Format {
    Format { storage: Offer::Always, image, ..read(code, name, bytes, number) }
}

use Number::Float;
use Number::Signed;
use Number::Unsigned;

/// All of them, ascending by code.
pub const FORMATS: &[Format] = &[
    often(9, "R8_UNORM", 1, Float),
    often(10, "R8_SNORM", 1, Float),
    often(13, "R8_UINT", 1, Unsigned),
    often(14, "R8_SINT", 1, Signed),
    often(16, "R8G8_UNORM", 2, Float),
    often(17, "R8G8_SNORM", 2, Float),
    often(20, "R8G8_UINT", 2, Unsigned),
    often(21, "R8G8_SINT", 2, Signed),
    written(37, "R8G8B8A8_UNORM", 4, Float, Some(4)),
    written(38, "R8G8B8A8_SNORM", 4, Float, Some(5)),
    written(41, "R8G8B8A8_UINT", 4, Unsigned, Some(32)),
    written(42, "R8G8B8A8_SINT", 4, Signed, Some(23)),
    read(44, "B8G8R8A8_UNORM", 4, Float),
    read(51, "A8B8G8R8_UNORM_PACK32", 4, Float),
    read(52, "A8B8G8R8_SNORM_PACK32", 4, Float),
    read(55, "A8B8G8R8_UINT_PACK32", 4, Unsigned),
    read(56, "A8B8G8R8_SINT_PACK32", 4, Signed),
    often(64, "A2B10G10R10_UNORM_PACK32", 4, Float),
    often(68, "A2B10G10R10_UINT_PACK32", 4, Unsigned),
    seldom(70, "R16_UNORM", 2, Float),
    seldom(71, "R16_SNORM", 2, Float),
    often(74, "R16_UINT", 2, Unsigned),
    often(75, "R16_SINT", 2, Signed),
    often(76, "R16_SFLOAT", 2, Float),
    seldom(77, "R16G16_UNORM", 4, Float),
    seldom(78, "R16G16_SNORM", 4, Float),
    often(81, "R16G16_UINT", 4, Unsigned),
    often(82, "R16G16_SINT", 4, Signed),
    often(83, "R16G16_SFLOAT", 4, Float),
    seldom(91, "R16G16B16A16_UNORM", 8, Float),
    seldom(92, "R16G16B16A16_SNORM", 8, Float),
    written(95, "R16G16B16A16_UINT", 8, Unsigned, Some(31)),
    written(96, "R16G16B16A16_SINT", 8, Signed, Some(22)),
    written(97, "R16G16B16A16_SFLOAT", 8, Float, Some(2)),
    written(98, "R32_UINT", 4, Unsigned, Some(33)),
    written(99, "R32_SINT", 4, Signed, Some(24)),
    written(100, "R32_SFLOAT", 4, Float, Some(3)),
    written(101, "R32G32_UINT", 8, Unsigned, None),
    written(102, "R32G32_SINT", 8, Signed, None),
    written(103, "R32G32_SFLOAT", 8, Float, None),
    written(107, "R32G32B32A32_UINT", 16, Unsigned, Some(30)),
    written(108, "R32G32B32A32_SINT", 16, Signed, Some(21)),
    written(109, "R32G32B32A32_SFLOAT", 16, Float, Some(1)),
    often(122, "B10G11R11_UFLOAT_PACK32", 4, Float),
];

/// The format of this number in Vulkan.
pub fn find(code: u16) -> Option<&'static Format> {
    FORMATS.iter().find(|format| format.code == code)
}

/// The format that a kernel names by this `Image Format`, which is not 0, of a storage texel buffer.
pub fn of_image(image: u32) -> Option<&'static Format> {
    FORMATS.iter().find(|format| format.image == Some(image))
}

#[cfg(test)]
mod tests {
    use super::FORMATS;
    use super::Number;
    use super::Offer;
    use super::find;
    use super::of_image;

    #[test]
    fn each_is_found_by_its_numbers() {
        assert!(FORMATS.windows(2).all(|pair| pair[0].code < pair[1].code));
        for format in FORMATS {
            assert_eq!(find(format.code), Some(format));
            assert!(
                format
                    .image
                    .is_none_or(|image| of_image(image) == Some(format) && format.storage == Offer::Always)
            );
        }
        assert_eq!((find(0), find(104), of_image(0), of_image(6)), (None, None, None, None));
    }

    #[test]
    fn further_formats_are_those_that_vulkan_lists_together() {
        // Those of `shaderStorageImageExtendedFormats`, each of which is a storage texel buffer's then.
        let mut wanted =
            vec!["B10G11R11_UFLOAT_PACK32", "A2B10G10R10_UNORM_PACK32", "A2B10G10R10_UINT_PACK32"];
        let bits = ["R8", "R8G8", "R16", "R16G16"];
        let numbers = ["UNORM", "SNORM", "UINT", "SINT"];
        let plain: Vec<String> =
            bits.iter().flat_map(|bits| numbers.map(|number| format!("{bits}_{number}"))).collect();
        wanted.extend(plain.iter().map(String::as_str));
        wanted.extend(["R16_SFLOAT", "R16G16_SFLOAT", "R16G16B16A16_UNORM", "R16G16B16A16_SNORM"]);
        wanted.sort_unstable();
        let of = |offer: fn(&super::Format) -> Offer| {
            let mut names: Vec<&str> =
                FORMATS.iter().filter(|f| offer(f) == Offer::Extended).map(|format| format.name).collect();
            names.sort_unstable();
            names
        };
        assert_eq!(of(|format| format.storage), wanted);
        wanted.retain(|name| name.starts_with("R16") && name.contains("NORM"));
        assert_eq!(of(|format| format.uniform), wanted);
        assert!(Offer::Extended.is_there(true) && !Offer::Extended.is_there(false));
        assert!(
            [true, false].map(|all| Offer::Always.is_there(all) && !Offer::Never.is_there(all)) == [true; 2]
        );
    }

    #[test]
    fn names_say_what_is_in_a_texel() {
        for format in FORMATS {
            let number = match format.name {
                name if name.contains("_UINT") => Number::Unsigned,
                name if name.contains("_SINT") => Number::Signed,
                _ => Number::Float,
            };
            let components = format.name.split('_').next().unwrap();
            let bits: u32 = components
                .split(|letter: char| letter.is_ascii_uppercase())
                .filter_map(|n| n.parse::<u32>().ok())
                .sum();
            let count = components.chars().filter(char::is_ascii_uppercase).count();
            assert_eq!((format.number, format.bytes * 8), (number, bits), "{}", format.name);
            assert_eq!(format.components() as usize, count, "{}", format.name);
        }
        let atomic: Vec<&str> =
            FORMATS.iter().filter(|format| format.has_atomics()).map(|format| format.name).collect();
        assert_eq!(atomic, ["R32_UINT", "R32_SINT"]);
    }
}
