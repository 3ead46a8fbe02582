//! The report for people.

use std::fmt;

use super::report::DeviceReport;
use super::report::FiguresReport;
use super::report::ImportReport;
use super::report::ProfileReport;
use super::report::QueueReport;
use super::report::Report;

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(error) = &self.error {
            writeln!(f, "no device: {error}")?;
        }
        self.devices.iter().try_for_each(|device| write!(f, "{device}"))
    }
}

impl fmt::Display for DeviceReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, driver, driver_version, vulkan, kind, .. } = self;
        writeln!(f, "{name}, {kind}")?;
        let mut row = |label: &str, text: &str| writeln!(f, "  {label:<18} {text}");
        row("driver", &format!("{driver} {driver_version}, Vulkan {vulkan}"))?;
        row("verdict", if self.serves { "can serve" } else { "cannot serve" })?;
        if !self.missing.is_empty() {
            row("lacks", &self.missing.join(", "))?;
        }
        if let Some(problem) = &self.problem {
            row("problem", problem)?;
        }
        row("works", self.works)?;
        for (index, import) in self.imports.iter().enumerate() {
            row(if index == 0 { "memory by" } else { "" }, &import.to_string())?;
        }
        row("memory", &memory(self))?;
        for (index, family) in self.queues.iter().enumerate() {
            row(if index == 0 { "queue families" } else { "" }, &family.to_string())?;
        }
        let tracking: Vec<_> = self.dirty_tracking.iter().map(ToString::to_string).collect();
        row("dirty tracking", &tracking.join(", "))?;
        row("subgroups", &subgroups(self))?;
        for profile in &self.gpu_profiles {
            row("gpu profile", &profile.to_string())?;
        }
        if let Some(passed) = self.self_test {
            row("self-test", if passed { "passed" } else { "FAILED" })?;
        }
        self.figures.as_ref().map_or(Ok(()), |figures| write!(f, "{figures}"))
    }
}

impl fmt::Display for ImportReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let outcome = match (self.offered, self.works) {
            (false, _) => "not offered",
            (true, None) => "offered, not tried",
            (true, Some(true)) => "works",
            (true, Some(false)) => "FAILS",
        };
        write!(f, "{}: {outcome}", self.method)?;
        match &self.problem {
            Some(problem) => write!(f, ": {problem}"),
            None => write!(f, " ({})", self.used_for),
        }
    }
}

impl fmt::Display for ProfileReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.lacks[..] {
            [] => write!(f, "{}: can serve it", self.name),
            lacks => write!(f, "{}: cannot serve it: {}", self.name, lacks.join("; ")),
        }
    }
}

impl fmt::Display for QueueReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kinds = [(self.graphics, "graphics"), (self.compute, "compute"), (self.transfer, "transfer")];
        let kinds: Vec<_> = kinds.into_iter().filter(|(has, _)| *has).map(|(_, name)| name).collect();
        let Self { family, queues, timestamp_bits, .. } = self;
        let used = if self.used { ", runs kernels" } else { "" };
        let kinds = if kinds.is_empty() { "other work".to_owned() } else { kinds.join(" ") };
        let priorities = match &self.global_priorities[..] {
            [] => "no global priorities".to_owned(),
            some => format!("global priorities {}", some.join(" ")),
        };
        write!(f, "{family}: {queues} of {kinds}, timestamps of {timestamp_bits} bits, {priorities}{used}")
    }
}

impl fmt::Display for FiguresReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut row = |label: &str, text: &str| writeln!(f, "  {label:<18} {text}");
        let launch = |p50, p99| format!("{} us median, {} us p99", thousandth(p50), thousandth(p99));
        row("launch, polled", &launch(self.launch_polled_ns, self.launch_polled_p99_ns))?;
        row("launch, slept", &launch(self.launch_slept_ns, self.launch_slept_p99_ns))?;
        row("import", &format!("{} us for a GiB of host memory", thousandth(self.import_ns_per_gib)))?;
        let (there, back) = (self.copy_to_device_gb_per_s, self.copy_to_host_gb_per_s);
        row("copy", &format!("{there:.1} GB/s to the device, {back:.1} GB/s to the host"))?;
        let (own, host) = (self.kernel_device_memory_gb_per_s, self.kernel_host_memory_gb_per_s);
        row("kernels", &format!("{own:.1} GB/s in device memory, {host:.1} GB/s in host memory"))?;
        let (slice, target) = (launch(self.slice_ns, self.slice_p99_ns), thousandth(self.slice_target_ns));
        let ratio = self.sliced_ratio;
        row("slices", &format!("{slice}, of {target} us asked; {ratio:.2} x the speed in one piece"))?;
        let (preempt, whole) =
            (launch(self.preempt_ns, self.preempt_p99_ns), thousandth(self.whole_dispatch_ns));
        row("preemption", &format!("{preempt}; {whole} us for the same dispatch in one piece"))
    }
}

/// With one decimal.
fn thousandth(nanoseconds: u128) -> String {
    format!("{}.{}", nanoseconds / 1000, nanoseconds % 1000 / 100)
}

fn memory(device: &DeviceReport) -> String {
    let memory = &device.memory;
    let [own, seen] = [memory.device_local_bytes, memory.host_visible_bytes].map(|bytes| bytes >> 20);
    let seen = if memory.all_host_visible {
        "all of it host-visible".to_owned()
    } else {
        format!("{seen} MiB of it host-visible")
    };
    let largest = memory.largest_allocation_bytes >> 20;
    let budget = match memory.budget_bytes.zip(memory.budget_used_bytes) {
        Some((may_have, has)) => {
            format!("budget {} MiB, {} taken", may_have >> 20, has >> 20)
        }
        None => "no budget told".to_owned(),
    };
    let (heaps, types) = (memory.heaps, memory.types);
    format!(
        "{own} MiB device-local, {seen}; {heaps} heaps, {types} types; allocations of up to {largest} MiB; {budget}"
    )
}

fn subgroups(device: &DeviceReport) -> String {
    let [least, most] = device.subgroup_sizes;
    let chosen =
        if most == 0 { "not to be chosen".to_owned() } else { format!("{least} to {most} on demand") };
    format!("{}; {chosen}", device.subgroup_size)
}

#[cfg(test)]
mod tests {
    use super::super::report::FiguresReport;
    use super::super::report::Report;
    use super::super::report::tests::device;

    fn shown(report: &Report, parts: &[&str]) {
        let text = report.to_string();
        for part in parts {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
    }

    #[test]
    fn a_device_that_serves_is_shown_with_what_was_measured() {
        let mut device = device();
        device.imports[0].works = Some(true);
        device.self_test = Some(true);
        device.figures = Some(FiguresReport {
            launch_polled_ns: 18_250,
            launch_polled_p99_ns: 20_000,
            launch_slept_ns: 45_999,
            launch_slept_p99_ns: 48_000,
            bytes: 256 << 20,
            import_ns_per_gib: 440_000_000,
            copy_to_device_gb_per_s: 51.04,
            copy_to_host_gb_per_s: 51.4,
            kernel_device_memory_gb_per_s: 2141.0,
            kernel_host_memory_gb_per_s: 84.0,
            slice_target_ns: 2_000_000,
            slice_ns: 2_100_000,
            slice_p99_ns: 2_500_000,
            preempt_ns: 3_050_000,
            preempt_p99_ns: 4_000_000,
            whole_dispatch_ns: 100_250_000,
            sliced_ratio: 0.957,
        });
        let report = Report { serves: true, error: None, devices: vec![device] };
        shown(
            &report,
            &[
                "GPU 9000, discrete\n",
                "driver 1.2, Vulkan 1.4.312",
                "can serve\n",
                "host pointer: works (something)",
                "opaque fd: offered, not tried",
                "81920 MiB device-local, all of it host-visible; 2 heaps, 5 types; allocations of up to 4096 MiB; budget 71680 MiB, 3 taken",
                "2: 16 of compute transfer, timestamps of 64 bits, global priorities low medium high realtime, runs kernels\n",
                "1: 16 of transfer, timestamps of 64 bits, no global priorities\n",
                "bound-ranges, shadow-compare\n",
                "32; 32 to 32 on demand",
                "gpu profile        campanile-1: can serve it\n",
                "passed\n",
                "18.2 us median, 20.0 us p99",
                "45.9 us median",
                "440000.0 us for a GiB",
                "51.0 GB/s to the device, 51.4 GB/s to the host",
                "2141.0 GB/s in device memory, 84.0 GB/s in host memory",
                "2100.0 us median, 2500.0 us p99, of 2000.0 us asked; 0.96 x the speed in one piece\n",
                "3050.0 us median, 4000.0 us p99; 100250.0 us for the same dispatch in one piece\n",
            ],
        );
    }

    #[test]
    fn a_device_that_cannot_serve_is_shown_with_what_it_lacks_and_what_failed() {
        let mut device = device();
        device.missing = vec!["robustBufferAccess2".to_owned(), "timelineSemaphore".to_owned()];
        device.problem = Some("vkCreateDevice failed".to_owned());
        device.imports[2].works = Some(false);
        device.imports[2].problem = Some("contents are lost".to_owned());
        device.memory.all_host_visible = false;
        device.memory.host_visible_bytes = 256 << 20;
        (device.memory.budget_bytes, device.memory.budget_used_bytes) = (None, None);
        device.subgroup_sizes = [0; 2];
        device.gpu_profiles[0].lacks = vec!["one thing".to_owned(), "another".to_owned()];
        device.self_test = Some(false);
        device.judge();
        let report = Report { serves: false, error: None, devices: vec![device] };
        shown(
            &report,
            &[
                "cannot serve\n",
                "robustBufferAccess2, timelineSemaphore\n",
                "vkCreateDevice failed\n",
                "no compute node\n",
                "opaque fd: FAILS: contents are lost\n",
                "256 MiB of it host-visible",
                "no budget told\n",
                "32; not to be chosen",
                "gpu profile        campanile-1: cannot serve it: one thing; another\n",
                "FAILED\n",
            ],
        );
    }

    #[test]
    fn without_a_device_it_is_said_why() {
        let report = Report { serves: false, error: Some("no loader".to_owned()), devices: Vec::new() };
        assert_eq!(report.to_string(), "no device: no loader\n");
    }
}
