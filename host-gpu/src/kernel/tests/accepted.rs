use crate::kernel::program::Binding;
use crate::kernel::program::BufferAccess;
use crate::kernel::program::BufferChecks;
use crate::kernel::program::BufferKind;
use crate::kernel::program::ENTRY;
use crate::kernel::program::GRID_BINDING;
use crate::kernel::program::Kernel;
use crate::kernel::sanitizer::sanitize;
use crate::kernel::source::Source;
use crate::kernel::tests::samples;

fn accept(text: &str) -> Kernel {
    sanitize(&Source::wgsl(text)).unwrap_or_else(|e| panic!("{e}"))
}

fn buffer(binding: u32, access: BufferAccess, min_size: u64) -> Binding {
    Binding { set: 0, binding, count: 1, kind: BufferKind::Storage, texels: None, access, min_size }
}

#[test]
fn saxpy_is_accepted_and_its_interface_reflected() {
    let kernel = accept(samples::SAXPY);
    assert_eq!(kernel.entry, ENTRY);
    assert_eq!(kernel.workgroup, [64, 1, 1]);
    assert_eq!(kernel.constants, 4);
    assert_eq!(kernel.bindings, [buffer(0, BufferAccess::Read, 4), buffer(1, BufferAccess::ReadWrite, 4)]);
    assert!(!kernel.uses_num_workgroups);
    assert_eq!(kernel.buffer_checks, BufferChecks::Kernel);
}

#[test]
fn mandelbrot_is_accepted_with_its_constants_measured() {
    let kernel = accept(samples::MANDELBROT);
    assert_eq!(kernel.workgroup, [8, 8, 1]);
    assert_eq!(kernel.constants, 20);
}

#[test]
fn reduction_reports_workgroup_memory_and_the_use_of_num_workgroups() {
    let kernel = accept(samples::REDUCE);
    assert_eq!(kernel.workgroup_memory, 1024);
    assert!(kernel.uses_num_workgroups);
    assert_eq!(kernel.bindings[0].binding, 3);
}

#[test]
fn atomics_at_a_computed_index_leave_the_check_to_the_device() {
    assert_eq!(accept(samples::REDUCE).buffer_checks, BufferChecks::Device);
}

#[test]
fn minimum_size_counts_the_fixed_part_and_one_element() {
    let kernel = accept(
        "struct Head { count: u32, items: array<vec4<f32>> }
         @group(0) @binding(2) var<storage, read_write> head: Head;
         @compute @workgroup_size(1) fn main() { head.count = 1u; }",
    );
    assert_eq!(kernel.bindings, [buffer(2, BufferAccess::ReadWrite, 32)]);
}

#[test]
fn one_of_two_entries_is_kept_and_the_others_needs_are_dropped() {
    let text = "@group(0) @binding(0) var<storage, read_write> a: array<u32>;
         @group(0) @binding(1) var texture: texture_2d<f32>;
         @compute @workgroup_size(2) fn plain() { a[0] = 1u; }
         @compute @workgroup_size(4) fn textured() { a[0] = textureDimensions(texture).x; }";
    let source = Source { entry: Some("plain".to_owned()), ..Source::wgsl(text) };
    let kernel = sanitize(&source).unwrap();
    assert_eq!(kernel.workgroup, [2, 1, 1]);
    assert_eq!(kernel.bindings.len(), 1);
}

#[test]
fn overrides_take_their_defaults() {
    let text = "override n: u32 = 32; override twice = n * 2;
         var<workgroup> cells: array<u32, twice>;
         @group(0) @binding(0) var<storage, read_write> b: array<u32>;
         @compute @workgroup_size(n) fn main() { cells[0] = n; b[0] = cells[twice - 1]; }";
    let kernel = accept(text);
    assert_eq!(kernel.workgroup, [32, 1, 1]);
    assert_eq!(kernel.workgroup_memory, 256);
}

#[test]
fn our_own_output_is_accepted_as_spirv() {
    for text in [samples::SAXPY, samples::MANDELBROT] {
        let first = accept(text);
        let bytes = first.spirv.iter().flat_map(|word| word.to_le_bytes()).collect();
        let again = sanitize(&Source::spirv(bytes)).unwrap();
        assert_eq!(again.bindings, first.bindings);
        assert_eq!(again.constants, first.constants);
        assert_eq!(again.workgroup, first.workgroup);
        assert_eq!(again.uses_num_workgroups, first.uses_num_workgroups);
    }
}

#[test]
fn the_number_of_workgroups_comes_from_a_place_that_no_guest_can_name() {
    let kernel = accept(samples::REDUCE);
    assert!(kernel.bindings.iter().all(|binding| binding.binding < GRID_BINDING));
    let bytes = kernel.spirv.iter().flat_map(|word| word.to_le_bytes()).collect();
    let refused = sanitize(&Source::spirv(bytes)).unwrap_err();
    assert!(refused.to_string().contains("a buffer with a binding number above 63"), "{refused}");
}

#[test]
fn sets_and_uniform_buffers_are_reflected_in_order() {
    let kernel = accept(
        "@group(7) @binding(63) var<uniform> far: vec4<u32>;
         @group(2) @binding(1) var<storage> read: array<u32>;
         @group(2) @binding(0) var<storage, read_write> out: array<u32>;
         @compute @workgroup_size(1) fn main() { out[0] = read[1] + far.x; }",
    );
    let uniform = Binding {
        set: 7,
        binding: 63,
        count: 1,
        kind: BufferKind::Uniform,
        texels: None,
        access: BufferAccess::Read,
        min_size: 16,
    };
    let (out, read) = (buffer(0, BufferAccess::ReadWrite, 4), buffer(1, BufferAccess::Read, 4));
    assert_eq!(kernel.bindings, [Binding { set: 2, ..out }, Binding { set: 2, ..read }, uniform]);
    assert_eq!((kernel.buffers(BufferKind::Storage), kernel.buffers(BufferKind::Uniform)), (2, 1));
}
