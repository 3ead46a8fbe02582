//! The kernels that a session has, where a thread that moves it finds them.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;

use campanile_host_gpu::kernel::name::KernelName;

use super::kernel_source::KernelSource;

/// The session writes it, with each kernel that comes or goes; a migration reads it.
#[derive(Debug, Default)]
pub struct KernelBoard {
    kernels: Mutex<BTreeMap<KernelName, KernelSource>>,
}

impl KernelBoard {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<KernelName, KernelSource>> {
        self.kernels.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// There is this one.
    pub fn put(&self, name: KernelName, source: KernelSource) {
        self.lock().insert(name, source);
    }

    /// There is this one no more.
    pub fn remove(&self, name: KernelName) {
        self.lock().remove(&name);
    }

    /// Those that `which` holds for, by name. Their sources are shared, not copied.
    pub fn those(&self, which: impl Fn(&KernelName) -> bool) -> Vec<(KernelName, KernelSource)> {
        let kernels = self.lock();
        kernels.iter().filter(|(name, _)| which(name)).map(|(name, source)| (*name, source.clone())).collect()
    }
}
