//! Memory as the GPU sees it.
//!
//! ```text
//!   GPU virtual address ──page table──▶ (segment, offset) ──segments──▶ bytes of a mapped file
//!        one space per guest process        never a base pointer         VRAM memfd, view of guest RAM
//! ```
//!
//! The daemon writes the page tables ([`page_table::writer`]); an engine maps them read-only and walks them
//! ([`page_table::reader`]). What an engine has resolved it forgets when the table generation rises, and only
//! after it has said so may memory be freed or moved (design §10.3).

pub mod bits;
pub mod local;
pub mod mapping;
pub mod page_table;
pub mod segment;
pub mod truncation;
pub mod view;
pub mod vram;
pub mod wants;
pub mod writes;
