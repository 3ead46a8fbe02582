//! Kernels: what pipelines run. Equal pipelines have one, compiled once.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::sync::Weak;

use campanile_guest_driver::device::Device as Gpu;
use campanile_guest_driver::kernel::Kernel;
use campanile_guest_driver::kernel::KernelSource;
use campanile_protocol::control::pipeline::Constant;

use crate::abi::Outcome;
use crate::failure::failed;

/// What makes two kernels the same.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct KernelKey {
    /// The module, shared with those of other constants.
    pub(crate) bytes: Arc<[u8]>,
    /// Its entry point.
    pub(crate) entry: String,
    /// Ids and values of specialisation constants, ascending by id.
    pub(crate) constants: Vec<(u32, u64)>,
    /// Invocations of a subgroup; 0 for the device's choice.
    pub(crate) subgroup_size: u32,
}

/// The kernels of a device that pipelines hold.
#[derive(Debug)]
pub(crate) struct Kernels {
    gpu: Gpu,
    held: Mutex<HashMap<KernelKey, Weak<Kernel>>>,
}

impl Kernels {
    pub(crate) fn new(gpu: Gpu) -> Self {
        Self { gpu, held: Mutex::default() }
    }

    fn held(&self) -> MutexGuard<'_, HashMap<KernelKey, Weak<Kernel>>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The kernel that `key` names, if a pipeline has it.
    pub(crate) fn compiled(&self, key: &KernelKey) -> Option<Arc<Kernel>> {
        self.held().get(key).and_then(Weak::upgrade)
    }

    /// Compiles the kernel that `key` names.
    pub(crate) fn compile(&self, key: KernelKey) -> Outcome<Arc<Kernel>> {
        let constant = |(id, value): &(u32, u64)| Constant { id: *id, reserved: 0, value: *value };
        let constants: Vec<Constant> = key.constants.iter().map(constant).collect();
        let source = KernelSource::pipeline(&key.bytes, &constants, key.subgroup_size).entry(&key.entry);
        // Without the lock: it takes as long as it takes, and other threads compile meanwhile.
        let kernel = Arc::new(self.gpu.create_kernel(&source).map_err(failed("vkCreateComputePipelines"))?);
        let mut held = self.held();
        held.retain(|_, kernel| kernel.strong_count() > 0);
        held.insert(key, Arc::downgrade(&kernel));
        Ok(kernel)
    }
}
