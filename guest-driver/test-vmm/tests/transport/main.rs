//! The loopback transport against a fake device: what a guest process may rely on.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod blobs;
mod endings;
mod fake_device;
mod fake_gpu;
mod fake_state;
mod hostile;
mod latency;
mod migration;
mod queue;
mod vring;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use std::time::Instant;

use campanile_test_vmm::options::VmOptions;
use campanile_test_vmm::pause::allocator::VcpuAllocator;
use campanile_test_vmm::vm::LoopbackVm;
use fake_device::FakeDevice;

/// Virtual CPUs stop anywhere, but not with the allocator's lock.
#[global_allocator]
static ALLOCATOR: VcpuAllocator = VcpuAllocator;

/// A VM, its device and the folder of their socket.
struct Bench {
    vm: Arc<LoopbackVm>,
    device: Arc<FakeDevice>,
    server: std::thread::JoinHandle<()>,
    _folder: tempfile::TempDir,
}

fn bench(device: FakeDevice, options: &VmOptions) -> Bench {
    let (folder, path) = socket();
    let device = Arc::new(device);
    let server = fake_device::serve(Arc::clone(&device), &path);
    let vm = LoopbackVm::connect(&path, options).unwrap();
    Bench { vm, device, server, _folder: folder }
}

fn plain() -> Bench {
    bench(FakeDevice::new(), &VmOptions::default())
}

fn socket() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("gpu.sock");
    (folder, path)
}

/// What another thread does soon; the limit is only there so that a failure ends.
fn eventually(mut holds: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !holds() {
        if Instant::now() > deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}
