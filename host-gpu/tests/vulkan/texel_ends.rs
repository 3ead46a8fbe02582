//! Texel buffers at their ends: atomics, formats and views there.

use campanile_host_gpu::vulkan::driver::Driver;
use campanile_protocol::texels::FORMATS;
use campanile_protocol::texels::Number;

use crate::bench::bind;
use crate::bench::memory;
use crate::bench::run;
use crate::bench::set_word;
use crate::bench::with_driver;
use crate::bench::word;
use crate::frame;
use crate::frame::Parts;
use crate::texels::R32_UINT;
use crate::texels::first_of;
use crate::texels::reader;
use crate::texels::sanitize;
use crate::texels::texels;

#[test]
fn atomics_beyond_the_last_texel_change_nothing() {
    let declarations = "%uint4 = OpTypeVector %uint 4
         %image = OpTypeImage %uint 5 0 0 0 2 33
         %pimage = OpTypePointer UniformConstant %image
         %ptexel = OpTypePointer Image %uint
         %u = OpVariable %pimage UniformConstant";
    let body = "%first = OpAccessChain %pword %o %0 %0
         %far = OpLoad %uint %first
         %texel = OpImageTexelPointer %ptexel %u %far %0
         %a = OpAtomicIAdd %uint %texel %1 %0 %7
         %b = OpAtomicExchange %uint %texel %1 %0 %7
         %c = OpAtomicCompareExchange %uint %texel %1 %0 %0 %7 %a
         %d = OpAtomicUMax %uint %texel %1 %0 %7
         OpAtomicStore %texel %1 %0 %7
         OpReturn";
    let text = frame::kernel(&Parts {
        size: "1 1 1",
        capabilities: "OpCapability ImageBuffer",
        decorations: "OpDecorate %u DescriptorSet 0\nOpDecorate %u Binding 0",
        declarations,
        body,
        ..Parts::default()
    });
    with_driver(|mut driver: Driver| {
        let pipeline = driver.pipeline(&sanitize(&driver, &text)).unwrap();
        let (import, seen) = memory(&driver, 0x4000);
        let bounds = [texels(0, &import, 0x1000, 64, R32_UINT), bind(3, &import, 0x3000, 256)];
        for far in [15, 16, 17, 0x800, 0x0400_0000, 0x3fff_fc00, 0x4000_0000, 0x7fff_ffff, u32::MAX] {
            (0..0x1000).for_each(|at| set_word(&seen, at, 9));
            set_word(&seen, 0xc00, far);
            run(&mut driver, &pipeline, &bounds, &[], [1; 3]);
            let changed: Vec<u64> = (0..0x1000).filter(|at| *at != 0xc00 && word(&seen, *at) != 9).collect();
            assert_eq!(changed, if far == 15 { vec![0x40f] } else { vec![] }, "index {far:#x}");
        }
    });
}

#[test]
fn the_last_texel_of_all_memory_is_read_in_every_format_and_none_behind_it() {
    with_driver(|mut driver: Driver| {
        let (import, seen) = memory(&driver, 0x2000);
        for number in [Number::Float, Number::Signed, Number::Unsigned] {
            let pipeline = driver.pipeline(&sanitize(&driver, &reader(number))).unwrap();
            for format in FORMATS.iter().filter(|format| format.number == number) {
                (0..0x800).for_each(|at| set_word(&seen, at, 0x2121_2121));
                let bounds = [texels(0, &import, 0x1f00, 256, format.code), bind(3, &import, 0, 0x1000)];
                let count = 256 / format.bytes;
                run(&mut driver, &pipeline, &bounds, &[], [count + 1, 1, 1]);
                let [first, last, behind] = [0, count - 1, count].map(|at| word(&seen, at.into()));
                assert!(first.abs_diff(first_of(format)) <= 1, "{}: {first:#x}", format.name);
                assert_eq!((last, behind), (first, 0), "{}", format.name);
            }
        }
    });
}

#[test]
fn a_view_of_other_bytes_from_the_same_place_is_another() {
    with_driver(|mut driver: Driver| {
        let pipeline = driver.pipeline(&sanitize(&driver, &reader(Number::Unsigned))).unwrap();
        let (import, seen) = memory(&driver, 0x2000);
        (0..4).for_each(|at| set_word(&seen, at, 9));
        for (length, second) in [(8, 9), (4, 0), (8, 9)] {
            let bounds = [texels(0, &import, 0, length, R32_UINT), bind(3, &import, 0x1000, 256)];
            run(&mut driver, &pipeline, &bounds, &[], [2, 1, 1]);
            assert_eq!([0x400, 0x401].map(|at| word(&seen, at)), [9, second], "{length} bytes");
        }
    });
}
