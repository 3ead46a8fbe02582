//! Numbers by which the daemon's parts name what a guest has.
//!
//! A front hands on the number that the guest's driver uses: a [`FrontContext`]. The vGPU looks up whose that is at the moment, and has
//! only [`GuestProcess`] from there on: a process that comes back to a device is called by another context than before.

use campanile_host_gpu::id;
use serde::Deserialize;
use serde::Serialize;

id! {
    /// What the guest's driver calls a process: the virtio-gpu context id, or the number of the process's file in the file system.
    #[derive(Serialize, Deserialize)]
    #[serde(transparent)]
    FrontContext(u32)
}

id! {
    /// A guest process that opened the device, by the vGPU's number; the same as long as its device lives, also while it is detached.
    #[derive(Default, Serialize, Deserialize)]
    #[serde(transparent)]
    GuestProcess(u32)
}
