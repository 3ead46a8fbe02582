//! Which types each kind of result and operand takes.

use crate::shader::tests::palette::CAPABILITIES;
use crate::shader::tests::palette::check;
use crate::shader::tests::palette::only;
use crate::shader::tests::palette::takes;
use crate::shader::tests::palette::takes_in;
use crate::shader::tests::palette::version_of;

const FLOATS: &str = "f16 f32 f64 f16x2 f32x2 f32x3 f32x4 f64x2";
const INTS: &str = "s8 u8 u16 s32 u32 u64 s8x4 u8x4 s32x2 u32x2 u32x3 u32x4 u64x2";
const NUMBERS: &str =
    "s8 u8 u16 s32 u32 u64 f16 f32 f64 s8x4 u8x4 s32x2 u32x2 u32x3 u32x4 u64x2 f16x2 f32x2 f32x3 f32x4 f64x2";
const ANY: &str = "b s8 u8 u16 s32 u32 u64 f16 f32 f64 bx2 bx4 s8x4 u8x4 s32x2 u32x2 u32x3 u32x4 u64x2 f16x2 f32x2 f32x3 f32x4 f64x2";

#[test]
fn a_result_has_a_type_that_its_instruction_can_have() {
    takes(&[
        ("%r = OpFAdd %? %_? %_?", FLOATS),
        ("%r = OpExtInst %? %glsl Refract %_? %_? %_f32", "f32 f32x2 f32x3 f32x4"),
        ("%r = OpExtInst %f32x2 %glsl Refract %_f32x2 %_f32x2 %_?", "f32"),
        ("%r = OpExtInst %? %glsl Sin %_?", "f16 f32 f16x2 f32x2 f32x3 f32x4"),
        ("%r = OpIAdd %? %_? %_?", INTS),
        ("%r = OpBitReverse %? %_?", "s32 u32 s32x2 u32x2 u32x3 u32x4"),
        ("%r = OpExtInst %? %glsl PackSnorm4x8 %_f32x4", "u32"),
        ("%r = OpUDiv %? %_? %_?", "u8 u16 u32 u64 u8x4 u32x2 u32x3 u32x4 u64x2"),
        ("%r = OpLogicalAnd %? %_? %_?", "b bx2 bx4"),
        ("%r = OpAny %? %_bx2", "b"),
        ("%r = OpExtInst %? %glsl Length %_?", "f16 f32 f64"),
        ("%r = OpExtInst %? %glsl UnpackSnorm4x8 %_u32", "f32x4"),
        ("%r = OpExtInst %? %glsl UnpackHalf2x16 %_u32", "f32x2"),
        ("%r = OpExtInst %? %glsl PackDouble2x32 %_u32x2", "f64"),
        ("%r = OpExtInst %? %glsl UnpackDouble2x32 %_f64", "u32x2"),
        ("%r = OpExtInst %? %glsl Cross %_? %_?", "f32x3"),
        ("%r = OpSelect %? %_b %_? %_?", "b s8 u8 u16 s32 u32 u64 f16 f32 f64"),
        ("%r = OpBitcast %? %_u32", "s32 u32 f32 s8x4 u8x4 f16x2"),
        ("%r = OpBitcast %? %_?", NUMBERS),
        ("%r = OpSMulExtended %? %_s32 %_s32", "ss"),
        ("%r = OpSMulExtended %? %_u32 %_u32", "uu vv"),
        ("%r = OpSMulExtended %? %_f32 %_f32", ""),
        ("%r = OpIAddCarry %? %_u32 %_u32", "uu vv"),
        ("%r = OpIAddCarry %? %_s32 %_s32", ""),
        ("%r = OpGroupNonUniformBallot %? %c3 %_b", "u32x4"),
        ("%r = OpGroupNonUniformBallotFindLSB %? %c3 %_u32x4", "u32"),
        ("%r = OpIsNan %? %_f32", "b"),
        ("%r = OpIsNan %? %_f32x2", "bx2"),
    ]);
    let all = takes_in(3, "%r = OpCopyObject %? %_?");
    assert!(all.starts_with(ANY) && all.ends_with("m22 m23 m32 m33 h22"), "{all}");
    assert_eq!(takes_in(4, "%r = OpSelect %? %_b %_? %_?"), ANY);
}

#[test]
fn an_operand_has_a_type_that_fits_the_result_and_the_first_operand() {
    takes(&[
        ("%r = OpFAdd %f32 %_? %_f32", "f32"),
        ("%r = OpFAdd %f32 %_f32 %_?", "f32"),
        ("%r = OpFOrdEqual %b %_? %_?", "f16 f32 f64"),
        ("%r = OpFOrdEqual %bx2 %_? %_?", "f16x2 f32x2 f64x2"),
        ("%r = OpFOrdEqual %b %_f32 %_?", "f32"),
        ("%r = OpIAddCarry %uu %_? %_u32", "u32"),
        ("%r = OpIAddCarry %uu %_u32 %_?", "u32"),
        ("%r = OpCopyLogical %uu %_?", "vv"),
        ("%r = OpCopyLogical %nu %_?", "nv"),
        ("%r = OpCopyLogical %a2 %_?", "d2"),
        ("%r = OpBitcast %u32 %_?", "s32 u32 f32 s8x4 u8x4 f16x2"),
        ("%r = OpBitcast %u64 %_?", "u64 f64 s32x2 u32x2 f32x2"),
        ("%r = OpBitcast %b %_?", ""),
        ("%r = OpIAdd %u32 %_? %_u32", "s32 u32"),
        ("%r = OpIAdd %u32 %_u32 %_?", "s32 u32"),
        ("%r = OpIAdd %u32x2 %_u32x2 %_?", "s32x2 u32x2"),
        ("%r = OpShiftLeftLogical %u32 %_u32 %_?", "s8 u8 u16 s32 u32 u64"),
        ("%r = OpShiftLeftLogical %u32x4 %_u32x4 %_?", "s8x4 u8x4 u32x4"),
        ("%r = OpBitCount %u64 %_?", "s32 u32"),
        ("%r = OpBitCount %u64x2 %_?", "s32x2 u32x2"),
        ("%r = OpIEqual %b %_? %_u32", "s32 u32"),
        ("%r = OpIEqual %b %_u32 %_?", "s32 u32"),
        ("%r = OpIEqual %bx2 %_u32x2 %_?", "s32x2 u32x2"),
        ("%r = OpUConvert %u32 %_?", "s8 u8 u16 u64"),
        ("%r = OpUConvert %u32x2 %_?", "u64x2"),
        ("%r = OpSConvert %s32 %_?", "s8 u8 u16 u64"),
        ("%r = OpFConvert %f32 %_?", "f16 f64"),
        ("%r = OpFConvert %f32x2 %_?", "f16x2 f64x2"),
        ("%r = OpAny %b %_?", "bx2 bx4"),
        ("%r = OpSelect %u32 %_? %_u32 %_u32", "b"),
        ("%r = OpSelect %u32x2 %_? %_u32x2 %_u32x2", "bx2"),
        ("%r = OpVectorTimesScalar %f32x2 %_f32x2 %_?", "f32"),
        ("%r = OpVectorTimesScalar %? %_? %_f32", "f32x2 f32x3 f32x4"),
        ("%r = OpDot %f32 %_? %_?", "f32x2 f32x3 f32x4"),
        ("%r = OpDot %f32 %_f32x2 %_?", "f32x2"),
        ("%r = OpExtInst %f32 %glsl Length %_?", "f32 f32x2 f32x3 f32x4"),
        ("%r = OpExtInst %f32 %glsl Distance %_f32x2 %_?", "f32x2"),
        ("%r = OpBitFieldUExtract %u32 %_u32 %_? %_u32", "s8 u8 u16 s32 u32 u64"),
        ("%r = OpBitFieldUExtract %u32 %_u32 %_u32 %_?", "s8 u8 u16 s32 u32 u64"),
        ("%r = OpExtInst %f64 %glsl PackDouble2x32 %_?", "u32x2"),
        ("%r = OpExtInst %u32x2 %glsl UnpackDouble2x32 %_?", "f64"),
        ("%r = OpExtInst %u32 %glsl PackHalf2x16 %_?", "f32x2"),
        ("%r = OpExtInst %f32 %glsl Ldexp %_f32 %_?", "s32 u32"),
        ("%r = OpConvertSToF %f32 %_?", "s8 u8 u16 s32 u32 u64"),
        ("%r = OpConvertFToS %s32 %_?", "f16 f32 f64"),
        ("%r = OpGroupNonUniformShuffle %u32 %c3 %_u32 %_?", "u32"),
        ("%r = OpGroupNonUniformInverseBallot %b %c3 %_?", "u32x4"),
        ("%r = OpGroupNonUniformAll %b %c3 %_?", "b"),
    ]);
    assert_eq!(takes_in(4, "%r = OpSelect %u32x2 %_? %_u32x2 %_u32x2"), "b bx2");
}

/// An instruction, and one with which its operands fit.
const VALID: &[&str] = &[
    "FAdd %f32 %_f32 %_f32",
    "FSub %f32 %_f32 %_f32",
    "FMul %f32 %_f32 %_f32",
    "FDiv %f32 %_f32 %_f32",
    "FRem %f32 %_f32 %_f32",
    "FMod %f32 %_f32 %_f32",
    "FNegate %f32 %_f32",
    "UDiv %u32 %_u32 %_u32",
    "UMod %u32 %_u32 %_u32",
    "IAdd %u32 %_u32 %_u32",
    "ISub %u32 %_u32 %_u32",
    "IMul %u32 %_u32 %_u32",
    "SDiv %s32 %_s32 %_s32",
    "SRem %s32 %_s32 %_s32",
    "SMod %s32 %_s32 %_s32",
    "BitwiseAnd %u32 %_u32 %_u32",
    "BitwiseOr %u32 %_u32 %_u32",
    "BitwiseXor %u32 %_u32 %_u32",
    "SNegate %s32 %_s32",
    "Not %u32 %_u32",
    "ShiftLeftLogical %u32 %_u32 %_u32",
    "ShiftRightLogical %u32 %_u32 %_u32",
    "ShiftRightArithmetic %u32 %_u32 %_u32",
    "BitFieldInsert %u32 %_u32 %_u32 %_u32 %_u32",
    "BitFieldSExtract %u32 %_u32 %_u32 %_u32",
    "BitFieldUExtract %u32 %_u32 %_u32 %_u32",
    "BitReverse %u32 %_u32",
    "BitCount %u32 %_u32",
    "IAddCarry %uu %_u32 %_u32",
    "ISubBorrow %uu %_u32 %_u32",
    "UMulExtended %uu %_u32 %_u32",
    "SMulExtended %ss %_s32 %_s32",
    "Any %b %_bx2",
    "All %b %_bx2",
    "IsNan %b %_f32",
    "IsInf %b %_f32",
    "LogicalEqual %b %_b %_b",
    "LogicalNotEqual %b %_b %_b",
    "LogicalOr %b %_b %_b",
    "LogicalAnd %b %_b %_b",
    "LogicalNot %b %_b",
    "Select %u32 %_b %_u32 %_u32",
    "FOrdEqual %b %_f32 %_f32",
    "FUnordEqual %b %_f32 %_f32",
    "FOrdNotEqual %b %_f32 %_f32",
    "FUnordNotEqual %b %_f32 %_f32",
    "FOrdLessThan %b %_f32 %_f32",
    "FUnordLessThan %b %_f32 %_f32",
    "FOrdGreaterThan %b %_f32 %_f32",
    "FUnordGreaterThan %b %_f32 %_f32",
    "FOrdLessThanEqual %b %_f32 %_f32",
    "FUnordLessThanEqual %b %_f32 %_f32",
    "FOrdGreaterThanEqual %b %_f32 %_f32",
    "FUnordGreaterThanEqual %b %_f32 %_f32",
    "IEqual %b %_u32 %_u32",
    "INotEqual %b %_u32 %_u32",
    "UGreaterThan %b %_u32 %_u32",
    "SGreaterThan %b %_u32 %_u32",
    "UGreaterThanEqual %b %_u32 %_u32",
    "SGreaterThanEqual %b %_u32 %_u32",
    "ULessThan %b %_u32 %_u32",
    "SLessThan %b %_u32 %_u32",
    "ULessThanEqual %b %_u32 %_u32",
    "SLessThanEqual %b %_u32 %_u32",
    "ConvertFToU %u32 %_f32",
    "ConvertFToS %s32 %_f32",
    "ConvertSToF %f32 %_s32",
    "ConvertUToF %f32 %_u32",
    "UConvert %u32 %_u16",
    "SConvert %s32 %_s8",
    "FConvert %f32 %_f16",
    "QuantizeToF16 %f32 %_f32",
    "Bitcast %f32 %_u32",
    "CopyObject %uu %_uu",
    "CopyLogical %uu %_vv",
    "Dot %f32 %_f32x2 %_f32x2",
    "VectorTimesScalar %f32x2 %_f32x2 %_f32",
    "GroupNonUniformElect %b %c3",
    "GroupNonUniformAll %b %c3 %_b",
    "GroupNonUniformAny %b %c3 %_b",
    "GroupNonUniformBallot %u32x4 %c3 %_b",
    "GroupNonUniformInverseBallot %b %c3 %_u32x4",
    "GroupNonUniformBallotBitExtract %b %c3 %_u32x4 %_u32",
    "GroupNonUniformBallotFindLSB %u32 %c3 %_u32x4",
    "GroupNonUniformBallotFindMSB %u32 %c3 %_u32x4",
    "GroupNonUniformBroadcastFirst %u32 %c3 %_u32",
    "GroupNonUniformShuffle %u32 %c3 %_u32 %_u32",
    "GroupNonUniformShuffleXor %u32 %c3 %_u32 %_u32",
    "GroupNonUniformShuffleUp %u32 %c3 %_u32 %_u32",
    "GroupNonUniformShuffleDown %u32 %c3 %_u32 %_u32",
    "GroupNonUniformIAdd %u32 %c3 0 %_u32",
    "GroupNonUniformIMul %u32 %c3 0 %_u32",
    "GroupNonUniformSMin %u32 %c3 0 %_u32",
    "GroupNonUniformUMin %u32 %c3 0 %_u32",
    "GroupNonUniformSMax %u32 %c3 0 %_u32",
    "GroupNonUniformUMax %u32 %c3 0 %_u32",
    "GroupNonUniformBitwiseAnd %u32 %c3 0 %_u32",
    "GroupNonUniformBitwiseOr %u32 %c3 0 %_u32",
    "GroupNonUniformBitwiseXor %u32 %c3 0 %_u32",
    "GroupNonUniformFAdd %f32 %c3 0 %_f32",
    "GroupNonUniformFMul %f32 %c3 0 %_f32",
    "GroupNonUniformFMin %f32 %c3 0 %_f32",
    "GroupNonUniformFMax %f32 %c3 0 %_f32",
    "GroupNonUniformLogicalAnd %b %c3 0 %_b",
    "GroupNonUniformLogicalOr %b %c3 0 %_b",
    "GroupNonUniformLogicalXor %b %c3 0 %_b",
    "GroupNonUniformAllEqual %b %c3 %_u32",
    "GroupNonUniformBroadcast %u32 %c3 %_u32 %c1",
    "GroupNonUniformQuadBroadcast %u32 %c3 %_u32 %c1",
    "GroupNonUniformQuadSwap %u32 %c3 %_u32 %c1",
    "GroupNonUniformBallotBitCount %u32 %c3 0 %_u32x4",
    "SDot %s32 %_u32 %_u32 0",
    "UDot %u32 %_u32 %_u32 0",
    "SUDot %s32 %_u32 %_u32 0",
    "SDotAccSat %s32 %_u32 %_u32 %_s32 0",
    "UDotAccSat %u32 %_u32 %_u32 %_u32 0",
    "SUDotAccSat %s32 %_u32 %_u32 %_s32 0",
    "MatrixTimesScalar %m22 %_m22 %_f32",
    "VectorTimesMatrix %f32x2 %_f32x2 %_m22",
    "MatrixTimesVector %f32x2 %_m22 %_f32x2",
    "MatrixTimesMatrix %m22 %_m22 %_m22",
    "OuterProduct %m22 %_f32x2 %_f32x2",
    "Transpose %m22 %_m22",
];

/// The same of `GLSL.std.450`.
const VALID_GLSL: &[&str] = &[
    "%f32 %_f32: Round RoundEven Trunc FAbs FSign Floor Ceil Fract Sqrt InverseSqrt Normalize Radians Degrees Sin Cos Tan Asin \
     Acos Atan Sinh Cosh Tanh Asinh Acosh Atanh Exp Log Exp2 Log2 Length",
    "%f32 %_f32 %_f32: Atan2 Pow FMin FMax NMin NMax Step Reflect Distance",
    "%f32 %_f32 %_f32 %_f32: FClamp NClamp FMix SmoothStep Fma FaceForward",
    "%s32 %_s32: SAbs SSign FindILsb FindSMsb FindUMsb",
    "%u32 %_u32 %_u32: UMin SMin UMax SMax",
    "%u32 %_u32 %_u32 %_u32: UClamp SClamp",
    "%f32x3 %_f32x3 %_f32x3: Cross",
    "%f32 %_f32 %_s32: Ldexp",
    "%u32 %_f32x4: PackSnorm4x8 PackUnorm4x8",
    "%u32 %_f32x2: PackSnorm2x16 PackUnorm2x16 PackHalf2x16",
    "%f32x4 %_u32: UnpackSnorm4x8 UnpackUnorm4x8",
    "%f32x2 %_u32: UnpackSnorm2x16 UnpackUnorm2x16 UnpackHalf2x16",
    "%f64 %_u32x2: PackDouble2x32",
    "%u32x2 %_f64: UnpackDouble2x32",
    "%f32 %_m22: Determinant",
    "%m22 %_m22: MatrixInverse",
    "%ff %_f32: ModfStruct",
    "%fi %_f32: FrexpStruct",
];

#[test]
fn every_instruction_of_the_table_is_let_through_and_takes_its_own_operands_only() {
    for line in VALID {
        let line = format!("%r = Op{line}");
        let minor = version_of(&line);
        check(minor, CAPABILITIES, "", &line).unwrap_or_else(|error| panic!("{line}: {error}"));
        // Matrices, and the length of a subgroup's instruction, are checked as a whole.
        assert!(
            check(minor, CAPABILITIES, "", &format!("{line} %c0 %c0 %c0")).is_err(),
            "{line}: operands that do not belong"
        );
        let (short, _) = line.rsplit_once(' ').expect("operands");
        assert!(check(minor, CAPABILITIES, "", short).is_err(), "{line}: an operand is missing");
        let (start, rest) = line.split_at(line.find(" %").expect("a result") + 1);
        let (_, operands) = rest.split_once(' ').expect("operands");
        assert!(
            check(minor, CAPABILITIES, "", &format!("{start}%void {operands}")).is_err(),
            "{line}: a result of no type"
        );
    }
    for row in VALID_GLSL {
        let (types, names) = row.split_once(": ").expect("names");
        let (result, operands) = types.split_once(' ').expect("operands");
        for name in names.split_whitespace() {
            let line = format!("%r = OpExtInst {result} %glsl {name} {operands}");
            only(3, CAPABILITIES, "", &line, &[(operands, "%_b"), (operands, &format!("{operands} %_f32"))]);
        }
    }
}

#[test]
fn what_is_in_no_table_is_refused() {
    for line in [
        "%r = OpExtInst %f32 %glsl InterpolateAtCentroid %_f32",
        "%r = OpFwidth %f32 %_f32",
        // Before 1.4.
        "%r = OpCopyLogical %uu %_vv",
        "%r = OpPtrEqual %b %vu32 %vu32",
        "%r = OpImageSampleImplicitLod %f32x4 %_u32 %_f32",
        "OpNop 1",
        "OpKill",
    ] {
        assert!(check(3, CAPABILITIES, "", line).is_err(), "{line}");
    }
}

#[test]
fn an_operand_that_is_no_value_is_refused() {
    only(
        3,
        CAPABILITIES,
        "",
        "%r = OpIAdd %u32 %_u32 %_u32",
        &[("%_u32", "%u32"), ("%_u32", "%start"), ("%_u32", "%glsl"), ("%_u32", "%main")],
    );
}

#[test]
fn types_of_many_parts_are_not_compared_to_the_end() {
    // Level n has 2^(n+1) words.
    let deep = |name: &str| {
        let level = |level: u32| {
            let inner = if level == 0 { "u32".to_owned() } else { format!("{name}{}", level - 1) };
            format!("%{name}{level} = OpTypeStruct %{inner} %{inner}\n")
        };
        (0..12).map(level).collect::<String>()
    };
    let more = format!("{}{}%_x9 = OpUndef %x9\n%_x11 = OpUndef %x11\n", deep("x"), deep("y"));
    only(4, CAPABILITIES, &more, "%r = OpCopyLogical %y9 %_x9", &[("%y9 %_x9", "%y11 %_x11")]);
}
