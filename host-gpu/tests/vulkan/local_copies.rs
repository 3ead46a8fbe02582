//! Local memory in a device's own, as engines copy from and to it.

#![allow(clippy::unwrap_used, reason = "a failing test stops here")]

use std::sync::Arc;

use campanile_host_gpu::memory::local::LocalDevice;
use campanile_host_gpu::memory::local::LocalMemory;
use campanile_host_gpu::memory::local::Side;
use campanile_host_gpu::memory::mapping::Access;
use campanile_host_gpu::memory::mapping::Mapping;
use campanile_host_gpu::node::local_copies::LocalCopies;
use campanile_host_gpu::node::local_copies::allocate;
use campanile_host_gpu::vulkan::driver::Driver;
use campanile_host_gpu::vulkan::import::HostRange;
use campanile_host_gpu::vulkan::info::Handle;
use campanile_host_gpu::vulkan::local::Exported;
use campanile_protocol::page_table::SegmentId;

use crate::bench::map;
use crate::bench::memfd;
use crate::bench::with_driver;
use crate::bench::word;

const START: u64 = 0x10_0000;
const BYTES: u64 = 0x10_0000;

fn described(exported: &Exported) -> LocalMemory {
    LocalMemory { start: START, bytes: BYTES, evicted_bytes: 4096, passport: exported.passport() }
}

fn copies(driver: &Driver) -> LocalCopies {
    let exported = allocate(driver, BYTES).unwrap();
    let local = described(&exported);
    LocalCopies::new(driver.secondary().unwrap(), local, exported.descriptor).unwrap()
}

fn host() -> Arc<Mapping> {
    map(&memfd(2 * START), 0, 2 * START, Access::ReadWrite)
}

fn words(copies: &mut LocalCopies, offset: u64, count: usize) -> Vec<u32> {
    let mut bytes = vec![0; count * 4];
    copies.read(offset, &mut bytes).unwrap();
    bytes.chunks_exact(4).map(|word| u32::from_ne_bytes(word.try_into().unwrap())).collect()
}

#[test]
fn it_is_zero_at_first_and_filled_read_and_copied_by_the_device() {
    with_driver(|driver: Driver| {
        let mut copies = copies(&driver);
        let all = usize::try_from(BYTES / 4).unwrap();
        assert!(words(&mut copies, START, all).iter().all(|word| *word == 0));
        copies.fill(START + 4096, 8192, 7).unwrap();
        assert_eq!(words(&mut copies, START + 4092, 2), [0, 7]);
        assert_eq!(words(&mut copies, START + 4096 + 8188, 2), [7, 0]);
        let (segment, host) = (SegmentId(5), host());
        copies.copy(Side::Local(START + 4096), Side::Segment(segment, &host, 16), 64).unwrap();
        assert_eq!((word(&host, 4), word(&host, 19)), (7, 7));
        host.slice(0, 8).unwrap().copy_from(&[9_u8; 8]);
        copies.copy(Side::Segment(segment, &host, 1), Side::Local(START + 3), 5).unwrap();
        let mut bytes = [1; 12];
        copies.read(START, &mut bytes).unwrap();
        assert_eq!(bytes, [0, 0, 0, 9, 9, 9, 9, 9, 0, 0, 0, 0]);
        // Another segment of the same number.
        copies.forget(segment);
        let other = self::host();
        copies.copy(Side::Local(START + 4096), Side::Segment(segment, &other, 0), 8).unwrap();
        assert_eq!((word(&other, 0), word(&other, 1)), (7, 7));
        // Evicted and brought back: a range of a file.
        let range =
            HostRange { mapping: Arc::clone(&host), offset: 4096, length: 4096, access: Access::ReadWrite };
        copies.copy_with(&range, START + 4096, true).unwrap();
        assert_eq!(word(&host, 2047), 7);
        copies.copy_with(&range, START + 0x8000, false).unwrap();
        assert_eq!(words(&mut copies, START + 0x8ffc, 2), [7, 0]);
    });
}

#[test]
fn a_copy_within_it_may_have_bytes_in_common() {
    with_driver(|driver: Driver| {
        let mut copies = copies(&driver);
        copies.fill(START, 4096, 1).unwrap();
        copies.fill(START + 4096, 4096, 2).unwrap();
        copies.copy(Side::Local(START), Side::Local(START + 0x1_0000), 8192).unwrap();
        assert_eq!(words(&mut copies, START + 0x1_0ffc, 2), [1, 2]);
        copies.copy(Side::Local(START + 4096), Side::Local(START + 2048), 4096).unwrap();
        assert_eq!(words(&mut copies, START + 2044, 2), [1, 2]);
        copies.copy(Side::Local(START), Side::Local(START), 4096).unwrap();
        assert_eq!(words(&mut copies, START, 1), [1]);
    });
}

#[test]
fn what_is_outside_is_refused_and_the_device_is_not_lost_by_that() {
    with_driver(|driver: Driver| {
        let mut copies = copies(&driver);
        let host = host();
        // Of the video memory's file only the head is there, in front of local memory.
        let visible = |at| Side::Segment(SegmentId::VRAM, &host, at);
        copies.copy(Side::Local(START), visible(START - 4096), 4096).unwrap();
        let refused = [
            copies.fill(START - 4, 8, 1),
            copies.fill(START + BYTES - 4, 8, 1),
            copies.fill(u64::MAX - 3, 8, 1),
            copies.fill(START + 1, 8, 1),
            copies.read(START + BYTES, &mut [0; 4]),
            copies.copy(Side::Local(START), visible(START - 4), 8),
            copies.copy(visible(START), Side::Local(START), 8),
            copies.copy(Side::Local(0), Side::Local(START), 8),
            copies.copy(Side::Local(START + BYTES - 4), Side::Local(START + BYTES), 8),
        ];
        for refused in refused {
            assert!(!refused.unwrap_err().is_lost);
        }
        copies.fill(START, 8, 1).unwrap();
    });
}

#[test]
fn memory_that_is_in_other_use_is_refused_and_what_is_left_is_given() {
    with_driver(|driver: Driver| {
        let Some(left) = driver.local_left() else {
            eprintln!("skipped: this driver says nothing of budgets");
            return;
        };
        assert!(left > BYTES);
        // It may be more than a heap has: then there is none of that size at all.
        let refused = driver.allocate(left + (1 << 30), Some(Handle::OpaqueFd)).unwrap_err().to_string();
        assert!(
            refused.contains("its budget is")
                || ["the largest heap", "one allocation has at most"].iter().any(|why| refused.contains(why)),
            "{refused}"
        );
        driver.allocate(BYTES, Some(Handle::OpaqueFd)).unwrap();
    });
}

#[test]
fn memory_that_is_shorter_than_said_or_another_devices_is_refused() {
    with_driver(|driver: Driver| {
        let new = |change: fn(&mut LocalMemory)| {
            let exported = allocate(&driver, BYTES).unwrap();
            let mut local = described(&exported);
            change(&mut local);
            LocalCopies::new(driver.secondary().unwrap(), local, exported.descriptor).map(drop)
        };
        new(|_| ()).unwrap();
        for change in [
            (|local| local.bytes += 4096) as fn(&mut LocalMemory),
            |local| local.bytes = 0,
            |local| local.passport.length *= 64,
            |local| local.passport.uuids[0] = [1; 16],
        ] {
            let refused = new(change).unwrap_err();
            assert!(!refused.is_lost, "{refused}");
        }
    });
}

#[test]
fn what_is_longer_than_a_piece_is_read_piece_by_piece() {
    with_driver(|driver: Driver| {
        let mut copies = copies(&driver);
        for (index, piece) in (1..).zip(0..3) {
            copies.fill(START + piece * 0x1_0000, 0x1_0000, index).unwrap();
        }
        let read = words(&mut copies, START + 0x8000, 0x9000);
        assert_eq!((read[0], read[0x1fff], read[0x2000], read[0x5fff], read[0x6000]), (1, 1, 2, 2, 3));
    });
}

#[test]
fn what_the_device_has_behind_local_memory_is_not_reached() {
    with_driver(|driver: Driver| {
        let exported = allocate(&driver, BYTES).unwrap();
        let local = LocalMemory { bytes: BYTES - 4096, ..described(&exported) };
        let mut copies = LocalCopies::new(driver.secondary().unwrap(), local, exported.descriptor).unwrap();
        let end = START + BYTES - 4096;
        copies.fill(end - 4, 4, 1).unwrap();
        assert!(copies.fill(end - 4, 8, 1).is_err() && copies.fill(end, 4, 1).is_err());
        assert!(copies.read(end - 4, &mut [0; 8]).is_err());
    });
}
