//! What the operator gives a vGPU of each node.

use campanile_host_gpu::sched::parameters::Band;
use campanile_host_gpu::sched::parameters::DEFAULT_WEIGHT;
use campanile_host_gpu::sched::parameters::WHOLE_ENGINE;

/// The share of a vGPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// Its weight beside other vGPUs, 1 to [`campanile_host_gpu::sched::parameters::MAX_WEIGHT`].
    pub weight: u32,
    /// Most of the time of a node that it gets, thousandths, 1 to [`WHOLE_ENGINE`].
    pub cap: u32,
    /// The highest band that its contexts may have (PRE-65).
    pub highest_band: Band,
}

impl Share {
    /// Whether its contexts may be in the realtime band.
    pub fn has_realtime(&self) -> bool {
        self.highest_band == Band::Realtime
    }
}

impl Default for Share {
    fn default() -> Self {
        Self { weight: DEFAULT_WEIGHT, cap: WHOLE_ENGINE, highest_band: Band::Normal }
    }
}
