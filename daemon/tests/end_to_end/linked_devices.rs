//! Linked adapters on a Vulkan device each: one driver whose manifest lies there twice, so that the loader lists its device twice.

use std::fs;
use std::path::Path;
use std::path::PathBuf;

use campanile_guest_driver::commands::CommandBuffer;
use campanile_guest_driver::kernel::KernelSource;
use campanile_guest_driver::node::Node;
use campanile_protocol::control::status::Status;
use serde_json::Value;
use tempfile::TempDir;

use crate::linked::COUNT;
use crate::linked::count;
use crate::linked::queue_on;
use crate::linked::run;
use crate::linked::words;
use crate::native_fences::refused;
use crate::support::Daemon;

/// The manifest of the driver that the tests run on.
fn manifest() -> PathBuf {
    let named = std::env::var_os("CAMPANILE_VULKAN_DRIVER").map(PathBuf::from);
    let of_system = || {
        let found = fs::read_dir("/usr/share/vulkan/icd.d").unwrap().map(|entry| entry.unwrap().path());
        found.into_iter().find(|path| path.to_string_lossy().contains("lvp_icd")).unwrap()
    };
    named.unwrap_or_else(of_system)
}

/// A folder with two manifests of one driver.
fn two_devices() -> TempDir {
    let (folder, manifest) = (TempDir::new().unwrap(), manifest());
    let mut driver: Value = serde_json::from_slice(&fs::read(&manifest).unwrap()).unwrap();
    let library = Path::new(driver["ICD"]["library_path"].as_str().unwrap()).to_owned();
    if library.components().count() > 1 {
        driver["ICD"]["library_path"] = manifest.parent().unwrap().join(library).to_str().unwrap().into();
    }
    for name in ["a.json", "b.json"] {
        fs::write(folder.path().join(name), driver.to_string()).unwrap();
    }
    folder
}

fn daemon_on(folder: &TempDir, devices: &str) -> Daemon {
    let folder = folder.path().to_str().unwrap();
    Daemon::with(&["--engines", "2", "--vulkan-driver", folder, "--vulkan-device", devices])
}

#[test]
fn linked_adapters_with_a_device_each_run_the_same_kernels() {
    let folder = two_devices();
    let daemon = daemon_on(&folder, "llvmpipe#2,llvmpipe#1");
    let (_vm, device) = daemon.device();
    let kernel = device.create_kernel(&KernelSource::wgsl(COUNT)).unwrap();
    let data = device.create_buffer(4096).unwrap();
    for engine in [0, 1, 0] {
        let (_context, mut queue) = queue_on(&device, Node::Compute, engine);
        run(&mut queue, &count(&kernel, &data));
    }
    assert!(words(&data).iter().all(|word| *word == 3));
    device.check().unwrap();
}

#[test]
fn where_one_adapter_has_no_device_none_computes_and_the_adapter_is_named() {
    let folder = two_devices();
    let daemon = daemon_on(&folder, "llvmpipe#1,llvmpipe#3");
    let (_vm, device) = daemon.device();
    let error = device.create_context_on(Node::Compute, 0).unwrap_err();
    let said = error.to_string();
    assert_eq!(refused(error), Status::NotSupported);
    for part in ["linked adapter 1", "`llvmpipe#3`", "there are llvmpipe"] {
        assert!(said.contains(part), "{part:?} is not in {said}");
    }
    // Copies go on, on either.
    let target = device.create_buffer(4096).unwrap();
    for engine in [0, 1] {
        let (_context, mut queue) = queue_on(&device, Node::Copy, engine);
        let mut commands = CommandBuffer::new();
        commands.fill(target.va(), 4096, engine + 7).unwrap();
        run(&mut queue, &commands);
        assert!(words(&target).iter().all(|word| *word == engine + 7));
    }
}
