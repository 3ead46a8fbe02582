//! A device that can import no host memory: what kernels bind is copied to it, and what they change is copied back.

#![allow(clippy::unwrap_used, reason = "a failing test stops here")]

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use campanile_host_gpu::memory::mapping::Access;
use campanile_host_gpu::memory::mapping::Mapping;
use campanile_host_gpu::node::buffer::Step;
use campanile_host_gpu::vulkan::driver::Driver;
use campanile_host_gpu::vulkan::import::HostRange;
use campanile_host_gpu::vulkan::import::Import;
use campanile_host_gpu::vulkan::options::Executor;
use campanile_host_gpu::vulkan::options::Options;
use campanile_host_gpu::vulkan::pipeline::Pipeline;
use campanile_host_gpu::vulkan::request::Slice;
use campanile_protocol::packet;
use campanile_protocol::packet::Fence;
use campanile_protocol::packet::PacketHeader;
use zerocopy::IntoBytes;

use crate::bench::bind;
use crate::bench::map;
use crate::bench::memfd;
use crate::bench::memory;
use crate::bench::pipeline;
use crate::bench::word;
use crate::faults::without_imports;
use crate::scene::BASE;
use crate::scene::Scene;
use crate::scene::dispatch;

const PAGE: u64 = 4096;

/// Adds the second buffer to the first, word by word, but for words that are 9.
const ADD: &str = "
@group(0) @binding(0) var<storage, read_write> cells: array<u32>;
@group(0) @binding(1) var<storage, read> more: array<u32>;
@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if more[id.x] != 9u { cells[id.x] = cells[id.x] + more[id.x]; }
}";

const DOUBLE: &str = "
@group(0) @binding(0) var<storage, read_write> cells: array<u32>;
@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    cells[id.x] = cells[id.x] * 2u;
}";

fn set(memory: &Mapping, index: u64, value: u32) {
    memory.word32(index * 4).unwrap().store(value, Ordering::Relaxed);
}

/// Adds 256 bytes from `more` of `memory` to those from `cells`.
fn add(driver: &mut Driver, kernel: &Pipeline, memory: &Import, cells: u64, more: u64) {
    let bounds = [bind(0, memory, cells, 256), bind(1, memory, more, 256)];
    let ticket = driver.dispatch(kernel, &bounds, &[], &Slice::whole([1; 3])).unwrap();
    driver.wait(ticket).unwrap();
}

#[test]
fn the_host_sees_what_a_kernel_wrote_once_it_is_settled_and_its_own_words_beside_it_stay() {
    without_imports(|mut driver| {
        let (import, seen) = memory(&driver, 4 * PAGE);
        let kernel = pipeline(&driver, ADD);
        for at in 0..64_u32 {
            set(&seen, 1024 + u64::from(at), at + 1);
            set(&seen, 2048 + u64::from(at), if at == 5 { 9 } else { 10 });
        }
        add(&mut driver, &kernel, &import, PAGE, 2 * PAGE);
        assert_eq!(word(&seen, 1024), 1, "before it is settled");
        // Beside what the kernel writes: on its page, in its range, and in the range that it only reads.
        set(&seen, 1024 + 5, 77);
        set(&seen, 1024 + 64, 78);
        set(&seen, 2048, 79);
        driver.settle().unwrap();
        assert_eq!([1024, 1025, 1087].map(|at| word(&seen, at)), [11, 12, 74]);
        assert_eq!([1029, 1088, 2048].map(|at| word(&seen, at)), [77, 78, 79]);
        // Twice is once.
        set(&seen, 1024, 5);
        driver.settle().unwrap();
        assert_eq!(word(&seen, 1024), 5);
    });
}

#[test]
fn a_dispatch_sees_what_those_before_it_wrote_and_what_the_host_wrote_before_the_last_time_it_was_settled() {
    without_imports(|mut driver| {
        let (import, seen) = memory(&driver, 4 * PAGE);
        let kernel = pipeline(&driver, ADD);
        set(&seen, 2048, 3);
        add(&mut driver, &kernel, &import, PAGE, 2 * PAGE);
        // What was read before is written now, and the other way round.
        add(&mut driver, &kernel, &import, 2 * PAGE, PAGE);
        set(&seen, 2048, 100);
        add(&mut driver, &kernel, &import, PAGE, 2 * PAGE);
        driver.settle().unwrap();
        assert_eq!([1024, 2048].map(|at| word(&seen, at)), [9, 6], "the host's 100 came too late");
        set(&seen, 2048, 100);
        add(&mut driver, &kernel, &import, PAGE, 2 * PAGE);
        driver.settle().unwrap();
        assert_eq!(word(&seen, 1024), 109);
    });
}

#[test]
fn ranges_of_any_pages_are_brought_and_no_other_page_is_touched() {
    without_imports(|mut driver| {
        // Over several words of the set of pages, and an offset in its file.
        let file = memfd(300 * PAGE);
        let seen = map(&file, 0, 300 * PAGE, Access::ReadWrite);
        let imported = map(&file, 0, 300 * PAGE, Access::ReadWrite);
        let (offset, length) = (2 * PAGE, 298 * PAGE);
        let range = HostRange { mapping: Arc::clone(&imported), offset, length, access: Access::ReadWrite };
        let import = driver.import(&range).unwrap();
        let kernel = pipeline(&driver, DOUBLE);
        for index in 0..300 * 1024_u32 {
            set(&seen, index.into(), index);
        }
        let (from, pages) = (60 * PAGE, 140);
        let bounds = [bind(0, &import, from, pages * PAGE)];
        let groups = u32::try_from(pages * PAGE / 256).unwrap();
        let ticket = driver.dispatch(&kernel, &bounds, &[], &Slice::whole([groups, 1, 1])).unwrap();
        driver.wait(ticket).unwrap();
        driver.settle().unwrap();
        let doubled = 62 * 1024..202 * 1024;
        for index in 0..300 * 1024_u32 {
            let expected = index * if doubled.contains(&index) { 2 } else { 1 };
            assert_eq!(word(&seen, index.into()), expected, "word {index}");
        }
        drop(import);
        let beyond = HostRange { length: 299 * PAGE, ..range.clone() };
        let refused = driver.import(&beyond).unwrap_err().to_string();
        assert!(refused.contains("the mapping has 1228800 bytes"), "{refused}");
        let uneven = HostRange { length: PAGE + 4, ..range };
        let refused = driver.import(&uneven).unwrap_err().to_string();
        assert!(refused.contains("multiple of 4096"), "{refused}");
    });
}

#[test]
fn dispatches_behind_a_fence_see_what_was_stored_before_it_was_signalled() {
    without_imports(|driver| {
        let scene = Scene::new();
        let mut node = scene.node(driver, &[DOUBLE], Duration::ZERO);
        let fence = Fence { va: BASE + 8 * PAGE, value: 1 };
        let header = PacketHeader { opcode: packet::FENCE_WAIT, flags: 0, size: 24 };
        let wait = [header.as_bytes(), fence.as_bytes()].concat();
        let packets = [dispatch(1, [1; 3], 0, 256), wait, dispatch(1, [1; 3], 0, 256)].concat();
        let mut buffer = scene.buffer(&packets);
        set(&scene.memory, 0, 3);
        let mut boundaries = 0;
        // Another engine, between the first dispatch and the fence.
        let step = scene.run(&mut buffer, &mut node, &mut || {
            boundaries += 1;
            if boundaries == 1 {
                set(&scene.memory, 1, 50);
                scene.memory.word(8 * PAGE).unwrap().store(1, Ordering::Release);
            }
            false
        });
        assert_eq!(step, Step::Done);
        assert_eq!([0, 1].map(|at| word(&scene.memory, at)), [12, 100]);
    });
}

/// Of each page, words that kernels, copies and fills change; the host has the others.
const THEIRS: u64 = 960;
/// What a kernel makes of a word: so many times it, and so much more.
const KERNELS: [(u32, u32); 3] = [(3, 1), (5, 2), (7, 3)];
/// Pages that are worked on.
const PAGES: u64 = 128;
const WORDS: u64 = PAGES * PAGE / 4;

fn kernel((times, plus): (u32, u32)) -> String {
    format!(
        "@group(0) @binding(0) var<storage, read_write> cells: array<u32>;
        @compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {{
            if id.x % 1024u < {THEIRS}u {{ cells[id.x] = cells[id.x] * {times}u + {plus}u; }}
        }}"
    )
}

/// Numbers that look like chance.
struct Chance(u64);

impl Chance {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

fn packet(opcode: u16, body: &[u8]) -> Vec<u8> {
    let size = u32::try_from(size_of::<PacketHeader>() + body.len()).unwrap();
    [PacketHeader { opcode, flags: 0, size }.as_bytes(), body].concat()
}

/// Some packets, which are played on `expected` as well.
fn any_packets(chance: &mut Chance, expected: &mut [u32]) -> Vec<u8> {
    let (at, half) = (|index: u64| usize::try_from(index).unwrap(), PAGES / 2);
    let mut packets = Vec::new();
    for _ in 0..=chance.below(8) {
        let (low, high) = (chance.below(half), half + chance.below(half));
        let words = 1 + chance.below(THEIRS);
        let (source, target) = (low * 1024, high * 1024);
        let target_va = BASE + high * PAGE;
        packets.extend(match chance.below(6) {
            0 => packet(packet::BARRIER, &[]),
            1 => {
                expected.copy_within(at(source)..at(source + words), at(target));
                let copy = packet::Copy { source_va: BASE + low * PAGE, target_va, size: words * 4 };
                packet(packet::COPY, copy.as_bytes())
            }
            2 => {
                let value = u32::try_from(words).unwrap();
                expected[at(target)..at(target + words)].fill(value);
                let fill = packet::Fill { target_va, size: words * 4, value, reserved: 0 };
                packet(packet::FILL, fill.as_bytes())
            }
            which => {
                let groups = 1 + chance.below(half * PAGE / 256);
                let (times, plus) = KERNELS[at(which - 3)];
                for index in (source..source + groups * 64).filter(|index| index % 1024 < THEIRS) {
                    let word = &mut expected[at(index)];
                    *word = word.wrapping_mul(times).wrapping_add(plus);
                }
                let grid = [u32::try_from(groups).unwrap(), 1, 1];
                dispatch(which - 2, grid, low * PAGE, groups * 256)
            }
        });
    }
    packets
}

#[test]
fn no_store_is_lost_or_made_twice_whatever_runs_is_put_aside_or_is_stored_beside_it() {
    without_imports(|driver| {
        let options = Options { executor: Some(Executor::Gpu), ..Options::default() };
        for driver in [driver, Driver::open(&options).unwrap()] {
            let scene = Scene::new();
            let kernels = KERNELS.map(kernel);
            let kernels: Vec<&str> = kernels.iter().map(String::as_str).collect();
            let mut node = scene.node(driver, &kernels, Duration::from_micros(200));
            let (mut chance, mut beside) = (Chance(7), Chance(8));
            let mut expected = vec![0; usize::try_from(WORDS).unwrap()];
            let mut stores = 0_u32;
            for _ in 0..200 {
                let mut buffer = scene.buffer(&any_packets(&mut chance, &mut expected));
                let mut step = Step::Paused;
                while step == Step::Paused {
                    step = scene.run(&mut buffer, &mut node, &mut || {
                        stores += 1;
                        let at = beside.below(PAGES) * 1024 + THEIRS + beside.below(1024 - THEIRS);
                        set(&scene.memory, at, stores);
                        expected[usize::try_from(at).unwrap()] = stores;
                        beside.below(3) == 0
                    });
                }
                assert_eq!(step, Step::Done);
            }
            for (at, expected) in (0..).zip(expected) {
                assert_eq!(word(&scene.memory, at), expected, "word {at}");
            }
        }
    });
}
