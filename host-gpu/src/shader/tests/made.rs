use spirv::Op;
use spirv::StorageClass;

use crate::shader::interface::BufferKind;
use crate::shader::tests::samples::STORE;
use crate::shader::tests::samples::all;
use crate::shader::tests::samples::kernel;
use crate::shader::tests::samples::pass;
use crate::shader::tests::samples::plain;

/// A local array of 5 words, indexed by the invocation.
fn array(class: &str) -> String {
    let global = if class == "Function" { "" } else { "%cells = OpVariable %pcells CLASS" };
    let local = if class == "Function" { "%cells = OpVariable %pcells CLASS" } else { "" };
    let declarations = format!(
        "%5 = OpConstant %uint 5
         %array = OpTypeArray %uint %5
         %pcells = OpTypePointer CLASS %array
         %pcell = OpTypePointer CLASS %uint
         {global}"
    );
    let text = kernel(
        "",
        "",
        &declarations,
        &format!("%cell = OpAccessChain %pcell %cells %x\n%y = OpLoad %uint %cell\n{STORE}"),
    );
    text.replace("%start = OpLabel", &format!("%start = OpLabel\n{local}")).replace("CLASS", class)
}

#[test]
fn what_a_kernel_needs_is_read_off() {
    let shader = pass(&plain("%y = OpIAdd %uint %x %7")).unwrap();
    assert_eq!(shader.workgroup, [8, 4, 2]);
    let [buffer] = shader.bindings.as_slice() else { panic!("{:?}", shader.bindings) };
    assert_eq!((buffer.set, buffer.binding, buffer.kind, buffer.count), (0, 3, BufferKind::Storage, None));
    assert!(buffer.is_written);
    assert_eq!(buffer.min_size, 4);
    assert_eq!((shader.constants, shader.workgroup_memory), (0, 0));
    assert!(!shader.uses_num_workgroups);
}

#[test]
fn a_buffer_is_written_only_where_an_instruction_writes_it() {
    let load = "%place = OpAccessChain %pword %o %0 %x\n%y = OpLoad %uint %place\nOpReturn";
    assert!(!pass(&kernel("", "", "", load)).unwrap().bindings[0].is_written);
    let atomic = "%place = OpAccessChain %pword %o %0 %x\n%y = OpAtomicIAdd %uint %place %1 %0 %7\nOpReturn";
    assert!(pass(&kernel("", "", "", atomic)).unwrap().bindings[0].is_written);
}

#[test]
fn an_index_into_memory_without_robustness_is_bounded() {
    for class in ["Workgroup", "Private", "Function"] {
        let words = pass(&array(class)).unwrap().words;
        let [select] = &all(&words, Op::Select)[..] else { panic!("{class}: no clamp") };
        let [less] = &all(&words, Op::ULessThan)[..] else { panic!("{class}: no comparison") };
        let last = select[4];
        let value = all(&words, Op::Constant).into_iter().find(|c| c[1] == last).unwrap()[2];
        assert_eq!(value, 4, "{class}");
        assert_eq!((less[2], less[3]), (select[3], last), "{class}");
        assert!(all(&words, Op::AccessChain).iter().any(|chain| chain[3..] == [select[1]]), "{class}");
    }
}

#[test]
fn a_constant_index_out_of_bounds_is_bounded_and_one_inside_is_not() {
    for (index, clamps) in [("%7", 1), ("%4", 0)] {
        let text = array("Private").replace("%pcell %cells %x", &format!("%pcell %cells {index}"));
        assert_eq!(all(&pass(&text).unwrap().words, Op::Select).len(), clamps, "{index}");
    }
}

#[test]
fn an_index_into_a_buffer_is_left_to_the_device() {
    let words = pass(&plain("%y = OpIAdd %uint %x %7")).unwrap().words;
    assert!(all(&words, Op::Select).is_empty());
}

#[test]
fn a_component_at_a_computed_index_is_bounded() {
    let body = "%v = OpLoad %uint3 %id\n%y = OpVectorExtractDynamic %uint %v %x";
    assert_eq!(all(&pass(&plain(body)).unwrap().words, Op::Select).len(), 1);
    let body = "%cell = OpAccessChain %in1 %id %x\n%y = OpLoad %uint %cell";
    assert_eq!(all(&pass(&plain(body)).unwrap().words, Op::Select).len(), 1);
}

#[test]
fn an_array_as_long_as_a_specialisation_constant_is_bounded_by_its_value() {
    let text = array("Private")
        .replace(
            "%5 = OpConstant %uint 5",
            "%3 = OpSpecConstant %uint 3\n%5 = OpSpecConstantOp %uint IMul %3 %4",
        )
        .replace("%void = OpTypeVoid", "OpDecorate %3 SpecId 0\n%void = OpTypeVoid");
    let words = pass(&text).unwrap().words;
    let last = all(&words, Op::Select)[0][4];
    assert_eq!(all(&words, Op::Constant).into_iter().find(|c| c[1] == last).unwrap()[2], 11);
    for op in [Op::SpecConstant, Op::SpecConstantOp] {
        assert!(all(&words, op).is_empty(), "the driver must not compute it again");
    }
}

#[test]
fn workgroup_memory_starts_at_zero_and_is_counted() {
    let shader = pass(&array("Workgroup")).unwrap();
    assert_eq!(shader.workgroup_memory, 20);
    let variables = all(&shader.words, Op::Variable);
    let shared = variables.iter().find(|v| v[2] == StorageClass::Workgroup as u32).unwrap();
    assert!(all(&shader.words, Op::ConstantNull).iter().any(|null| Some(&null[1]) == shared.get(3)));
}

#[test]
fn the_number_of_workgroups_is_read_from_a_buffer() {
    for body in [
        "%v = OpLoad %uint3 %groups\n%y = OpCompositeExtract %uint %v 0",
        "%g = OpAccessChain %in1 %groups %1\n%y = OpLoad %uint %g",
    ] {
        let shader = pass(&plain(body)).unwrap();
        assert!(shader.uses_num_workgroups);
        assert_eq!(shader.bindings.len(), 1, "the grid is no binding of the guest");
        let builtin = [spirv::Decoration::BuiltIn as u32, spirv::BuiltIn::NumWorkgroups as u32];
        assert!(all(&shader.words, Op::Decorate).iter().all(|d| d[1..] != builtin));
        let place = [spirv::Decoration::Binding as u32, 16];
        assert!(all(&shader.words, Op::Decorate).iter().any(|d| d[1..] == place));
    }
}

#[test]
fn what_the_entry_point_does_not_use_is_left_out() {
    let words = pass(&plain("%y = OpIAdd %uint %x %7")).unwrap().words;
    let inputs = all(&words, Op::Variable).iter().filter(|v| v[2] == StorageClass::Input as u32).count();
    assert_eq!(inputs, 1, "the number of workgroups is not asked for");
}

#[test]
fn a_block_that_is_never_reached_is_left_out_with_what_it_names() {
    let body = "OpBranch %b
         %dead = OpLabel
         OpBranch %b
         %b = OpLabel
         %y = OpPhi %uint %x %start %7 %dead";
    let words = pass(&plain(body)).unwrap().words;
    assert_eq!(all(&words, Op::Label).len(), 2);
    assert_eq!(all(&words, Op::Phi)[0].len(), 4);
}
