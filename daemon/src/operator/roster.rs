//! The vGPUs that there are: shared by all that ask about them. One that asks goes on with those that were there when it began.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;

use super::vgpu::Vgpu;

/// All vGPUs, in the order in which they came.
#[derive(Debug, Default)]
pub struct Roster(Mutex<Arc<Vec<Vgpu>>>);

impl Roster {
    /// These, to begin with.
    pub fn new(vgpus: Vec<Vgpu>) -> Self {
        Self(Mutex::new(Arc::new(vgpus)))
    }

    /// Those of now.
    pub fn all(&self) -> Arc<Vec<Vgpu>> {
        Arc::clone(&self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The one of this name.
    pub fn find(&self, name: &str) -> Option<Vgpu> {
        self.all().iter().find(|vgpu| vgpu.name == name).cloned()
    }

    /// One more.
    pub fn add(&self, vgpu: Vgpu) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut more = all.to_vec();
        more.push(vgpu);
        *all = Arc::new(more);
    }

    /// Without the one of this name.
    pub fn remove(&self, name: &str) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut rest = all.to_vec();
        rest.retain(|vgpu| vgpu.name != name);
        *all = Arc::new(rest);
    }
}
