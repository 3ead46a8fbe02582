//! What of a connection goes from a daemon to its successor: all that the front-end has said, which it does not say again, and
//! where the rings are.
//!
//! ```text
//!   predecessor: parked, device quiesced ── record ──▶ Handed: data, descriptors ── resume ──▶ successor: rings live, device thaws
//! ```
//!
//! Nothing is sent to the front-end for that. The data is a claim of another process, and judged as a saved state is.

use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::Receiver;
use std::sync::mpsc::Sender;

use serde::Deserialize;
use serde::Serialize;
use thiserror::Error;

use super::saved::SavedRing;
use super::saved::SavedShell;
use crate::vgpu::state::saved::bytes::Bytes;

/// A region of guest memory; its file is among the descriptors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Region {
    /// Guest-physical address.
    pub guest: u64,
    /// Bytes.
    pub length: u64,
    /// Address in the front-end.
    pub user: u64,
    /// Where it begins in its file, in bytes.
    pub offset: u64,
}

/// Where a ring lies, and which descriptors it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placed {
    /// Descriptors, a power of two.
    pub size: u16,
    /// Guest-physical addresses of descriptor table, available ring and used ring; 0 where none was said.
    pub parts: [u64; 3],
    /// The front-end has enabled it.
    pub is_enabled: bool,
    /// It is started, and its kick descriptor goes with it.
    pub has_kick: bool,
    /// Its call descriptor goes with it.
    pub has_call: bool,
    /// Its error descriptor goes with it.
    pub has_error: bool,
}

/// The data.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandedShell {
    /// Feature bits, configuration, and what is in flight in each ring.
    pub shell: SavedShell,
    /// Protocol feature bits that the front-end has set.
    pub protocol: u64,
    /// The front-end asked for those that there are.
    pub has_asked: bool,
    /// A ring has been started.
    pub is_greeted: bool,
    /// Whether the front-end shows the window to the guest; none where it was not asked.
    pub window: Option<bool>,
    /// The back channel's descriptor goes with it.
    pub has_back_channel: bool,
    /// Guest memory.
    pub regions: Vec<Region>,
    /// The rings.
    pub rings: Vec<Placed>,
}

/// What is written of a connection for a daemon that is started after this one was killed: without what is in flight, and whether the
/// window is shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recorded {
    /// What the front-end has said.
    pub shell: HandedShell,
    /// The role of each region's file in the store.
    pub memory: Vec<String>,
    /// Resets of the device before.
    #[serde(default)]
    pub epoch: u64,
}

/// A connection whose device is at work, as it is written now and then for a daemon that is started after this one was killed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpointed {
    /// The name of its vGPU.
    pub vgpu: String,
    /// What is in flight in each ring.
    pub rings: Vec<SavedRing>,
    /// Resets of the device before.
    pub epoch: u64,
    /// The device, as it says it.
    pub device: Bytes,
}

/// A connection on its way.
#[derive(Debug)]
pub struct Handed {
    /// The connection itself.
    pub stream: UnixStream,
    /// The data.
    pub shell: HandedShell,
    /// The descriptors in the order of the data: back channel, regions, kick, call and error of each ring.
    pub files: VecDeque<OwnedFd>,
}

/// A connection that the successor takes up: first its device is made, and then, when the predecessor leaves it, it goes on.
#[derive(Debug)]
pub struct Inherited {
    /// The connection.
    pub handed: Handed,
    /// Told whether its device is as it was, or why not; and then the same of the connection.
    pub ready: Sender<Result<(), String>>,
    /// Says when the predecessor has left; hung up, it has not.
    pub go: Receiver<()>,
    /// There is no predecessor any more that could go on with it.
    pub is_orphan: bool,
}

/// A descriptor that the data speaks of is not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("a descriptor is missing: {0}")]
pub struct Missing(pub &'static str);

/// Takes the descriptors of a connection one after the other.
#[derive(Debug)]
pub(super) struct Files(pub(super) VecDeque<OwnedFd>);

impl Files {
    /// The next one.
    pub(super) fn next(&mut self, what: &'static str) -> Result<File, Missing> {
        self.0.pop_front().map(File::from).ok_or(Missing(what))
    }

    /// The next one, if there is to be one.
    pub(super) fn next_if(&mut self, is_there: bool, what: &'static str) -> Result<Option<File>, Missing> {
        is_there.then(|| self.next(what)).transpose()
    }
}

impl HandedShell {
    /// What is in flight in each ring.
    pub(super) fn saved_rings(&self) -> &[SavedRing] {
        &self.shell.rings
    }
}
