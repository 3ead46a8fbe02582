//! What the command does: it looks at every device, tries it and measures it.

use std::time::Duration;

use campanile_host_gpu::dirty::protect::Guard;
use campanile_host_gpu::engine::message::SLICE_MICROSECONDS;
use campanile_host_gpu::node::slicing;
use campanile_host_gpu::vulkan::check::devices::Devices;
use campanile_host_gpu::vulkan::check::devices::Found;
use campanile_host_gpu::vulkan::check::figures;
use campanile_host_gpu::vulkan::check::trial;
use campanile_host_gpu::vulkan::device_name::DeviceName;
use campanile_host_gpu::vulkan::driver::Driver;
use campanile_host_gpu::vulkan::error::VulkanError;
use campanile_host_gpu::vulkan::info::Handle;
use campanile_host_gpu::vulkan::options::Options;

use super::super::output::print;
use super::super::vulkan_environment;
use super::args::CheckGpuArguments;
use super::report::DeviceReport;
use super::report::FiguresReport;
use super::report::ImportReport;
use super::report::Report;

/// How long a launch is polled for: longer than any takes that is measured.
const SPIN: Duration = Duration::from_secs(1);

/// No device can serve; the report says why.
#[derive(Debug, thiserror::Error)]
#[error("no Vulkan device of this machine can serve: guests have copy nodes, and no compute node")]
pub struct NoDeviceServes;

/// Checks, and prints the report.
///
/// # Errors
/// [`NoDeviceServes`]; the manifest is not there, or nothing can be printed.
pub fn run(arguments: &CheckGpuArguments) -> anyhow::Result<()> {
    vulkan_environment::enter(arguments.vulkan_driver.as_deref())?;
    let report = check(arguments.vulkan_device.as_deref(), !arguments.no_measure);
    let text = if arguments.json {
        format!("{}\n", serde_json::to_string_pretty(&report)?)
    } else {
        report.to_string()
    };
    print(&text)?;
    if report.serves { Ok(()) } else { Err(NoDeviceServes.into()) }
}

fn check(name: Option<&str>, measures: bool) -> Report {
    let none =
        |error: &VulkanError| Report { serves: false, error: Some(error.to_string()), devices: Vec::new() };
    let devices = match Devices::find() {
        Ok(devices) => devices,
        Err(error) => return none(&error),
    };
    let notes_stores = Guard::new().is_ok();
    let found = devices.found();
    let wanted = name.unwrap_or_default().to_owned();
    let all: Vec<(usize, &Found)> = found.iter().enumerate().collect();
    let chosen = DeviceName::new(&wanted).pick(all, |(_, found)| &found.info.name);
    let reports: Vec<DeviceReport> = chosen
        .into_iter()
        .map(|(index, found)| {
            let mut report = DeviceReport::new(found, notes_stores);
            if report.missing.is_empty() {
                examine(&devices, index, found, measures, &mut report);
                report.judge();
            }
            report
        })
        .collect();
    if reports.is_empty() {
        let found: Vec<_> = found.into_iter().map(|found| found.info.name).collect();
        return none(&VulkanError::NoDeviceOfThatName { wanted, found: found.join(", ") });
    }
    Report { serves: reports.iter().any(|device| device.serves), error: None, devices: reports }
}

/// Opens a device that lacks nothing, tries it and measures it.
fn examine(devices: &Devices, index: usize, found: &Found, measures: bool, report: &mut DeviceReport) {
    let mut driver = match devices.open(index, SPIN) {
        Ok((driver, refused)) => {
            refused.into_iter().for_each(|refused| report.refuse_pointers(&refused.to_string()));
            driver
        }
        Err(error) => return report.problem = Some(error.to_string()),
    };
    let outcome = trial::host(&mut driver);
    note(report.host_memory(), outcome);
    for (import, handle) in report.imports.iter_mut().skip(2).zip(Handle::ALL) {
        if found.handles.has(handle) {
            let other = driver.secondary();
            let outcome = other.and_then(|mut other| trial::exported(&mut driver, &mut other, handle));
            note(Some(import), outcome);
        }
    }
    // By a driver that is waited for as engines do.
    let for_slices = || devices.open(index, Options::default().spin).map(|(driver, _)| driver);
    if measures && let Err(error) = measure(&mut driver, for_slices, report) {
        report.problem = Some(error.to_string());
    }
}

fn note(import: Option<&mut ImportReport>, outcome: Result<(), VulkanError>) {
    if let Some(import) = import {
        import.works = Some(outcome.is_ok());
        import.problem = outcome.err().map(|error| error.to_string());
    }
}

fn measure(
    driver: &mut Driver,
    for_slices: impl FnOnce() -> Result<Driver, VulkanError>,
    report: &mut DeviceReport,
) -> Result<(), VulkanError> {
    let tested = driver.self_test();
    report.self_test = Some(tested.is_ok());
    tested?;
    let figures = figures::measure(driver)?;
    let slicing = slicing::measure(for_slices()?, Duration::from_micros(SLICE_MICROSECONDS))?;
    report.figures = Some(FiguresReport::new(&figures, &slicing));
    Ok(())
}
