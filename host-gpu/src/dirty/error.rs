//! What a caller can get wrong.

/// Why a request was refused. Nothing was changed, and nothing cleared.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say what the fields are")]
pub enum DirtyError {
    /// This segment has no dirty plane (DIRTY-09).
    #[error("writes to this segment are not tracked")]
    NotImplemented,
    /// The basis is of a segment that is not this one (DIRTY-18).
    #[error("segment {0} is not the one that is tracked here")]
    Segment(u32),
    /// No range, or more than [`super::basis::MAX_RANGES`] (DIRTY-19).
    #[error("a memory basis of {0} ranges")]
    RangeCount(usize),
    /// A range of no bytes (DIRTY-19).
    #[error("range {index} has no bytes")]
    Empty {
        /// Which, from zero.
        index: usize,
    },
    /// A range that ends past the segment (DIRTY-14).
    #[error("range {index} leaves the segment")]
    Outside {
        /// Which, from zero.
        index: usize,
    },
    /// A range that is not made of whole pages of the plane (DIRTY-17).
    #[error("range {index} is not made of whole pages of {page_size} bytes")]
    Misaligned {
        /// Which, from zero.
        index: usize,
        page_size: u64,
    },
    /// Two ranges share a byte (DIRTY-15).
    #[error("ranges {0} and {1} overlap")]
    Overlap(usize, usize),
    /// As many bases as there may be.
    #[error("there are {0} memory bases already")]
    TooMany(usize),
    /// No such basis: the caller has lost track of what it does (DIRTY-21).
    #[error("there is no such memory basis")]
    NoSuchBasis,
    /// It is tracked already (DIRTY-33).
    #[error("this memory basis is tracked already")]
    Started,
    /// It is not tracked (DIRTY-33, DIRTY-48).
    #[error("this memory basis is not tracked")]
    NotStarted,
    /// A sub-range that is no part of one range, or not made of whole pages (DIRTY-38, DIRTY-48).
    #[error("the sub-range is not made of whole pages inside of one range")]
    Subrange,
    /// The buffer is smaller than the bits (DIRTY-39).
    #[error("a buffer of {given} bytes, where {needed} are needed")]
    Buffer { needed: usize, given: usize },
    /// Bytes that are no whole pages, or lie outside of the segment.
    #[error("{length} bytes at {offset} are no whole pages of the segment")]
    Pages { offset: u64, length: u64 },
    /// The memory itself could not be read or written.
    #[error("reading or writing the segment: {0}")]
    Read(String),
}
