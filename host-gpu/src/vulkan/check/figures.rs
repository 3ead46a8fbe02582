//! How fast a device is, as far as serving guests depends on it.

use std::time::Duration;
use std::time::Instant;

use crate::memory::mapping::Access;
use crate::vulkan::check::kernels;
use crate::vulkan::check::trial::host_memory;
use crate::vulkan::driver::Driver;
use crate::vulkan::error::VulkanError;
use crate::vulkan::import::HostRange;
use crate::vulkan::import::Import;
use crate::vulkan::info::Kind;
use crate::vulkan::local::Copier;

/// Bytes that are imported, copied and computed on: enough that launches do not count.
const BYTES: u64 = 256 << 20;
/// The same on a device that is the CPU.
const CPU_BYTES: u64 = 64 << 20;
const LAUNCHES: usize = 1000;
const SLEPT: usize = 200;
const IMPORTS: usize = 3;
const RUNS: u32 = 7;

/// What was measured of a device; medians.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Figures {
    /// From submission to seen completion of an empty kernel, polling.
    pub launch_polled: Spread,
    /// The same, sleeping.
    pub launch_slept: Spread,
    /// Bytes of the memory that the following were measured with.
    pub bytes: u64,
    /// To import so much host memory, all pages of which are there.
    pub import: Duration,
    /// To copy host memory into the device's.
    pub to_device: Duration,
    /// To copy it back.
    pub to_host: Duration,
    /// For a kernel that reads and writes each byte once, in the device's memory.
    pub kernel_local: Duration,
    /// The same in imported host memory.
    pub kernel_host: Duration,
}

/// A distribution of times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spread {
    /// The median.
    pub p50: Duration,
    /// The 99th percentile.
    pub p99: Duration,
}

impl Spread {
    /// Of these; of none it is zero.
    pub fn of(mut samples: Vec<Duration>) -> Self {
        samples.sort_unstable();
        let last = samples.len().saturating_sub(1);
        let at = |percent: usize| samples.get(last * percent / 100).copied().unwrap_or_default();
        Self { p50: at(50), p99: at(99) }
    }
}

impl Figures {
    /// Times one import of [`Self::bytes`] comes to for a GiB.
    pub fn import_of_a_gib(&self) -> Duration {
        let parts = u32::try_from((1 << 30) / self.bytes.max(1)).unwrap_or(u32::MAX);
        self.import.saturating_mul(parts)
    }

    /// GB/s of what takes so long for each of [`Self::bytes`], copied or read once.
    #[expect(clippy::cast_precision_loss, reason = "a rate")]
    pub fn rate(&self, taken: Duration) -> f64 {
        self.bytes as f64 / taken.as_secs_f64().max(f64::MIN_POSITIVE) / 1e9
    }
}

/// Measures a driver that passed its self-test, and whose spin is longer than a launch takes. What is computed is checked.
///
/// # Errors
/// Vulkan's, memory of the device's own or the host's cannot be had, or something is computed wrongly.
pub fn measure(driver: &mut Driver) -> Result<Figures, VulkanError> {
    let (launch_polled, launch_slept) = launches(driver)?;
    let most = if driver.info().kind == Kind::Cpu { CPU_BYTES } else { BYTES };
    let longest = driver.limits().binding_length / kernels::STEP_BYTES * kernels::STEP_BYTES;
    let bytes = most.min(longest);

    let [imported, seen] = host_memory(bytes)?;
    let range = HostRange::whole(&imported, Access::ReadWrite);
    // Pages that are there already: an import makes no page of a guest's memory.
    for page in (0..bytes).step_by(4096) {
        if let Some(word) = seen.word32(page) {
            word.store(0, std::sync::atomic::Ordering::Relaxed);
        }
    }
    let imports = (0..IMPORTS).map(|_| timed(|| driver.import(&range).map(drop)));
    let import = Spread::of(imports.collect::<Result<_, _>>()?).p50;
    let host = driver.import(&range)?;
    let local = driver.allocate(bytes, None)?;
    let mut copier = Copier::new(driver)?;
    let copies = (0..RUNS).map(|_| timed(|| copier.copy(&host, &local, bytes)));
    let to_device = Spread::of(copies.collect::<Result<_, _>>()?).p50;
    let kernel_local = steps(driver, &local, bytes)?;
    let copies = (0..RUNS).map(|_| timed(|| copier.copy(&local, &host, bytes)));
    let to_host = Spread::of(copies.collect::<Result<_, _>>()?).p50;
    kernels::check(&seen, bytes, RUNS, "device memory after kernels and copies")?;
    let kernel_host = steps(driver, &host, bytes)?;
    kernels::check(&seen, bytes, 2 * RUNS, "host memory after kernels")?;
    Ok(Figures { launch_polled, launch_slept, bytes, import, to_device, to_host, kernel_local, kernel_host })
}

fn launches(driver: &mut Driver) -> Result<(Spread, Spread), VulkanError> {
    let pipeline = kernels::pipeline(driver, kernels::NOTHING)?;
    let mut polled = Vec::with_capacity(LAUNCHES);
    for _ in 0..LAUNCHES {
        polled.push(timed(|| {
            let ticket = kernels::launch(driver, &pipeline)?;
            driver.wait(ticket)
        })?);
    }
    let mut slept = Vec::with_capacity(SLEPT);
    for _ in 0..SLEPT {
        slept.push(timed(|| {
            let ticket = kernels::launch(driver, &pipeline)?;
            driver.sleep(ticket)
        })?);
    }
    Ok((Spread::of(polled), Spread::of(slept)))
}

fn steps(driver: &mut Driver, memory: &Import, bytes: u64) -> Result<Duration, VulkanError> {
    let pipeline = kernels::pipeline(driver, kernels::STEP)?;
    let mut samples = Vec::new();
    for _ in 0..RUNS {
        samples.push(timed(|| {
            let ticket = kernels::step(driver, &pipeline, memory, bytes)?;
            driver.wait(ticket)?;
            driver.settle()
        })?);
    }
    Ok(Spread::of(samples).p50)
}

fn timed(work: impl FnOnce() -> Result<(), VulkanError>) -> Result<Duration, VulkanError> {
    let begun = Instant::now();
    work()?;
    Ok(begun.elapsed())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::Figures;
    use super::Spread;

    #[test]
    fn a_gib_takes_as_many_imports_as_fit_into_it_and_rates_are_of_powers_of_ten() {
        let time = Duration::from_millis(10);
        let spread = Spread::of((1..=101).rev().map(Duration::from_nanos).collect());
        assert_eq!((spread.p50.as_nanos(), spread.p99.as_nanos()), (51, 100));
        let figures = Figures {
            launch_polled: spread,
            launch_slept: spread,
            bytes: 256 << 20,
            import: time,
            to_device: time,
            to_host: time,
            kernel_local: time,
            kernel_host: time,
        };
        assert_eq!(figures.import_of_a_gib(), Duration::from_millis(40));
        assert!((figures.rate(time) - 26.843_545_6).abs() < 1e-6);
    }
}
