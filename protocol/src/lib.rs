//! Every byte that crosses a border of Campanile, and the order rules between its writers and readers.
//!
//! ```text
//!   guest program                    daemon                       engine process
//!   ─────────────                    ──────                       ──────────────
//!   virtio_gpu ──── control queue ──▶ virtio_gpu
//!   control    ──── in SUBMIT_3D ───▶ control
//!   device_page ◀── shared words ───▶ device_page ◀──────────────▶ device_page
//!   queue, packet ─ guest's own memory ─────────────────────────▶ queue, packet
//!                                     engine (shared block) ◀────▶ engine
//!                                     page_table ────────────────▶ page_table
//! ```
//!
//! Nothing here touches memory: layouts are plain data, and [`handshake`] states the order rules over a
//! trait, so that the code that runs is the code that the model checker has seen.
//! All integers are little-endian.

#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

#[cfg(target_endian = "big")]
compile_error!("Campanile's shared memory is little-endian, and so must the machine be");

pub mod capset;
pub mod control;
pub mod device_page;
pub mod driver_caps;
pub mod engine;
pub mod fs;
pub mod handle;
pub mod handshake;
pub mod named_profile;
pub mod packet;
pub mod page_table;
pub mod profile;
pub mod queue;
pub mod texels;
pub mod virtio_gpu;

/// Version of everything in this crate, `major << 16 | minor`. Another major version is refused; a higher
/// minor version only adds.
///
/// | Version | What it added |
/// |---|---|
/// | 1.0 | all that is not named below |
/// | 1.1 | [`control::pipeline`], [`profile`], descriptor sets and arrays of buffers in [`packet::Binding`], uniform buffers, 64 bindings, 256 bytes of constants |
pub const PROTOCOL_VERSION: u32 = 1 << 16 | 1;

/// Bytes of a page: the unit of mapping, of page tables and of dirty tracking.
pub const PAGE_SIZE: u64 = page_table::PAGE_SIZE;
