//! What a dispatch is refused for.

use campanile_host_gpu::kernel::program::BindingPoint;
use campanile_host_gpu::kernel::sanitizer::sanitize;
use campanile_host_gpu::kernel::source::Source;
use campanile_host_gpu::vulkan::driver::Driver;
use campanile_host_gpu::vulkan::error::VulkanError;
use campanile_host_gpu::vulkan::options::Options;
use campanile_host_gpu::vulkan::request::DispatchError;
use campanile_host_gpu::vulkan::request::Slice;

use crate::bench::bind;
use crate::bench::memory;
use crate::bench::pipeline;
use crate::bench::run;
use crate::bench::with_driver;
use crate::bench::word;
use crate::kernels::SAXPY;
use crate::kernels::STAMP;

#[test]
fn grids_beyond_the_device_are_refused_in_each_dimension() {
    with_driver(|mut driver: Driver| {
        let (import, _) = memory(&driver, 0x1000);
        let kernel = pipeline(&driver, STAMP);
        let limits = driver.limits().groups;
        for dimension in 0..3 {
            for (base, groups) in
                [(0, limits[dimension] + 1), (limits[dimension], 0), (5, limits[dimension] - 4)]
            {
                let (mut bases, mut sides) = ([0; 3], [1; 3]);
                (bases[dimension], sides[dimension]) = (base, groups);
                let mut ask = |slice: Slice| {
                    let refused = driver.dispatch(&kernel, &[bind(0, &import, 0, 256)], &[0; 4], &slice);
                    let seen = matches!(refused, Err(DispatchError::TooManyGroups { dimension: d, .. }) if d == dimension);
                    assert!(seen, "{refused:?}");
                };
                ask(Slice { grid: limits, base: bases, groups: sides });
                let mut grid = [1; 3];
                grid[dimension] = limits[dimension] + 1;
                ask(Slice { grid, base: [0; 3], groups: [1; 3] });
                grid[dimension] = 5;
                (bases[dimension], sides[dimension]) = (3, 3);
                ask(Slice { grid, base: bases, groups: sides });
            }
        }
    });
}

#[test]
fn the_last_group_of_the_device_is_reached_by_its_base() {
    with_driver(|mut driver: Driver| {
        let (import, seen) = memory(&driver, 0x1000000);
        let kernel = pipeline(&driver, STAMP);
        let last = driver.limits().groups[0].min(65535) - 1;
        let bounds = [bind(0, &import, 0, 0x1000000)];
        let slice = Slice { grid: [last + 1, 1, 1], base: [last, 0, 0], groups: [1; 3] };
        let ticket = driver.dispatch(&kernel, &bounds, &[0; 4], &slice).unwrap();
        driver.wait(ticket).unwrap();
        assert_eq!(word(&seen, u64::from(last) * 64 + 63), last * 64 + 63);
        assert_eq!(word(&seen, u64::from(last) * 64 - 1), 0);
    });
}

#[test]
fn bindings_must_be_those_of_the_kernel_each_once() {
    with_driver(|mut driver: Driver| {
        let (import, _) = memory(&driver, 0x1000);
        let kernel = pipeline(&driver, SAXPY);
        let (x, y) = (bind(0, &import, 0, 256), bind(1, &import, 256, 256));
        let mut ask =
            |bounds: &[_]| driver.dispatch(&kernel, bounds, &[0; 4], &Slice::whole([1; 3])).unwrap_err();
        assert!(matches!(ask(&[x]), DispatchError::Missing { binding: BindingPoint { binding: 1, .. } }));
        assert!(matches!(ask(&[x, y, x]), DispatchError::Twice { binding: BindingPoint { binding: 0, .. } }));
        assert!(matches!(
            ask(&[x, y, bind(2, &import, 0, 4)]),
            DispatchError::Unknown { binding: BindingPoint { binding: 2, .. } }
        ));
    });
}

#[test]
fn ranges_must_be_long_enough_aligned_and_inside() {
    with_driver(|mut driver: Driver| {
        let (import, _) = memory(&driver, 0x1000);
        let kernel = pipeline(&driver, STAMP);
        let longest = driver.limits().binding_length;
        let mut ask = |offset: u64, length: u64| {
            let bounds = [bind(0, &import, offset, length)];
            driver.dispatch(&kernel, &bounds, &[0; 4], &Slice::whole([1; 3])).unwrap_err()
        };
        assert!(matches!(ask(0, 0), DispatchError::Length { least: 4, .. }));
        assert!(matches!(ask(0, longest + 4), DispatchError::Length { .. }));
        assert!(matches!(ask(2, 256), DispatchError::Misaligned { .. }));
        assert!(matches!(ask(0, 255), DispatchError::Misaligned { .. }));
        assert!(matches!(ask(0, 0x1004), DispatchError::Outside { size: 0x1000, .. }));
        assert!(matches!(ask(0x1000, 4), DispatchError::Outside { .. }));
        assert!(matches!(ask(u64::MAX - 0xfff, 0x1000), DispatchError::Outside { .. }));
    });
}

#[test]
fn constants_must_have_the_length_that_the_kernel_declares() {
    with_driver(|mut driver: Driver| {
        let (import, _) = memory(&driver, 0x1000);
        let kernel = pipeline(&driver, STAMP);
        for constants in [[0_u8; 8].as_slice(), &[0; 3], &[]] {
            let refused =
                driver.dispatch(&kernel, &[bind(0, &import, 0, 256)], constants, &Slice::whole([1; 3]));
            assert!(matches!(refused, Err(DispatchError::Constants { wanted: 4, .. })));
        }
    });
}

#[test]
fn objects_of_another_driver_are_refused() {
    with_driver(|mut driver: Driver| {
        let other = Driver::open(&Options::default()).unwrap();
        let (import, foreign) = (memory(&driver, 0x1000).0, memory(&other, 0x1000).0);
        let (own, strange) = (pipeline(&driver, STAMP), pipeline(&other, STAMP));
        for (kernel, memory) in [(&strange, &import), (&own, &foreign)] {
            let refused = driver.dispatch(kernel, &[bind(0, memory, 0, 256)], &[0; 4], &Slice::whole([1; 3]));
            assert!(matches!(refused, Err(DispatchError::Foreign)));
        }
    });
}

#[test]
fn refusals_leave_the_driver_usable() {
    with_driver(|mut driver: Driver| {
        let (import, seen) = memory(&driver, 0x1000);
        let kernel = pipeline(&driver, STAMP);
        for _ in 0..5 {
            assert!(driver.dispatch(&kernel, &[], &[0; 4], &Slice::whole([1; 3])).is_err());
        }
        run(&mut driver, &kernel, &[bind(0, &import, 0, 0x1000)], &3_u32.to_ne_bytes(), [16, 1, 1]);
        assert_eq!(word(&seen, 1023), 1026);
    });
}

#[test]
fn a_device_of_an_unknown_name_is_refused_and_the_known_ones_listed() {
    with_driver(|driver: Driver| {
        let options = Options { name: Some("no such card".to_owned()), ..Options::default() };
        let refused = Driver::open(&options).unwrap_err();
        assert!(matches!(refused, VulkanError::NoDeviceOfThatName { .. }));
        assert!(refused.to_string().contains(&driver.info().name), "{refused}");
        let upper = driver.info().name[..4].to_uppercase();
        assert!(Driver::open(&Options { name: Some(upper), ..Options::default() }).is_ok());
    });
}

#[test]
fn kernels_for_a_larger_device_are_refused() {
    with_driver(|driver: Driver| {
        let mut kernel = sanitize(&Source::wgsl(STAMP)).unwrap();
        kernel.workgroup_memory = driver.limits().workgroup_memory + 1;
        let refused = driver.pipeline(&kernel);
        assert!(matches!(refused, Err(VulkanError::KernelTooBig { .. })));
    });
}
