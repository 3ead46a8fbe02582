//! A device at work, as it is written now and then for a daemon that follows this one if it is killed (decision 122).
//!
//! Nothing of it is believed: it is brought up to date by what engines have left, and then it is a state as any other.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;

use campanile_host_gpu::adapter::remnant::Remnant;
use campanile_protocol::PAGE_SIZE;
use serde::Deserialize;
use serde::Serialize;

use super::state;
use crate::ids::GuestProcess;
use crate::vgpu::state::overtake::overtake;
use crate::vgpu::state::save::at_work;
use crate::vgpu::state::saved::at_work::SavedAtWork;
use crate::vgpu::state::saved::bytes::Bytes;

/// The device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceCheckpoint {
    /// Its state, encoded as that of a device that moves.
    pub state: Bytes,
    /// What of it engines change.
    pub at_work: SavedAtWork,
}

/// What a device has become until its last engine had ended.
#[derive(Debug)]
pub struct Overtaken {
    /// Its state, encoded.
    pub state: Vec<u8>,
    /// Guest processes that have a device.
    pub devices: usize,
    /// Those whose devices are to be lost.
    pub lost: Vec<GuestProcess>,
}

impl DeviceCheckpoint {
    /// The device as it was when its last engine had ended. `block` is the file of the shared block of the engine in a place, `fences` that of
    /// the values of native fences.
    ///
    /// # Errors
    /// Why nothing is known of it.
    pub fn overtake(
        self,
        block: impl Fn(u32) -> Result<File, String>,
        fences: &File,
    ) -> Result<Overtaken, String> {
        let mut state = state::decode(&self.state.0).map_err(|error| error.to_string())?;
        let mut engines = BTreeMap::new();
        for place in &self.at_work.engines {
            let remnant = Remnant::open(block(*place)?);
            engines.insert(*place, remnant.map_err(|error| format!("engine {place}: {error}"))?);
        }
        let value = |fence: u32| {
            let mut word = [0; 8];
            fences.read_exact_at(&mut word, u64::from(fence) * PAGE_SIZE).ok()?;
            Some(u64::from_le_bytes(word))
        };
        let lost = overtake(&mut state.session, &self.at_work, &engines, value, at_work::now());
        let lost = lost.map_err(|error| error.to_string())?.into_iter().collect();
        let devices = state.session.processes.iter().filter(|process| process.device.is_some()).count();
        let state = state.encode().map_err(|error| error.to_string())?;
        Ok(Overtaken { state, devices, lost })
    }
}
