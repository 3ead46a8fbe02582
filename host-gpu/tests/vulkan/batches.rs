//! Slices that are submitted together, and called off.

use std::thread;
use std::time::Duration;
use std::time::Instant;

use campanile_host_gpu::vulkan::driver::Driver;
use campanile_host_gpu::vulkan::driver::Ticket;
use campanile_host_gpu::vulkan::gates::BATCH;
use campanile_host_gpu::vulkan::gates::Fate;
use campanile_host_gpu::vulkan::request::DispatchError;
use campanile_host_gpu::vulkan::request::Slice;

use crate::bench::bind;
use crate::bench::memory;
use crate::bench::pipeline;
use crate::bench::with_driver;
use crate::bench::word;

/// Every group adds to a cell of its own, and makes of cell 0 what depends on the order.
const ORDER: &str = "
var<immediate> turns: u32;
@group(0) @binding(0) var<storage, read_write> cells: array<u32>;
@compute @workgroup_size(1) fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    var x = group.x;
    for (var i = 0u; i < turns; i++) { x = x * 1664525u + 1013904223u; }
    cells[0] = cells[0] * 31u + group.x + groups.x;
    cells[1u + group.x] += 1u;
    cells[64u + group.x] = x;
}";

const GROUPS: u32 = 8;

/// One group each, all groups of the grid.
fn slices() -> Vec<Slice> {
    assert_eq!(GROUPS as usize, BATCH);
    let one = |x| Slice { grid: [GROUPS, 1, 1], base: [x, 0, 0], groups: [1; 3] };
    (0..GROUPS).map(one).collect()
}

fn fates(driver: &Driver, ticket: &Ticket) -> Vec<Fate> {
    (0..BATCH).map(|index| driver.fate(ticket, index)).collect()
}

#[test]
fn slices_of_a_batch_run_one_after_the_other_and_know_their_grid() {
    with_driver(|mut driver: Driver| {
        let (import, seen) = memory(&driver, 0x1000);
        let kernel = pipeline(&driver, ORDER);
        let bounds = [bind(0, &import, 0, 0x1000)];
        let ticket =
            driver.dispatch_batch(&kernel, &bounds, &1_u32.to_ne_bytes(), [0; 3], &slices()).unwrap();
        driver.wait(ticket).unwrap();
        let expected = (0..GROUPS).fold(0_u32, |all, group| all.wrapping_mul(31) + group + GROUPS);
        assert_eq!(word(&seen, 0), expected);
        assert_eq!(fates(&driver, &ticket), [Fate::Begun; BATCH]);
    });
}

#[test]
fn what_is_called_off_never_runs_and_the_rest_runs_once() {
    with_driver(|mut driver: Driver| {
        let (import, seen) = memory(&driver, 0x1000);
        let kernel = pipeline(&driver, ORDER);
        let bounds = [bind(0, &import, 0, 0x1000)];
        // Tens of milliseconds a slice.
        let turns = 20_000_000_u32.to_ne_bytes();
        let ticket = driver.dispatch_batch(&kernel, &bounds, &turns, [0; 3], &slices()).unwrap();
        let begun = Instant::now();
        while driver.fate(&ticket, 0) == Fate::Waits {
            assert!(begun.elapsed() < Duration::from_secs(60), "it never begins");
            thread::yield_now();
        }
        driver.call_off(&ticket);
        driver.wait(ticket).unwrap();
        let fates = fates(&driver, &ticket);
        assert_eq!((fates[0], fates[BATCH - 1]), (Fate::Begun, Fate::CalledOff), "{fates:?}");
        for (index, fate) in (1..).zip(fates) {
            assert_eq!(word(&seen, index), u32::from(fate == Fate::Begun), "slice {index}");
        }
        // The next one in that slot begins with open gates.
        for _ in 0..2 {
            let ticket =
                driver.dispatch_batch(&kernel, &bounds, &1_u32.to_ne_bytes(), [0; 3], &slices()).unwrap();
            driver.wait(ticket).unwrap();
            assert_eq!(self::fates(&driver, &ticket), [Fate::Begun; BATCH]);
        }
    });
}

#[test]
fn calling_off_what_is_done_or_alone_changes_nothing() {
    with_driver(|mut driver: Driver| {
        let (import, seen) = memory(&driver, 0x1000);
        let kernel = pipeline(&driver, ORDER);
        let bounds = [bind(0, &import, 0, 0x1000)];
        let done = driver.dispatch_batch(&kernel, &bounds, &1_u32.to_ne_bytes(), [0; 3], &slices()).unwrap();
        driver.wait(done).unwrap();
        driver.call_off(&done);
        let alone = driver.dispatch(&kernel, &bounds, &1_u32.to_ne_bytes(), &Slice::whole([1; 3])).unwrap();
        driver.call_off(&alone);
        driver.wait(alone).unwrap();
        assert_eq!(word(&seen, 1), 2);
    });
}

#[test]
fn a_batch_of_more_than_a_device_takes_is_refused() {
    with_driver(|mut driver: Driver| {
        let (import, seen) = memory(&driver, 0x1000);
        let kernel = pipeline(&driver, ORDER);
        let bounds = [bind(0, &import, 0, 0x1000)];
        let many = [slices(), slices()].concat();
        let refused =
            driver.dispatch_batch(&kernel, &bounds, &1_u32.to_ne_bytes(), [0; 3], &many).unwrap_err();
        assert!(
            matches!(refused, DispatchError::Batch { given, most: BATCH } if given == many.len()),
            "{refused}"
        );
        assert_eq!(word(&seen, 0), 0);
    });
}
