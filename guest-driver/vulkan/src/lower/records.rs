//! What a kernel is told of the images that it is bound to: records in one buffer, which a dispatch fills from the descriptors.
//!
//! ```text
//!   storage image           │ width height slices levels │ mask order shrink parts │
//!   sampled image           │ …                          │ …                       │ first texel of levels 0 … 15: four vectors │
//!   with a sampler          │ …                                                                                             │ sampler │
//!   sampler                 │ flags bias least most │ border colour │
//! ```
//!
//! A vector is four words. `slices` are layers, or the depth; `mask` rounds the texels of a slice up to where the next one begins;
//! `shrink` is 1 where levels have fewer slices, as those of 3D images; `order` has a component of the view's swizzle in each byte, and
//! `parts` says how many the format has, and whether they are of sRGB.

use campanile_protocol::texels;
use campanile_protocol::texels::Format;
use campanile_protocol::texels::Number;

/// Words of a vector.
pub(crate) const VECTOR: usize = 4;

/// Vectors of what each kind of record holds.
pub(crate) const STORAGE: u32 = 2;
pub(crate) const SAMPLED: u32 = 6;
pub(crate) const SAMPLER: u32 = 2;

/// Levels whose first texel a record has.
pub(crate) const LEVELS: u32 = 16;

/// A component of `order` that is zero, or one; below are those of the texel.
pub(crate) const ZERO: u32 = 4;
pub(crate) const ONE: u32 = 5;

/// A bit of `parts`: the first three are not linear, and become so when they are read.
pub(crate) const SRGB: u32 = 16;

/// What a binding holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Storage images.
    Storage,
    /// Images that are fetched from or sampled.
    Sampled,
    /// The same, with a sampler each.
    Combined,
    /// Samplers.
    Sampler,
}

impl Kind {
    /// Vectors of a record.
    pub(crate) fn vectors(self) -> u32 {
        match self {
            Self::Storage => STORAGE,
            Self::Sampled => SAMPLED,
            Self::Combined => SAMPLED + SAMPLER,
            Self::Sampler => SAMPLER,
        }
    }
}

/// The records of a binding: one for each of its elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Records {
    /// The descriptor set.
    pub(crate) set: u32,
    /// The number that the kernel has it under.
    pub(crate) slot: u32,
    /// How many elements it has.
    pub(crate) count: u32,
    /// What they are.
    pub(crate) kind: Kind,
    /// What the kernel reads and writes.
    pub(crate) number: Number,
    /// The format that it names, by its code; 0 where it names none.
    pub(crate) format: u16,
    /// The vector that the first one begins at.
    pub(crate) first: u32,
}

impl Records {
    /// The format to bind a view of format `shown` in. One that is not as the kernel says shows bits as what they are not, as Vulkan
    /// allows, where the host would refuse it.
    pub(crate) fn bound(&self, shown: u16) -> u16 {
        let is_float = |number| number == Number::Float;
        match texels::find(shown) {
            _ if self.format != 0 => self.format,
            Some(format) if is_float(format.number) != is_float(self.number) => {
                let same = |other: &&Format| other.bytes == format.bytes && other.number == self.number;
                let best = texels::FORMATS.iter().filter(same).max_by_key(|other| other.storage);
                best.map_or(shown, |other| other.code)
            }
            _ => shown,
        }
    }
}

impl Images {
    /// The records of a binding.
    pub(crate) fn of(&self, set: u32, slot: u32) -> Option<&Records> {
        self.records.iter().find(|records| (records.set, records.slot) == (set, slot))
    }
}

/// The images of a module, and where its kernels read about them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Images {
    /// Set and number of the buffer of records.
    pub(crate) place: (u32, u32),
    /// What it holds.
    pub(crate) records: Vec<Records>,
    /// Its vectors.
    pub(crate) vectors: u32,
}

#[cfg(test)]
mod tests {
    use campanile_protocol::texels;
    use campanile_protocol::texels::Number;
    use campanile_protocol::texels::Offer;

    use super::Kind;
    use super::Records;

    #[test]
    fn views_are_bound_in_formats_that_the_kernel_can_have() {
        let records =
            |kind, number, format| Records { set: 0, slot: 0, count: 1, kind, number, format, first: 0 };
        let named = records(Kind::Storage, Number::Float, 37);
        assert_eq!([37, 98, 109].map(|shown| named.bound(shown)), [37; 3]);
        for number in [Number::Float, Number::Signed, Number::Unsigned] {
            let open = records(Kind::Sampled, number, 0);
            for shown in texels::FORMATS {
                let bound = texels::find(open.bound(shown.code)).unwrap();
                let is_float = |number| number == Number::Float;
                assert_eq!(is_float(bound.number), is_float(number), "{}", shown.name);
                let fits = is_float(shown.number) == is_float(number);
                // What is written stays writable.
                assert!(if fits { bound == shown } else { bound.storage >= shown.storage }, "{}", shown.name);
                assert_eq!(bound.bytes, shown.bytes);
                // No device has to have more for it.
                assert!(fits || bound.uniform == Offer::Always, "{}", bound.name);
            }
        }
    }
}
