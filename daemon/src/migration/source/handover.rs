//! A vGPU goes to another daemon on this host, with its memories as they are.

use std::fs::File;
use std::sync::Arc;

use super::departure::Departure;
use super::departure::Job;
use crate::migration::error::MigrationError;
use crate::migration::handed::Becomes;
use crate::migration::handed::HandedDevice;
use crate::migration::handed::Interrupted;
use crate::migration::passes::dirty_bitmap::DirtyBitmap;
use crate::vgpu::engines::kept_code::KeptFile;

/// Keeps migrations and snapshots of a vGPU from beginning while it is handed over, until it is dropped.
pub struct Holding {
    departure: Arc<Departure>,
    job: Job,
}

impl std::fmt::Debug for Holding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Holding").field("vgpu", &self.departure.name).finish_non_exhaustive()
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        self.departure.end_snapshot(&self.job, "another daemon goes on with it, or was to");
    }
}

impl Departure {
    /// Begins to hand the vGPU over: from here on no migration and no snapshot of it begins.
    ///
    /// # Errors
    /// One is under way, no VM is connected, or its memories do not lie in files.
    pub fn begin_handover(self: &Arc<Self>) -> Result<Holding, MigrationError> {
        let holding = Holding { departure: Arc::clone(self), job: self.begin_snapshot()? };
        holding.files()?;
        Ok(holding)
    }
}

impl Holding {
    /// The device, which is quiesced, and whose state this is.
    ///
    /// # Errors
    /// It does not lie in files, or cannot say what was written.
    pub fn device(&self, state: Vec<u8>) -> Result<HandedDevice, MigrationError> {
        let [vram, evicted] = self.files()?;
        let files = [vram.try_clone()?, evicted.try_clone()?];
        let written = DirtyBitmap::begin_paused(self.job.departing.memories())?.into_pending();
        let code = self.job.departing.code.iter().map(KeptFile::try_clone).collect::<Result<_, _>>()?;
        let (state, interrupted) = (Becomes::Whole(state), Interrupted::default());
        Ok(HandedDevice { state, interrupted, files, written, code })
    }

    fn files(&self) -> Result<&[File; 2], MigrationError> {
        let none = || MigrationError::State("its memories do not lie in files".to_owned());
        self.job.departing.files.as_ref().ok_or_else(none)
    }
}
