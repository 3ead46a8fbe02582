use crate::shader::profile::Profile;
use crate::shader::profile::Subgroup;
use crate::shader::tests::samples::STORE;
use crate::shader::tests::samples::kernel;
use crate::shader::tests::samples::pass;
use crate::shader::tests::samples::pass_for;
use crate::shader::tests::samples::plain;
use crate::shader::tests::samples::says;

#[test]
fn a_capability_that_the_device_does_not_offer_is_named() {
    let text = kernel("OpCapability Int64", "", "", "OpReturn");
    let words = pass_for(&Profile { int_64: false, ..Profile::ALL }, &text).unwrap_err().to_string();
    assert!(words.contains("does not offer the capability Int64"), "{words}");
    assert!(pass(&text).is_ok());
}

#[test]
fn what_no_device_may_offer_is_refused() {
    for name in ["Kernel", "Linkage", "PhysicalStorageBufferAddresses", "CooperativeMatrixKHR"] {
        says(&kernel(&format!("OpCapability {name}"), "", "", "OpReturn"), name);
    }
    says(
        &plain("%y = OpIAdd %uint %x %7").replace("OpMemoryModel 0 1", "OpMemoryModel 2 1"),
        "logical addressing",
    );
}

#[test]
fn subgroups_on_other_than_32_bits_need_their_feature() {
    let body = "%wide = OpUConvert %ulong %x\n%sum = OpGroupNonUniformIAdd %ulong %3 0 %wide\n%y = OpUConvert %uint %sum";
    let capabilities = "OpCapability Int64\nOpCapability GroupNonUniformArithmetic";
    let declarations = "%ulong = OpTypeInt 64 0\n%3 = OpConstant %uint 3";
    let text = kernel(capabilities, "", declarations, &format!("{body}\n{STORE}"));
    let subgroup = Subgroup { extended: false, ..Profile::ALL.subgroup };
    let words = pass_for(&Profile { subgroup, ..Profile::ALL }, &text).unwrap_err().to_string();
    assert!(words.contains("32 bits only"), "{words}");
    assert!(pass(&text).is_ok(), "{:?}", pass(&text));
}

#[test]
fn floats_are_exchanged_where_the_device_does_it_at_once() {
    let declarations = "%pfloat = OpTypePointer 4 %float\n%w = OpVariable %pfloat 4\n\
         %one = OpConstant %uint 1\n%none = OpConstant %uint 0\n%half = OpConstant %float 1056964608";
    let body = "%old = OpAtomicExchange %float %w %one %none %half\nOpReturn";
    let text = kernel("", "", declarations, body);
    assert!(pass(&text).is_ok(), "{:?}", pass(&text));
    let words = pass_for(&Profile { atomic_float: false, ..Profile::ALL }, &text).unwrap_err().to_string();
    assert!(words.contains("where the device has them"), "{words}");
}

#[test]
fn an_operand_of_another_type_is_refused() {
    says(&plain("%y = OpFAdd %uint %x %7"), "its result has a type other than Float");
    says(&plain("%z = OpFAdd %float %x %7\n%y = OpIAdd %uint %x %x"), "operand 0 has a type other than Same");
    says(&plain("%y = OpIAdd %uint %x"), "1 operands where 2 belong");
    says(&plain("%y = OpIAdd %uint %x %void"), "is no value that is known here");
}

#[test]
fn a_value_is_used_only_where_it_is_known() {
    says(
        &plain("%y = OpIAdd %uint %x %later\n%later = OpIAdd %uint %x %x"),
        "is no value that is known here",
    );
    let body = "%c = OpULessThan %bool %x %7
         OpSelectionMerge %end 0
         OpBranchConditional %c %then %end
         %then = OpLabel
         %z = OpIAdd %uint %x %x
         OpBranch %end
         %end = OpLabel
         %y = OpIAdd %uint %z %x";
    says(&plain(body), "is no value that is known here");
}

#[test]
fn control_flow_is_structured() {
    let branch = "%c = OpULessThan %bool %x %7
         MERGE
         OpBranchConditional %c %a %b
         %a = OpLabel
         OpBranch TARGET
         %b = OpLabel
         OpBranch %end
         %end = OpLabel
         %y = OpIAdd %uint %x %x";
    let with = |merge: &str, target: &str| plain(&branch.replace("MERGE", merge).replace("TARGET", target));
    assert!(pass(&with("OpSelectionMerge %end 0", "%end")).is_ok());
    says(&with("", "%end"), "not structured");
    says(&with("OpSelectionMerge %end 0", "%b"), "branches into another construct");
    says(&with("OpSelectionMerge %end 0", "%start"), "no block of this function that may be branched to");
    says(&with("OpSelectionMerge %a 0", "%end"), "branches into another construct");
}

#[test]
fn a_loop_is_closed_once_from_its_continue_construct() {
    let body = "OpBranch %head
         %head = OpLabel
         OpLoopMerge %end %next 0
         OpBranch %body
         %body = OpLabel
         %c = OpULessThan %bool %x %7
         OpBranchConditional %c TARGET %end
         %next = OpLabel
         OpBranch LAST
         %end = OpLabel
         %y = OpIAdd %uint %x %x";
    let with = |target: &str, last: &str| plain(&body.replace("TARGET", target).replace("LAST", last));
    assert!(pass(&with("%next", "%head")).is_ok());
    says(&with("%head", "%head"), "branches into another construct");
    says(&with("%next", "%end"), "branches into another construct");
    says(&with("%next", "%next"), "branches into another construct");
}

#[test]
fn functions_that_call_themselves_are_refused() {
    let text = plain("%n = OpFunctionCall %void %g\n%y = OpIAdd %uint %x %x");
    let text = format!(
        "{text}\n%g = OpFunction %void 0 %f\n%gs = OpLabel\n%m = OpFunctionCall %void %g\nOpReturn\nOpFunctionEnd"
    );
    says(&text, "calls itself");
}

#[test]
fn pointers_are_to_variables_and_no_values() {
    says(&plain("%p = OpAccessChain %pword %o %0 %x\n%y = OpBitcast %uint %p"), "has a type other than Bits");
    says(
        &plain("%p = OpSelect %in3 %true %id %id\n%y = OpIAdd %uint %x %x"),
        "a type that no value here can have",
    );
    says(&plain("OpStore %id %7\n%y = OpIAdd %uint %x %x"), "not what the pointer points to");
    says(&plain("OpStore %at %7\n%y = OpIAdd %uint %x %x"), "writes what kernels can only read");
    says(
        &plain("%p = OpAccessChain %pword %o %1 %x\n%y = OpLoad %uint %p"),
        "no constant of one of its members",
    );
    says(
        &plain("%p = OpAccessChain %in1 %o %0 %x\n%y = OpLoad %uint %p"),
        "no pointer to what its indices reach",
    );
}

#[test]
fn small_integers_are_only_stored_and_converted_without_their_capability() {
    let parts = |body: &str, more: &str| {
        kernel(
            &format!("OpCapability StorageBuffer8BitAccess\n{more}"),
            "OpDecorate %bytes ArrayStride 1\nOpDecorate %b8 Block\nOpMemberDecorate %b8 0 Offset 0\n\
             OpDecorate %p DescriptorSet 0\nOpDecorate %p Binding 4",
            "%byte = OpTypeInt 8 0\n%bytes = OpTypeRuntimeArray %byte\n%b8 = OpTypeStruct %bytes\n\
             %pb8 = OpTypePointer StorageBuffer %b8\n%pbyte = OpTypePointer StorageBuffer %byte\n\
             %p = OpVariable %pb8 StorageBuffer",
            &format!("%q = OpAccessChain %pbyte %p %0 %x\n%v = OpLoad %byte %q\n{body}\n{STORE}"),
        )
    };
    assert!(pass(&parts("%y = OpUConvert %uint %v", "")).is_ok());
    says(&parts("%w = OpIAdd %byte %v %v\n%y = OpUConvert %uint %w", ""), "only be stored and converted");
    assert!(pass(&parts("%w = OpIAdd %byte %v %v\n%y = OpUConvert %uint %w", "OpCapability Int8")).is_ok());
}

#[test]
fn buffers_that_lie_badly_are_refused() {
    let good = plain("%y = OpIAdd %uint %x %x");
    says(&good.replace("ArrayStride 4", "ArrayStride 2"), "misaligned");
    says(&good.replace("OpMemberDecorate %block 0 Offset 0", ""), "no offsets");
    says(&good.replace("OpDecorate %block Block", ""), "as a block");
    says(&good.replace("OpDecorate %o Binding 3", ""), "without a set or a binding");
    says(
        &good.replace("OpDecorate %o Binding 3", "OpDecorate %o Binding 3\nOpDecorate %o Binding 4"),
        "twice",
    );
}

#[test]
fn memory_that_would_exhaust_a_compiler_is_refused() {
    let local = |count: u32| {
        let declarations = format!(
            "%n = OpConstant %uint {count}\n%array = OpTypeArray %uint %n\n%pa = OpTypePointer Function %array"
        );
        kernel("", "", &declarations, "OpReturn")
            .replace("%start = OpLabel", "%start = OpLabel\n%v = OpVariable %pa Function")
    };
    assert!(pass(&local(4096)).is_ok());
    says(&local(4097), "16388 bytes in one value");
    says(&local(2_147_483_648), "not a known integer constant");
}

#[test]
fn deep_nesting_is_refused_and_takes_no_stack() {
    let mut body = String::new();
    for level in 0..4000 {
        body += &format!(
            "OpSelectionMerge %m{level} 0\nOpBranchConditional %true %t{level} %m{level}\n%t{level} = OpLabel\n"
        );
    }
    for level in (0..4000).rev() {
        body += &format!("OpBranch %m{level}\n%m{level} = OpLabel\n");
    }
    says(&plain(&format!("{body}%y = OpIAdd %uint %x %x")), "nest deeper than");
}

#[test]
fn a_member_that_does_not_end_within_4_gib_is_refused() {
    let at = |offset: u32| {
        plain("%y = OpIAdd %uint %x %7").replace("%block 0 Offset 0", &format!("%block 0 Offset {offset}"))
    };
    assert!(pass(&at(u32::MAX - 7)).is_ok(), "{:?}", pass(&at(u32::MAX - 7)));
    says(&at(u32::MAX - 3), "have no offsets and strides");
}
