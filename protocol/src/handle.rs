//! Names of objects across the border.

/// Name of one object of one guest process: an index with the generation of what lives there, so that a
/// handle kept too long names nothing instead of a neighbour. Zero is never a handle.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    zerocopy::FromBytes,
    zerocopy::IntoBytes,
    zerocopy::Immutable,
    zerocopy::KnownLayout,
)]
#[repr(transparent)]
pub struct Handle(pub u64);

impl Handle {
    /// The handle that names nothing.
    pub const NONE: Self = Self(0);

    /// Joins an index and its generation (1 or more).
    pub const fn new(index: u32, generation: u32) -> Self {
        Self(((generation as u64) << 32) | index as u64)
    }

    /// The place in its owner's table.
    pub const fn index(self) -> u32 {
        (self.0 & 0xffff_ffff) as u32
    }

    /// Which of the objects that lived at that place.
    pub const fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::Handle;

    #[test]
    fn index_and_generation_survive_packing() {
        let handle = Handle::new(7, 3);
        assert_eq!((handle.index(), handle.generation()), (7, 3));
        assert_ne!(handle, Handle::new(7, 4));
        assert_ne!(Handle::new(0, 1), Handle::NONE);
    }
}
