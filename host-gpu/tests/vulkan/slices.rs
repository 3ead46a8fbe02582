//! Dispatches that are put aside between two slices, and go on.

use std::time::Duration;
use std::time::Instant;

use campanile_host_gpu::node::buffer::Buffer;
use campanile_host_gpu::node::buffer::Node;
use campanile_host_gpu::node::buffer::Step;
use campanile_host_gpu::vulkan::driver::Driver;
use campanile_host_gpu::vulkan::options::Options;
use campanile_protocol::engine::save_area;
use campanile_protocol::engine::saved::Saved;
use campanile_protocol::packet::Fault;

use crate::bench::set_word;
use crate::bench::with_driver;
use crate::bench::word;
use crate::scene::Scene;
use crate::scene::dispatch;
use crate::scene::dispatch_indirect;

/// Adds to a word of its own what depends on all its ids: a group that ran twice, or not, or elsewhere, shows.
const COUNT: &str = "
@group(0) @binding(0) var<storage, read_write> cells: array<atomic<u32>>;
@compute @workgroup_size(4) fn main(
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let at = ((group.z * groups.y + group.y) * groups.x + group.x) * 4u + local;
    atomicAdd(&cells[at], 1u + at * 7u + id.x * 31u + id.y * 37u + id.z * 41u + groups.x * 43u);
}";

const GRID: [u32; 3] = [5, 7, 3];
const GROUPS: u64 = 105;
/// Bytes of its result, and where two of them and a grid lie.
const LENGTH: u64 = GROUPS * 16;
const WHOLE: u64 = 0;
const SLICED: u64 = 0x1000;
const GRID_AT: u64 = 0x2000;

fn expected(at: u32) -> u32 {
    let (group, local) = (at / 4, at % 4);
    let [x, y, z] = [group % 5, group / 5 % 7, group / 35];
    1 + at * 7 + (x * 4 + local) * 31 + y * 37 + z * 41 + 5 * 43
}

/// So short that, once the kernel's cost is known, every slice is one group.
const SHORTEST: Duration = Duration::from_nanos(1000);

/// A node that knows what kernel 1 costs.
fn warm(scene: &Scene, driver: Driver) -> Node {
    let mut node = scene.node(driver, &[COUNT], SHORTEST);
    let mut first = scene.buffer(&dispatch(1, [1; 3], GRID_AT + 0x1000, LENGTH));
    assert_eq!(scene.run(&mut first, &mut node, &mut || false), Step::Done);
    node
}

fn another_driver() -> Driver {
    Driver::open(&Options::default()).expect("a second driver")
}

fn check_counts(scene: &Scene, offset: u64, groups: u64) {
    for at in 0..u32::try_from(GROUPS * 4).expect("few") {
        let wanted = if u64::from(at) < groups * 4 { expected(at) } else { 0 };
        assert_eq!(word(&scene.memory, offset / 4 + u64::from(at)), wanted, "word {at}");
    }
}

/// Through the words in which an engine saves it.
fn saved(buffer: &Buffer) -> Saved {
    save_area::read_slot(save_area::slot_words(9, buffer.save()), 9).expect("of this buffer")
}

#[test]
fn pre_40_mcdm_31_mcdm_32_a_dispatch_put_aside_at_every_slice_gives_the_same_bits() {
    with_driver(|driver: Driver| {
        let scene = Scene::new();
        // Each slice runs in the other of two nodes, as after a reset.
        let mut nodes = [warm(&scene, driver), warm(&scene, another_driver())];
        let packets = dispatch(1, GRID, SLICED, LENGTH);
        let mut buffer = scene.buffer(&packets);
        let mut slices = 1;
        while scene.run(&mut buffer, &mut nodes[slices % 2], &mut || true) == Step::Paused {
            let saved = saved(&buffer);
            check_counts(&scene, SLICED, saved.done_in_packet);
            buffer = scene.buffer(&packets).restore(saved).unwrap();
            slices += 1;
        }
        assert!(slices > 50, "{slices} slices of {GROUPS} groups");
        let mut whole = scene.buffer(&dispatch(1, GRID, WHOLE, LENGTH));
        let mut unsliced = scene.node(another_driver(), &[COUNT], Duration::ZERO);
        assert_eq!(scene.run(&mut whole, &mut unsliced, &mut || panic!("one piece, one packet")), Step::Done);
        check_counts(&scene, WHOLE, GROUPS);
        check_counts(&scene, SLICED, GROUPS);
    });
}

#[test]
fn pre_16_pre_25_the_slice_that_runs_finishes_and_the_next_does_not_start() {
    with_driver(|driver: Driver| {
        let scene = Scene::new();
        let mut node = warm(&scene, driver);
        let mut buffer = scene.buffer(&dispatch(1, GRID, SLICED, LENGTH));
        let mut asked = 0;
        let step = scene.run(&mut buffer, &mut node, &mut || {
            asked += 1;
            asked >= 5
        });
        assert_eq!(step, Step::Paused);
        // What a device instance was ahead by is asked about, too.
        assert!(asked >= 5);
        let done = buffer.save().done_in_packet;
        assert!((5..GROUPS).contains(&done), "{done} groups in 5 slices");
        check_counts(&scene, SLICED, done);
        // It goes on here too.
        assert_eq!(scene.run(&mut buffer, &mut node, &mut || false), Step::Done);
        check_counts(&scene, SLICED, GROUPS);
    });
}

/// Tens of milliseconds a group, which adds one to a word of its own.
const SLOW: &str = "
@group(0) @binding(0) var<storage, read_write> cells: array<u32>;
@compute @workgroup_size(1) fn main(@builtin(workgroup_id) group: vec3<u32>) {
    var x = group.x;
    for (var i = 0u; i < 20000000u; i++) { x = x * 1664525u + 1013904223u; }
    cells[group.x] += 1u;
    cells[128u + group.x] = x;
}";

#[test]
fn pre_16_pre_25_slices_begin_without_the_engine_until_it_is_told_to_stop() {
    with_driver(|driver: Driver| {
        let scene = Scene::new();
        // A group is a slice, or two are, and none of them takes too long for that.
        let slice = Duration::from_millis(100);
        let mut node = scene.node(driver, &[SLOW], slice);
        let groups = 30;
        let mut first = scene.buffer(&dispatch(1, [1; 3], GRID_AT, LENGTH));
        assert_eq!(scene.run(&mut first, &mut node, &mut || false), Step::Done);
        let mut buffer = scene.buffer(&dispatch(1, [groups, 1, 1], SLICED, LENGTH));
        let count = |group: u32| word(&scene.memory, SLICED / 4 + u64::from(group));
        let mut asked = 0;
        let step = scene.run(&mut buffer, &mut node, &mut || {
            asked += 1;
            // None was started since the first time, but as many as the device instances take.
            if asked == 2 {
                let begun = Instant::now();
                while count(12) == 0 {
                    assert!(begun.elapsed() < Duration::from_secs(60), "no slice starts");
                    std::thread::yield_now();
                }
            }
            asked >= 2
        });
        assert_eq!(step, Step::Paused);
        let done = buffer.save().done_in_packet;
        assert!((13..u64::from(groups)).contains(&done), "{done} groups");
        let counts: Vec<u32> = (0..groups).map(count).collect();
        let expected: Vec<u32> = (0..u64::from(groups)).map(|group| u32::from(group < done)).collect();
        assert_eq!(counts, expected, "those that are done ran once, and no other");
        // It goes on, and those run.
        assert_eq!(scene.run(&mut buffer, &mut node, &mut || false), Step::Done);
        assert!((0..groups).all(|group| count(group) == 1));
    });
}

/// Every second group takes tens of milliseconds, and of slices of one group one device instance has all of these.
const UNEVEN: &str = "
@group(0) @binding(0) var<storage, read_write> cells: array<u32>;
@compute @workgroup_size(1) fn main(@builtin(workgroup_id) group: vec3<u32>) {
    var x = group.x;
    let turns = select(100u, 10000000u, group.x % 2u == 0u);
    for (var i = 0u; i < turns; i++) { x = x * 1664525u + 1013904223u; }
    cells[group.x] += 1u;
    cells[128u + group.x] = x;
}";

#[test]
fn pre_40_what_a_device_instance_is_behind_by_when_it_is_stopped_runs_once() {
    with_driver(|driver: Driver| {
        let scene = Scene::new();
        let mut node = scene.node(driver, &[UNEVEN], SHORTEST);
        let mut first = scene.buffer(&dispatch(1, [1; 3], GRID_AT, LENGTH));
        assert_eq!(scene.run(&mut first, &mut node, &mut || false), Step::Done);
        let groups = 60;
        let mut buffer = scene.buffer(&dispatch(1, [groups, 1, 1], SLICED, LENGTH));
        let counts = || -> Vec<u32> {
            (0..groups).map(|group| word(&scene.memory, SLICED / 4 + u64::from(group))).collect()
        };
        let mut asked = 0;
        while scene.run(&mut buffer, &mut node, &mut || {
            asked += 1;
            asked % 3 == 0
        }) == Step::Paused
        {
            let done = buffer.save().done_in_packet;
            let expected: Vec<u32> = (0..u64::from(groups)).map(|group| u32::from(group < done)).collect();
            assert_eq!(counts(), expected);
        }
        assert!(counts().iter().all(|count| *count == 1));
    });
}

#[test]
fn pre_40_a_dispatch_that_is_stopped_wherever_slices_are_gives_the_same_bits() {
    with_driver(|driver: Driver| {
        let scene = Scene::new();
        let mut node = warm(&scene, driver);
        for stop in 1..60 {
            for at in 0..GROUPS * 4 {
                set_word(&scene.memory, SLICED / 4 + at, 0);
            }
            let mut buffer = scene.buffer(&dispatch(1, GRID, SLICED, LENGTH));
            let mut asked = 0;
            let mut stops = 0;
            while scene.run(&mut buffer, &mut node, &mut || {
                asked += 1;
                asked % stop == 0
            }) == Step::Paused
            {
                stops += 1;
                check_counts(&scene, SLICED, buffer.save().done_in_packet);
            }
            assert!(stops > 0 || stop > 2, "it is asked more than twice");
            check_counts(&scene, SLICED, GROUPS);
        }
    });
}

#[test]
fn mcdm_31_an_indirect_dispatch_goes_on_with_the_grid_that_it_read() {
    with_driver(|driver: Driver| {
        let scene = Scene::new();
        let mut node = warm(&scene, driver);
        let set_grid = |grid: [u32; 3]| {
            for (at, side) in (0..).zip(grid) {
                set_word(&scene.memory, GRID_AT / 4 + at, side);
            }
        };
        set_grid(GRID);
        let packets = dispatch_indirect(1, GRID_AT, SLICED, LENGTH);
        let mut buffer = scene.buffer(&packets);
        assert_eq!(scene.run(&mut buffer, &mut node, &mut || true), Step::Paused);
        set_grid([1000, 1, 1]);
        buffer = scene.buffer(&packets).restore(saved(&buffer)).unwrap();
        assert_eq!(scene.run(&mut buffer, &mut node, &mut || true), Step::Paused);
        set_grid([0; 3]);
        assert_eq!(scene.run(&mut buffer, &mut node, &mut || false), Step::Done);
        check_counts(&scene, SLICED, GROUPS);
        assert_eq!(buffer.save().grid, [0; 3], "the next packet has a grid of its own");
    });
}

#[test]
fn a_place_that_cannot_be_is_a_fault_of_its_buffer_and_of_nothing_else() {
    with_driver(|driver: Driver| {
        let scene = Scene::new();
        let mut node = warm(&scene, driver);
        let (direct, indirect) =
            (dispatch(1, GRID, SLICED, LENGTH), dispatch_indirect(1, GRID_AT, SLICED, LENGTH));
        let beyond = u32::MAX;
        for (packets, done_in_packet, grid) in [
            (&direct, GROUPS + 1, [0; 3]),
            (&direct, u64::MAX, [0; 3]),
            (&direct, u64::MAX, GRID),
            (&indirect, 1, [0; 3]),
            (&indirect, GROUPS + 1, GRID),
            (&indirect, 1, [beyond; 3]),
            (&indirect, u64::MAX, [beyond; 3]),
            (&indirect, 1, [beyond, 1, 1]),
        ] {
            let mut buffer = scene.buffer(packets).restore(Saved { at: 0, done_in_packet, grid }).unwrap();
            let step = scene.run(&mut buffer, &mut node, &mut || false);
            assert!(matches!(step, Step::Fault(Fault::PacketField | Fault::Bindings, _)), "{step:?}");
        }
        check_counts(&scene, SLICED, 0);
        // All groups are done: no more of them run.
        let all = Saved { at: 0, done_in_packet: GROUPS, grid: GRID };
        for packets in [&direct, &indirect] {
            let mut buffer = scene.buffer(packets).restore(all).unwrap();
            assert_eq!(scene.run(&mut buffer, &mut node, &mut || false), Step::Done);
        }
        check_counts(&scene, SLICED, 0);
        let mut after = scene.buffer(&direct);
        assert_eq!(scene.run(&mut after, &mut node, &mut || false), Step::Done);
        check_counts(&scene, SLICED, GROUPS);
    });
}

#[test]
fn grids_that_are_nothing_or_too_much_are_as_they_were_in_one_piece() {
    with_driver(|driver: Driver| {
        let scene = Scene::new();
        let mut node = warm(&scene, driver);
        for grid in [[0, 1, 1], [1, 0, 1], [5, 5, 0]] {
            let mut buffer = scene.buffer(&dispatch(1, grid, SLICED, LENGTH));
            assert_eq!(scene.run(&mut buffer, &mut node, &mut || true), Step::Done);
        }
        for grid in [[u32::MAX; 3], [1 << 20, 1, 1], [1, 1, u32::MAX]] {
            let mut buffer = scene.buffer(&dispatch(1, grid, SLICED, LENGTH));
            let step = scene.run(&mut buffer, &mut node, &mut || true);
            assert!(matches!(step, Step::Fault(Fault::Bindings, _)), "{step:?}");
        }
        check_counts(&scene, SLICED, 0);
    });
}

#[test]
fn a_dispatch_of_a_known_kernel_that_is_short_is_one_slice() {
    with_driver(|driver: Driver| {
        let scene = Scene::new();
        let mut node = scene.node(driver, &[COUNT], Duration::from_secs(1));
        let packets = dispatch(1, GRID, SLICED, LENGTH);
        let mut asked = [0; 3];
        for asked in &mut asked {
            let mut buffer = scene.buffer(&packets);
            let step = scene.run(&mut buffer, &mut node, &mut || {
                *asked += 1;
                false
            });
            assert_eq!(step, Step::Done);
        }
        assert_eq!(asked[1..], [0, 0], "an unknown kernel begins small, a known one does not");
        assert!(asked[0] > 0);
    });
}

/// Each stores what depends on what the one before it stored last.
const FORTH: &str = "
@group(0) @binding(0) var<storage, read_write> cells: array<u32, 128>;
@compute @workgroup_size(1) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    cells[64u + id.x] = cells[63u - id.x] * 3u + id.x;
}";
const BACK: &str = "
@group(0) @binding(0) var<storage, read_write> cells: array<u32, 128>;
@compute @workgroup_size(1) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    cells[id.x] = cells[127u - id.x] * 5u + 1u;
}";

#[test]
fn dispatches_in_two_instances_see_what_those_before_them_stored() {
    const CELLS: u32 = 64;
    const ROUNDS: usize = 20;
    with_driver(|driver: Driver| {
        let scene = Scene::new();
        let mut node = scene.node(driver, &[FORTH, BACK], SHORTEST);
        let pair = [1, 2].map(|kernel| dispatch(kernel, [CELLS, 1, 1], 0, u64::from(CELLS) * 8));
        let mut buffer = scene.buffer(&pair.concat().repeat(ROUNDS));
        assert_eq!(scene.run(&mut buffer, &mut node, &mut || false), Step::Done);
        let (mut low, mut high) = (vec![0u32; CELLS as usize], vec![0u32; CELLS as usize]);
        for _ in 0..ROUNDS {
            let forth = low.iter().rev().zip(0u32..).map(|(cell, at)| cell.wrapping_mul(3).wrapping_add(at));
            high = forth.collect();
            low = high.iter().rev().map(|cell| cell.wrapping_mul(5).wrapping_add(1)).collect();
        }
        for (at, wanted) in (0u64..).zip(low.into_iter().chain(high)) {
            assert_eq!(word(&scene.memory, at), wanted, "word {at}");
        }
    });
}
