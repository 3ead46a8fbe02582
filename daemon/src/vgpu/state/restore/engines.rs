//! Engines of a state, by their places.

use std::collections::BTreeMap;

use super::builder::Builder;
use super::invalid::Invalid;
use super::invalid::ages;
use super::invalid::ensure;
use super::restored_engine::RestoredEngine;
use crate::vgpu::tdr::fences::Fences;
use campanile_host_gpu::engine::address::EngineAddress;

impl Builder<'_> {
    pub(super) fn build_engines(&mut self) -> Result<(), Invalid> {
        let places = EngineAddress::all(self.session.vm.config.engines);
        let known = self.saved.engines.len();
        ensure(known <= places.clone().count(), || format!("{known} engines"))?;
        for at in places {
            let saved = self.saved.engines.get(at.index()).cloned().unwrap_or_default();
            let fits = saved.completed <= saved.submitted && saved.submitted < u64::MAX / 2;
            ensure(fits && saved.taken < u64::MAX / 2, || format!("the fence ids of the {at} engine"))?;
            self.engines.push(RestoredEngine {
                at,
                block: None,
                fences: Fences::after(saved.submitted, saved.completed),
                taken: saved.taken,
                resets: ages(&saved.resets),
                connects: Vec::new(),
                waiting: Vec::new(),
                compiling: BTreeMap::new(),
            });
        }
        Ok(())
    }
}
