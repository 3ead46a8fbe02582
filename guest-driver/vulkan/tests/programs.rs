//! Vulkan programs in C, on Vulkan's own loader, on a daemon of their own: `compute.c`, `sync.c`, `extensions.c`, `errors.c`, `claims.c`,
//! `memory.c`, `texels.c`, `images.c`, `sampling.c`, `speed.c`, a test each for what their first argument names.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

#[path = "../../c/tests/built/mod.rs"]
mod built;

use std::path::Path;
use std::path::PathBuf;
use std::process::Command;

use built::Daemon;
use built::printed;

/// Khronos' validation layer, which prints what breaks a rule of Vulkan: nothing, where driver and program keep to them.
const VALIDATION: (&str, &str) = ("VK_INSTANCE_LAYERS", "VK_LAYER_KHRONOS_validation");

/// Compiles a program with all warnings as errors, and runs one test of it under Khronos' validation.
fn run(program: &str, test: &str) {
    run_with(program, test, &[VALIDATION]);
}

/// The same of a test that breaks rules on purpose, without.
fn run_wild(program: &str, test: &str) {
    run_with(program, test, &[]);
}

/// The same, with variables of the environment.
fn run_with(program: &str, test: &str, variables: &[(&str, &str)]) {
    run_on(&["--tdr-timeout", "500"], program, test, variables);
}

/// The same, on a daemon with these arguments.
fn run_on(arguments: &[&str], program: &str, test: &str, variables: &[(&str, &str)]) {
    assert_eq!(printed_on(arguments, program, test, variables), format!("{test}: ok\n"));
}

/// What a test prints on a daemon with these arguments.
fn printed_on(arguments: &[&str], program: &str, test: &str, variables: &[(&str, &str)]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let library = built::folder().join("libvulkan_campanile.so");
    let manifest = folder.path().join("campanile_icd.json");
    let text = format!(
        r#"{{"file_format_version": "1.0.1", "ICD": {{"library_path": "{}", "api_version": "1.3.0"}}}}"#,
        library.display()
    );
    std::fs::write(&manifest, text).unwrap();
    let executable = compiled(folder.path(), program);
    let daemon = Daemon::start(arguments);
    let mut command = Command::new(executable);
    command.arg(test).env("CAMPANILE_SOCKET", daemon.socket()).env("CAMPANILE_DEBUG", "1");
    // The newer name, and that of Debian 12's loader.
    command.env("VK_DRIVER_FILES", &manifest).env("VK_ICD_FILENAMES", &manifest);
    command
        .env_remove("CAMPANILE_GRAPHICS_FAMILY")
        .env_remove("CAMPANILE_BUFFER_ADDRESSES")
        .env_remove("VK_INSTANCE_LAYERS")
        .envs(variables.iter().copied());
    printed(&mut command)
}

/// The same, on the driver that engines load.
fn run_natively(program: &str, test: &str) {
    assert_eq!(printed_natively(program, test), format!("{test}: ok\n"));
}

/// What a test prints there.
fn printed_natively(program: &str, test: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(compiled(folder.path(), program));
    command.arg(test);
    for (name, from) in [
        ("VK_DRIVER_FILES", "CAMPANILE_VULKAN_DRIVER"),
        ("VK_ICD_FILENAMES", "CAMPANILE_VULKAN_DRIVER"),
        ("LD_LIBRARY_PATH", "CAMPANILE_VULKAN_LIBRARY_PATH"),
    ] {
        if let Some(value) = std::env::var_os(from) {
            command.env(name, value);
        }
    }
    printed(&mut command)
}

/// A program, compiled with all warnings as errors.
fn compiled(folder: &Path, program: &str) -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let executable = folder.join(program);
    let mut cc = Command::new("cc");
    cc.args([
        "-std=c99",
        "-pedantic",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-Wno-missing-field-initializers",
        "-O1",
    ]);
    cc.args([here.join(program).with_extension("c"), here.join("program.c")]);
    printed(cc.arg("-o").arg(&executable).arg("-lvulkan"));
    executable
}

#[test]
fn a_command_buffer_runs_as_often_as_it_is_submitted() {
    run("compute", "resubmit");
}

#[test]
fn a_command_buffer_may_be_longer_than_a_ring_entry_carries() {
    run("compute", "large");
}

#[test]
fn secondary_command_buffers_run_in_primary_ones() {
    run("compute", "secondary");
}

#[test]
fn dispatches_take_their_grid_from_memory() {
    run("compute", "indirect");
}

#[test]
fn groups_are_numbered_from_a_base() {
    run("compute", "based");
}

#[test]
fn descriptors_are_written_copied_and_offset() {
    run("compute", "descriptors");
}

#[test]
fn descriptors_are_pushed() {
    run("compute", "push-descriptors");
}

#[test]
fn descriptors_are_pushed_by_templates() {
    run("compute", "push-templates");
}

#[test]
fn buffers_are_filled_updated_and_copied_in_order() {
    run("compute", "transfers");
}

#[test]
fn fences_tell_what_is_done() {
    run("sync", "fences");
}

#[test]
fn timeline_semaphores_hold_back_the_gpu_and_the_cpu() {
    run("sync", "timeline");
}

#[test]
fn binary_semaphores_order_submissions() {
    run("sync", "binary");
}

#[test]
fn events_hold_back_what_is_behind_them() {
    run("sync", "events");
}

#[test]
fn timestamps_rise_and_are_there_or_not() {
    run("sync", "timestamps");
}

#[test]
fn words_are_kept_with_objects_as_long_as_these_live() {
    run("extensions", "private-data");
}

#[test]
fn pipelines_are_compiled_as_the_program_allows_and_tell_what_they_took() {
    run("extensions", "pipelines");
}

#[test]
fn blocks_lie_as_the_device_allows_and_may_be_longer_than_their_buffers() {
    run("extensions", "layouts");
}

#[test]
fn extensions_tell_what_they_promise() {
    run("extensions", "told");
}

#[test]
fn memory_is_neither_taken_over_from_other_drivers_nor_given_to_them() {
    run_wild("extensions", "foreign");
}

#[test]
fn modules_may_be_as_long_as_debuggers_make_them() {
    run("extensions", "debugged");
}

#[test]
fn modules_may_have_a_bound_far_above_their_ids() {
    run("extensions", "sparse");
}

#[test]
fn inline_uniform_blocks_lie_in_their_sets() {
    run("extensions", "inline");
    run_on(&["--tdr-timeout", "500", "--gpu-profile", "campanile-1"], "extensions", "inline", &[VALIDATION]);
}

#[test]
fn commands_are_there_for_what_a_program_has_asked_for() {
    run_wild("extensions", "commands");
}

#[test]
fn validation_sees_what_breaks_a_rule() {
    let printed = printed_on(&["--tdr-timeout", "500"], "errors", "pending", &[VALIDATION]);
    assert!(printed.contains("VUID-vkQueueSubmit-pCommandBuffers-00071"), "{printed}");
}

#[test]
fn a_device_with_a_named_profile_is_that_and_nothing_of_the_hosts_and_programs_run_on_it() {
    let named = ["--tdr-timeout", "500", "--gpu-profile", "campanile-1"];
    run_on(&named, "extensions", "named-profile", &[VALIDATION]);
    for test in ["resubmit", "indirect", "descriptors", "push-templates"] {
        run_on(&named, "compute", test, &[VALIDATION]);
    }
    run_on(&named, "extensions", "layouts", &[VALIDATION]);
}

#[test]
fn modules_that_are_none_are_refused_and_the_device_goes_on() {
    run_wild("errors", "modules");
}

#[test]
fn what_there_is_not_is_refused() {
    run("errors", "absences");
}

#[test]
fn a_hang_loses_its_device_and_another_one_works() {
    run_wild("errors", "lost");
}

#[test]
fn memory_freed_under_work_loses_the_device_of_that_work_alone() {
    run_wild("errors", "freed");
}

#[test]
fn a_command_buffer_that_is_pending_runs_again_or_ends_its_device() {
    run_wild("errors", "pending");
}

#[test]
fn what_is_made_and_destroyed_leaves_nothing_behind() {
    run("errors", "churn");
}

#[test]
fn drawing_is_refused_by_a_result() {
    run_wild("errors", "drawing");
    run_with("errors", "drawing", &[("CAMPANILE_GRAPHICS_FAMILY", "1")]);
}

#[test]
fn texel_buffers_are_bound_by_sets() {
    run("texels", "sets");
}

#[test]
fn texel_buffers_are_pushed() {
    run("texels", "push-descriptors");
    run("texels", "push-templates");
}

#[test]
fn texel_buffers_have_the_formats_that_are_told_and_no_others() {
    run_wild("texels", "formats");
}

#[test]
fn texel_buffers_come_to_the_same_on_the_driver_itself() {
    for test in ["sets", "push-descriptors", "push-templates"] {
        run_natively("texels", test);
    }
}

#[test]
fn kernels_read_and_write_images_of_all_kinds() {
    run("images", "kernels");
    run_on(&["--vram", "512M"], "images", "far", &[VALIDATION]);
}

#[test]
fn images_are_copied_and_cleared() {
    run("images", "copies");
    run("images", "rows");
    run("images", "clears");
}

#[test]
fn what_is_measured_of_images_is_right() {
    for test in ["wide", "narrow"] {
        run_on(&["--tdr-timeout", "5000"], "speed", test, &[VALIDATION]);
    }
}

#[test]
fn kernels_write_formats_that_not_every_device_has() {
    run("images", "formats");
}

#[test]
fn images_are_written_in_the_format_of_their_view_whichever_the_kernel_names() {
    run_wild("images", "other-formats");
}

#[test]
fn a_view_of_a_format_that_kernels_cannot_write_fails_its_command_buffer() {
    run_wild("images", "unwritable");
}

#[test]
fn colours_of_srgb_are_read_as_light() {
    run("images", "srgb");
}

#[test]
fn an_index_at_run_time_chooses_among_the_images_of_an_array() {
    let patient = &["--tdr-timeout", "5000"];
    run_on(patient, "images", "arrays", &[VALIDATION]);
    run_on(patient, "images", "outside", &[]);
    run_on(patient, "images", "open", &[VALIDATION]);
}

#[test]
fn images_have_the_formats_and_sizes_that_are_told_and_no_others() {
    run_wild("images", "told");
}

#[test]
fn copies_of_levels_and_layers_that_an_image_has_not_fail_their_command_buffer() {
    run_wild("images", "beyond");
}

#[test]
fn images_come_to_the_same_on_the_driver_itself() {
    for test in
        ["kernels", "far", "copies", "rows", "clears", "formats", "other-formats", "srgb", "arrays", "open"]
    {
        run_natively("images", test);
    }
}

#[test]
fn what_is_sampled_is_what_the_driver_itself_samples() {
    let ours = printed_on(
        &["--tdr-timeout", "5000", "--compile-timeout", "600000"],
        "sampling",
        "sampled",
        &[VALIDATION],
    );
    let native = printed_natively("sampling", "sampled");
    let numbers = |text: &str| -> Vec<(String, f64)> {
        let number = |line: &str| {
            let (place, value) = line.split_once(' ')?;
            Some((place.to_owned(), value.parse().ok()?))
        };
        text.lines().filter_map(number).collect()
    };
    let (ours, native) = (numbers(&ours), numbers(&native));
    assert_eq!((ours.len(), native.len()), (16 * 988, 16 * 988));
    for ((place, own), (same, wanted)) in ours.iter().zip(&native) {
        // Drivers may compute weights of neighbours in 8 bits; texels are as far apart as 12.5.
        assert!(place == same && (own - wanted).abs() < 0.1, "{place}: {own} for {wanted}");
    }
}

#[test]
fn programs_on_webgpu_find_graphics_and_others_do_not() {
    run_wild("claims", "graphics");
}

#[test]
fn programs_on_iree_find_addresses_of_buffers_and_others_do_not() {
    run("claims", "addresses");
}

#[test]
fn memory_that_the_cpu_sees_is_guest_ram_where_the_window_is_full() {
    run_on(&["--vram", "512M"], "memory", "window", &[VALIDATION]);
}
