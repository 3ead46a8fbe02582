//! What can be imported and bound.

use campanile_host_gpu::kernel::program::BindingPoint;
use campanile_host_gpu::memory::mapping::Access;
use campanile_host_gpu::vulkan::driver::Driver;
use campanile_host_gpu::vulkan::error::VulkanError;
use campanile_host_gpu::vulkan::import::HostRange;
use campanile_host_gpu::vulkan::request::DispatchError;
use campanile_host_gpu::vulkan::request::Slice;

use crate::bench::bind;
use crate::bench::map;
use crate::bench::memfd;
use crate::bench::memory;
use crate::bench::pipeline;
use crate::bench::run;
use crate::bench::with_driver;
use crate::bench::word;
use crate::kernels::SAXPY;
use crate::kernels::STAMP;

const GIB: u64 = 1 << 30;

#[test]
fn a_view_of_part_of_a_mapping_is_written_where_it_lies() {
    with_driver(|mut driver: Driver| {
        let file = memfd(0x100000);
        let mapping = map(&file, 0x40000, 0x80000, Access::ReadWrite);
        let range = HostRange { mapping, offset: 0x10000, length: 0x2000, access: Access::ReadWrite };
        let view = driver.import(&range).unwrap();
        assert_eq!(view.len(), 0x2000);
        let kernel = pipeline(&driver, STAMP);
        run(&mut driver, &kernel, &[bind(0, &view, 0x1000, 0x1000)], &7_u32.to_ne_bytes(), [16, 1, 1]);
        let seen = map(&file, 0, 0x100000, Access::ReadOnly);
        assert_eq!((word(&seen, 0x51000 / 4), word(&seen, 0x51ffc / 4)), (7, 1030));
        assert_eq!((word(&seen, 0x50ffc / 4), word(&seen, 0x52000 / 4)), (0, 0));
    });
}

#[test]
fn ranges_across_windows_and_at_the_tail_of_large_memory_are_bound() {
    const LENGTH: u64 = 5 * GIB + 4096;
    with_driver(|mut driver: Driver| {
        let file = memfd(LENGTH);
        let whole = map(&file, 0, LENGTH, Access::ReadWrite);
        let import = driver.import(&HostRange::whole(&whole, Access::ReadWrite)).unwrap();
        let kernel = pipeline(&driver, STAMP);
        for start in [0, GIB - 0x2000, GIB, 2 * GIB - 0x1000, 4 * GIB - 0x3000, LENGTH - 0x4000] {
            run(&mut driver, &kernel, &[bind(0, &import, start, 0x4000)], &9_u32.to_ne_bytes(), [64, 1, 1]);
            let seen = map(&file, start, 0x4000, Access::ReadOnly);
            assert_eq!((word(&seen, 0), word(&seen, 0xfff)), (9, 9 + 0xfff), "at {start:#x}");
        }
        let longest = driver.limits().binding_length;
        for start in [0, GIB - 256, 3 * GIB, LENGTH - longest] {
            run(&mut driver, &kernel, &[bind(0, &import, start, longest)], &[1, 0, 0, 0], [1, 1, 1]);
        }
    });
}

#[test]
fn memory_of_a_wrong_shape_is_not_imported() {
    with_driver(|driver: Driver| {
        let mapping = map(&memfd(0x4000), 0, 0x4000, Access::ReadWrite);
        for (offset, length) in
            [(1, 0x1000), (0, 0x1001), (0, 0), (0, 0x5000), (0x4000, 0x1000), (u64::MAX, 2)]
        {
            let range = HostRange { mapping: mapping.clone(), offset, length, access: Access::ReadWrite };
            let refused = driver.import(&range);
            assert!(matches!(refused, Err(VulkanError::Import { .. })), "{offset:#x} {length:#x}");
        }
    });
}

#[test]
fn read_only_memory_is_read_and_not_written() {
    with_driver(|mut driver: Driver| {
        let readable = map(&memfd(0x1000), 0, 0x1000, Access::ReadOnly);
        let readable = driver.import(&HostRange::whole(&readable, Access::ReadOnly)).unwrap();
        let (writable, seen) = memory(&driver, 0x1000);
        let kernel = pipeline(&driver, SAXPY);
        let swapped = [bind(1, &readable, 0, 256), bind(0, &writable, 0, 256)];
        let refused = driver.dispatch(&kernel, &swapped, &[0; 4], &Slice::whole([1; 3]));
        assert!(matches!(refused, Err(DispatchError::ReadOnly { binding: BindingPoint { binding: 1, .. } })));
        let right = [bind(0, &readable, 0, 256), bind(1, &writable, 0, 256)];
        run(&mut driver, &kernel, &right, &1.0_f32.to_ne_bytes(), [1; 3]);
        assert_eq!(word(&seen, 0), 0);
    });
}
