//! The fs front: a virtio-fs device (id 26) whose only file, `gpu`, is the command channel (decisions 59 and 60).
//!
//! ```text
//!   chain ─▶ InHeader ─▶ requests ─┬─ nodes: the root and its file              answered now
//!                                  ├─ files: OPEN, RELEASE, WRITE (staging)     answered now
//!                                  ├─ calls: IOCTL ─▶ session ─▶ now │ token: WAIT, AWAIT_BLOB, CREATE_BLOB
//!                                  └─ registration: READ                        parked as long as the pages are a blob's
//! ```
//!
//! ```text
//!   open file:  blank ──first call──▶ session = one context (its number is the file's)
//!                 └──── JOIN(key) ──▶ registrar of a session
//!   blob:       waits for pages ──all are there──▶ making ──engines know them──▶ ready ──▶ retired ──no longer used──▶ gone
//!   aperture, video ───┘ (reads are answered)
//! ```
//!
//! # What waits, and its bounds
//! A ring of n descriptors holds at most n/2 of parked reads and n/4 of parked waits: what is answered at once always has
//! room. [`limits::MAX_PARKED`] a VM; of waits a session has at most [`limits::MAX_WAITS`] and n/16. Past that the answer is
//! EAGAIN (waits: look again a moment later) or ENOMEM (reads). Registered pages are never more than the VM has memory.
//!
//! The guest's kernel cannot interrupt what is parked, so a wait ends by itself, after [`MAX_TIMEOUT`] at the latest; and
//! parked reads end with their session: RELEASE, DESTROY, or another INIT.
//!
//! # What each process may
//! Files are told apart by their handles, which the guest's kernel keeps; a handle holds the device's generation, a random
//! number, so that none of before a reset means anything. A process reaches its own blobs only. A process that can open the BAR of
//! the aperture sees all of that, which is for the guest's administrator to decide.
//!
//! [`MAX_TIMEOUT`]: campanile_protocol::fs::body::MAX_TIMEOUT

pub mod answer;
pub mod aperture;
mod blob_lifetime;
mod blobs;
mod calls;
mod files;
pub mod front;
mod ledger;
pub mod limits;
mod nodes;
pub mod parked;
mod registration;
mod requests;
mod saved;
mod sessions;
pub mod state;
#[cfg(test)]
mod tests;
mod waits;
