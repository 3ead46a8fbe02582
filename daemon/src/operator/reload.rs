//! What a configuration that was read again changes.

use std::fmt;
use std::sync::Arc;

use crate::vgpu::control::tuning::Tuning;

/// What is to be changed while the daemon serves, and what cannot.
#[derive(Debug, Default)]
pub struct Changes {
    /// What each vGPU is to have, changed or not.
    pub vgpus: Vec<VgpuChange>,
    /// What is another than it was, in the operator's words.
    pub changed: Vec<String>,
    /// What is another, and needs a restart.
    pub restart: Vec<String>,
}

/// What a vGPU is to have.
#[derive(Debug)]
pub struct VgpuChange {
    /// Its name.
    pub name: String,
    /// How it is tuned.
    pub tuning: Tuning,
    /// What its guests can always have, in bytes.
    pub vram_min: u64,
}

/// Reads the configuration again.
#[derive(Clone)]
pub struct Reload(Arc<dyn Fn() -> Result<Changes, String> + Send + Sync>);

impl Reload {
    /// By `read`, which says in words what is wrong.
    pub fn new(read: impl Fn() -> Result<Changes, String> + Send + Sync + 'static) -> Self {
        Self(Arc::new(read))
    }

    /// What there is to change.
    ///
    /// # Errors
    /// Files are wrong, or cannot be read.
    pub fn read(&self) -> Result<Changes, String> {
        (self.0)()
    }
}

impl fmt::Debug for Reload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reload")
    }
}
