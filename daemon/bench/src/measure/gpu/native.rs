//! The bare driver, in this process.

use std::sync::Arc;
use std::time::Duration;
use std::time::Instant;

use campanile_host_gpu::kernel::program::BindingPoint;
use campanile_host_gpu::kernel::sanitizer::sanitize;
use campanile_host_gpu::kernel::source::Source;
use campanile_host_gpu::memory::mapping::Access;
use campanile_host_gpu::memory::mapping::Mapping;
use campanile_host_gpu::memory::vram::create_memfd;
use campanile_host_gpu::vulkan::driver::Driver;
use campanile_host_gpu::vulkan::import::HostRange;
use campanile_host_gpu::vulkan::import::Import;
use campanile_host_gpu::vulkan::info::Kind;
use campanile_host_gpu::vulkan::local::Copier;
use campanile_host_gpu::vulkan::options::Options;
use campanile_host_gpu::vulkan::pipeline::Pipeline;
use campanile_host_gpu::vulkan::request::Bound;
use campanile_host_gpu::vulkan::request::Slice;

use super::work;
use super::work::Side;
use super::work::Sizes;
use super::work::Work;

/// How long work is polled for: longer than any takes.
const SPIN: Duration = Duration::from_secs(60);

/// Where buffers are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// In memory of the device's own.
    Device,
    /// In host memory that is imported, as video memory is.
    Host,
}

/// Opens the device that engines would take.
pub(super) fn open(name: Option<&str>) -> anyhow::Result<Driver> {
    let options = Options { name: name.map(str::to_owned), spin: SPIN, ..Options::default() };
    let mut driver = Driver::open(&options)?;
    driver.self_test()?;
    Ok(driver)
}

/// A device instance with buffers at one place.
pub(super) struct Native {
    x: Import,
    y: Import,
    factors: [Import; 3],
    /// What results are copied to, to be looked at.
    result: Import,
    seen: Arc<Mapping>,
    saxpy: Pipeline,
    matmul: Pipeline,
    count: Pipeline,
    copier: Copier,
    sizes: Sizes,
    /// Polls for the end of work, or sleeps until then: kernels of a CPU driver want the core.
    polls: bool,
    driver: Driver,
}

impl Native {
    pub(super) fn new(driver: Driver, place: Place, sizes: Sizes) -> anyhow::Result<Self> {
        let memory = |bytes: u64| match place {
            Place::Device => anyhow::Ok(driver.allocate(bytes, None)?),
            Place::Host => Ok(host(&driver, bytes)?.0),
        };
        let (x, y) = (memory(sizes.vector_bytes)?, memory(sizes.vector_bytes)?);
        let matrix = sizes.matrix_bytes();
        let factors = [memory(matrix)?, memory(matrix)?, memory(matrix)?];
        let (result, seen) = host(&driver, sizes.vector_bytes.max(matrix))?;
        let pipeline = |text: &str| anyhow::Ok(driver.pipeline(&sanitize(&Source::wgsl(text))?)?);
        let (start, fill) = (pipeline(work::START)?, pipeline(work::FACTORS)?);
        let (saxpy, matmul, count) =
            (pipeline(work::SAXPY)?, pipeline(work::MATMUL)?, pipeline(work::COUNT)?);
        let (copier, polls) = (Copier::new(&driver)?, driver.info().kind != Kind::Cpu);
        let mut native =
            Self { x, y, factors, result, seen, saxpy, matmul, count, copier, sizes, polls, driver };
        let Self { driver, x, y, factors: [a, b, _], .. } = &mut native;
        dispatch(driver, false, &start, &[x, y], &[], sizes.vector_groups()?)?;
        dispatch(driver, false, &fill, &[a, b], &[], sizes.matrix_groups()?)?;
        Ok(native)
    }
}

impl Side for Native {
    fn run(&mut self, work: Work) -> anyhow::Result<Duration> {
        let Self { driver, x, y, factors: [a, b, c], saxpy, matmul, copier, sizes, polls, .. } = self;
        let begun = Instant::now();
        match work {
            Work::Saxpy => dispatch(driver, *polls, saxpy, &[x, y], &[], sizes.vector_groups()?)?,
            Work::Matmul => {
                let side = sizes.side.to_ne_bytes();
                dispatch(driver, *polls, matmul, &[a, b, c], &side, sizes.product_groups())?;
            }
            Work::Copy => copier.copy(x, y, sizes.vector_bytes)?,
        }
        Ok(begun.elapsed())
    }

    fn launch(&mut self) -> anyhow::Result<Duration> {
        let Self { driver, y, count, .. } = self;
        let begun = Instant::now();
        dispatch(driver, true, count, &[y], &[], [1; 3])?;
        Ok(begun.elapsed())
    }

    fn result(&mut self, work: Work) -> anyhow::Result<Vec<u8>> {
        let Self { y, factors: [.., c], result, seen, copier, sizes, .. } = self;
        let bytes = sizes.result_bytes(work);
        copier.copy(if work == Work::Matmul { c } else { y }, result, bytes)?;
        let mut found = Vec::new();
        for (start, length) in work::samples(bytes) {
            for at in (start..start + length).step_by(4) {
                let word = seen.word32(at).ok_or_else(|| anyhow::anyhow!("a result ends early"))?;
                found.extend(word.load(std::sync::atomic::Ordering::Relaxed).to_ne_bytes());
            }
        }
        Ok(found)
    }
}

/// Host memory, imported, and a mapping of it.
pub(super) fn host(driver: &Driver, bytes: u64) -> anyhow::Result<(Import, Arc<Mapping>)> {
    let file = create_memfd("campanile-bench-gpu", bytes)?;
    let mapping = Arc::new(Mapping::new(file, 0, bytes, Access::ReadWrite)?);
    Ok((driver.import(&HostRange::whole(&mapping, Access::ReadWrite))?, mapping))
}

fn dispatch(
    driver: &mut Driver,
    polls: bool,
    pipeline: &Pipeline,
    buffers: &[&Import],
    constants: &[u8],
    groups: [u32; 3],
) -> anyhow::Result<()> {
    let bounds: Vec<Bound<'_>> = (0..)
        .zip(buffers)
        .map(|(slot, memory)| Bound {
            binding: BindingPoint::plain(slot),
            memory,
            offset: 0,
            length: memory.len(),
            format: 0,
        })
        .collect();
    let ticket = driver.dispatch(pipeline, &bounds, constants, &Slice::whole(groups))?;
    if polls {
        driver.wait(ticket)?
    } else {
        driver.sleep(ticket)?
    }
    Ok(())
}
