//! What is told of each device; the field names are those of `--json`.

use campanile_host_gpu::dirty::method::Method;
use campanile_host_gpu::node::slicing::Slicing;
use campanile_host_gpu::vulkan::check::devices::Found;
use campanile_host_gpu::vulkan::check::figures::Figures;
use campanile_host_gpu::vulkan::check::figures::Spread;
use campanile_host_gpu::vulkan::info::Handle;
use campanile_host_gpu::vulkan::info::Hardware;
use campanile_host_gpu::vulkan::info::ImportMethod;
use campanile_host_gpu::vulkan::info::Kind;
use campanile_host_gpu::vulkan::priority::GlobalPriority;
use campanile_protocol::named_profile::GpuProfile;
use campanile_protocol::named_profile::lacks;
use campanile_protocol::profile::Profile;
use serde::Serialize;

/// All devices.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// Whether one of them can serve.
    pub serves: bool,
    /// Why there are none.
    pub error: Option<String>,
    /// In the loader's order.
    pub devices: Vec<DeviceReport>,
}

/// One device.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DeviceReport {
    /// Its name.
    pub name: String,
    /// Its driver's name.
    pub driver: String,
    /// In the driver's own words.
    pub driver_version: String,
    /// The Vulkan version that it implements.
    pub vulkan: String,
    /// discrete, integrated, virtual, cpu or other.
    pub kind: &'static str,
    /// Whether engines can use it.
    pub serves: bool,
    /// Extensions, features and limits that engines need and it has not.
    pub missing: Vec<String>,
    /// What went wrong when it was tried.
    pub problem: Option<String>,
    /// What there is for guests with this device.
    pub works: &'static str,
    /// Ways to share memory with it.
    pub imports: Vec<ImportReport>,
    /// Its memory.
    pub memory: MemoryReport,
    /// Its families of queues.
    pub queues: Vec<QueueReport>,
    /// How writes to video memory can be tracked for migrations, the best first.
    pub dirty_tracking: Vec<Method>,
    /// Invocations of a subgroup of a kernel that asks for no size.
    pub subgroup_size: u32,
    /// The smallest and the largest that a kernel may ask for; zeros where it may not ask.
    pub subgroup_sizes: [u32; 2],
    /// Named GPU profiles that a vGPU on it can have, or not.
    pub gpu_profiles: Vec<ProfileReport>,
    /// Whether known kernels have their known results; null where that was not tried.
    pub self_test: Option<bool>,
    /// What was measured.
    pub figures: Option<FiguresReport>,
}

/// A way to share memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ImportReport {
    /// Its name.
    pub method: String,
    /// What engines use it for, or will.
    pub used_for: &'static str,
    /// Whether the driver offers it.
    pub offered: bool,
    /// Whether it worked with kernels; null where it was not tried.
    pub works: Option<bool>,
    /// Why it did not.
    pub problem: Option<String>,
}

/// A named GPU profile.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ProfileReport {
    /// Its name.
    pub name: &'static str,
    /// Per field that the device has less of, what the profile has, and what the device has.
    pub lacks: Vec<String>,
}

/// Memory of a device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[expect(missing_docs, reason = "the names say it; heaps and types are Vulkan's")]
pub struct MemoryReport {
    pub device_local_bytes: u64,
    /// Of the largest heap that is the device's own and that the host can map.
    pub host_visible_bytes: u64,
    pub all_host_visible: bool,
    pub heaps: usize,
    pub types: usize,
    /// The longest allocation (`maxMemoryAllocationSize`): local memory of a vGPU is one.
    pub largest_allocation_bytes: u64,
    /// What a process may have now of the heap of local memory, by `VK_EXT_memory_budget`; null where the driver does not say.
    pub budget_bytes: Option<u64>,
    /// What this process has of it.
    pub budget_used_bytes: Option<u64>,
}

/// A family of queues.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[expect(missing_docs, reason = "Vulkan has flags of the same names")]
pub struct QueueReport {
    pub family: usize,
    pub graphics: bool,
    pub compute: bool,
    pub transfer: bool,
    pub queues: u32,
    pub timestamp_bits: u32,
    /// Global priorities that its queues can have, the lowest first.
    pub global_priorities: Vec<&'static str>,
    /// Whether kernels of guests run on a queue of it.
    pub used: bool,
}

/// Medians, and where it says so the 99th percentile.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[expect(missing_docs, reason = "the names say it")]
pub struct FiguresReport {
    pub launch_polled_ns: u128,
    pub launch_polled_p99_ns: u128,
    pub launch_slept_ns: u128,
    pub launch_slept_p99_ns: u128,
    /// Bytes of memory that the following were measured with.
    pub bytes: u64,
    pub import_ns_per_gib: u128,
    pub copy_to_device_gb_per_s: f64,
    pub copy_to_host_gb_per_s: f64,
    /// Bytes that a kernel reads and writes in a second, together, in the device's own memory.
    pub kernel_device_memory_gb_per_s: f64,
    /// The same in imported host memory, which is what video memory is today.
    pub kernel_host_memory_gb_per_s: f64,
    /// How long a slice of a dispatch is to take, as engines cut it.
    pub slice_target_ns: u128,
    /// How long one takes by itself, from its start until its stores are visible.
    pub slice_ns: u128,
    pub slice_p99_ns: u128,
    /// From the moment in which a dispatch in slices is told to stop until it has, and its stores are visible.
    pub preempt_ns: u128,
    pub preempt_p99_ns: u128,
    /// The same dispatch in one piece, which something urgent would have to wait for.
    pub whole_dispatch_ns: u128,
    /// Its throughput in slices over that in one piece.
    pub sliced_ratio: f64,
}

impl DeviceReport {
    /// Of a device that was only looked at.
    pub fn new(found: &Found, notes_stores: bool) -> Self {
        let Found { info, limits, missing, hardware, handles, profile } = found;
        let [major, minor, patch] = info.api_version;
        let is_imported = info.import == ImportMethod::HostPointer;
        // The first that is offered is how engines get at host memory.
        let host = [
            ("host pointer", "video memory, which is host memory", is_imported),
            ("copy", "video memory, where the device takes no host pointer", !is_imported),
        ]
        .map(|(method, used_for, offered)| ImportReport {
            method: method.to_owned(),
            used_for,
            offered,
            works: None,
            problem: None,
        });
        let exported = Handle::ALL.into_iter().map(|handle| ImportReport {
            method: handle.to_string(),
            used_for: match handle {
                Handle::OpaqueFd => "local memory, with --local-memory device",
                Handle::DmaBuf => "nothing yet",
            },
            offered: handles.has(handle),
            works: None,
            problem: None,
        });
        let mut report = Self {
            name: info.name.clone(),
            driver: info.driver.clone(),
            driver_version: info.driver_version.clone(),
            vulkan: format!("{major}.{minor}.{patch}"),
            kind: kind(info.kind),
            serves: false,
            missing: missing.clone(),
            problem: None,
            works: "",
            imports: host.into_iter().chain(exported).collect(),
            memory: memory(hardware, limits.allocation_length),
            queues: queues(hardware),
            dirty_tracking: tracking(info.kind, notes_stores),
            subgroup_size: limits.subgroup_size,
            subgroup_sizes: limits.subgroup_sizes,
            gpu_profiles: profiles(profile),
            self_test: None,
            figures: None,
        };
        report.judge();
        report
    }

    /// Says whether it serves, by all that is known by now.
    pub fn judge(&mut self) {
        let imports = self.host_memory().is_some_and(|import| import.works != Some(false));
        self.serves =
            self.missing.is_empty() && self.problem.is_none() && imports && self.self_test != Some(false);
        self.works = if !self.serves {
            "copy nodes, paging and migration, on the CPU; no compute node"
        } else if self.copies() {
            "compute and copy nodes, paging, migration; what kernels bind is copied to the device and back"
        } else {
            "compute and copy nodes, paging, migration"
        };
    }

    /// Host memory comes by no pointers after all: it is copied.
    pub fn refuse_pointers(&mut self, why: &str) {
        if let [pointer, copy, ..] = self.imports.as_mut_slice() {
            (pointer.works, pointer.problem) = (Some(false), Some(why.to_owned()));
            (pointer.offered, copy.offered) = (false, true);
        }
    }

    /// How engines get at host memory.
    pub fn host_memory(&mut self) -> Option<&mut ImportReport> {
        let copies = usize::from(self.copies());
        self.imports.get_mut(copies)
    }

    fn copies(&self) -> bool {
        self.imports.first().is_some_and(|pointer| !pointer.offered)
    }
}

impl FiguresReport {
    /// Of both measurements.
    pub fn new(figures: &Figures, slicing: &Slicing) -> Self {
        let Spread { p50: polled, p99: polled_p99 } = figures.launch_polled;
        let Spread { p50: slept, p99: slept_p99 } = figures.launch_slept;
        let Slicing { target, whole, slice, preempt, .. } = slicing;
        Self {
            launch_polled_ns: polled.as_nanos(),
            launch_polled_p99_ns: polled_p99.as_nanos(),
            launch_slept_ns: slept.as_nanos(),
            launch_slept_p99_ns: slept_p99.as_nanos(),
            bytes: figures.bytes,
            import_ns_per_gib: figures.import_of_a_gib().as_nanos(),
            copy_to_device_gb_per_s: figures.rate(figures.to_device),
            copy_to_host_gb_per_s: figures.rate(figures.to_host),
            kernel_device_memory_gb_per_s: 2.0 * figures.rate(figures.kernel_local),
            kernel_host_memory_gb_per_s: 2.0 * figures.rate(figures.kernel_host),
            slice_target_ns: target.as_nanos(),
            slice_ns: slice.p50.as_nanos(),
            slice_p99_ns: slice.p99.as_nanos(),
            preempt_ns: preempt.p50.as_nanos(),
            preempt_p99_ns: preempt.p99.as_nanos(),
            whole_dispatch_ns: whole.as_nanos(),
            sliced_ratio: slicing.ratio(),
        }
    }
}

/// Which of the named ones a device can serve whose own is this.
fn profiles(device: &Profile) -> Vec<ProfileReport> {
    let named = GpuProfile::ALL.into_iter().filter_map(|profile| Some((profile.name(), profile.fixed()?)));
    let lacks = |fixed: &Profile| lacks(fixed, device).map(|lack| lack.to_string()).collect();
    named.map(|(name, fixed)| ProfileReport { name, lacks: lacks(&fixed) }).collect()
}

fn kind(kind: Kind) -> &'static str {
    match kind {
        Kind::Discrete => "discrete",
        Kind::Integrated => "integrated",
        Kind::Virtual => "virtual",
        Kind::Cpu => "cpu",
        Kind::Other => "other",
    }
}

fn memory(hardware: &Hardware, largest_allocation_bytes: u64) -> MemoryReport {
    let Hardware { local_bytes, visible_bytes, heaps, types, budget, .. } = *hardware;
    MemoryReport {
        device_local_bytes: local_bytes,
        host_visible_bytes: visible_bytes,
        all_host_visible: local_bytes > 0 && visible_bytes >= local_bytes,
        heaps,
        types,
        largest_allocation_bytes,
        budget_bytes: budget.map(|budget| budget.may_have),
        budget_used_bytes: budget.map(|budget| budget.has),
    }
}

fn queues(hardware: &Hardware) -> Vec<QueueReport> {
    let used = usize::try_from(hardware.used).ok();
    let families = hardware.families.iter().enumerate();
    families
        .map(|(family, of)| QueueReport {
            family,
            graphics: of.graphics,
            compute: of.compute,
            transfer: of.transfer,
            queues: of.queues,
            timestamp_bits: of.timestamp_bits,
            global_priorities: of.priorities.iter().map(GlobalPriority::name).collect(),
            used: used == Some(family) && of.compute,
        })
        .collect()
}

/// What a device writes goes through no page table of a process, but where the device is the CPU.
fn tracking(kind: Kind, notes_stores: bool) -> Vec<Method> {
    let by_kernel = (kind == Kind::Cpu && notes_stores).then_some(Method::WriteProtect);
    by_kernel.into_iter().chain([Method::BoundRanges, Method::ShadowCompare]).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use campanile_host_gpu::dirty::method::Method;
    use campanile_host_gpu::vulkan::info::Budget;
    use campanile_host_gpu::vulkan::info::Family;
    use campanile_host_gpu::vulkan::info::Hardware;
    use campanile_host_gpu::vulkan::info::Kind;
    use campanile_host_gpu::vulkan::priority::GlobalPriority;
    use campanile_protocol::named_profile::campanile_1;
    use campanile_protocol::profile::Profile;

    use super::DeviceReport;
    use super::ImportReport;
    use super::ProfileReport;
    use super::memory;
    use super::profiles;
    use super::queues;
    use super::tracking;

    /// A device that lacks nothing and was not tried.
    pub(crate) fn device() -> DeviceReport {
        let import = |method: &str| ImportReport {
            method: method.to_owned(),
            used_for: "something",
            offered: true,
            works: None,
            problem: None,
        };
        let mut device = DeviceReport {
            name: "GPU 9000".to_owned(),
            driver: "driver".to_owned(),
            driver_version: "1.2".to_owned(),
            vulkan: "1.4.312".to_owned(),
            kind: "discrete",
            serves: false,
            missing: Vec::new(),
            problem: None,
            works: "",
            imports: vec![import("host pointer"), import("copy"), import("opaque fd")],
            memory: memory(&hardware(), 4 << 30),
            queues: queues(&hardware()),
            dirty_tracking: tracking(Kind::Discrete, true),
            subgroup_size: 32,
            subgroup_sizes: [32, 32],
            gpu_profiles: profiles(&campanile_1()),
            self_test: None,
            figures: None,
        };
        device.judge();
        device
    }

    fn hardware() -> Hardware {
        let family = |graphics, compute| Family {
            graphics,
            compute,
            transfer: true,
            queues: 16,
            timestamp_bits: 64,
            priorities: if compute { GlobalPriority::ALL.into_iter().collect() } else { Default::default() },
        };
        Hardware {
            local_bytes: 80 << 30,
            visible_bytes: 80 << 30,
            heaps: 2,
            types: 5,
            budget: Some(Budget { may_have: 70 << 30, has: 3 << 20 }),
            families: vec![family(true, true), family(false, false), family(false, true)],
            used: 2,
        }
    }

    #[test]
    fn a_device_serves_unless_it_lacks_something_or_fails_what_engines_need() {
        assert!(device().serves);
        type Change = fn(&mut DeviceReport);
        let change: [(&str, Change); 4] = [
            ("it lacks something", |device| device.missing.push("robustBufferAccess2".to_owned())),
            ("it cannot be opened", |device| device.problem = Some("no".to_owned())),
            ("host memory is not imported", |device| device.imports[0].works = Some(false)),
            ("it computes wrongly", |device| device.self_test = Some(false)),
        ];
        for (what, change) in change {
            let mut device = device();
            change(&mut device);
            device.judge();
            assert!(!device.serves && device.works.contains("no compute node"), "{what}");
        }
    }

    #[test]
    fn a_device_serves_without_what_engines_do_not_need_yet() {
        let mut device = device();
        device.imports[1].works = Some(false);
        device.imports[2].works = Some(false);
        device.self_test = Some(true);
        device.judge();
        assert!(device.serves && device.works.starts_with("compute"));
    }

    #[test]
    fn a_device_that_refuses_host_memory_which_it_offers_to_import_serves_by_copies_and_says_why() {
        let mut device = device();
        device.refuse_pointers("pages of files are none of its");
        device.judge();
        assert!(device.serves && device.works.contains("copied"), "{}", device.works);
        let [pointer, copy, ..] = &device.imports[..] else { panic!("two methods") };
        assert_eq!((pointer.works, copy.offered), (Some(false), true));
        assert!(pointer.problem.as_ref().unwrap().contains("pages of files"));
    }

    #[test]
    fn a_device_that_imports_no_host_memory_serves_by_copies_where_these_work() {
        let mut device = device();
        device.imports[0].offered = false;
        device.judge();
        assert!(device.serves && device.works.contains("copied"), "{}", device.works);
        assert_eq!(device.host_memory().map(|import| import.method.as_str()), Some("copy"));
        device.imports[1].works = Some(false);
        device.judge();
        assert!(!device.serves && device.works.contains("no compute node"), "{}", device.works);
    }

    #[test]
    fn what_a_device_lacks_of_each_named_profile_is_told_and_serving_does_not_depend_on_it() {
        let lacks = vec!["constants: the profile has 256, the device 128".to_owned()];
        let weak = profiles(&Profile { constants: 128, ..campanile_1() });
        assert_eq!(weak, [ProfileReport { name: "campanile-1", lacks }]);
        let mut device = device();
        device.gpu_profiles = weak;
        device.judge();
        assert!(device.serves);
    }

    #[test]
    fn memory_is_all_visible_where_the_largest_visible_heap_is_as_large_as_all_of_it() {
        assert!(memory(&hardware(), 1).all_host_visible);
        assert!(!memory(&Hardware { visible_bytes: 256 << 20, ..hardware() }, 1).all_host_visible);
        assert!(!memory(&Hardware { local_bytes: 0, visible_bytes: 0, ..hardware() }, 1).all_host_visible);
    }

    #[test]
    fn the_queue_that_runs_kernels_is_marked() {
        let used: Vec<bool> = queues(&hardware()).iter().map(|family| family.used).collect();
        assert_eq!(used, [false, false, true]);
    }

    #[test]
    fn only_stores_of_a_cpu_are_noted_by_its_kernel() {
        let both = [Method::BoundRanges, Method::ShadowCompare];
        assert_eq!(tracking(Kind::Discrete, true), both);
        assert_eq!(tracking(Kind::Cpu, false), both);
        assert_eq!(tracking(Kind::Cpu, true)[0], Method::WriteProtect);
    }
}
