//! What guests, fronts and other rooms ask of memory, where engines, buffers or answers follow from it.
//!
//! [`Memory`](crate::vgpu::memory::room::Memory) changes itself and says what must follow; here that is carried out, in
//! order.

pub mod blobs;
pub mod dirty;
pub mod mapping;
pub mod paging;
pub mod residency;
pub mod residency_requests;
pub mod save_areas;
