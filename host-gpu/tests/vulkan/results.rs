//! What kernels compute.

use campanile_host_gpu::vulkan::driver::Driver;
use campanile_host_gpu::vulkan::request::Slice;

use crate::bench::bind;
use crate::bench::memory;
use crate::bench::pipeline;
use crate::bench::run;
use crate::bench::set_word;
use crate::bench::with_driver;
use crate::bench::word;
use crate::kernels::MANDELBROT;
use crate::kernels::SAXPY;

const WIDTH: u32 = 1024;
const LIMIT: u32 = 256;
const LEFT: f32 = -2.25;
const TOP: f32 = -1.5;
const STEP: f32 = 3.0 / 1024.0;
const IMAGE: u64 = 4 * 1024 * 1024;

fn view() -> Vec<u8> {
    let floats = [LEFT, TOP, STEP].map(f32::to_ne_bytes).concat();
    [floats, [WIDTH, LIMIT].map(u32::to_ne_bytes).concat()].concat()
}

fn mandelbrot_on_cpu(re: f32, im: f32) -> u32 {
    let (mut x, mut y, mut n) = (0.0_f32, 0.0_f32, 0);
    while n < LIMIT && x * x + y * y <= 4.0 {
        (x, y) = (x * x - y * y + re, 2.0 * x * y + im);
        n += 1;
    }
    n
}

#[test]
fn the_self_test_passes_and_names_the_driver() {
    with_driver(|mut driver: Driver| {
        let passed = driver.self_test().unwrap();
        println!("{}: {passed:?}", driver.info());
        assert!(!driver.info().driver_version.is_empty());
    });
}

/// Near, not identical: Vulkan lets a driver fuse a multiplication and an addition, lavapipe does so, and near
/// the border of the set one different rounding becomes another count. 0.12 % of the pixels there; 0.5 % allowed.
#[test]
fn a_mandelbrot_is_what_the_cpu_computes() {
    with_driver(|mut driver: Driver| {
        let (import, seen) = memory(&driver, IMAGE);
        let kernel = pipeline(&driver, MANDELBROT);
        run(&mut driver, &kernel, &[bind(0, &import, 0, IMAGE)], &view(), [128, 128, 1]);
        let mut different = 0;
        let mut re = [0.0_f32; 1024];
        for (column, re) in (0_u16..).zip(&mut re) {
            *re = LEFT + f32::from(column) * STEP;
        }
        for row in 0_u16..1024 {
            let im = TOP + f32::from(row) * STEP;
            for (column, re) in (0_u64..).zip(re) {
                let at = u64::from(row) * 1024 + column;
                different += u32::from(word(&seen, at) != mandelbrot_on_cpu(re, im));
            }
        }
        println!("{different} of 1048576 pixels differ");
        assert!(different <= 5242);
    });
}

#[test]
fn slices_of_a_grid_write_what_the_whole_grid_writes() {
    with_driver(|mut driver: Driver| {
        let (import, seen) = memory(&driver, 2 * IMAGE);
        let kernel = pipeline(&driver, MANDELBROT);
        run(&mut driver, &kernel, &[bind(0, &import, 0, IMAGE)], &view(), [128, 128, 1]);
        let sliced = [bind(0, &import, IMAGE, IMAGE)];
        let mut before = None;
        for row in (0..128).step_by(5) {
            let slice = Slice { grid: [128, 128, 1], base: [0, row, 0], groups: [128, 5.min(128 - row), 1] };
            let ticket = driver.dispatch(&kernel, &sliced, &view(), &slice).unwrap();
            if let Some(before) = before.replace(ticket) {
                driver.wait(before).unwrap();
            }
        }
        driver.wait(before.unwrap()).unwrap();
        for at in 0..IMAGE / 4 {
            assert_eq!(word(&seen, at), word(&seen, at + IMAGE / 4), "pixel {at}");
        }
    });
}

#[test]
fn saxpy_is_seen_through_another_mapping_of_the_memory() {
    with_driver(|mut driver: Driver| {
        let (import, seen) = memory(&driver, 0x10000);
        for at in 0..1024_u16 {
            set_word(&seen, u64::from(at), f32::from(at).to_bits());
            set_word(&seen, 0x2000 + u64::from(at), 0.5_f32.to_bits());
        }
        let kernel = pipeline(&driver, SAXPY);
        let bounds = [bind(0, &import, 0, 4096), bind(1, &import, 0x8000, 4096)];
        run(&mut driver, &kernel, &bounds, &2.0_f32.to_ne_bytes(), [16, 1, 1]);
        for at in 0..1024_u16 {
            let y = f32::from_bits(word(&seen, 0x2000 + u64::from(at)));
            assert_eq!(y, 2.0 * f32::from(at) + 0.5);
        }
    });
}

#[test]
fn out_of_bounds_reads_zero_and_writes_nothing() {
    const FAR: &str = "
        var<immediate> far: u32;
        @group(0) @binding(0) var<storage, read_write> cells: array<u32>;
        @group(0) @binding(1) var<storage, read_write> seen: array<u32>;
        @compute @workgroup_size(1) fn main() {
            seen[0] = cells[far];
            seen[1] = cells[far * 1000000u];
            seen[2] = cells[0x40000001u];
            cells[far] = 1u;
            cells[far * 1000000u] = 1u;
            cells[0x40000001u] = 1u;
            cells[far - 1u] = 2u;
        }";
    with_driver(|mut driver: Driver| {
        let (import, seen) = memory(&driver, 0x10000);
        for at in 0..0x4000 {
            set_word(&seen, at, 0xabcd);
        }
        let kernel = pipeline(&driver, FAR);
        let bounds = [bind(0, &import, 0x1000, 64), bind(1, &import, 0x8000, 12)];
        run(&mut driver, &kernel, &bounds, &16_u32.to_ne_bytes(), [1, 1, 1]);
        let changed: Vec<_> = (0..0x4000).filter(|at| word(&seen, *at) != 0xabcd).collect();
        assert_eq!(changed, [0x40f, 0x2000, 0x2001, 0x2002]);
        assert_eq!(word(&seen, 0x40f), 2);
        assert!((0x2000..0x2003).all(|at| word(&seen, at) == 0));
    });
}

#[test]
fn workgroup_memory_barriers_and_atomics_add_up() {
    const SUM: &str = "
        var<workgroup> partial: array<u32, 256>;
        @group(0) @binding(2) var<storage, read> data: array<u32>;
        @group(0) @binding(7) var<storage, read_write> sums: array<atomic<u32>>;
        @compute @workgroup_size(256) fn main(
            @builtin(local_invocation_index) local: u32, @builtin(workgroup_id) group: vec3<u32>,
        ) {
            partial[local] = data[group.x * 256u + local];
            for (var width = 128u; width > 0u; width >>= 1u) {
                workgroupBarrier();
                if local < width { partial[local] += partial[local + width]; }
            }
            if local == 0u { atomicAdd(&sums[group.x % 2u], partial[0]); }
        }";
    with_driver(|mut driver: Driver| {
        let (import, seen) = memory(&driver, 0x20000);
        for at in 0..0x4000 {
            set_word(&seen, at, u32::try_from(at).unwrap());
        }
        let kernel = pipeline(&driver, SUM);
        let bounds = [bind(2, &import, 0, 0x10000), bind(7, &import, 0x10000, 8)];
        run(&mut driver, &kernel, &bounds, &[], [64, 1, 1]);
        let sum_of = |odd: u32| (0..0x4000_u32).filter(|at| (at / 256) % 2 == odd).sum::<u32>();
        assert_eq!([word(&seen, 0x4000), word(&seen, 0x4001)], [sum_of(0), sum_of(1)]);
    });
}

/// Without checks the first store would end this process, and the division might.
#[test]
fn stray_indices_into_workgroup_and_private_memory_and_divisions_by_zero_are_harmless() {
    const STRAY: &str = "
        var<immediate> far: u32;
        var<workgroup> shared_cells: array<u32, 16>;
        var<private> private_cells: array<u32, 16>;
        @group(0) @binding(0) var<storage, read_write> words: array<u32>;
        @compute @workgroup_size(1) fn main() {
            var local_cells = array<i32, 4>(1, 2, 3, 4);
            shared_cells[far] = 1u;
            private_cells[far] = 2u;
            local_cells[far] = 3;
            shared_cells[0] = 5u;
            words[0] = shared_cells[0] + private_cells[far * 3u] * 0u;
            words[1] = u32(local_cells[far * 7u]) * 0u + 6u / words[2] * 0u;
            words[3] = u32((-2147483647 - 1) / bitcast<i32>(words[2] - 1u)) * 0u + 7u;
        }";
    with_driver(|mut driver: Driver| {
        let (import, seen) = memory(&driver, 0x1000);
        let kernel = pipeline(&driver, STRAY);
        for far in [16, 1_000_000, 0x7fff_ffff, u32::MAX] {
            run(&mut driver, &kernel, &[bind(0, &import, 0, 64)], &far.to_ne_bytes(), [1; 3]);
            assert_eq!([word(&seen, 0), word(&seen, 1), word(&seen, 3)], [5, 0, 7], "index {far}");
        }
    });
}
