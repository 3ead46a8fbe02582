//! vGPUs with a named GPU profile: all that their guests see and may use of a device, and where they move to.
//!
//! Lavapipe with vectors of 128 bits is another device than with 256: it has another name, subgroups of another size, and compiles
//! other code.

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::process::Command;

use campanile_daemon::operator::client;
use campanile_daemon::operator::verb::Verb;
use campanile_fault_layer::faults::Faults;
use campanile_guest_driver::device::Device;
use campanile_guest_driver::kernel::KernelSource;
use campanile_guest_driver::node::Node;
use campanile_guest_driver::user_queue::QueueOptions;
use campanile_protocol::control::status::Status;
use campanile_protocol::named_profile::campanile_1;
use campanile_protocol::profile::FEATURE_ATOMIC_FLOAT;
use campanile_protocol::profile::FEATURE_FLOAT_64;
use campanile_test_vmm::migration::options::MigrateOptions;
use campanile_test_vmm::options::VmOptions;
use campanile_test_vmm::vm::LoopbackVm;

use crate::assembly::assemble;
use crate::code_cache;
use crate::frame;
use crate::frame::Parts;
use crate::migration::Hosts;
use crate::operator::Operated;
use crate::save_areas::refused;
use crate::slices::GROUPS;
use crate::slices::Long;
use crate::support::Daemon;
use crate::support::NEVER;
use crate::support::until;

const NAMED: &str = "vram=64M,gpu-profile=campanile-1";
const PLAIN: &str = "vram=64M";
/// Neither resets engines on a busy machine, nor has local memory of the device's own, which moves to the same device only.
const ARGUMENTS: [&str; 4] = ["--tdr-timeout", "600000", "--local-memory", "host"];

/// Two hosts whose devices are not the same, which [`between_devices_or_profiles_no_other_vgpu_moves_and_both_are_named`] shows.
fn two_devices(specs: [&str; 2]) -> Hosts {
    let [first, second] = &specs;
    Hosts::changed([&[first], &[second]], [&ARGUMENTS; 2], |index, command: &mut Command| {
        command.env("LP_NATIVE_VECTOR_WIDTH", ["256", "128"][index]);
    })
}

/// A module that has this capability, and uses it.
fn module(capability: &str, declarations: &str, body: &str) -> Vec<u8> {
    let body = format!("{body}\nOpReturn");
    let parts =
        Parts { size: "1 1 1", capabilities: capability, declarations, body: &body, ..Parts::default() };
    assemble(3, &frame::kernel(&parts)).iter().flat_map(|word| word.to_le_bytes()).collect()
}

#[test]
fn guests_see_the_named_profile_and_the_guard_takes_no_more_though_the_device_has_it() {
    let daemon = Daemon::with_specs(&[NAMED, PLAIN], &[]);
    let [vm, plain] = [0, 1].map(|vgpu| daemon.vm(vgpu));
    let [named, plain] = [&vm, &plain].map(|vm| Device::open(vm.open("test").unwrap()).unwrap());
    let profile = *named.profile().unwrap();
    assert_eq!(profile, campanile_1());
    let of_host = plain.profile().unwrap();
    assert_ne!(of_host.name, profile.name);
    let both = FEATURE_FLOAT_64 | FEATURE_ATOMIC_FLOAT;
    assert_eq!((of_host.features & both, profile.features & both), (both, 0));

    let doubles = module(
        "OpCapability Float64",
        "%double = OpTypeFloat 64\n%half = OpConstant %double 0 1071644672",
        "%d = OpFAdd %double %half %half",
    );
    let subgroups = module(
        "OpCapability GroupNonUniform",
        "%scope = OpConstant %uint 3",
        "%e = OpGroupNonUniformElect %bool %scope",
    );
    for (module, name) in [(&doubles, "Float64"), (&subgroups, "GroupNonUniform")] {
        plain.create_kernel(&KernelSource::pipeline(module, &[], 0)).unwrap();
        let (status, why) = refused(named.create_kernel(&KernelSource::pipeline(module, &[], 0)));
        assert!(status == Status::KernelRefused && why.contains(name), "{why}");
    }
    let nothing = module("", "", "");
    let size = of_host.subgroup_sizes[0];
    plain.create_kernel(&KernelSource::pipeline(&nothing, &[], size)).unwrap();
    let (_, why) = refused(named.create_kernel(&KernelSource::pipeline(&nothing, &[], size)));
    assert!(why.contains("subgroups"), "{why}");
    named.create_kernel(&KernelSource::pipeline(&nothing, &[], 0)).unwrap();

    // Fewer buffers than the device has.
    let buffers = |kind: &str, count: u32| {
        let variables: String =
            (0..count).map(|at| format!("@group(0) @binding({at}) var<{kind}> v{at}: vec4<u32>; ")).collect();
        let sum: String = (0..count).map(|at| format!(" + v{at}.x")).collect();
        format!("{variables} @compute @workgroup_size(1) fn main() {{ var sum = 0u{sum}; }}")
    };
    for (kind, most) in [("storage", profile.storage_buffers), ("uniform", profile.uniform_buffers)] {
        named.create_kernel(&KernelSource::wgsl(&buffers(kind, most))).unwrap();
        let more = buffers(kind, most + 1);
        plain.create_kernel(&KernelSource::wgsl(&more)).unwrap();
        let (status, why) = refused(named.create_kernel(&KernelSource::wgsl(&more)));
        assert!(status == Status::KernelRefused && why.contains(kind), "{why}");
    }
    named.check().unwrap();
}

#[test]
fn a_guest_with_a_named_profile_moves_between_devices_with_its_kernels_and_half_run_work() {
    let hosts = two_devices([NAMED; 2]);
    let guest = code_cache::Guest::of(hosts.daemons[0].vm(0), 1..=3);
    let profile = guest.device.profile().unwrap();
    assert_eq!(guest.run(), [1, 2, 3]);
    let long = Long::new(&guest.device);
    let context = guest.device.create_context(Node::Compute).unwrap();
    let mut queue = context.create_user_queue(&QueueOptions::default()).unwrap();
    for (here, there) in [(0, 1), (1, 0)] {
        let point = queue.submit(&long.commands(here == 1)).unwrap();
        until("the dispatch", || long.started() > 100);
        hosts.begin(here, "v0");
        let options = MigrateOptions { live: true, ..MigrateOptions::default() };
        guest.vm.migrate(hosts.daemons[there].socket(0), options).unwrap();
        assert!(long.started() < u64::from(GROUPS), "all of it was done before");
        point.wait(Some(NEVER)).unwrap();
        long.check();
        assert_eq!(guest.run(), [1, 2, 3]);
        assert_eq!(guest.device.profile().unwrap(), profile);
        let status = hosts.ask(there, &Verb::Status);
        assert_eq!(status["vgpus"][0]["gpu_profile"], "campanile-1", "{status}");
        until("nothing is left at the source", || hosts.phase(here) == "idle");
        until("nothing is left on its way", || hosts.bundles(there) == 0);
    }
}

#[test]
fn between_devices_or_profiles_no_other_vgpu_moves_and_both_are_named() {
    for (specs, field, values) in [
        ([PLAIN; 2], "device of node compute", ["256 bits", "128 bits"]),
        ([NAMED, PLAIN], "gpu_profile", ["campanile-1", "host"]),
        ([PLAIN, NAMED], "gpu_profile", ["host", "campanile-1"]),
    ] {
        let hosts = two_devices(specs);
        let guest = code_cache::Guest::of(hosts.daemons[0].vm(0), 1..=1);
        hosts.begin(0, "v0");
        let last = || hosts.departure(0, 0)["last"].as_str().unwrap_or_default().to_owned();
        until("the target refuses it", || last().contains(field));
        let [saved, here] = values;
        let why = last();
        assert!(why.find(saved) < why.find(here) && why.contains(saved), "{why}");
        assert_eq!(guest.run(), [1]);
    }
}

#[test]
fn a_snapshot_becomes_a_session_on_another_device_with_the_same_profile_and_on_no_other() {
    let operated = Operated::with_specs(&[NAMED], &[]);
    let guest = code_cache::Guest::of(operated.daemon.vm(0), 1..=2);
    guest.run();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("snapshot").display().to_string();
    operated.ask(&["snapshot", "--vgpu", "v0", &file]);
    for (spec, is_taken) in [(NAMED, true), (PLAIN, false)] {
        let spec = format!("{spec},restore={file}");
        let control = folder.path().join(format!("control-{is_taken}"));
        let arguments = ["--control", control.to_str().unwrap()];
        let daemon = Daemon::changed(&[&spec], &arguments, |command| {
            command.env("LP_NATIVE_VECTOR_WIDTH", "128");
        });
        // A front-end that does not reset the device.
        let mut line = None;
        until("the daemon takes a front-end", || {
            line = UnixStream::connect(daemon.socket(0)).ok();
            line.is_some()
        });
        let session =
            || client::ask(&control, &Verb::Status).ok().map(|status| status["vgpus"][0]["session"].clone());
        if is_taken {
            until("the session is there", || {
                session()
                    .is_some_and(|session| session["processes"].as_array().is_some_and(|all| all.len() == 1))
            });
        } else {
            let mut byte = [0];
            assert_eq!(line.unwrap().read(&mut byte).unwrap_or(0), 0, "there is no session");
        }
    }
}

#[test]
fn the_option_is_for_all_vgpus_that_say_nothing_and_none_changes_it_while_it_is_there() {
    let operated =
        Operated::with_specs(&[PLAIN, "vram=64M,gpu-profile=host"], &["--gpu-profile", "campanile-1"]);
    let profile = |vgpu: usize| operated.ask(&["status"])["vgpus"][vgpu]["gpu_profile"].clone();
    assert_eq!([profile(0), profile(1)], ["campanile-1", "host"]);
    let why = operated.refusal(&["vgpu", "set", "v0", "gpu-profile=host"]);
    assert!(why.contains("gpu-profile cannot change while it is there"), "{why}");
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("new.sock");
    let spec = |profile: &str| format!("name=new,socket={},vram=64M,gpu-profile={profile}", socket.display());
    let why = operated.refusal(&["vgpu", "add", &spec("campanile-0")]);
    assert!(why.contains("\"campanile-0\"") && why.contains("host and campanile-1 are"), "{why}");
    operated.ask(&["vgpu", "add", &spec("host")]);
    assert_eq!(profile(2), "host");
    let vm = LoopbackVm::connect(socket, &VmOptions::default()).unwrap();
    let device = Device::open(vm.open("test").unwrap()).unwrap();
    assert_ne!(device.profile().unwrap().name, campanile_1().name);
}

#[test]
fn a_machine_that_cannot_serve_a_named_profile_starts_no_vgpu_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let spec = format!("name=a,socket={},{NAMED}", folder.path().join("a.sock").display());
    let faults = Faults::install(folder.path()).unwrap();
    let serve = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_campanile"));
        command.args(["serve", "--vgpu", &spec, "--cpu-latency", "off"]).args(arguments);
        command.envs(faults.environment());
        let output = command.output().unwrap();
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let why = serve(&["--vulkan-device", "no such device"]);
    for part in ["vGPU a", "gpu-profile campanile-1: there is no device for it", "`no such device`"] {
        assert!(why.contains(part), "{part:?} is not in {why}");
    }
    faults.hide(&["shaderFloat16", "maxPushConstantsSize"]).unwrap();
    let why = serve(&[]);
    for part in [
        "vGPU a",
        "gpu-profile campanile-1: llvmpipe",
        "cannot serve it: shaderFloat16: the profile has it, the device does not; constants: the profile has 256, the device 128",
    ] {
        assert!(why.contains(part), "{part:?} is not in {why}");
    }
}
