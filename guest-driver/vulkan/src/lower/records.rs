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
//! `parts` says how many the format has.

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
    /// The vector that the first one begins at.
    pub(crate) first: u32,
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
