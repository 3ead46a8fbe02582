//! Constants as they are computed, and the words of the result.

use spirv::BuiltIn;
use spirv::Decoration;
use spirv::Op;
use spirv::StorageClass;

use crate::shader::interface::BufferKind;
use crate::shader::interface::Wish;
use crate::shader::profile::Profile;
use crate::shader::tests::assembly::assemble;
use crate::shader::tests::samples::GRID;
use crate::shader::tests::samples::STORE;
use crate::shader::tests::samples::all;
use crate::shader::tests::samples::breaks;
use crate::shader::tests::samples::kernel;
use crate::shader::tests::samples::pass;
use crate::shader::tests::samples::plain;
use crate::shader::tests::samples::says;
use crate::shader::tests::samples::whole;

/// What `OpSpecConstantOp` with this operation, of constants that are declared with it, comes to.
fn computed(declarations: &str, operation: &str) -> Option<u64> {
    let (ty, operation) = operation.split_once(' ').expect("a type");
    let wide = "%byte = OpTypeInt 8 1\n%long = OpTypeInt 64 1\n%uint2 = OpTypeVector %uint 2";
    let text = kernel(
        "OpCapability Int8\nOpCapability Int64",
        "",
        &format!("{wide}\n{declarations}\n%r = OpSpecConstantOp {ty} {operation}"),
        "OpReturn",
    );
    let words = pass(&text).unwrap_or_else(|error| panic!("{operation}: {error}")).words;
    // It is the last declaration of a constant.
    let mut found = None;
    let mut at = 5;
    while at < words.len() {
        let (len, code) = (usize::try_from(words[at] >> 16).unwrap(), words[at] & 0xffff);
        found = match Op::from_u32(code) {
            Some(Op::Constant) => {
                let high = if len == 5 { u64::from(words[at + 4]) } else { 0 };
                Some(u64::from(words[at + 3]) | high << 32)
            }
            Some(Op::ConstantTrue) => Some(1),
            Some(Op::ConstantFalse) => Some(0),
            Some(Op::SpecConstantOp) => None,
            _ => found,
        };
        at += len;
    }
    found
}

#[test]
fn operations_on_constants_are_computed_as_instructions_would() {
    let numbers = "%9 = OpSpecConstant %uint 9\n%m9 = OpConstant %int -9\n%p4 = OpConstant %int 4\n%m4 = OpConstant %int -4\n%z = OpConstantNull %uint\n%big = OpConstant %uint 4294967295\n%min = OpConstant %int 2147483648\n%m1 = OpConstant %int -1\n%b5 = OpConstant %byte -5\n%b7 = OpConstant %byte 7\n%31 = OpConstant %uint 31\n%32 = OpConstant %uint 32\n%ff = OpConstantFalse %bool\n%nb = OpConstantNull %bool\n%33 = OpConstant %uint 33";
    let int = |value: i32| u64::from(value.cast_unsigned());
    for (operation, value) in [
        ("%uint IAdd %9 %4", 13),
        ("%uint IAdd %big %4", 3),
        ("%uint ISub %9 %4", 5),
        ("%uint ISub %4 %9", int(-5)),
        ("%uint IMul %9 %4", 36),
        ("%uint UDiv %9 %4", 2),
        ("%uint UMod %9 %4", 1),
        ("%int SDiv %m9 %p4", int(-2)),
        ("%int SRem %m9 %p4", int(-1)),
        ("%int SRem %p4 %m9", 4),
        ("%int SMod %m9 %p4", 3),
        ("%int SMod %m9 %m4", int(-1)),
        ("%int SMod %p4 %m9", int(-5)),
        ("%int SMod %m4 %p4", 0),
        ("%int SMod %p4 %p4", 0),
        ("%int SNegate %m9", 9),
        ("%uint Not %9", int(!9)),
        ("%uint ShiftLeftLogical %9 %4", 144),
        ("%uint ShiftLeftLogical %9 %31", 0x8000_0000),
        ("%uint ShiftRightLogical %9 %1", 4),
        ("%int ShiftRightArithmetic %m9 %1", int(-5)),
        ("%uint ShiftRightLogical %big %31", 1),
        ("%uint BitwiseAnd %9 %1", 1),
        ("%uint BitwiseOr %9 %4", 13),
        ("%uint BitwiseOr %9 %1", 9),
        ("%uint BitwiseXor %9 %1", 8),
        ("%uint UConvert %b7", 7),
        ("%bool LogicalOr %true %true", 1),
        ("%bool LogicalAnd %true %ff", 0),
        ("%bool LogicalAnd %true %true", 1),
        ("%bool LogicalOr %true %ff", 1),
        ("%bool LogicalOr %ff %nb", 0),
        ("%bool LogicalNot %ff", 1),
        ("%bool LogicalNot %true", 0),
        ("%bool LogicalEqual %ff %nb", 1),
        ("%bool LogicalEqual %ff %true", 0),
        ("%bool LogicalNotEqual %ff %true", 1),
        ("%bool LogicalNotEqual %true %true", 0),
        ("%uint Select %true %9 %4", 9),
        ("%uint Select %nb %9 %4", 4),
        ("%bool IEqual %9 %4", 0),
        ("%bool IEqual %4 %4", 1),
        ("%bool INotEqual %9 %4", 1),
        ("%bool INotEqual %4 %4", 0),
        ("%bool ULessThan %4 %9", 1),
        ("%bool ULessThan %4 %4", 0),
        ("%bool ULessThan %big %4", 0),
        ("%bool ULessThanEqual %4 %4", 1),
        ("%bool ULessThanEqual %9 %4", 0),
        ("%bool UGreaterThan %9 %4", 1),
        ("%bool UGreaterThan %4 %4", 0),
        ("%bool UGreaterThanEqual %4 %4", 1),
        ("%bool UGreaterThanEqual %4 %9", 0),
        ("%bool SLessThan %m9 %p4", 1),
        ("%bool SLessThan %p4 %p4", 0),
        ("%bool SLessThan %p4 %m9", 0),
        ("%bool SLessThanEqual %p4 %p4", 1),
        ("%bool SLessThanEqual %p4 %m9", 0),
        ("%bool SGreaterThan %p4 %m9", 1),
        ("%bool SGreaterThan %p4 %p4", 0),
        ("%bool SGreaterThanEqual %p4 %p4", 1),
        ("%bool SGreaterThanEqual %m9 %p4", 0),
        ("%long SConvert %m9", (-9_i64).cast_unsigned()),
        ("%int SConvert %b5", int(-5)),
        ("%byte SConvert %m9", int(-9)),
    ] {
        assert_eq!(computed(numbers, operation), Some(value), "{operation}");
    }
    // What SPIR-V leaves open is left to the driver, and is no length.
    for operation in [
        "%uint UDiv %9 %z",
        "%uint UMod %9 %z",
        "%int SDiv %m9 %zi",
        "%int SRem %m9 %zi",
        "%int SMod %m9 %zi",
        "%uint ShiftLeftLogical %9 %32",
        "%uint ShiftRightLogical %9 %33",
        "%int ShiftRightArithmetic %m9 %32",
    ] {
        assert_eq!(
            computed(&format!("{numbers}\n%zi = OpConstantNull %int"), operation),
            None,
            "{operation}"
        );
    }
    let length = |operation: &str| {
        kernel(
            "",
            "",
            &format!(
                "%9 = OpSpecConstant %uint 9\n%z = OpConstantNull %uint\n%n = OpSpecConstantOp %uint {operation}\n%a = OpTypeArray %uint %n"
            ),
            "OpReturn",
        )
    };
    breaks(
        &length("UDiv %9 %4"),
        &[("UDiv %9 %4", "UDiv %9 %z", "its length is not a known integer constant")],
    );
}

#[test]
fn parts_of_constants_are_known() {
    let pair = "%9 = OpSpecConstant %uint 9\n%v = OpConstantComposite %uint2 %9 %4\n%n = OpConstantNull %uint2\n%a2 = OpTypeArray %uint2 %4\n%a = OpConstantComposite %a2 %v %n %v %v\n%u = OpUndef %uint2";
    assert_eq!(computed(pair, "%uint CompositeExtract %v 1"), Some(4));
    assert_eq!(computed(pair, "%uint CompositeExtract %a 0 0"), Some(9));
    // Null is written as that.
    for unknown in [
        "%uint2 CompositeExtract %a 0",
        "%uint CompositeExtract %u 1",
        "%uint2 IAdd %n %n",
        "%uint2 CompositeInsert %9 %v 1",
        "%uint2 VectorShuffle %v %v 0 1",
    ] {
        assert_eq!(computed(pair, unknown), None, "{unknown}");
    }
    let text = kernel(
        "",
        "",
        "%uint2 = OpTypeVector %uint 2\n%n = OpConstantNull %uint2\n%z = OpSpecConstantOp %uint CompositeExtract %n 1\n%zz = OpSpecConstantOp %uint IAdd %z %4\n%a = OpTypeArray %uint %zz",
        "OpReturn",
    );
    let words = pass(&text).unwrap().words;
    assert_eq!(all(&words, Op::ConstantNull).len(), 2);
    assert!(all(&words, Op::SpecConstantOp).is_empty());
}

#[test]
fn a_constant_has_a_value_of_its_type() {
    let good = kernel(
        "OpCapability Int64\nOpCapability Int8\nOpCapability Float16",
        "",
        "%byte = OpTypeInt 8 1
         %long = OpTypeInt 64 0
         %half = OpTypeFloat 16
         %uint2 = OpTypeVector %uint 2
         %float2 = OpTypeVector %float 2
         %m = OpTypeMatrix %float2 2
         %pair = OpTypeStruct %uint %bool
         %a = OpTypeArray %uint %4
         %b1 = OpConstant %byte -1
         %h1 = OpConstant %half 15360
         %l1 = OpConstant %long 1 2
         %f1 = OpConstant %float 1065353216
         %false = OpConstantFalse %bool
         %st = OpSpecConstantTrue %bool
         %sf = OpSpecConstantFalse %bool
         %c2 = OpConstantComposite %uint2 %4 %7
         %cf = OpConstantComposite %float2 %f1 %f1
         %cm = OpConstantComposite %m %cf %cf
         %cp = OpConstantComposite %pair %4 %true
         %ca = OpSpecConstantComposite %a %4 %4 %4 %4
         %sum = OpSpecConstantOp %uint IAdd %4 %7
         %fz = OpSpecConstantOp %float FConvert %h1
         %un = OpUndef %uint",
        "OpReturn",
    );
    let operands = "too few or too many operands";
    let place = "is no constant of the type of its place";
    breaks(
        &good,
        &[
            ("OpConstantFalse %bool", "OpConstantFalse %uint", "its type is not bool"),
            ("OpConstantFalse %bool", "OpConstantFalse %bool 1", operands),
            ("OpSpecConstantTrue %bool", "OpSpecConstantTrue %uint", "its type is not bool"),
            ("OpConstant %long 1 2", "OpConstant %long 1", operands),
            ("OpConstant %byte -1", "OpConstant %byte -1 0", operands),
            ("OpConstant %byte -1", "OpConstant %bool 1", "its type is not a number"),
            ("OpConstant %byte -1", "OpConstant %void 1", "its type is none that a constant can have"),
            ("OpConstant %byte -1", "OpConstant %words 1", "its type is none that a constant can have"),
            ("OpUndef %uint", "OpUndef %uint 1", operands),
            ("OpUndef %uint", "OpUndef %in1", "its type is none that a constant can have"),
            ("OpUndef %uint", "OpConstantNull %uint 1", operands),
            ("OpUndef %uint", "OpConstantSampler %uint 0 0 0", "it may not stand before the functions"),
            ("%uint2 %4 %7", "%uint2 %4", "it has 1 constituents, its type 2"),
            ("%uint2 %4 %7", "%uint2 %4 %7 %7", "it has 3 constituents, its type 2"),
            ("%uint2 %4 %7", "%uint2 %4 %true", place),
            ("%uint2 %4 %7", "%uint2 %4 %o", place),
            ("%uint2 %4 %7", "%uint %4 %7", "its type is not composite"),
            ("%pair %4 %true", "%pair %true %4", place),
            ("%m %cf %cf", "%m %cf %c2", place),
            ("%a %4 %4 %4 %4", "%a %4 %4 %4 %f1", place),
            ("IAdd %4 %7", "IAdd %4 %o", "is not a constant declared before"),
            ("IAdd %4 %7", "IAdd %4 %true", "operand 1 has a type other than Int"),
            ("IAdd %4 %7", "IAdd", operands),
            ("IAdd %4 %7", "FAdd %4 %7", "this operation on constants is not offered"),
            ("IAdd %4 %7", "FAdd %4 %7", "this operation on constants is not offered"),
            ("IAdd %4 %7", "CompositeExtract %c2 2", "its operands or indices do not fit"),
            ("IAdd %4 %7", "CompositeExtract %o 1", "is not a constant declared before"),
            ("IAdd %4 %7", "CompositeInsert %4", "it has too few operands"),
            ("IAdd %4 %7", "CompositeInsert %4 %o 1", "is not a constant declared before"),
        ],
    );
    let words = pass(&good).unwrap().words;
    let constants = all(&words, Op::Constant);
    assert!(constants.iter().any(|c| c[2..] == [1, 2]), "64 bits take two words");
    assert!(constants.iter().any(|c| c[2..] == [u32::MAX]), "a small negative number is extended");
    assert!(constants.iter().any(|c| c[2..] == [15360]));
    let positive = pass(&good.replace("OpConstant %byte -1", "OpConstant %byte 7")).unwrap().words;
    assert_eq!(
        all(&positive, Op::Constant).iter().filter(|c| c[2..] == [7]).count(),
        2,
        "a positive one is not"
    );
    assert_eq!((all(&words, Op::ConstantTrue).len(), all(&words, Op::ConstantFalse).len()), (2, 2));
    assert_eq!(all(&words, Op::ConstantComposite).len(), 5, "none is a specialisation");
    let small = |more: &str| {
        kernel(
            &format!("OpCapability StorageBuffer8BitAccess\n{more}"),
            "",
            "%byte = OpTypeInt 8 0\n%b1 = OpConstant %byte 1\n%w = OpSpecConstantOp %uint UConvert %b1\n%byte2 = OpTypeVector %byte 2\n%n2 = OpConstantNull %byte2",
            "OpReturn",
        )
    };
    assert!(pass(&small("OpCapability Int8")).is_ok());
    breaks(&small("OpCapability Int8"), &[("OpCapability Int8", "", "no constant has 8 or 16 bits without")]);
}

#[test]
fn the_header_of_the_result_counts_its_ids() {
    let words = pass(&plain("%y = OpIAdd %uint %x %x")).unwrap().words;
    assert_eq!(words[..3], [spirv::MAGIC_NUMBER, 0x0001_0300, 0]);
    let old = whole(
        &assemble(0, &plain("%y = OpIAdd %uint %x %x")),
        &Wish { profile: &Profile::ALL, entry: None, constants: &[], rename: "a-longer-name", grid: GRID },
    )
    .unwrap();
    assert_eq!(old.words[1], 0x0001_0300, "at least 1.3");
    let entry = &all(&old.words, Op::EntryPoint)[0];
    let name: Vec<u8> = entry[2..6].iter().flat_map(|word| word.to_le_bytes()).collect();
    assert_eq!(name, b"a-longer-name\0\0\0");
    assert_eq!(entry.len(), 7, "the one input that it uses");
    let clamped = plain("%v = OpLoad %uint3 %id\n%y = OpVectorExtractDynamic %uint %v %x");
    let before = assemble(3, &clamped)[3];
    let words = pass(&clamped).unwrap().words;
    let highest =
        [Op::ULessThan, Op::Select].iter().flat_map(|op| all(&words, *op)).map(|inst| inst[1]).max().unwrap();
    assert!(highest >= before, "new ids");
    assert_eq!(words[3], highest + 1);
}

#[test]
fn a_clamp_has_a_boolean_even_where_the_kernel_has_none() {
    let text = plain("%v = OpLoad %uint3 %id\n%y = OpVectorExtractDynamic %uint %v %x")
        .replace("%bool = OpTypeBool", "")
        .replace("%true = OpConstantTrue %bool", "");
    let words = pass(&text).unwrap().words;
    assert_eq!(all(&words, Op::TypeBool).len(), 1);
    let own = pass(&plain("%v = OpLoad %uint3 %id\n%y = OpVectorExtractDynamic %uint %v %x")).unwrap().words;
    assert_eq!(all(&own, Op::TypeBool).len(), 1, "its own, where it has one");
    assert_eq!(all(&own, Op::ULessThan)[0][0], all(&own, Op::TypeBool)[0][0]);
    let none =
        pass(&text.replace("%y = OpVectorExtractDynamic %uint %v %x", "%y = OpCompositeExtract %uint %v 0"))
            .unwrap()
            .words;
    assert!(all(&none, Op::TypeBool).is_empty());
    let two = pass(&plain("%v = OpLoad %uint3 %id\n%z = OpVectorExtractDynamic %uint %v %x\n%y = OpVectorExtractDynamic %uint %v %z")).unwrap().words;
    let selects = all(&two, Op::Select);
    assert_eq!(selects.len(), 2);
    assert_eq!(selects[0][4], selects[1][4], "one constant for both");
    let last = all(&two, Op::Constant).into_iter().find(|c| c[1] == selects[0][4]).unwrap();
    assert_eq!(last[2], 2, "the last of three components");
    let inserted = pass(&plain("%v = OpLoad %uint3 %id\n%w = OpVectorInsertDynamic %uint3 %v %x %x\n%y = OpCompositeExtract %uint %w 0")).unwrap().words;
    let select = &all(&inserted, Op::Select)[0];
    assert_eq!(all(&inserted, Op::VectorInsertDynamic)[0][4], select[1], "the index and not the component");
    for (index, clamps) in [("%1", 0), ("%4", 1)] {
        let known =
            pass(&plain(&format!("%v = OpLoad %uint3 %id\n%y = OpVectorExtractDynamic %uint %v {index}")))
                .unwrap()
                .words;
        assert_eq!(all(&known, Op::Select).len(), clamps, "{index}");
    }
}

/// A chain of indices into a private or pushed or bound thing, and how many of them are bounded, by what.
fn bounds(class: &str, declarations: &str, decorations: &str, ty: &str, chain: &str) -> Vec<u32> {
    let text = kernel(
        "OpCapability Int8\nOpCapability StorageBufferArrayDynamicIndexing",
        decorations,
        &format!(
            "{declarations}\n%pt = OpTypePointer {class} {ty}\n%t = OpVariable %pt {class}\n%pu = OpTypePointer {class} %uint"
        ),
        &format!("%q = OpAccessChain {chain}\n%y = OpLoad %uint %q\n{STORE}"),
    );
    let words = pass(&text).unwrap_or_else(|error| panic!("{text}: {error}")).words;
    let constants = all(&words, Op::Constant);
    all(&words, Op::Select)
        .iter()
        .map(|select| constants.iter().find(|c| c[1] == select[4]).unwrap()[2])
        .collect()
}

#[test]
fn each_index_that_no_robustness_covers_is_bounded_by_its_own_length() {
    let types = "%byte = OpTypeInt 8 0\n%sbyte = OpTypeInt 8 1\n%200 = OpConstant %uint 200\n%a7 = OpTypeArray %uint %7\n%a47 = OpTypeArray %a7 %4\n%a200 = OpTypeArray %uint %200\n%i8 = OpUndef %byte\n%s = OpTypeStruct %a7 %uint3";
    assert_eq!(bounds("Private", types, "", "%a47", "%pu %t %x %x"), [3, 6]);
    assert_eq!(bounds("Private", types, "", "%a47", "%pu %t %1 %x"), [6]);
    assert_eq!(bounds("Private", types, "", "%a47", "%pu %t %x %4"), [3]);
    assert_eq!(bounds("Private", types, "", "%a47", "%pu %t %4 %7"), [3, 6]);
    assert_eq!(bounds("Private", types, "", "%s", "%pu %t %1 %x"), [2], "a component of a vector");
    // A byte that may be negative: 127 at the most.
    assert_eq!(bounds("Private", types, "", "%a200", "%pu %t %i8"), [127]);
    let block = "OpDecorate %b Block\nOpMemberDecorate %b 0 Offset 0\nOpDecorate %a7 ArrayStride 4";
    let member = format!("{types}\n%b = OpTypeStruct %a7");
    assert_eq!(bounds("PushConstant", &member, block, "%b", "%pu %t %0 %x"), [6]);
    let placed = format!("{block}\nOpDecorate %t DescriptorSet 0\nOpDecorate %t Binding 9");
    assert_eq!(bounds("StorageBuffer", &member, &placed, "%b", "%pu %t %0 %x"), [] as [u32; 0]);
    let uniform = "OpDecorate %b Block\nOpMemberDecorate %b 0 Offset 0\nOpDecorate %a7 ArrayStride 16\nOpDecorate %t DescriptorSet 0\nOpDecorate %t Binding 9";
    assert_eq!(bounds("Uniform", &member, uniform, "%b", "%pu %t %0 %x"), [] as [u32; 0]);
    // Of several buffers at one binding, which one.
    let several = format!("{member}\n%bs = OpTypeArray %b %4");
    assert_eq!(bounds("StorageBuffer", &several, &placed, "%bs", "%pu %t %x %0 %x"), [3]);
    assert_eq!(bounds("StorageBuffer", &several, &placed, "%bs", "%pu %t %1 %0 %x"), [] as [u32; 0]);
    assert_eq!(bounds("StorageBuffer", &several, &placed, "%bs", "%pu %t %4 %0 %x"), [3]);
    // Where a chain begins at a part, its first index is into that.
    let part = kernel(
        "",
        "OpDecorate %b Block\nOpMemberDecorate %b 0 Offset 0\nOpDecorate %a7 ArrayStride 4\nOpDecorate %t DescriptorSet 0\nOpDecorate %t Binding 9",
        "%a7 = OpTypeArray %uint %7\n%b = OpTypeStruct %a7\n%pt = OpTypePointer StorageBuffer %b\n%pa = OpTypePointer StorageBuffer %a7\n%t = OpVariable %pt StorageBuffer",
        "%m = OpAccessChain %pa %t %0\n%q = OpInBoundsAccessChain %pword %m %x\nOpStore %q %x\nOpReturn",
    );
    let shader = pass(&part).unwrap();
    assert!(all(&shader.words, Op::Select).is_empty());
    assert!(shader.bindings[0].is_written, "through a part of a part");
}

#[test]
fn a_chain_takes_integers_that_reach_something() {
    let good = plain("%q = OpAccessChain %pword %o %0 %x\n%y = OpLoad %uint %q");
    breaks(
        &good,
        &[
            (
                "OpAccessChain %pword %o %0 %x\n%y",
                "OpAccessChain %pword %o\n%y",
                "no pointer to what its indices reach",
            ),
            ("OpAccessChain %pword %o %0 %x\n%y", "OpAccessChain %pword\n%y", "too few or too many operands"),
            (
                "OpAccessChain %pword %o %0 %x\n%y",
                "OpAccessChain %pword %o %0 %true\n%y",
                "is not one integer",
            ),
            (
                "OpAccessChain %pword %o %0 %x\n%y",
                "OpAccessChain %pword %o %true %x\n%y",
                "is not one integer",
            ),
            (
                "OpAccessChain %pword %o %0 %x\n%y",
                "OpAccessChain %pword %o %x %x\n%y",
                "no constant of one of its members",
            ),
            (
                "OpAccessChain %pword %o %0 %x\n%y",
                "OpAccessChain %pword %o %0 %x %x\n%y",
                "reaches into a scalar",
            ),
            ("OpAccessChain %pword %o %0 %x\n%y", "OpAccessChain %pword %x %0 %x\n%y", "is not a pointer"),
            (
                "OpAccessChain %pword %o %0 %x\n%y",
                "OpAccessChain %pblock %o %0 %x\n%y",
                "no pointer to what its indices reach",
            ),
            (
                "OpAccessChain %pword %o %0 %x\n%y",
                "OpAccessChain %uint %o %0 %x\n%y",
                "a type that no value here can have",
            ),
        ],
    );
    let zero = |constant: &str, capability: &str| {
        kernel(
            capability,
            "",
            constant,
            &format!("%q = OpAccessChain %pword %o %z %x\n%y = OpLoad %uint %q\n{STORE}"),
        )
    };
    assert!(pass(&zero("%z = OpConstant %int 0", "")).is_ok());
    for (capability, constant) in [
        ("Int64", "%wide = OpTypeInt 64 0\n%z = OpConstant %wide 0 0"),
        ("Int16", "%wide = OpTypeInt 16 0\n%z = OpConstant %wide 0"),
    ] {
        let passed = pass(&zero(constant, &format!("OpCapability {capability}")));
        assert!(passed.is_ok(), "{constant}: {:?}", passed.map(|_| ()));
    }
    for constant in ["%z = OpConstantNull %uint", "%z = OpSpecConstant %uint 0"] {
        let error = pass(&zero(constant, "")).unwrap_err().to_string();
        assert!(error.contains("no constant of one of its members"), "{constant}: {error}");
    }
    let long = |count: usize| {
        good.replace(
            "OpAccessChain %pword %o %0 %x\n%y",
            &format!("OpAccessChain %pword %o %0 {}\n%y", "%x ".repeat(count)),
        )
    };
    let error = pass(&long(59)).unwrap_err().to_string();
    assert!(error.contains("reaches into a scalar"), "{error}");
    let error = pass(&long(60)).unwrap_err().to_string();
    assert!(error.contains("too few or too many"), "{error}");
}

#[test]
fn the_length_of_an_array_is_asked_of_the_last_member() {
    breaks(
        &plain("%y = OpArrayLength %uint %o 0"),
        &[
            ("OpArrayLength %uint %o 0", "OpArrayLength %uint %o 1", "it is not of the last member"),
            ("OpArrayLength %uint %o 0", "OpArrayLength %int %o 0", "it is not of the last member"),
            ("OpArrayLength %uint %o 0", "OpArrayLength %uint %id 0", "it is not of the last member"),
            ("OpArrayLength %uint %o 0", "OpArrayLength %uint %o", "too few or too many operands"),
        ],
    );
    let second = kernel(
        "",
        "OpDecorate %b Block\nOpMemberDecorate %b 0 Offset 0\nOpMemberDecorate %b 1 Offset 4\nOpDecorate %t DescriptorSet 0\nOpDecorate %t Binding 9",
        "%b = OpTypeStruct %uint %words\n%pt = OpTypePointer StorageBuffer %b\n%t = OpVariable %pt StorageBuffer",
        &format!("%y = OpArrayLength %uint %t 1\n{STORE}"),
    );
    breaks(&second, &[("%t 1", "%t 0", "it is not of the last member")]);
}

#[test]
fn what_a_kernel_writes_is_what_it_may() {
    let old = kernel(
        "",
        "OpDecorate %b BufferBlock\nOpMemberDecorate %b 0 Offset 0\nOpDecorate %t DescriptorSet 0\nOpDecorate %t Binding 9",
        "%b = OpTypeStruct %uint\n%pt = OpTypePointer Uniform %b\n%pu = OpTypePointer Uniform %uint\n%t = OpVariable %pt Uniform",
        "%q = OpAccessChain %pu %t %0\nOpStore %q %7\nOpReturn",
    );
    let shader = pass(&old).unwrap();
    assert_eq!((shader.bindings[0].kind, shader.bindings[0].is_written), (BufferKind::Storage, true));
    breaks(&old, &[("BufferBlock", "Block", "it writes what kernels can only read")]);
    let read =
        pass(&old.replace("BufferBlock", "Block").replace("OpStore %q %7", "%y = OpLoad %uint %q")).unwrap();
    assert_eq!((read.bindings[0].kind, read.bindings[0].is_written), (BufferKind::Uniform, false));
    let copied = plain("%y = OpIAdd %uint %x %x\n%a = OpAccessChain %pword %o %0 %0\n%b = OpAccessChain %pword %o %0 %1\nOpCopyMemory %a %b").replace("OpStore %place %y\n", "");
    assert!(pass(&copied).unwrap().bindings[0].is_written);
    let modf = kernel(
        "",
        "",
        "%fblock = OpTypeStruct %float\n%pf = OpTypePointer Private %float\n%own = OpVariable %pf Private\n%f1 = OpConstant %float 1",
        "%r = OpExtInst %float %glsl Modf %f1 %own\nOpReturn",
    );
    assert!(pass(&modf).is_ok());
    let pushed = kernel(
        "",
        "OpDecorate %b Block\nOpMemberDecorate %b 0 Offset 0",
        "%b = OpTypeStruct %uint\n%pt = OpTypePointer PushConstant %b\n%pu = OpTypePointer PushConstant %uint\n%t = OpVariable %pt PushConstant",
        "%q = OpAccessChain %pu %t %0\n%y = OpLoad %uint %q\nOpReturn",
    );
    assert_eq!(pass(&pushed).unwrap().constants, 4);
    breaks(&pushed, &[("%y = OpLoad %uint %q", "OpStore %q %7", "it writes what kernels can only read")]);
    let two = pushed
        .replace("%t = OpVariable", "%t2 = OpVariable %pt PushConstant\n%t = OpVariable")
        .replace("%y = OpLoad", "%q2 = OpAccessChain %pu %t2 %0\n%y2 = OpLoad %uint %q2\n%y = OpLoad");
    let error = pass(&two).unwrap_err().to_string();
    assert!(error.contains("the second block of push constants"), "{error}");
}

#[test]
fn variables_that_share_a_binding_are_one_buffer() {
    let text = |second: &str, count: &str, at: &str| {
        kernel(
            "",
            &format!(
                "OpDecorate %b Block\nOpMemberDecorate %b 0 Offset 8\nOpDecorate %t DescriptorSet 1\nOpDecorate %t Binding 2\n{at}\nOpDecorate %c Block\nOpMemberDecorate %c 0 Offset 0"
            ),
            &format!(
                "%b = OpTypeStruct %uint\n%c = OpTypeStruct %uint\n%cs = OpTypeArray %c %4\n%pt = OpTypePointer StorageBuffer %b\n%t = OpVariable %pt StorageBuffer\n%pc = OpTypePointer {second} {count}\n%pe = OpTypePointer {second} %uint\n%u = OpVariable %pc {second}"
            ),
            &format!(
                "%q = OpAccessChain %pword %t %0\nOpStore %q %7\n%e = OpAccessChain %pe %u {} %0\n%y = OpLoad %uint %e\nOpReturn",
                if count == "%cs" { "%0" } else { "" }
            ),
        )
    };
    let same = "OpDecorate %u DescriptorSet 1\nOpDecorate %u Binding 2";
    let shader = pass(&text("StorageBuffer", "%c", same)).unwrap();
    let [shared] = shader.bindings.as_slice() else { panic!("{:?}", shader.bindings) };
    assert_eq!(
        (shared.set, shared.binding, shared.min_size, shared.is_written),
        (1, 2, 4, true),
        "the least of both"
    );
    for (class, count) in [("Uniform", "%c"), ("StorageBuffer", "%cs")] {
        let error = pass(&text(class, count, same)).unwrap_err().to_string();
        assert!(error.contains("it shares its binding with a variable of another kind"), "{error}");
    }
    let apart = |at: &str| {
        pass(&text("StorageBuffer", "%cs", at))
            .unwrap()
            .bindings
            .iter()
            .map(|b| (b.set, b.binding, b.count, b.is_written, b.min_size))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        apart("OpDecorate %u DescriptorSet 1\nOpDecorate %u Binding 1"),
        [(1, 1, Some(4), false, 4), (1, 2, None, true, 12)]
    );
    assert_eq!(
        apart("OpDecorate %u DescriptorSet 0\nOpDecorate %u Binding 2"),
        [(0, 2, Some(4), false, 4), (1, 2, None, true, 12)]
    );
}

#[test]
fn memory_of_a_workgroup_is_counted_with_its_alignment() {
    let text = kernel(
        "",
        "",
        "%a5 = OpTypeArray %uint %7\n%p5 = OpTypePointer Workgroup %a5\n%p1 = OpTypePointer Workgroup %uint\n%s = OpVariable %p5 Workgroup\n%t = OpVariable %p1 Workgroup\n%n = OpConstantNull %uint\n%z = OpVariable %p1 Workgroup %n",
        "%q = OpAccessChain %p1 %s %0\nOpStore %q %7\nOpStore %t %7\nOpStore %z %7\nOpReturn",
    );
    let shader = pass(&text).unwrap();
    assert_eq!(shader.workgroup_memory, 52, "28, 4 from 32 on and 4 from 48 on");
    let shared: Vec<_> = all(&shader.words, Op::Variable)
        .into_iter()
        .filter(|v| v[2] == StorageClass::Workgroup as u32)
        .collect();
    assert_eq!(shared.len(), 3);
    assert!(shared.iter().all(|v| v.len() == 4), "each begins at zero, and not twice");
    let floats = text.replace("%a5 = OpTypeArray %uint %7", "%a5 = OpTypeArray %float %7").replace(
        "%q = OpAccessChain %p1 %s %0\nOpStore %q %7",
        "%q = OpAccessChain %pf %s %0\n%fl = OpLoad %float %q",
    );
    let floats = floats.replace("%s = OpVariable", "%pf = OpTypePointer Workgroup %float\n%s = OpVariable");
    assert_eq!(pass(&floats).unwrap().workgroup_memory, 52);
    let large = |class: &str| {
        kernel(
            "",
            "",
            &format!(
                "%n = OpConstant %uint 4097\n%a = OpTypeArray %uint %n\n%p = OpTypePointer {class} %a\n%pu = OpTypePointer {class} %uint\n%v = OpVariable %p {class}"
            ),
            "%q = OpAccessChain %pu %v %0\nOpStore %q %7\nOpReturn",
        )
    };
    assert!(pass(&large("Workgroup")).is_ok());
    // What it begins as may be written, and used for nothing else.
    let null = |body: &str| {
        large("Workgroup")
            .replace(
                "%v = OpVariable %p Workgroup",
                "%null = OpConstantNull %a\n%v = OpVariable %p Workgroup %null",
            )
            .replace("OpStore %q %7", body)
    };
    assert!(pass(&null("OpStore %q %7")).is_ok(), "{:?}", pass(&null("OpStore %q %7")).map(|_| ()));
    // One that nothing uses is left out with its null, also where the interface names it.
    let unused = null("OpReturn")
        .replace("%q = OpAccessChain %pu %v %0\nOpReturn\n", "")
        .replace("\"work\" %id %groups", "\"work\" %id %groups %o %v");
    let wish = Wish { profile: &Profile::ALL, entry: None, constants: &[], rename: "main", grid: GRID };
    let words = whole(&assemble(4, &unused), &wish).unwrap_or_else(|why| panic!("{unused}\n{why}")).words;
    assert!(all(&words, Op::ConstantNull).is_empty());
    for body in [
        "OpStore %v %null",
        "%z = OpCompositeExtract %uint %null 0",
        "%z = OpCompositeInsert %a %7 %null 0",
        "%z = OpCopyObject %a %null",
    ] {
        says(&null(body), "16388 bytes in one value");
    }
    says(
        &null("OpStore %q %part").replace("%v = ", "%part = OpSpecConstantOp %uint 81 %null 0\n%v = "),
        "16388 bytes in one value",
    );
    breaks(
        &large("Workgroup"),
        &[(
            "Workgroup %a\n%pu = OpTypePointer Workgroup %uint\n%v = OpVariable %p Workgroup",
            "Private %a\n%pu = OpTypePointer Private %uint\n%v = OpVariable %p Private",
            "16388 bytes in one value",
        )],
    );
}

#[test]
fn the_number_of_workgroups_is_one_read_only_buffer_of_three_words() {
    let text = plain("%v = OpLoad %uint3 %groups\n%y = OpCompositeExtract %uint %v 0");
    let words = pass(&text).unwrap().words;
    let decorations = all(&words, Op::Decorate);
    let grid = decorations.iter().find(|d| d[1..] == [Decoration::Binding as u32, GRID.binding]).unwrap()[0];
    assert!(decorations.contains(&vec![grid, Decoration::DescriptorSet as u32, GRID.set]));
    let variable = all(&words, Op::Variable).into_iter().find(|v| v[1] == grid).unwrap();
    assert_eq!(variable[2], StorageClass::StorageBuffer as u32);
    let pointers = all(&words, Op::TypePointer);
    let block = pointers.iter().find(|p| p[0] == variable[0]).unwrap()[2];
    let member = all(&words, Op::TypeStruct).into_iter().find(|s| s[0] == block).unwrap()[1];
    assert!(all(&words, Op::TypeVector).iter().any(|v| v[0] == member && v[2] == 3));
    let members = all(&words, Op::MemberDecorate);
    assert!(members.contains(&vec![block, 0, Decoration::Offset as u32, 0]));
    assert!(members.contains(&vec![block, 0, Decoration::NonWritable as u32]));
    assert!(decorations.contains(&vec![block, Decoration::Block as u32]));
    let load = all(&words, Op::Load).into_iter().find(|load| load[0] == member).unwrap();
    let chain = all(&words, Op::AccessChain).into_iter().find(|chain| chain[1] == load[2]).unwrap();
    assert_eq!(chain[2], grid);
    let zero = all(&words, Op::Constant).into_iter().find(|c| c[1] == chain[3]).unwrap();
    assert_eq!(zero[2], 0);
    assert!(pointers.contains(&vec![chain[0], StorageClass::StorageBuffer as u32, member]));
    assert_eq!(all(&words, Op::EntryPoint)[0].len(), 5, "its interface has inputs only, before 1.4");
    assert!(
        decorations.iter().all(|d| d[1..] != [Decoration::BuiltIn as u32, BuiltIn::NumWorkgroups as u32])
    );

    let component = pass(&plain("%g = OpAccessChain %in1 %groups %x\n%y = OpLoad %uint %g")).unwrap().words;
    let chain = all(&component, Op::AccessChain)
        .into_iter()
        .find(|chain| chain.len() == 5 && chain[2] == grid)
        .unwrap();
    let select = &all(&component, Op::Select)[0];
    assert_eq!(chain[4], select[1], "the index is bounded, behind that of the member");
    let zero = all(&component, Op::Constant).into_iter().find(|c| c[1] == chain[3]).unwrap();
    assert_eq!(zero[2], 0);
    assert!(
        all(&component, Op::TypePointer)
            .iter()
            .any(|p| p[0] == chain[0] && p[1] == StorageClass::StorageBuffer as u32)
    );

    let copy = kernel("", "", "%pf = OpTypePointer Function %uint3", "OpCopyMemory %local %groups\nOpReturn")
        .replace("%start = OpLabel", "%start = OpLabel\n%local = OpVariable %pf Function");
    let error = pass(&copy).unwrap_err().to_string();
    assert!(error.contains("can only be loaded"), "{error}");
    assert!(pass(&copy.replace("%groups\nOpReturn", "%id\nOpReturn")).is_ok());
}

#[test]
fn interfaces_name_what_is_used_from_version_1_4_on() {
    let text = plain("%v = OpLoad %uint3 %groups\n%y = OpCompositeExtract %uint %v 0");
    let wish = Wish { profile: &Profile::ALL, entry: None, constants: &[], rename: "main", grid: GRID };
    let error = whole(&assemble(4, &text), &wish).unwrap_err().to_string();
    assert!(error.contains("does not name variable"), "{error}");
    let named = text.replace("%id %groups\n", "%id %groups %o\n");
    let shader = whole(&assemble(4, &named), &wish).unwrap();
    assert_eq!(all(&shader.words, Op::EntryPoint)[0].len(), 4 + 3, "the grid too");
    assert!(shader.uses_num_workgroups);
    let old = named
        .replace("%void = OpTypeVoid", "OpDecorate %s BufferBlock\n%void = OpTypeVoid")
        .replace("%main = OpFunction", "%s = OpTypeStruct %uint\n%main = OpFunction");
    let error = whole(&assemble(4, &old), &wish).unwrap_err().to_string();
    assert!(error.contains("BufferBlock does not belong on"), "{error}");
    assert!(pass(&old.replace("%id %groups %o\n", "%id %groups\n")).is_ok());
    breaks(&text, &[("%id %groups\n", "%id\n", "does not name input")]);
}

#[test]
fn memory_operands_go_into_the_result_without_hints() {
    let text = |load: &str, store: &str| {
        let text = kernel(
            "OpCapability VulkanMemoryModel",
            "",
            "%5 = OpConstant %uint 5",
            &format!(
                "%p = OpAccessChain %pword %o %0 %x\n%y = OpLoad %uint %p {load}\nOpStore %p %y {store}\nOpReturn"
            ),
        );
        let shader = pass(&text.replace("OpMemoryModel 0 1", "OpMemoryModel 0 3")).unwrap();
        let load = all(&shader.words, Op::Load).last().unwrap().clone();
        (
            load[3..].len(),
            load.get(3).copied(),
            // The scope is the last word of each.
            [load.last().copied(), all(&shader.words, Op::Store)[0].last().copied()]
                .map(|word| all(&shader.words, Op::Constant).iter().any(|c| Some(c[1]) == word && c[2] == 5)),
            all(&shader.words, Op::Store)[0].get(2).copied(),
            all(&shader.words, Op::Store)[0].len(),
        )
    };
    assert_eq!(text("", ""), (0, None, [false; 2], None, 2));
    assert_eq!(text("6 4", "6 4"), (0, None, [false; 2], None, 2), "alignment and locality are hints");
    assert_eq!(text("3 4", "1"), (1, Some(1), [false; 2], Some(1), 3), "volatile is not");
    let scoped = text("50 4 %5", "42 4 %5");
    assert_eq!(scoped, (2, Some(48), [true; 2], Some(40), 4), "nor what the memory model needs");
}
