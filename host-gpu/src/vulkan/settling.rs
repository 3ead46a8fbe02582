//! What a driver has its device have of host memory that it copies, and when the host has it back: see [`super::staging`].

use std::sync::Arc;

use crate::kernel::program::BufferAccess;
use crate::vulkan::driver::Driver;
use crate::vulkan::error::VulkanError;
use crate::vulkan::pipeline::Pipeline;
use crate::vulkan::request::Bound;

impl Driver {
    /// Has the device have what a dispatch of `pipeline` binds.
    pub(super) fn bring(&mut self, pipeline: &Pipeline, bounds: &[Bound<'_>]) -> Result<(), VulkanError> {
        for bound in bounds {
            let Some(staging) = bound.memory.staging() else { continue };
            let declared = bound.binding.find(pipeline.bindings());
            let writes = declared.is_some_and(|declared| declared.access == BufferAccess::ReadWrite);
            staging.bring(bound.offset, bound.length, writes)?;
            if !self.staged.iter().any(|known| Arc::ptr_eq(known, staging)) {
                self.staged.push(Arc::clone(staging));
            }
        }
        Ok(())
    }

    /// Whether host memory is copied, and what dispatches wrote is there after [`Self::settle`] only.
    pub fn copies_memory(&self) -> bool {
        self.grids.is_copied()
    }

    /// Waits for all that was started, and has the host see what it wrote: where memory is imported it does anyway.
    pub fn settle(&mut self) -> Result<(), VulkanError> {
        if self.staged.is_empty() {
            return Ok(());
        }
        self.sleep_for_all()?;
        self.staged.drain(..).try_for_each(|staging| staging.settle())
    }
}
