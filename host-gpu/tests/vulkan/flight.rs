//! Dispatches in flight.

use std::thread;
use std::time::Duration;
use std::time::Instant;

use campanile_host_gpu::kernel::sanitizer::sanitize;
use campanile_host_gpu::kernel::source::Source;
use campanile_host_gpu::vulkan::driver::Driver;
use campanile_host_gpu::vulkan::import::Import;
use campanile_host_gpu::vulkan::pipeline::Compiler;
use campanile_host_gpu::vulkan::pipeline::Pipeline;
use campanile_host_gpu::vulkan::request::DispatchError;
use campanile_host_gpu::vulkan::request::Slice;

use crate::bench::bind;
use crate::bench::memory;
use crate::bench::pipeline;
use crate::bench::run;
use crate::bench::with_driver;
use crate::bench::word;
use crate::kernels::SPIN;
use crate::kernels::STAMP;

/// Tens of milliseconds on a CPU.
const LONG: [u8; 4] = 10_000_000_u32.to_ne_bytes();

#[test]
fn a_third_dispatch_is_busy_until_the_first_is_done() {
    with_driver(|mut driver: Driver| {
        let (import, _) = memory(&driver, 0x1000);
        let kernel = pipeline(&driver, SPIN);
        let bounds = [bind(0, &import, 0, 4)];
        let ask = |driver: &mut Driver| driver.dispatch(&kernel, &bounds, &LONG, &Slice::whole([1; 3]));
        let first = ask(&mut driver).unwrap();
        let second = ask(&mut driver).unwrap();
        assert!(!driver.is_done(&second).unwrap());
        assert!(matches!(ask(&mut driver), Err(DispatchError::Busy)));
        driver.wait(first).unwrap();
        assert!(driver.is_done(&first).unwrap());
        let third = ask(&mut driver).unwrap();
        driver.wait(third).unwrap();
        assert!(driver.is_done(&second).unwrap(), "work is done in order");
    });
}

#[test]
fn dispatches_see_what_earlier_ones_wrote() {
    with_driver(|mut driver: Driver| {
        let (import, seen) = memory(&driver, 0x1000);
        let kernel = pipeline(&driver, SPIN);
        let bounds = [bind(0, &import, 0, 4)];
        let mut last = None;
        for _ in 0..10 {
            let ticket =
                driver.dispatch(&kernel, &bounds, &1_u32.to_ne_bytes(), &Slice::whole([1; 3])).unwrap();
            if let Some(before) = last.replace(ticket) {
                driver.wait(before).unwrap();
            }
        }
        driver.wait(last.unwrap()).unwrap();
        let step = |x: u32| x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223) ^ (x >> 7);
        assert_eq!(word(&seen, 0), (0..10).fold(0, |x, _| step(x)));
    });
}

#[test]
fn a_bounded_wait_ends_before_the_work_does() {
    with_driver(|mut driver: Driver| {
        let (import, _) = memory(&driver, 0x1000);
        let kernel = pipeline(&driver, SPIN);
        let ticket =
            driver.dispatch(&kernel, &[bind(0, &import, 0, 4)], &LONG, &Slice::whole([1; 3])).unwrap();
        assert!(!driver.wait_for(&ticket, Duration::from_millis(1)).unwrap());
        assert!(driver.wait_for(&ticket, Duration::from_secs(60)).unwrap());
    });
}

#[test]
fn a_grid_without_groups_is_done_at_once() {
    with_driver(|mut driver: Driver| {
        let (import, seen) = memory(&driver, 0x1000);
        let kernel = pipeline(&driver, STAMP);
        for groups in [[0, 1, 1], [1, 0, 1], [1, 1, 0], [0, 0, 0]] {
            let ticket = driver
                .dispatch(&kernel, &[bind(0, &import, 0, 256)], &[9; 4], &Slice::whole(groups))
                .unwrap();
            assert!(driver.is_done(&ticket).unwrap());
            driver.wait(ticket).unwrap();
        }
        assert_eq!(word(&seen, 0), 0);
    });
}

#[test]
fn what_work_in_flight_uses_may_be_dropped() {
    with_driver(|mut driver: Driver| {
        let (import, seen) = memory(&driver, 0x1000);
        let kernel = pipeline(&driver, SPIN);
        let ticket =
            driver.dispatch(&kernel, &[bind(0, &import, 0, 4)], &LONG, &Slice::whole([1; 3])).unwrap();
        drop((import, kernel));
        driver.wait(ticket).unwrap();
        assert_ne!(word(&seen, 0), 0);
        // And the driver itself, with work in flight.
        let (import, kernel) = (memory(&driver, 0x1000).0, pipeline(&driver, SPIN));
        let _ticket =
            driver.dispatch(&kernel, &[bind(0, &import, 0, 4)], &LONG, &Slice::whole([1; 3])).unwrap();
        drop(driver);
    });
}

#[test]
fn pipelines_are_made_on_other_threads_while_work_goes_on() {
    fn moves_between_threads<T: Send>() {}
    moves_between_threads::<Pipeline>();
    moves_between_threads::<Import>();
    moves_between_threads::<Compiler>();
    moves_between_threads::<Driver>();
    with_driver(|mut driver: Driver| {
        let (import, seen) = memory(&driver, 0x1000);
        let busy = pipeline(&driver, SPIN);
        let compiler = driver.compiler();
        let maker = thread::spawn(move || {
            let texts = (0..8).map(|i| STAMP.replace("+ seed", &format!("+ seed * {i}u")));
            let kernels = texts.map(|text| sanitize(&Source::wgsl(&text)).unwrap());
            kernels.map(|kernel| compiler.pipeline(&kernel).unwrap()).collect::<Vec<_>>()
        });
        while !maker.is_finished() {
            run(&mut driver, &busy, &[bind(0, &import, 0, 4)], &1000_u32.to_ne_bytes(), [1; 3]);
        }
        for (i, made) in (0_u32..).zip(maker.join().unwrap()) {
            run(&mut driver, &made, &[bind(0, &import, 0, 256)], &5_u32.to_ne_bytes(), [1; 3]);
            assert_eq!(word(&seen, 63), 63 + 5 * i);
        }
    });
}

/// Not a claim but a number: `cargo test --release -- --ignored --nocapture measure`.
#[test]
#[ignore = "measures, checks nothing"]
fn measure_round_trips() {
    with_driver(|mut driver: Driver| {
        let (import, _) = memory(&driver, 0x1000);
        let kernel = pipeline(&driver, STAMP);
        let bounds = [bind(0, &import, 0, 256)];
        let mut median = |label: &str, step: &mut dyn FnMut(&mut Driver)| {
            let mut times: Vec<_> = (0..5000)
                .map(|_| {
                    let start = Instant::now();
                    step(&mut driver);
                    start.elapsed()
                })
                .collect();
            times.sort_unstable();
            println!("{label}: median {:?}, p99 {:?}", times[2500], times[4950]);
        };
        let dispatch =
            |driver: &mut Driver| driver.dispatch(&kernel, &bounds, &[0; 4], &Slice::whole([1; 3])).unwrap();
        median("dispatch and wait", &mut |driver| {
            let ticket = dispatch(driver);
            driver.wait(ticket).unwrap();
        });
        let mut before = None;
        median("dispatch and wait for the one before", &mut |driver| {
            if let Some(before) = before.replace(dispatch(driver)) {
                driver.wait(before).unwrap();
            }
        });
        median("dispatch without groups", &mut |driver| {
            let _ticket = driver.dispatch(&kernel, &bounds, &[0; 4], &Slice::whole([0; 3])).unwrap();
        });
    });
}
