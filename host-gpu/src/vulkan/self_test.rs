//! Whether the driver computes rightly, asked with kernels whose results are known.
//!
//! lavapipe before 25.0 ends every invocation after 65,535 loop iterations without an error, so a version check
//! would do for that one driver. A computation does for all.

use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;
use std::time::Instant;

use crate::kernel::program::BindingPoint;
use crate::kernel::program::BufferChecks;
use crate::kernel::sanitizer::sanitize;
use crate::kernel::source::Source;
use crate::memory::mapping::Access;
use crate::memory::mapping::Mapping;
use crate::vulkan::driver::Driver;
use crate::vulkan::error::VulkanError;
use crate::vulkan::import::HostRange;
use crate::vulkan::import::Import;
use crate::vulkan::pipeline::Pipeline;
use crate::vulkan::pipeline::anonymous;
use crate::vulkan::request::Bound;
use crate::vulkan::request::DispatchError;
use crate::vulkan::request::Slice;

/// More than the 65,535 of the fault, in one loop and in two together.
const ONE_LOOP: u32 = 70_000;
const EACH_OF_TWO_LOOPS: u32 = 40_000;

const LOOPS: &str = "
struct Counts { one: u32, each: u32 }
var<immediate> counts: Counts;
@group(0) @binding(0) var<storage, read_write> results: array<u32>;
fn step(x: u32) -> u32 { return x * 1664525u + 1013904223u; }
@compute @workgroup_size(1) fn one_loop() {
    var x = 1u;
    for (var i = 0u; i < counts.one; i++) { x = step(x); }
    results[0] = x;
}
@compute @workgroup_size(1) fn two_loops() {
    var x = 2u;
    for (var i = 0u; i < counts.each; i++) { x = step(x); }
    for (var i = 0u; i < counts.each; i++) { x = step(x) ^ i; }
    results[0] = x;
}";

/// The atomic at a computed index makes the sanitizer leave all checks to the device, which is what is tested.
/// `cells` and `results` are parts of one memory, so what strays lands where it is seen.
const BOUNDS: &str = "
var<immediate> far: u32;
@group(0) @binding(0) var<storage, read_write> cells: array<atomic<u32>>;
@group(0) @binding(1) var<storage, read_write> results: array<u32>;
@compute @workgroup_size(1) fn main() {
    results[0] = atomicLoad(&cells[far]);
    results[1] = arrayLength(&cells);
    atomicStore(&cells[far], 7u);
    atomicAdd(&cells[far + 1u], 7u);
    atomicStore(&cells[1], 9u);
}";

/// Workgroup memory must start zeroed, whatever was there: the first dispatch fills it, the second looks.
const LEFTOVERS: &str = "
var<immediate> fill: u32;
var<workgroup> cells: array<u32, 1024>;
@group(0) @binding(0) var<storage, read_write> results: array<u32>;
@compute @workgroup_size(64) fn main(@builtin(local_invocation_index) i: u32) {
    var seen = 0u;
    for (var at = i; at < 1024u; at += 64u) { seen |= cells[at]; }
    workgroupBarrier();
    for (var at = i; at < 1024u; at += 64u) { cells[at] = fill + at; }
    workgroupBarrier();
    results[i] = seen;
    results[64u + i] = cells[(i * 97u) % 1024u];
}";

/// The least that can be dispatched.
const NOTHING: &str = "@compute @workgroup_size(1) fn main() {}";

/// How many dispatches of one workgroup are timed.
const ROUND_TRIPS: usize = 101;

/// What a passed self-test found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SelfTest {
    /// How long it took.
    pub elapsed: Duration,
    /// From dispatch to seen completion of one workgroup that does next to nothing, median.
    pub round_trip: Duration,
}

impl Driver {
    /// Runs real kernels and compares. Run it before the process is sealed: drivers open files at their first
    /// dispatch.
    pub fn self_test(&mut self) -> Result<SelfTest, VulkanError> {
        let start = Instant::now();
        let mut bench = Bench::new(self)?;
        bench.loops()?;
        bench.bounds()?;
        bench.leftovers()?;
        let round_trip = bench.round_trip()?;
        Ok(SelfTest { elapsed: start.elapsed(), round_trip })
    }

    /// For the secondary device of a driver that passes: whatever it opens at its first dispatch is open after it.
    pub fn first_dispatch(&mut self) -> Result<(), VulkanError> {
        let mut bench = Bench::new(self)?;
        let pipeline = bench.pipeline(NOTHING, "main")?;
        bench.run(&pipeline, &[], &[])
    }
}

/// A driver with memory to test on: two pages, the second for results.
struct Bench<'a> {
    driver: &'a mut Driver,
    mapping: Arc<Mapping>,
    memory: Import,
    half: u64,
}

impl<'a> Bench<'a> {
    fn new(driver: &'a mut Driver) -> Result<Self, VulkanError> {
        let limits = driver.limits();
        let half = limits.import_alignment.max(limits.binding_alignment).max(4096);
        let mapping = anonymous(2 * half)?;
        let memory = driver.import(&HostRange::whole(&mapping, Access::ReadWrite))?;
        Ok(Self { driver, mapping, memory, half })
    }

    fn loops(&mut self) -> Result<(), VulkanError> {
        let step = |x: u32| x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let counts = [ONE_LOOP.to_ne_bytes(), EACH_OF_TWO_LOOPS.to_ne_bytes()].concat();
        let one = (0..ONE_LOOP).fold(1, |x, _| step(x));
        let first = (0..EACH_OF_TWO_LOOPS).fold(2, |x, _| step(x));
        let two = (0..EACH_OF_TWO_LOOPS).fold(first, |x, i| step(x) ^ i);
        for (entry, expected, what) in [
            ("one_loop", one, format!("a loop of {ONE_LOOP} iterations")),
            ("two_loops", two, format!("two loops of {EACH_OF_TWO_LOOPS} iterations")),
        ] {
            let pipeline = self.pipeline(LOOPS, entry)?;
            self.run(&pipeline, &[(0, self.half, self.half)], &counts)?;
            self.expect(self.half, expected, &what)?;
        }
        Ok(())
    }

    fn bounds(&mut self) -> Result<(), VulkanError> {
        const CELLS: u32 = 4;
        let source = Source::wgsl(BOUNDS);
        let kernel = sanitize(&source).map_err(|e| VulkanError::SelfTest { reason: e.to_string() })?;
        if kernel.buffer_checks != BufferChecks::Device {
            return Err(VulkanError::SelfTest {
                reason: "the bounds kernel brings checks of its own".to_owned(),
            });
        }
        let pipeline = self.driver.pipeline(&kernel)?;
        // Just past the bound cells lies a word that a load must not see and a store must not change.
        self.fill(0, self.half, 0xabcd_ef01);
        self.fill(self.half, 8, 1);
        let places = [(0, 0, u64::from(CELLS) * 4), (1, self.half, self.half)];
        self.run(&pipeline, &places, &CELLS.to_ne_bytes())?;
        self.expect(self.half, 0, "a load beyond its buffer")?;
        self.expect(self.half + 4, CELLS, "the length of a buffer")?;
        self.expect(4, 9, "a store inside its buffer")?;
        for beyond in (u64::from(CELLS) * 4..self.half).step_by(4) {
            self.expect(beyond, 0xabcd_ef01, "a store beyond its buffer")?;
        }
        Ok(())
    }

    fn leftovers(&mut self) -> Result<(), VulkanError> {
        let pipeline = self.pipeline(LEFTOVERS, "main")?;
        for _ in 0..2 {
            self.fill(self.half, 512, 5);
            self.run(&pipeline, &[(0, self.half, 512)], &0x8000_0000_u32.to_ne_bytes())?;
            for word in 0..64 {
                self.expect(self.half + word * 4, 0, "workgroup memory at the start of a kernel")?;
            }
        }
        Ok(())
    }

    fn round_trip(&mut self) -> Result<Duration, VulkanError> {
        let pipeline = self.pipeline(LOOPS, "one_loop")?;
        let mut times = Vec::with_capacity(ROUND_TRIPS);
        for _ in 0..ROUND_TRIPS {
            let start = Instant::now();
            self.run(&pipeline, &[(0, self.half, self.half)], &[0; 8])?;
            times.push(start.elapsed());
        }
        times.sort_unstable();
        Ok(times.get(ROUND_TRIPS / 2).copied().unwrap_or_default())
    }

    fn pipeline(&self, text: &str, entry: &str) -> Result<Pipeline, VulkanError> {
        let source = Source { entry: Some(entry.to_owned()), ..Source::wgsl(text) };
        let kernel = sanitize(&source).map_err(|e| VulkanError::SelfTest { reason: e.to_string() })?;
        self.driver.pipeline(&kernel)
    }

    /// Runs one workgroup with `places`: binding, offset, length.
    fn run(
        &mut self,
        pipeline: &Pipeline,
        places: &[(u32, u64, u64)],
        constants: &[u8],
    ) -> Result<(), VulkanError> {
        let memory = &self.memory;
        let bounds: Vec<Bound<'_>> = places
            .iter()
            .map(|&(binding, offset, length)| Bound {
                binding: BindingPoint::plain(binding),
                memory,
                offset,
                length,
                format: 0,
            })
            .collect();
        let ticket = self.driver.dispatch(pipeline, &bounds, constants, &Slice::whole([1; 3])).map_err(
            |e| match e {
                DispatchError::Vulkan(e) => e,
                refused => VulkanError::SelfTest { reason: refused.to_string() },
            },
        )?;
        self.driver.wait(ticket)?;
        self.driver.settle()
    }

    fn word(&self, offset: u64) -> Option<&std::sync::atomic::AtomicU32> {
        self.mapping.word32(offset)
    }

    fn fill(&self, offset: u64, length: u64, value: u32) {
        for at in (offset..offset + length).step_by(4) {
            if let Some(word) = self.word(at) {
                word.store(value, std::sync::atomic::Ordering::Relaxed);
            }
        }
    }

    fn expect(&self, offset: u64, expected: u32, what: &str) -> Result<(), VulkanError> {
        let found = self.word(offset).map(|word| word.load(std::sync::atomic::Ordering::Relaxed));
        if found == Some(expected) {
            return Ok(());
        }
        let info = self.driver.info();
        let mut what = what.to_owned();
        // Writing to a string does not fail.
        let _ = write!(what, " gives {} instead of {expected}", found.unwrap_or_default());
        Err(VulkanError::WrongResult {
            device: info.name.clone(),
            driver: format!("{} {}", info.driver, info.driver_version),
            what,
        })
    }
}
