//! Kernels that ask for the number of workgroups, in slices of one.

use campanile_host_gpu::kernel::sanitizer::sanitize;
use campanile_host_gpu::kernel::source::Source;
use campanile_host_gpu::vulkan::driver::Driver;
use campanile_host_gpu::vulkan::request::Slice;
use naga::back::spv;
use naga::front::wgsl;
use naga::valid::Capabilities;
use naga::valid::ValidationFlags;
use naga::valid::Validator;

use crate::bench::bind;
use crate::bench::memory;
use crate::bench::run;
use crate::bench::with_driver;
use crate::bench::word;

/// The count is an argument among others.
const ARGUMENT: &str = "
@group(0) @binding(3) var<storage, read_write> out: array<u32>;
@compute @workgroup_size(2, 2, 1) fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let at = (group.z * groups.y + group.y) * groups.x + group.x;
    out[at * 4u + local] = at * 100u + local + 1000000u * (groups.x + 10u * groups.y + 100u * groups.z);
}";

/// It is a member of a struct, and the struct is handed on; a second argument is one by itself.
const MEMBER: &str = "
struct Where {
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(workgroup_id) group: vec3<u32>,
}
@group(0) @binding(3) var<storage, read_write> out: array<u32>;
fn place(at: Where) -> u32 { return (at.group.z * at.groups.y + at.group.y) * at.groups.x + at.group.x; }
@compute @workgroup_size(4) fn main(at: Where, @builtin(local_invocation_id) local: vec3<u32>) {
    out[place(at) * 4u + local.x] = at.id.x + 1000u * at.id.y + 1000000u * at.id.z + 7u;
}";

/// Every invocation takes each so-many-th item, which is wrong by much if the count is.
const STRIDE: &str = "
@group(0) @binding(3) var<storage, read_write> out: array<u32>;
@compute @workgroup_size(4) fn main(
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    for (var at = id.x; at < 400u; at += groups.x * 4u) { out[at] += at * 3u + id.x + 1u; }
}";

/// With workgroup memory, which begins zeroed, and barriers whose flow depends on the count.
const BARRIERS: &str = "
var<workgroup> cells: array<u32, 8>;
@group(0) @binding(3) var<storage, read_write> out: array<u32>;
@compute @workgroup_size(8) fn main(
    @builtin(local_invocation_index) local: u32,
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let before = cells[7u - local];
    workgroupBarrier();
    for (var round = 0u; round < groups.x; round++) {
        cells[local] += local + round + before;
        workgroupBarrier();
        let neighbour = cells[(local + 1u) % 8u];
        workgroupBarrier();
        cells[local] += neighbour % 1000u;
        workgroupBarrier();
    }
    if group.x + 1u == groups.x || group.y + 1u == groups.y { workgroupBarrier(); }
    let at = (group.z * groups.y + group.y) * groups.x + group.x;
    out[at * 8u + local] = cells[local] ^ at;
}";

/// Words written by the largest grid.
const WORDS: u64 = 1024;

/// A kernel's SPIR-V, as another compiler would send it: with the builtin in it.
fn spirv(text: &str) -> Source {
    let module = wgsl::parse_str(text).expect("WGSL");
    let info = Validator::new(ValidationFlags::all(), Capabilities::all()).validate(&module).expect("valid");
    let words = spv::write_vec(&module, &info, &spv::Options::default(), None).expect("SPIR-V");
    let bytes = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    Source::spirv(bytes)
}

#[test]
fn a_kernel_is_told_the_whole_grid_in_slices_of_one_group() {
    with_driver(|mut driver: Driver| {
        for (text, grid) in [
            (ARGUMENT, [5, 3, 2]),
            (MEMBER, [5, 3, 2]),
            (STRIDE, [7, 1, 1]),
            (BARRIERS, [6, 2, 3]),
            (BARRIERS, [1, 1, 1]),
        ] {
            for source in [Source::wgsl(text), spirv(text)] {
                let kernel = sanitize(&source).unwrap();
                assert!(kernel.uses_num_workgroups);
                assert_eq!(kernel.bindings.len(), 1, "the grid is no guest's binding");
                let kernel = driver.pipeline(&kernel).unwrap();
                let (import, seen) = memory(&driver, 2 * WORDS * 4);
                let (whole, sliced) =
                    (bind(3, &import, 0, WORDS * 4), bind(3, &import, WORDS * 4, WORDS * 4));
                run(&mut driver, &kernel, &[whole], &[], grid);
                let mut last = None;
                for z in 0..grid[2] {
                    for y in 0..grid[1] {
                        for x in 0..grid[0] {
                            let slice = Slice { grid, base: [x, y, z], groups: [1; 3] };
                            let ticket = driver.dispatch(&kernel, &[sliced], &[], &slice).unwrap();
                            // Two in flight, each with a record of its own.
                            if let Some(before) = last.replace(ticket) {
                                driver.wait(before).unwrap();
                            }
                        }
                    }
                }
                driver.wait(last.unwrap()).unwrap();
                let (whole, sliced): (Vec<_>, Vec<_>) =
                    (0..WORDS).map(|at| (word(&seen, at), word(&seen, WORDS + at))).unzip();
                assert!(whole.iter().any(|word| *word != 0), "{text}");
                assert_eq!(whole, sliced, "{text}");
            }
        }
    });
}

#[test]
fn dispatches_in_flight_with_other_grids_are_each_told_their_own() {
    with_driver(|mut driver: Driver| {
        let kernel = driver.pipeline(&sanitize(&Source::wgsl(STRIDE)).unwrap()).unwrap();
        let (import, seen) = memory(&driver, 0x1000);
        let mut last = None;
        for groups in 1..=20 {
            let bounds = [bind(3, &import, 0, 1600)];
            let ticket = driver.dispatch(&kernel, &bounds, &[], &Slice::whole([groups, 1, 1])).unwrap();
            if let Some(before) = last.replace(ticket) {
                driver.wait(before).unwrap();
            }
        }
        driver.wait(last.unwrap()).unwrap();
        for at in 0..400_u32 {
            let expected: u32 = (1..=20_u32).map(|groups| at * 3 + at % (groups * 4) + 1).sum();
            assert_eq!(word(&seen, u64::from(at)), expected, "word {at}");
        }
    });
}
