//! What compilers of other languages say beyond what glslang and DXC do, and what becomes of it.

use spirv::Op;

use crate::shader::tests::samples::STORE;
use crate::shader::tests::samples::all;
use crate::shader::tests::samples::kernel;
use crate::shader::tests::samples::pass;
use crate::shader::tests::samples::plain;
use crate::shader::tests::samples::says;

/// The values of the constants that the only instruction `op` names from operand `at` on, counted from 0.
fn constants_of(words: &[u32], op: Op, at: &[usize]) -> Vec<u32> {
    let [inst] = &all(words, op)[..] else { panic!("not one {op:?}") };
    let value = |id: u32| all(words, Op::Constant).into_iter().find(|c| c[1] == id).unwrap()[2];
    at.iter().map(|index| value(inst[*index])).collect()
}

fn with_semantics(value: u32, declarations: &str, body: &str) -> Vec<u32> {
    let declarations = format!("%m = OpConstant %uint {value}\n%2 = OpConstant %uint 2\n{declarations}");
    pass(&kernel("", "", &declarations, body)).unwrap().words
}

#[test]
fn memory_semantics_are_said_in_words_of_vulkan() {
    let on = "%place = OpAccessChain %pword %o %0 %x\n";
    let atomic = format!("{on}%y = OpAtomicIAdd %uint %place %1 %m %7\nOpReturn");
    // Relaxed with a class (CubeCL), acquire and release without (MLIR), sequential consistency, classes that kernels have not.
    for (said, result) in [
        (0x40, 0),
        (0x8, 0x48),
        (0x50, 0x48),
        (0x10, 0x48),
        (0x2, 0x42),
        (0x1042, 0x42),
        (0x388, 0x108),
        (0x400, 0),
        (0x402, 0x442),
    ] {
        let words = with_semantics(said, "", &atomic);
        assert_eq!(constants_of(&words, Op::AtomicIAdd, &[4]), [result], "{said:#x}");
    }
    // The class is that of what the atomic is on.
    let shared = "%pshared = OpTypePointer Workgroup %uint\n%shared = OpVariable %pshared Workgroup";
    let words = with_semantics(8, shared, "%y = OpAtomicIAdd %uint %shared %1 %m %7\nOpReturn");
    assert_eq!(constants_of(&words, Op::AtomicIAdd, &[4]), [0x108]);
    // Loads acquire, and stores release.
    let words = with_semantics(0x50, "", &format!("{on}%y = OpAtomicLoad %uint %place %1 %m\nOpReturn"));
    assert_eq!(constants_of(&words, Op::AtomicLoad, &[4]), [0x42]);
    let words = with_semantics(0x50, "", &format!("{on}OpAtomicStore %place %1 %m %7\nOpReturn"));
    assert_eq!(constants_of(&words, Op::AtomicStore, &[2]), [0x44]);
    let exchange = format!("{on}%y = OpAtomicCompareExchange %uint %place %1 %m %m %7 %4\nOpReturn");
    let words = with_semantics(0x10, "", &exchange);
    assert_eq!(constants_of(&words, Op::AtomicCompareExchange, &[4, 5]), [0x48, 0x42]);
    // Barriers (TVM); one that orders no memory orders none.
    for (said, result) in [(0x110, 0x108), (0x8, 0), (0x140, 0), (0x148, 0x148)] {
        let words = with_semantics(said, "", "OpControlBarrier %2 %2 %m\nOpReturn");
        assert_eq!(constants_of(&words, Op::ControlBarrier, &[2]), [result], "{said:#x}");
    }
    let words = with_semantics(0x10, "", "OpMemoryBarrier %2 %m\nOpReturn");
    assert_eq!(constants_of(&words, Op::MemoryBarrier, &[1]), [0x48]);
}

#[test]
fn values_may_be_undefined_within_functions_and_instructions_may_do_nothing() {
    let words = pass(&plain("OpNop\n%u = OpUndef %uint\n%y = OpIAdd %uint %u %x")).unwrap().words;
    assert_eq!((all(&words, Op::Undef).len(), all(&words, Op::Nop).len()), (1, 0));
    let narrow = |capabilities: &str| {
        let declarations = "%uchar = OpTypeInt 8 0\n%pc = OpTypePointer Function %uchar";
        kernel(capabilities, "", declarations, "%u = OpUndef %uchar\nOpReturn")
    };
    assert!(pass(&narrow("OpCapability StorageBuffer8BitAccess\nOpCapability Int8")).is_ok());
    says(&narrow("OpCapability StorageBuffer8BitAccess"), "Int8");
    says(&plain("%u = OpUndef %void\n%y = OpIAdd %uint %x %x"), "a type that no value here can have");
    says(&plain("%u = OpUndef %f\n%y = OpIAdd %uint %x %x"), "a type that no value here can have");
    says(&plain("%y = OpIAdd %uint %u %x\n%u = OpUndef %uint"), "no value that is known here");
}

#[test]
fn pointers_and_arrays_without_length_may_be_undefined_where_nothing_uses_them() {
    for ty in ["%pword", "%pblock", "%words", "%block"] {
        let text = plain(&format!("%u = OpUndef {ty}\n%y = OpIAdd %uint %x %x"));
        assert_eq!(all(&pass(&text).unwrap().words, Op::Undef).len(), 0, "{ty} is left out");
        says(&text.replace("%y =", "%u = OpIAdd %uint %x %x\n%y ="), "is defined twice");
    }
    let used = |text: &str| plain(&format!("%u = OpUndef %pword\n{text}\n%y = OpIAdd %uint %x %x"));
    for text in
        ["%v = OpLoad %uint %u", "OpStore %u %x", "%v = OpCopyObject %pword %u", "%v = OpIAdd %uint %u %x"]
    {
        assert!(pass(&used(text)).is_err(), "{text}");
    }
    says(&used("%v = OpCopyObject %uint %u"), "no value that is known here");
}

#[test]
fn kernels_may_be_described_behind_them_and_debugged_by_the_instructions_of_opencl() {
    let text = plain("%y = OpIAdd %uint %x %x");
    let described = text
        .replace("%glsl =", "%r = OpExtInstImport \"NonSemantic.ClspvReflection.5\"\n%glsl =")
        + "\n%k = OpExtInst %void %r 1 %main %0\n%a = OpExtInst %void %r 2 %k";
    let debugged = text
        .replace("%glsl =", "%d = OpExtInstImport \"OpenCL.DebugInfo.100\"\n%glsl =")
        .replace("%in3 =", "%none = OpExtInst %void %d 0\n%in3 =")
        .replace("%y =", "%scope = OpExtInst %void %d 23 %none\n%y =");
    for text in [&described, &debugged] {
        let words = pass(text).unwrap_or_else(|why| panic!("{why}")).words;
        assert_eq!((all(&words, Op::ExtInst).len(), all(&words, Op::ExtInstImport).len()), (0, 1));
    }
    says(&described.replace("%a = OpExtInst %void %r", "%a = OpExtInst %void %glsl"), "no instruction set");
    says(&(text + "\n%a = OpIAdd %uint %0 %0"), "it stands between functions");
}

#[test]
fn what_only_tells_a_compiler_more_is_dropped() {
    let body = "%c = OpULessThan %bool %x %7
        OpAssumeTrueKHR %c
        %e = OpExpectKHR %uint %x %7
        %s = OpExpectKHR %bool %c %true
        OpBranch %head
        %head = OpLabel
        OpLoopMerge %end %next 496 1 2 3 4 5
        OpBranchConditional %s %next %end
        %next = OpLabel
        OpBranch %head
        %end = OpLabel
        %y = OpIAdd %uint %x %e";
    let text = kernel(
        "OpCapability ExpectAssumeKHR\nOpCapability VariablePointers\nOpCapability Image1D",
        "OpDecorate %y NoSignedWrap\nOpDecorate %y NoUnsignedWrap\nOpDecorateId %o HlslCounterBufferGOOGLE %o",
        "",
        &format!("{body}\n{STORE}"),
    );
    let words = pass(&text).unwrap_or_else(|why| panic!("{why}")).words;
    assert_eq!(all(&words, Op::Capability).len(), 1);
    assert_eq!((all(&words, Op::AssumeTrueKHR).len(), all(&words, Op::ExpectKHR).len()), (0, 0));
    assert_eq!(all(&words, Op::CopyObject).len(), 2);
    assert_eq!(all(&words, Op::LoopMerge)[0][2..], [0]);
    assert!(all(&words, Op::DecorateId).is_empty());
    for (from, to, why) in [
        ("OpCapability ExpectAssumeKHR\n", "", "ExpectAssumeKHR is not declared"),
        ("%next 496 1 2 3 4 5", "%next 496 1 2 3 4", "its loop control is not offered"),
        ("%next 496 1 2 3 4 5", "%next 512", "its loop control is not offered"),
        ("OpAssumeTrueKHR %c", "OpAssumeTrueKHR %x", "it is of no boolean"),
        ("%e = OpExpectKHR %uint %x %7", "%e = OpExpectKHR %uint %x %true", "it is of no boolean"),
    ] {
        says(&text.replace(from, to), why);
    }
    // What is dropped is not offered by that.
    says(
        &kernel("OpCapability VariablePointers", "", "", "%p = OpSelect %pword %true %o %o\nOpReturn"),
        "a type",
    );
}

#[test]
fn copies_of_memory_may_say_how_it_is_aligned() {
    let copy = |operands: &str| {
        let places = "%a = OpAccessChain %pword %o %0 %0\n%b = OpAccessChain %pword %o %0 %1";
        kernel("", "", "", &format!("{places}\nOpCopyMemory %a %b {operands}\nOpReturn"))
    };
    for operands in ["", "2 4", "4", "2 4 2 8", "6 4 4"] {
        let words = pass(&copy(operands)).unwrap_or_else(|why| panic!("{operands}: {why}")).words;
        assert_eq!(all(&words, Op::CopyMemory)[0].len(), 2);
    }
    for operands in ["1", "3 4", "4 1", "2 4 3 8"] {
        let words = pass(&copy(operands)).unwrap_or_else(|why| panic!("{operands}: {why}")).words;
        assert_eq!(all(&words, Op::CopyMemory)[0].get(2), Some(&1), "{operands}: it stays volatile");
    }
    for operands in ["2 3", "2", "2 4 8", "3 4 3"] {
        says(&copy(operands), "these memory operands are not offered");
    }
}

#[test]
fn accesses_to_an_invocations_own_variables_are_not_counted_as_those_of_memory() {
    let many = |place: &str| {
        let stores = format!("OpStore %{place} %x\n").repeat(20_000);
        kernel(
            "",
            "",
            "%pf = OpTypePointer Function %uint",
            &format!("%b = OpAccessChain %pword %o %0 %x\n{stores}OpReturn"),
        )
        .replace("%start = OpLabel", "%start = OpLabel\n%own = OpVariable %pf Function")
    };
    assert!(pass(&many("own")).is_ok());
    // A place by an access chain without an index is not followed.
    let again = many("again").replace("%b = ", "%again = OpAccessChain %pf %own\n%b = ");
    says(&again, "accesses to memory with all calls inlined");
    says(&many("b"), "accesses to memory with all calls inlined");
    // What is read counts, too, and so does a place that is not known.
    says(
        &many("own").replace("OpStore %own %x", "OpCopyMemory %own %b"),
        "accesses to memory with all calls inlined",
    );
    let cells = many("cell")
        .replace("%pf = ", "%cells = OpTypeArray %uint %4\n%pcells = OpTypePointer Function %cells\n%pf = ")
        .replace("%own = OpVariable %pf Function", "%own = OpVariable %pcells Function");
    let at = |index: &str| cells.replace("%b = ", &format!("%cell = OpAccessChain %pf %own {index}\n%b = "));
    assert!(pass(&at("%1")).is_ok());
    says(&at("%x"), "accesses to memory with all calls inlined");
}
