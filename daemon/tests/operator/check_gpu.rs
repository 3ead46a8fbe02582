//! `campanile check-gpu`: of the driver that tests have, of none, and without a loader.

use std::ffi::OsStr;
use std::fs;
use std::process::Command;
use std::process::Output;

use ash::vk::QueueGlobalPriorityKHR as Raw;
use campanile_fault_layer::faults::Faults;
use serde_json::Value;

use crate::served::text;

/// The command, on the driver of the tests unless `variables` say otherwise.
fn check(arguments: &[&str], variables: &[(&str, &OsStr)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_campanile"));
    command.arg("check-gpu").args(arguments).envs(variables.iter().copied()).output().unwrap()
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {} {}", text(&output.stdout), text(&output.stderr)))
}

/// That of the CPU driver, whatever other devices there are.
fn cpu(report: &Value) -> &Value {
    let devices = report["devices"].as_array().unwrap();
    devices.iter().find(|device| device["kind"] == "cpu").unwrap_or_else(|| panic!("{report}"))
}

#[test]
fn a_cpu_driver_serves_shares_memory_by_address_and_descriptor_and_is_measured() {
    let output = check(&["--json"], &[]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let report = json(&output);
    assert_eq!((&report["serves"], &report["error"]), (&true.into(), &Value::Null));
    let device = cpu(&report);
    assert_eq!((&device["serves"], &device["self_test"]), (&true.into(), &true.into()), "{device}");
    assert!(device["missing"].as_array().unwrap().is_empty() && device["problem"].is_null());
    let imports = device["imports"].as_array().unwrap();
    let works: Vec<_> = imports.iter().filter(|import| import["works"] == true).collect();
    let works: Vec<_> = works.iter().map(|import| import["method"].as_str().unwrap()).collect();
    assert!(works.contains(&"host pointer") && works.contains(&"opaque fd"), "{imports:?}");
    for import in imports {
        assert_eq!(import["offered"] == true, import["works"] == true, "what is offered works: {import}");
    }
    let used: Vec<_> =
        device["queues"].as_array().unwrap().iter().filter(|queue| queue["used"] == true).collect();
    assert!(used.len() == 1 && used[0]["compute"] == true, "{}", device["queues"]);
    assert!(device["memory"]["device_local_bytes"].as_u64().unwrap() > 0);
    assert!(device["memory"]["all_host_visible"].as_bool().unwrap(), "it is the host's memory");
    assert!(device["dirty_tracking"].as_array().unwrap().contains(&"bound-ranges".into()));
    assert!(device["subgroup_size"].as_u64().unwrap() > 0);
    assert_eq!(device["gpu_profiles"], serde_json::json!([{ "name": "campanile-1", "lacks": [] }]));
    for (name, figure) in device["figures"].as_object().unwrap() {
        assert!(figure.as_f64().unwrap() > 0.0, "{name}");
    }
}

#[test]
fn nothing_is_measured_where_that_is_said() {
    let output = check(&["--json", "--no-measure", "--vulkan-device", "LLVMPIPE"], &[]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let report = json(&output);
    let device = cpu(&report);
    assert_eq!((&device["figures"], &device["self_test"]), (&Value::Null, &Value::Null));
    assert_eq!((&device["serves"], &device["imports"][0]["works"]), (&true.into(), &true.into()));
}

#[test]
fn the_global_priorities_of_queues_are_told() {
    let folder = tempfile::tempdir().unwrap();
    let faults = Faults::install(folder.path()).unwrap();
    let [path, layers] = faults.environment();
    let under = [(path.0, OsStr::new(&path.1)), (layers.0, OsStr::new(&layers.1))];
    let told =
        || cpu(&json(&check(&["--json", "--no-measure"], &under)))["queues"][0]["global_priorities"].clone();
    let said = || text(&check(&["--no-measure"], &under).stdout);
    faults.hide(&["VK_KHR_global_priority"]).unwrap();
    assert_eq!(told(), serde_json::json!([]));
    assert!(said().contains(" bits, no global priorities"), "{}", said());
    faults.hide(&[]).unwrap();
    let offered = [Raw::MEDIUM, Raw::HIGH];
    faults.offer(&offered, &offered);
    assert_eq!(told(), serde_json::json!(["medium", "high"]));
    assert!(said().contains(" bits, global priorities medium high, runs kernels\n"), "{}", said());
    assert_eq!(faults.asked(), [], "looking asks for none");
}

#[test]
fn the_same_is_told_in_words() {
    let output = check(&["--no-measure"], &[]);
    let said = text(&output.stdout);
    for part in ["cpu\n", "verdict            can serve\n", "host pointer: works", "runs kernels\n"] {
        assert!(said.contains(part), "{part} is missing in\n{said}");
    }
}

#[test]
fn a_name_that_no_device_has_ends_with_5_and_the_names_that_there_are() {
    let output = check(&["--json", "--vulkan-device", "no such gpu"], &[]);
    assert_eq!(output.status.code(), Some(5));
    let report = json(&output);
    assert!(report["devices"].as_array().unwrap().is_empty() && report["serves"] == false);
    let error = report["error"].as_str().unwrap();
    assert!(error.contains("`no such gpu`") && error.contains("llvmpipe"), "{error}");
    assert!(text(&output.stderr).contains("no Vulkan device of this machine can serve"));
}

#[test]
fn without_a_driver_or_a_loader_it_ends_with_5_and_says_what_to_install() {
    let folder = tempfile::tempdir().unwrap();
    let manifest = folder.path().join("icd.json");
    let text_of = r#"{"file_format_version": "1.0.0", "ICD": {"library_path": "/nowhere/libnothing.so", "api_version": "1.3.0"}}"#;
    fs::write(&manifest, text_of).unwrap();
    let output = check(&["--vulkan-driver", manifest.to_str().unwrap()], &[]);
    assert_eq!(output.status.code(), Some(5), "{}", text(&output.stderr));
    let said = text(&output.stdout);
    assert!(said.contains("no device: the Vulkan loader found no device: install"), "{said}");

    // The linker takes the first of this name, and it is no library.
    fs::write(folder.path().join("libvulkan.so.1"), "").unwrap();
    let libraries = ("CAMPANILE_VULKAN_LIBRARY_PATH", folder.path().as_os_str());
    let output = check(&["--json"], &[libraries]);
    assert_eq!(output.status.code(), Some(5), "{}", text(&output.stderr));
    let report = json(&output);
    assert!(report["error"].as_str().unwrap().contains("libvulkan1"), "{report}");

    let missing = folder.path().join("missing.json");
    let output = check(&["--vulkan-driver", missing.to_str().unwrap()], &[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("missing.json: No such file"), "{}", text(&output.stderr));
}

#[test]
fn a_driver_that_lacks_something_cannot_serve_and_it_is_named_or_serves_without_what_it_gives() {
    let folder = tempfile::tempdir().unwrap();
    let faults = Faults::install(folder.path()).unwrap();
    let [path, layers] = faults.environment();
    let under = [(path.0, OsStr::new(&path.1)), (layers.0, OsStr::new(&layers.1))];
    let name = "VK_EXT_robustness2";
    faults.hide(&[name]).unwrap();
    let output = check(&["--json", "--no-measure"], &under);
    assert_eq!(output.status.code(), Some(5), "{}", text(&output.stderr));
    let report = json(&output);
    let device = cpu(&report);
    assert_eq!((&report["serves"], &device["serves"]), (&false.into(), &false.into()));
    assert!(device["missing"].as_array().unwrap().contains(&name.into()), "{device}");
    assert!(text(&check(&["--no-measure"], &under).stdout).contains(name));
    faults.hide(&["VK_EXT_external_memory_host"]).unwrap();
    let output = check(&["--json"], &under);
    let report = json(&output);
    let device = cpu(&report);
    assert_eq!((output.status.code(), &device["serves"]), (Some(0), &true.into()), "{device}");
    assert!(device["works"].as_str().unwrap().contains("copied"), "{device}");
    let imports = device["imports"].as_array().unwrap();
    let of = |method: &str| imports.iter().find(|import| import["method"] == method).unwrap();
    assert_eq!((&of("host pointer")["offered"], &of("copy")["works"]), (&false.into(), &true.into()));
    assert_eq!((&device["self_test"], device["figures"].is_object()), (&true.into(), true));
    faults.hide(&["shaderFloat16", "maxPushConstantsSize"]).unwrap();
    let output = check(&["--json", "--no-measure"], &under);
    let report = json(&output);
    let device = cpu(&report);
    assert_eq!((output.status.code(), &device["serves"]), (Some(0), &true.into()), "with its own profile");
    let lacks = [
        "shaderFloat16: the profile has it, the device does not",
        "constants: the profile has 256, the device 128",
    ];
    let expected = serde_json::json!([{ "name": "campanile-1", "lacks": lacks }]);
    assert_eq!(device["gpu_profiles"], expected);
    let said = text(&check(&["--no-measure"], &under).stdout);
    assert!(said.contains(&format!("campanile-1: cannot serve it: {}\n", lacks.join("; "))), "{said}");
    faults.hide(&["VK_KHR_external_memory_fd"]).unwrap();
    let output = check(&["--json", "--no-measure"], &under);
    let report = json(&output);
    let device = cpu(&report);
    assert_eq!((output.status.code(), &device["serves"]), (Some(0), &true.into()));
    let import = |method: &str| {
        let imports = device["imports"].as_array().unwrap();
        imports.iter().find(|import| import["method"] == method).unwrap()["works"].clone()
    };
    assert_eq!(
        (import("host pointer"), import("opaque fd")),
        (true.into(), Value::Null),
        "it is not offered: {device}"
    );
}
