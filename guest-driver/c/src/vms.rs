//! The loopback VMs of this process, one a socket.
//!
//! A daemon serves one VM on a socket at a time, so devices that a process opens on one socket are in one VM, as the
//! processes of a guest are.

use std::collections::BTreeMap;
use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::Weak;

use campanile_guest_driver::transport::error::TransportError;
use campanile_test_vmm::context::LoopbackContext;
use campanile_test_vmm::options::VmOptions;
use campanile_test_vmm::vm::LoopbackVm;

static VMS: Mutex<BTreeMap<PathBuf, Weak<LoopbackVm>>> = Mutex::new(BTreeMap::new());

/// Opens a context, called `name`, in the VM on `socket`, which is connected if it is not there or lost.
pub(crate) fn open(socket: &Path, name: &str) -> Result<LoopbackContext, TransportError> {
    let mut vms = VMS.lock().unwrap_or_else(PoisonError::into_inner);
    vms.retain(|_, vm| vm.strong_count() > 0);
    let running = vms.get(socket).and_then(Weak::upgrade).filter(|vm| vm.is_connected());
    let vm = match running {
        Some(vm) => vm,
        None => LoopbackVm::connect(socket, &VmOptions::default())?,
    };
    vms.insert(socket.to_path_buf(), Arc::downgrade(&vm));
    vm.open(name)
}
