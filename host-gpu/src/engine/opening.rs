//! What a process opens that depends on nothing which it is to work on: its driver, as far as that goes, behind the restrictions of
//! files. So it can be done ahead.
//!
//! ```text
//!   Start ─▶ files restricted ─▶ driver open, self-test passed ─▶ [ahead: Opened ─▶ Start] ─▶ memory mapped, imported ─▶ sealed ─▶ Started
//! ```

use std::thread;
use std::time::Duration;

use super::code_start::CodeStart;
use super::compiling;
use super::local_start::another;
use super::local_start::elsewhere;
use super::local_start::nicely;
use super::local_start::open_driver;
use super::message::Local;
use super::message::NodeKind;
use super::message::Start;
use super::sandbox::files::Needs;
use super::sandbox::files::restrict_files;
use super::sandbox::process::drop_capabilities;
use super::sandbox::process::harden_process;
use super::start_error::StartError;
use crate::code_cache::folder::Found;
use crate::cpu_slice;
use crate::dirty::method::Method;
use crate::dirty::protect::Guard;
use crate::kernel::sanitizer::Sanitizer;
use crate::vulkan::driver::Driver;
use crate::vulkan::options::Executor;
use crate::vulkan::pipeline::Compiler;

const ONE_INSTANCE: &str = "slices run on one device instance";
const COMPILED_BESIDE: &str = "dispatches wait for kernels that are compiled";

/// What is open.
pub(super) struct Opened {
    /// Where the kernel is to note stores.
    pub(super) guard: Option<Guard>,
    pub(super) node: OpenedNode,
}

/// By what the process is to be.
pub(super) enum OpenedNode {
    /// It copies on the CPU.
    Copies,
    /// It copies by a device: one instance for what guests copy, one for what the daemon has moved.
    CopiesByDevice {
        guests: Box<Driver>,
        daemons: Box<Driver>,
    },
    /// It is to allocate memory of this device.
    Allocates(Box<Driver>),
    Computes(Box<OpenedCompute>),
}

/// A driver for kernels, tested.
pub(super) struct OpenedCompute {
    pub(super) driver: Driver,
    /// The second instance, where slices take turns on two.
    pub(super) secondary: Option<Driver>,
    /// What compiles on devices of its own, for each thread that does; none where nothing would come of it.
    pub(super) compilers: Vec<Compiler>,
    /// What copies, where local memory is a device's own.
    pub(super) copier: Option<Driver>,
    pub(super) sanitizer: Sanitizer,
    /// The files of the driver's cache, where there is one.
    pub(super) cache: Option<Found>,
}

/// Opens what there is to open, and restricts the process before it does.
pub(super) fn open(start: &Start) -> Result<Opened, StartError> {
    let guard = match start.tracking {
        Method::BoundRanges | Method::ShadowCompare | Method::Off => None,
        Method::WriteProtect => Some(Guard::new().map_err(StartError::Tracking)?),
    };
    let code = if start.code_mib == 0 { None } else { CodeStart::begin() };
    harden_process()?;
    if start.sandbox {
        drop_capabilities()?;
        let is_plain = start.node == NodeKind::Copy && start.local == Local::Host;
        let needs = if is_plain { Needs::Nothing } else { Needs::Driver };
        restrict_files(needs, code.as_ref().map(CodeStart::path))?;
    }
    let node = match (start.local, start.node) {
        (Local::Allocate(_), _) => OpenedNode::Allocates(Box::new(open_driver(start)?)),
        (Local::Host, NodeKind::Copy) => OpenedNode::Copies,
        (Local::Device(_), NodeKind::Copy) => {
            let driver = open_driver(start)?;
            let guests = Box::new(elsewhere(|| another(&driver))?);
            OpenedNode::CopiesByDevice { guests, daemons: Box::new(driver) }
        }
        (Local::Host | Local::Device(_), NodeKind::Compute) => {
            OpenedNode::Computes(Box::new(open_compute(start, code)?))
        }
    };
    Ok(Opened { guard, node })
}

fn open_compute(start: &Start, code: Option<CodeStart>) -> Result<OpenedCompute, StartError> {
    let refused = |error: &dyn std::fmt::Display| StartError::Node(error.to_string());
    let slice = Duration::from_micros(start.slice_microseconds);
    let driver = open_driver(start)?;
    if driver.copies_memory() {
        log::warn!(
            "{}: the device imports no host memory: what kernels bind is copied to it and back",
            driver.info()
        );
    }
    let cache = code.and_then(|code| code.find(driver.info()));
    let is_local = matches!(start.local, Local::Device(_));
    let copier = is_local.then(|| elsewhere(|| another(&driver))).transpose()?;
    let apart = open_compilers(&driver, cache.is_some());
    let (mut driver, secondary) = open_instances(driver, slice)?;
    let test = || {
        thread::scope(|scope| {
            // Meanwhile, on another CPU.
            let others = scope.spawn(|| {
                let compilers = apart
                    .into_iter()
                    .map_while(|apart| open_another(apart, COMPILED_BESIDE).as_ref().map(Driver::compiler));
                (secondary.and_then(|secondary| open_another(secondary, ONE_INSTANCE)), compilers.collect())
            });
            driver.self_test().map_err(|e| refused(&e))?;
            let (secondary, compilers) = others.join().unwrap_or_default();
            Ok((driver, secondary, compilers))
        })
    };
    // What a driver compiles on the thread that asks for it is as nice as what runs.
    let (driver, secondary, compilers) = elsewhere(|| nicely(test))?;
    let sanitizer = Sanitizer::start(*driver.profile()).map_err(|e| refused(&e))?;
    Ok(OpenedCompute { driver, secondary, compilers, copier, sanitizer, cache })
}

/// The driver, or two devices of it in its place where slices are to take turns on two. The threads that run kernels are
/// there already, and all devices have them in common; those of the two devices' queues, which tell them what comes next,
/// start here, and are to have a CPU at once.
fn open_instances(driver: Driver, slice: Duration) -> Result<(Driver, Option<Driver>), StartError> {
    // What one writes the other is to see, which copies of memory do not.
    if driver.copies_memory() || !has_two_instances(driver.executor(), slice) {
        return Ok((driver, None));
    }
    let instances = elsewhere(|| {
        cpu_slice::shorten();
        Ok(driver.secondary().and_then(|first| Ok((first, driver.secondary()?))))
    })?;
    Ok(match instances {
        Ok((first, second)) => (first, Some(second)),
        Err(error) => {
            log::warn!("{ONE_INSTANCE}: {error}");
            (driver, None)
        }
    })
}

/// Whether slices are to run on two device instances: where there are slices, and each takes several CPUs.
fn has_two_instances(executor: Executor, slice: Duration) -> bool {
    // PAIRS WITH daemon/src/cli/serve.rs: kernels run on the thread of their queue.
    let is_on_one_cpu = std::env::var_os("LP_NUM_THREADS").is_some_and(|threads| threads == "0")
        || thread::available_parallelism().is_ok_and(|cpus| cpus.get() == 1);
    executor == Executor::Cpu && !slice.is_zero() && !is_on_one_cpu
}

/// Devices for what compiles beside work, where the driver would make work wait: it compiles on the thread of a device's queue, and finds
/// for one device what it has compiled for another. None where they cannot be had.
fn open_compilers(driver: &Driver, has_cache: bool) -> Vec<Driver> {
    if !has_cache || driver.executor() != Executor::Cpu {
        return Vec::new();
    }
    let opened = elsewhere(|| nicely(|| (0..compiling::threads()).map(|_| another(driver)).collect()));
    opened.unwrap_or_else(|error| {
        log::warn!("{COMPILED_BESIDE}: {error}");
        Vec::new()
    })
}

/// Makes another device ready to be sealed; a node goes on without it where it cannot be had, which has the consequence `without`.
fn open_another(mut another: Driver, without: &str) -> Option<Driver> {
    let opened = another.first_dispatch();
    opened.inspect_err(|error| log::warn!("{without}: {error}")).is_ok().then_some(another)
}
