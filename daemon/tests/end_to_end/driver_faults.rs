//! A driver under real engines that fails a call, or lacks an extension: a Vulkan layer of ours between loader and driver.

use std::fs;
use std::fs::File;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use ash::vk;
use campanile_fault_layer::entries::ENTRIES;
use campanile_fault_layer::entries::index;
use campanile_fault_layer::faults::Faults;
use campanile_guest_driver::device::Device;
use campanile_guest_driver::error::DriverError;
use campanile_guest_driver::kernel::Kernel;
use campanile_guest_driver::node::Node;
use campanile_guest_driver::residency::LocalBuffer;
use campanile_guest_driver::user_queue::QueueOptions;
use campanile_protocol::control::status::Status;
use campanile_test_vmm::vm::LoopbackVm;
use tempfile::TempDir;

use crate::local_memory::Guest;
use crate::local_memory::add;
use crate::raw_queue::fill;
use crate::support::Daemon;
use crate::support::NEVER;
use crate::support::until;

const MIB: u64 = 1 << 20;

/// Some of what engines call before they serve; a node of its own is tried with all of it, see the tests of `host-gpu`.
const STARTS: [&str; 8] = [
    "vkCreateInstance",
    "vkCreateDevice",
    "vkAllocateMemory",
    "vkGetMemoryHostPointerPropertiesEXT",
    "vkCreateDescriptorPool",
    "vkCreateShaderModule",
    "vkQueueSubmit",
    "vkWaitSemaphores",
];

/// The layer, and what a daemon over it says.
pub(crate) struct Layered {
    folder: TempDir,
    pub(crate) faults: Faults,
}

impl Layered {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let faults = Faults::install(folder.path()).unwrap();
        Self { folder, faults }
    }

    fn log(&self) -> PathBuf {
        self.folder.path().join("log")
    }

    pub(crate) fn said(&self) -> String {
        fs::read_to_string(self.log()).unwrap()
    }

    /// Has a command run over the layer, and what it says kept.
    pub(crate) fn under(&self, command: &mut Command) {
        command.envs(self.faults.environment()).stderr(File::create(self.log()).unwrap());
    }

    /// A daemon whose engines have the layer, and no sandbox: it could not tell what it counted.
    fn daemon(&self, arguments: &[&str]) -> Daemon {
        let all = [&["--no-sandbox", "--spin", "600000000"], arguments].concat();
        Daemon::changed(&["vram=64M"], &all, |command| self.under(command))
    }
}

/// A guest process that has worked, and works on.
pub(crate) struct Worker {
    guest: Guest,
    buffer: LocalBuffer,
    kernel: Kernel,
}

impl Worker {
    /// Fills the buffer and runs the kernel on it: its words are 7 and their index then.
    pub(crate) fn work(&mut self) -> Result<(), DriverError> {
        let buffer = &self.buffer;
        let mut commands = fill(buffer.va(), buffer.size(), 7);
        commands.barrier().unwrap();
        let groups = u32::try_from(buffer.size() / 256).unwrap();
        commands.dispatch(&self.kernel, [groups, 1, 1], &[buffer.binding(0)], &[]).unwrap();
        self.guest.queue.submit(&commands)?.wait(Some(NEVER))
    }

    pub(crate) fn is_right(&mut self) -> bool {
        let words = self.guest.words(&self.buffer);
        words.iter().enumerate().all(|(at, word)| *word == 7 + u32::try_from(at).unwrap())
    }
}

/// A guest process whose first work came out right.
pub(crate) fn worked(vm: &Arc<LoopbackVm>) -> Result<Worker, DriverError> {
    let device = Device::open(vm.open("test").unwrap())?;
    let context = device.create_context(Node::Compute)?;
    let queue = context.create_user_queue(&QueueOptions::default())?;
    let staging = device.create_buffer(MIB)?;
    let guest = Guest { device, queue, staging };
    let buffer = guest.device.create_local_buffer(MIB)?;
    let kernel = guest.device.create_kernel(&add())?;
    let mut worker = Worker { guest, buffer, kernel };
    worker.work()?;
    assert!(worker.is_right());
    Ok(worker)
}

#[test]
fn a_device_whose_driver_fails_in_the_middle_of_work_is_lost_by_name_and_the_next_has_a_new_engine() {
    for place in ["host", "device"] {
        let layered = Layered::new();
        let faults = &layered.faults;
        let daemon = layered.daemon(&["--local-memory", place]);
        let vm = daemon.vm(0);
        let mut bystander = worked(&vm).unwrap();
        for (name, failure) in [
            ("vkQueueSubmit", vk::Result::ERROR_DEVICE_LOST),
            ("vkQueueSubmit", vk::Result::ERROR_OUT_OF_DEVICE_MEMORY),
            ("vkGetSemaphoreCounterValue", vk::Result::ERROR_DEVICE_LOST),
            ("vkBeginCommandBuffer", vk::Result::ERROR_OUT_OF_HOST_MEMORY),
            ("vkEndCommandBuffer", vk::Result::ERROR_OUT_OF_DEVICE_MEMORY),
        ] {
            let mut worker = worked(&vm).unwrap();
            let before = layered.said().matches(name).count();
            assert!(faults.arm(name, 1, failure));
            let outcome = worker.work();
            assert!(matches!(outcome, Err(DriverError::DeviceLost(_))), "{place}, {name}: {outcome:?}");
            assert_eq!(faults.failed(name), 1, "{place}, {name}");
            until("the name of the call", || layered.said().matches(name).count() > before);
            faults.reset();
        }
        worked(&vm).unwrap();
        assert!(bystander.is_right(), "{place}: what another process has");
        bystander.work().unwrap();
    }
}

#[test]
fn an_engine_whose_driver_fails_a_call_at_its_start_says_which_and_the_next_one_starts() {
    let layered = Layered::new();
    let faults = &layered.faults;
    let daemon = layered.daemon(&["--local-memory", "device"]);
    for name in STARTS {
        let entry = &ENTRIES[index(name).unwrap()];
        let before = layered.said().matches(entry.name).count();
        faults.reset();
        assert!(faults.arm(entry.name, 1, entry.failures[0]));
        let vm = daemon.vm(0);
        // Whatever the first process of the guest has of that.
        let first = worked(&vm);
        assert_eq!(faults.failed(entry.name), 1, "{}", entry.name);
        until("the name of the call", || layered.said().matches(entry.name).count() > before);
        if first.is_err() {
            worked(&vm).unwrap_or_else(|error| panic!("{}: {error}", entry.name));
        }
    }
}

#[test]
fn a_driver_without_what_engines_need_serves_no_kernels_and_says_why_and_copies_go_on() {
    let layered = Layered::new();
    layered.faults.hide(&["VK_EXT_robustness2"]).unwrap();
    // In the sandbox, too, where the layer may read and not write.
    let daemon = Daemon::changed(&["vram=64M"], &["--local-memory", "host"], |it| layered.under(it));
    let vm = daemon.vm(0);
    let device = Device::open(vm.open("test").unwrap()).unwrap();
    let refused = device.create_context(Node::Compute).map(drop);
    let is_refused = matches!(refused, Err(DriverError::Refused { status: Status::NotSupported, .. }));
    assert!(is_refused, "{refused:?}");
    assert!(layered.said().contains(" lacks VK_EXT_robustness2"), "{}", layered.said());
    let mut copies = Guest::on(device, Node::Copy);
    let buffer = copies.device.create_local_buffer(MIB).unwrap();
    copies.run(&fill(buffer.va(), buffer.size(), 5));
    assert!(copies.is_all(&buffer, 5));
}

#[test]
fn engines_ask_for_a_global_priority_where_their_vgpu_may_have_realtime_work_and_say_which_they_have() {
    use vk::QueueGlobalPriorityKHR as Raw;
    let layered = Layered::new();
    layered.faults.offer(&[Raw::MEDIUM, Raw::HIGH, Raw::REALTIME], &[Raw::MEDIUM, Raw::HIGH]);
    // Without a sandbox: in it the layer could not tell what was asked for.
    let arguments = ["--no-sandbox", "--spin", "600000000", "--local-memory", "host"];
    let specs = ["vram=64M,bands=focus", "vram=64M,bands=realtime"];
    let daemon = Daemon::changed(&specs, &arguments, |command| layered.under(command));
    worked(&daemon.vm(0)).unwrap();
    assert_eq!(layered.faults.asked(), [], "neither by a probe of the device nor without the band");
    worked(&daemon.vm(1)).unwrap();
    let asked = layered.faults.asked();
    assert_eq!(asked[..2], [Raw::REALTIME, Raw::HIGH]);
    assert!(
        asked[2..].iter().all(|more| *more == Raw::HIGH),
        "other instances have what the first has: {asked:?}"
    );
    let line = "work runs on queues of global priority high; realtime was refused: ERROR_NOT_PERMITTED_KHR";
    until("a line of the log", || layered.said().contains(line));
    let said = layered.said();
    let lines: Vec<&str> = said.lines().filter(|line| line.contains("global priority")).collect();
    assert!(lines.len() == 1 && lines[0].contains("v1: "), "{lines:?}");
}

#[test]
fn a_driver_that_imports_no_host_memory_serves_by_copies_wherever_local_memory_lies() {
    for place in ["host", "device"] {
        let layered = Layered::new();
        layered.faults.hide(&["VK_EXT_external_memory_host"]).unwrap();
        let daemon = Daemon::changed(&["vram=64M"], &["--local-memory", place], |it| layered.under(it));
        let vm = daemon.vm(0);
        let mut workers = [(); 2].map(|()| worked(&vm).unwrap());
        for worker in workers.iter_mut().rev() {
            worker.work().unwrap();
        }
        assert!(workers.iter_mut().all(Worker::is_right), "{place}");
        let said = layered.said();
        assert!(said.contains("imports no host memory: what kernels bind is copied"), "{place}: {said}");
    }
}

#[test]
fn a_driver_that_exports_no_memory_is_refused_as_local_memory_and_serves_with_the_hosts() {
    let layered = Layered::new();
    layered.faults.hide(&["VK_KHR_external_memory_fd"]).unwrap();
    let socket = layered.folder.path().join("a.sock");
    let mut command = Command::new(env!("CARGO_BIN_EXE_campanile"));
    command.args(["serve", "--vram", "64M", "--local-memory", "device", "--socket"]).arg(socket);
    layered.under(&mut command);
    assert!(!command.status().unwrap().success());
    assert!(layered.said().contains("exports none as opaque fd"), "{}", layered.said());
    let daemon = layered.daemon(&["--local-memory", "host"]);
    worked(&daemon.vm(0)).unwrap();
}
