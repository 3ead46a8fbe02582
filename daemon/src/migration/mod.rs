//! Moving a vGPU from one daemon to another while its guest runs.
//!
//! ```text
//!   source daemon                                                       target daemon
//!   front::gpu ── attach ──▶ source::departure                          target::arrivals ◀── claim ── front::gpu (LOAD)
//!                             │ dirty bitmap ◀─ trackers                   │ bundle: staged memories
//!                             └ brownout passes ── channel::line ─────────▶ ┘
//!                               file: a side file, a snapshot
//!   ownership: which side may run, as pure machines on both sides
//! ```
//!
//! Memories move here, page by page, before and while the VM is paused; everything else is *state*, which the front-end
//! carries (DEVICE_STATE), and which names the *bundle* of pages that it belongs to. A target stages what it receives apart
//! from every session, and hands it over whole or not at all. What a peer or a file says is checked before it is used.

pub mod channel;
pub mod checkpoint;
pub mod endpoint;
pub mod error;
pub mod file;
pub mod handed;
pub mod id;
pub mod inspect;
pub mod local_fill;
mod lock;
pub mod memory;
pub mod ownership;
pub mod pages;
pub mod passes;
pub mod quiesce;
pub mod settings;
pub mod source;
pub mod stage;
pub mod state;
pub mod target;
pub mod text;
pub mod tracked;
