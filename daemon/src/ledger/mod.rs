//! What a daemon that is started after this one was killed must know of a VM, so that the VM goes on with it: its connection, its rings,
//! and where its processes look for the loss of their devices.
//!
//! ```text
//!   this daemon: each change ─▶ ledger (memory of its own) ── descriptor store ──▶ the next: the connection goes on, devices are lost
//! ```
//!
//! | part | written | by |
//! |---|---|---|
//! | [`log`] | what was negotiated, device pages, ranges of the aperture: before it is answered | connection thread, queue worker |
//! | [`words`] | which chains of which ring are in flight | queue worker, with each chain |
//! | [`checkpoint`] | the device at work, when nothing is left to do | queue worker |
//! | descriptors | connection, back channel, guest memory, eventfds, video memory | in the store itself |
//!
//! One process at a time writes it. The next one reads it, and goes on writing the same. It is a claim there, as a saved state is.

pub mod checkpoint;
pub mod keeping;
pub mod log;
pub mod lost;
pub mod page;
pub mod read;
pub mod words;
