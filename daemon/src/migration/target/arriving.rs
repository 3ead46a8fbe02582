//! What a vGPU can take.

use std::sync::Arc;

use super::compiling::Compiler;
use crate::confine::starter::Starter;
use crate::migration::channel::message::Hello;
use crate::migration::channel::message::MAX_STREAMS;
use crate::migration::channel::message::common_version;
use crate::migration::channel::peer_name::Credentials;
use crate::migration::channel::peer_name::PeerName;
use crate::migration::stage::Shape;
use crate::vgpu::config::Config;
use crate::vgpu::memory::vidmm::vram::VideoMemory;
use crate::vgpu::state::save::snapshot::immutable_of;
use crate::vgpu::state::saved::immutable::Immutable;

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
    /// What compiles its kernels before it is here, where anything can.
    pub compiler: Option<Arc<Compiler>>,
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
    /// A vGPU as configured, which may come from `peers`. `starter`: of threads that may have engines; without one nothing is compiled
    /// ahead.
    pub fn of(config: &Config, peers: Vec<PeerName>, starter: Option<&Starter>) -> Self {
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
            compiler: starter.and_then(|starter| Compiler::of(config, starter.clone())).map(Arc::new),
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

#[cfg(test)]
mod tests {
    use super::Arriving;
    use crate::migration::channel::message::Hello;
    use crate::migration::channel::message::MAX_STREAMS;
    use crate::migration::channel::message::VERSION;
    use crate::migration::id::BundleId;
    use crate::migration::pages::PAGE;
    use crate::vgpu::config::Config;
    use crate::vgpu::memory::vidmm::vram::AREA_REGION;
    use crate::vgpu::state::save::snapshot::immutable_of;
    use crate::vgpu::testing::config;

    fn hello(config: &Config) -> Hello {
        let mut immutable = Vec::new();
        ciborium::into_writer(&immutable_of(config), &mut immutable).unwrap();
        Hello {
            version: VERSION,
            oldest: VERSION,
            vgpu: config.name.clone(),
            bundle: BundleId([1; 16]),
            streams: 1,
            memories: Arriving::of(config, Vec::new(), None).shape.lengths,
            immutable,
        }
    }

    #[test]
    fn lm_12_lm_33_lm_34_a_target_looks_at_all_that_a_source_says_before_it_takes_anything() {
        let config = config();
        let here = Arriving::of(&config, Vec::new(), None);
        assert_eq!(here.name, "tested");
        assert_eq!(here.examine(&hello(&config)), Ok(VERSION));
        let most = Hello { streams: MAX_STREAMS, ..hello(&config) };
        assert_eq!(here.examine(&most), Ok(VERSION));
        let older = Hello { version: 1, oldest: 1, ..hello(&config) };
        assert_eq!(here.examine(&older), Ok(1), "kernels do not come ahead then");
        let newer = Hello { version: VERSION + 1, oldest: 1, ..hello(&config) };
        assert_eq!(here.examine(&newer), Ok(VERSION));
        type Change = (&'static str, fn(&mut Hello));
        let changes: [Change; 9] = [
            ("protocol versions 2 to 0", |it| it.version = 0),
            ("protocol versions 3 to 3", |it| (it.oldest, it.version) = (3, 3)),
            ("0 lines", |it| it.streams = 0),
            ("17 lines", |it| it.streams = MAX_STREAMS + 1),
            ("bytes of video memory", |it| it.memories[0] += PAGE),
            ("bytes of video memory", |it| it.memories[0] -= PAGE),
            ("bytes of room for evicted memory", |it| it.memories[1] += PAGE),
            ("bytes of room for evicted memory", |it| it.memories[1] -= PAGE),
            ("its immutable data cannot be read", |it| it.immutable.truncate(20)),
        ];
        for (why, change) in changes {
            let mut other = hello(&config);
            change(&mut other);
            let refused = here.examine(&other).unwrap_err();
            assert!(refused.contains(why), "{refused:?}, and not {why:?}");
        }
        let single = Config { single_use: true, ..config.clone() };
        let refused = here.examine(&hello(&single)).unwrap_err();
        assert!(
            refused.contains("vGPU tested: STATUS_OBJECT_TYPE_MISMATCH: single_use is true"),
            "{refused}"
        );
    }

    #[test]
    fn lm_40_a_target_takes_as_many_pages_as_may_lie_there_and_no_more() {
        let config = config();
        let shape = Arriving::of(&config, Vec::new(), None).shape;
        // 64 MiB and save areas; of 8 GiB of room, the quota of 4 GiB and what may lie apart.
        assert_eq!(shape.lengths, [(64 << 20) + AREA_REGION, 8 << 30]);
        assert_eq!(shape.limits, [shape.lengths[0], (4 << 30) + (256 << 20)]);
    }
}
