//! Memory of the device's own: it outlives the device instance that wrote it.

#![allow(clippy::unwrap_used, reason = "a failing test stops here")]

use std::os::fd::OwnedFd;

use campanile_host_gpu::vulkan::driver::Driver;
use campanile_host_gpu::vulkan::error::VulkanError;
use campanile_host_gpu::vulkan::info::Handle;
use campanile_host_gpu::vulkan::local::Copier;
use campanile_host_gpu::vulkan::local::Exported;
use campanile_host_gpu::vulkan::options::Options;

use crate::bench::bind;
use crate::bench::map;
use crate::bench::memfd;
use crate::bench::memory;
use crate::bench::pipeline;
use crate::bench::run;
use crate::bench::set_word;
use crate::bench::with_driver;
use crate::bench::word;
use crate::kernels::STAMP;

const LENGTH: u64 = 0x10_0000;

/// Memory that a kernel has written, exported by a driver that is gone by now.
fn written(mut driver: Driver) -> Exported {
    let local = driver.allocate(LENGTH, Some(Handle::OpaqueFd)).unwrap();
    assert_eq!(local.len(), LENGTH);
    let kernel = pipeline(&driver, STAMP);
    let groups = u32::try_from(LENGTH / 256).unwrap();
    run(&mut driver, &kernel, &[bind(0, &local, 0, LENGTH)], &7_u32.to_ne_bytes(), [groups, 1, 1]);
    local.export(Handle::OpaqueFd).unwrap()
}

fn again() -> Driver {
    Driver::open(&Options::default()).unwrap()
}

/// What is in `exported`, with `change` made to what is known of it, or why it cannot be imported.
fn refusal(exported: Exported, change: impl FnOnce(Exported) -> Exported) -> String {
    match again().import_exported(change(exported)) {
        Ok(_) => String::new(),
        Err(error) => {
            assert!(matches!(error, VulkanError::Share { handle: Handle::OpaqueFd, .. }), "{error}");
            error.to_string()
        }
    }
}

#[test]
fn what_a_kernel_wrote_is_there_in_another_instance_after_the_first_is_gone() {
    with_driver(|driver: Driver| {
        let exported = written(driver);
        let mut driver = again();
        let local = driver.import_exported(exported).unwrap();
        let (target, seen) = memory(&driver, LENGTH);
        let mut copier = Copier::new(&driver).unwrap();
        copier.copy(&local, &target, LENGTH).unwrap();
        for at in [0, 1, LENGTH / 8, LENGTH / 4 - 1] {
            assert_eq!(u64::from(word(&seen, at)), 7 + at, "word {at}");
        }
        // It is bound like any other memory, and written.
        let kernel = pipeline(&driver, STAMP);
        run(&mut driver, &kernel, &[bind(0, &local, 0x1000, 0x1000)], &9_u32.to_ne_bytes(), [16, 1, 1]);
        copier.copy(&local, &target, LENGTH).unwrap();
        assert_eq!((word(&seen, 0x3ff), word(&seen, 0x400), word(&seen, 0x7ff)), (0x406, 9, 9 + 0x3ff));
    });
}

#[test]
fn an_import_shares_memory_with_what_was_exported() {
    with_driver(|driver: Driver| {
        let local = driver.allocate(LENGTH, Some(Handle::OpaqueFd)).unwrap();
        let other = driver.secondary().unwrap();
        let shared = other.import_exported(local.export(Handle::OpaqueFd).unwrap()).unwrap();
        let (source, words) = memory(&driver, LENGTH);
        set_word(&words, 77, 4711);
        Copier::new(&driver).unwrap().copy(&source, &local, LENGTH).unwrap();
        let (target, seen) = memory(&other, LENGTH);
        Copier::new(&other).unwrap().copy(&shared, &target, LENGTH).unwrap();
        assert_eq!(word(&seen, 77), 4711);
    });
}

#[test]
fn memory_of_a_wrong_size_is_not_imported() {
    with_driver(|driver: Driver| {
        let refused = refusal(written(driver), |exported| Exported { length: 64 * LENGTH, ..exported });
        assert!(refused.contains("device memory of 67108864 bytes"), "{refused}");
    });
}

#[test]
fn a_descriptor_of_something_else_is_not_imported() {
    with_driver(|driver: Driver| {
        let exported = written(driver);
        let foreign = OwnedFd::from(memfd(2 * LENGTH));
        let copy = foreign.try_clone().unwrap();
        let refused = refusal(exported, |exported| Exported { descriptor: foreign, ..exported });
        assert!(refused.contains("opaque fd"), "{refused}");
        let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
        let driver = again();
        let own = driver.allocate(LENGTH, Some(Handle::OpaqueFd)).unwrap();
        let is_refused = || {
            let exported = own.export(Handle::OpaqueFd).unwrap();
            let descriptor = copy.try_clone().unwrap();
            driver.import_exported(Exported { descriptor, ..exported }).is_err()
        };
        assert!(is_refused());
        let before = open();
        for _ in 0..5 {
            assert!(is_refused());
        }
        assert_eq!(open(), before, "a refused descriptor stays open");
    });
}

#[test]
fn memory_of_another_driver_is_not_imported() {
    with_driver(|driver: Driver| {
        let refused = refusal(written(driver), |exported| Exported { uuids: [[1; 16]; 2], ..exported });
        assert!(refused.contains("another device"), "{refused}");
    });
}

#[test]
fn an_index_of_no_memory_type_is_refused() {
    with_driver(|driver: Driver| {
        let refused = refusal(written(driver), |exported| Exported { type_index: u32::MAX, ..exported });
        assert!(refused.contains("no such memory"), "{refused}");
    });
}

#[test]
fn descriptors_end_with_a_refusal_and_with_what_was_imported() {
    with_driver(|driver: Driver| {
        let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
        let local = driver.allocate(LENGTH, Some(Handle::OpaqueFd)).unwrap();
        let import = |uuids: Option<[[u8; 16]; 2]>| {
            let exported = local.export(Handle::OpaqueFd).unwrap();
            let uuids = uuids.unwrap_or(exported.uuids);
            driver.import_exported(Exported { uuids, ..exported }).is_ok()
        };
        assert!(import(None));
        let before = open();
        for _ in 0..5 {
            assert!(import(None) && !import(Some([[1; 16]; 2])));
        }
        assert_eq!(open(), before);
    });
}

#[test]
fn memory_that_was_not_meant_to_be_exported_is_not() {
    with_driver(|driver: Driver| {
        let local = driver.allocate(LENGTH, None).unwrap();
        let (host, _) = memory(&driver, LENGTH);
        for memory in [local, host] {
            let refused = memory.export(Handle::OpaqueFd).unwrap_err().to_string();
            assert!(refused.contains("not allocated for that"), "{refused}");
        }
    });
}

#[test]
fn more_memory_than_there_is_is_not_allocated() {
    with_driver(|driver: Driver| {
        for length in [0, 1 << 60, u64::MAX] {
            let refused = driver.allocate(length, None);
            assert!(matches!(refused, Err(VulkanError::Allocate { .. })), "{length:#x}: {refused:?}");
        }
    });
}

#[test]
fn a_copy_of_more_than_there_is_or_into_read_only_memory_is_refused() {
    with_driver(|driver: Driver| {
        use campanile_host_gpu::memory::mapping::Access;
        use campanile_host_gpu::vulkan::import::HostRange;

        let local = driver.allocate(LENGTH, None).unwrap();
        let (host, _) = memory(&driver, LENGTH);
        let readable = map(&memfd(LENGTH), 0, LENGTH, Access::ReadOnly);
        let readable = driver.import(&HostRange::whole(&readable, Access::ReadOnly)).unwrap();
        let mut copier = Copier::new(&driver).unwrap();
        copier.copy(&readable, &local, LENGTH).unwrap();
        for (from, to, length) in
            [(&host, &local, LENGTH + 4), (&local, &readable, LENGTH), (&local, &local, 4096)]
        {
            assert!(copier.copy(from, to, length).is_err(), "{from:?} to {to:?}, {length}");
        }
        let other = driver.secondary().unwrap();
        assert!(Copier::new(&other).unwrap().copy(&host, &local, 4096).is_err(), "memory of another driver");
    });
}
