//! The machine that this program runs in, and the way to its GPU.

#[cfg(feature = "loopback")]
use std::path::PathBuf;
#[cfg(feature = "loopback")]
use std::sync::Arc;
#[cfg(feature = "loopback")]
use std::sync::Mutex;
#[cfg(feature = "loopback")]
use std::sync::PoisonError;

use campanile_guest_driver::device::Device;
use campanile_guest_driver::error::DriverError;
use campanile_guest_driver::transport::drm::context::DrmContext;
use campanile_guest_driver::transport::drm::node::RenderNode;
use campanile_guest_driver::transport::fs::channel::FsChannel;
use campanile_guest_driver::transport::fs::context::FsContext;
#[cfg(feature = "loopback")]
use campanile_test_vmm::options::VmOptions;
#[cfg(feature = "loopback")]
use campanile_test_vmm::vm::LoopbackVm;

/// Names the socket of a daemon: this process plays the VM.
#[cfg(feature = "loopback")]
pub(crate) const SOCKET: &str = "CAMPANILE_SOCKET";

/// Bytes of guest RAM of a VM that this process plays; its pages come as they are touched.
#[cfg(feature = "loopback")]
const LOOPBACK_RAM: u64 = 1 << 30;

/// The VM that this process plays, as long as a device of it is open, and its socket.
#[cfg(feature = "loopback")]
static VM: Mutex<Option<(PathBuf, Arc<LoopbackVm>)>> = Mutex::new(None);

/// Opens a device of this machine: a guest process of its own for the daemon.
pub(crate) fn open() -> Result<Device, DriverError> {
    #[cfg(feature = "loopback")]
    if let Some(socket) = std::env::var_os(SOCKET) {
        let socket = PathBuf::from(socket);
        let mut vm = VM.lock().unwrap_or_else(PoisonError::into_inner);
        let running = vm.take().filter(|(path, vm)| *path == socket && vm.is_connected());
        let (_, running) = &*match running {
            Some(running) => vm.insert(running),
            None => {
                let options = VmOptions { ram: LOOPBACK_RAM, ..VmOptions::default() };
                let connected = LoopbackVm::connect(&socket, &options)?;
                vm.insert((socket, connected))
            }
        };
        return Device::open(running.open("vulkan")?);
    }
    match RenderNode::find() {
        Err(_) if FsChannel::is_there() => Device::open(FsContext::on(FsChannel::find()?)),
        node => Device::open(DrmContext::on(node?)?),
    }
}

/// Bytes of RAM of this machine.
pub(crate) fn ram_bytes() -> u64 {
    #[cfg(feature = "loopback")]
    if std::env::var_os(SOCKET).is_some() {
        return LOOPBACK_RAM;
    }
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kibibytes = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kibibytes.map_or(0, |kibibytes| kibibytes << 10)
}
