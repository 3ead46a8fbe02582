//! What a vGPU can take.

use crate::migration::bundle::stage::Shape;
use crate::migration::channel::message::Hello;
use crate::migration::channel::message::MAX_STREAMS;
use crate::migration::channel::message::common_version;
use crate::migration::channel::peer_name::Credentials;
use crate::migration::channel::peer_name::PeerName;
use crate::session::config::Config;
use crate::session::save::snapshot::immutable_of;
use crate::session::saved::immutable::Immutable;
use crate::vidmm::vram::VideoMemory;

/// Looks at immutable data of a source; in words, which check failed.
pub type Check = dyn Fn(&[u8]) -> Result<(), String> + Send + Sync;

/// A vGPU of this daemon, as a target.
pub struct Arriving {
    /// Its name.
    pub name: String,
    /// Peers that it may come from; where there are none, any that can connect.
    pub peers: Vec<PeerName>,
    /// Its memories.
    pub shape: Shape,
    /// Whether immutable data fits (LM-33, LM-34).
    pub check: Box<Check>,
}

impl std::fmt::Debug for Arriving {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Arriving")
            .field("name", &self.name)
            .field("shape", &self.shape)
            .finish_non_exhaustive()
    }
}

impl Arriving {
    /// A vGPU as configured, which may come from `peers`.
    pub fn of(config: &Config, peers: Vec<PeerName>) -> Self {
        let quota = config.account.quota().max;
        let video = VideoMemory::file_bytes_of(config.vram_bytes);
        let evicted = VideoMemory::store_bytes(config.vram_bytes, quota);
        // What was evicted once may still lie where it lay, at the head of it.
        let most = quota.saturating_add(256 << 20).min(evicted);
        let here = immutable_of(config);
        Self {
            name: config.name.clone(),
            peers,
            shape: Shape { lengths: [video, evicted], limits: [video, most] },
            check: Box::new(move |bytes| {
                let saved: Immutable = ciborium::from_reader(bytes)
                    .map_err(|error| format!("its immutable data cannot be read: {error}"))?;
                here.check(&saved).map_err(|mismatch| mismatch.to_string())
            }),
        }
    }

    /// Whether a peer may bring it.
    ///
    /// # Errors
    /// Why not, in words.
    pub fn allow(&self, credentials: &Credentials) -> Result<(), String> {
        if self.peers.is_empty() || self.peers.iter().any(|name| credentials.prove(name)) {
            return Ok(());
        }
        Err(format!(
            "vGPU {} does not come from {credentials}; its migrate-from says from which it does",
            self.name
        ))
    }

    /// Looks at all that a source says before it sends anything. Returns the version to speak.
    ///
    /// # Errors
    /// Which check failed, in words.
    pub fn examine(&self, hello: &Hello) -> Result<u32, String> {
        let version = common_version(hello)?;
        if !(1..=MAX_STREAMS).contains(&hello.streams) {
            return Err(format!("{} lines; 1 to {MAX_STREAMS} are possible", hello.streams));
        }
        let what = ["video memory", "room for evicted memory"];
        for ((what, theirs), ours) in what.iter().zip(hello.memories).zip(self.shape.lengths) {
            if theirs != ours {
                return Err(format!(
                    "vGPU {} has {ours} bytes of {what} here, and {theirs} at the source",
                    self.name
                ));
            }
        }
        (self.check)(&hello.immutable).map_err(|why| format!("vGPU {}: {why}", self.name))?;
        Ok(version)
    }
}
