//! Whether the guest sees the aperture of video memory.

use crate::vgpu::objects::timeline::Token;

/// Whether the guest can see the aperture. It takes the front-end a moment to map it; a MAP_BLOB that comes
/// earlier is parked (design §4).
#[derive(Debug)]
pub(in crate::vgpu) enum Window {
    /// Not yet: these wait for it (resource, offset, token).
    Awaited(Vec<(u32, u64, Token)>),
    /// It can.
    Open,
    /// It never will.
    Never,
}
