//! How far a buffer is that an engine put aside: what the next process of that engine goes on from (PRE-31).

/// The state of a buffer between two packets, two chunks of a copy or fill, or two slices of a dispatch. It lies in a
/// save area ([`super::save_area`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Saved {
    /// Bytes of packets that are done.
    pub at: u32,
    /// Bytes of the packet there that are done; thread groups of a dispatch, counted in x, then y, then z.
    pub done_in_packet: u64,
    /// Thread groups of the dispatch there in x, y, z, where some are done and the grid was read from memory, which may
    /// have changed since; else zero.
    pub grid: [u32; 3],
}
