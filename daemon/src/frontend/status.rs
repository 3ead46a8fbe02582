//! Refusals in the words that every front's guests know.

use campanile_protocol::virtio_gpu::response;

use crate::vgpu::objects::refusal::Refusal;

/// The response code of a refusal (virtio 1.3, 5.7.6.7).
pub(super) const fn code_of(refusal: Refusal) -> u32 {
    match refusal {
        Refusal::OutOfMemory => response::ERR_OUT_OF_MEMORY,
        Refusal::Resource => response::ERR_INVALID_RESOURCE_ID,
        Refusal::Context => response::ERR_INVALID_CONTEXT_ID,
        Refusal::Parameter => response::ERR_INVALID_PARAMETER,
        Refusal::Unspecified => response::ERR_UNSPEC,
    }
}
