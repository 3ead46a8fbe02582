//! Values made of values, reductions, packed products, and memory.

use crate::shader::tests::palette::CAPABILITIES;
use crate::shader::tests::palette::check;
use crate::shader::tests::palette::only;
use crate::shader::tests::palette::takes;
use crate::shader::tests::palette::takes_in;

#[test]
fn composites_are_made_of_parts_that_fit() {
    takes(&[
        ("%r = OpCompositeConstruct %? %_u32 %_u32", "u32x2 uu vv a2 d2"),
        ("%r = OpCompositeConstruct %? %_u32 %_u32 %_u32", "u32x3 uuu a3"),
        ("%r = OpCompositeConstruct %? %_u32x2", ""),
        ("%r = OpCompositeConstruct %? %_f32x2 %_f32x2", "f32x4 m22"),
        ("%r = OpCompositeConstruct %u32x2 %_? %_u32", "u32"),
        ("%r = OpCompositeConstruct %u32x4 %_u32x2 %_?", "u32x2"),
        ("%r = OpCompositeConstruct %u32x4 %_? %_u32x3", "u32"),
        ("%r = OpCompositeConstruct %a2 %_u32 %_?", "u32"),
        ("%r = OpCompositeConstruct %uu %_? %_u32", "u32"),
        ("%r = OpCompositeConstruct %m22 %_f32x2 %_?", "f32x2"),
    ]);
}

#[test]
fn indices_of_composites_stay_inside() {
    takes(&[
        ("%r = OpCompositeExtract %? %_u32x2 0", "u32"),
        ("%r = OpCompositeExtract %? %_nu 0 1", "u32"),
        ("%r = OpCompositeExtract %? %_m23 1", "f32x3"),
        ("%r = OpCompositeExtract %u32 %_? 2", "u32x3 u32x4 uuu a3"),
        ("%r = OpCompositeInsert %? %_u32 %_? 2", "u32x3 u32x4 uuu a3"),
        ("%r = OpCompositeInsert %u32x2 %_? %_u32x2 1", "u32"),
        ("%r = OpCompositeInsert %u32x2 %_u32 %_? 1", "u32x2"),
        ("%r = OpVectorShuffle %? %_u32x2 %_u32x3 0 4", "u32x2"),
        ("%r = OpVectorShuffle %u32x2 %_? %_u32x2 0 1", "u32x2 u32x3 u32x4"),
        ("%r = OpVectorShuffle %u32x2 %_u32x2 %_? 0 1", "u32x2 u32x3 u32x4"),
        ("%r = OpVectorExtractDynamic %? %_u32x2 %_u32", "u32"),
        ("%r = OpVectorExtractDynamic %u32 %_? %_u32", "u32x2 u32x3 u32x4"),
        ("%r = OpVectorExtractDynamic %u32 %_u32x2 %_?", "s8 u8 u16 s32 u32 u64"),
        ("%r = OpVectorInsertDynamic %? %_? %_u32 %_u32", "u32x2 u32x3 u32x4"),
        ("%r = OpVectorInsertDynamic %u32x2 %_? %_u32 %_u32", "u32x2"),
        ("%r = OpVectorInsertDynamic %u32x2 %_u32x2 %_? %_u32", "u32"),
        ("%r = OpVectorInsertDynamic %u32x2 %_u32x2 %_u32 %_?", "s8 u8 u16 s32 u32 u64"),
    ]);
    let all = CAPABILITIES;
    only(
        3,
        all,
        "",
        "%r = OpCompositeExtract %u32 %_u32x2 1",
        &[("x2 1", "x2 2"), ("%_u32x2 1", "%_u32 "), ("x2 1", "x2 1 0")],
    );
    only(3, all, "", "%r = OpCompositeInsert %a2 %_u32 %_a2 1", &[("a2 1", "a2 2"), ("%_a2 1", "%_a2")]);
    only(
        3,
        all,
        "",
        "%r = OpVectorShuffle %u32x2 %_u32x2 %_u32x3 0 4",
        &[("0 4", "0 5"), ("0 4", "0"), ("0 4", "0 4 4"), ("0 4", "4294967294 4")],
    );
    assert!(check(3, all, "", "%r = OpVectorShuffle %u32x2 %_u32x2 %_u32x3 0 4294967295").is_ok());
    only(3, all, "", "%r = OpCompositeExtract %f32x3 %_m23 1", &[("m23 1", "m23 2")]);
    only(
        3,
        all,
        "",
        "%r = OpVectorExtractDynamic %u32 %_u32x2 %_u32",
        &[("x2 %_u32", "x2 %_u32 %_u32"), ("x2 %_u32", "x2")],
    );
    only(
        3,
        all,
        "",
        "%r = OpVectorInsertDynamic %u32x2 %_u32x2 %_u32 %c1",
        &[("%c1", "%c1 %c1"), ("%c1", "")],
    );
}

#[test]
fn matrices_are_multiplied_with_what_fits_them() {
    takes(&[
        ("%r = OpMatrixTimesScalar %? %_? %_f32", "m22 m23 m32 m33"),
        ("%r = OpMatrixTimesScalar %m22 %_m22 %_?", "f32"),
        ("%r = OpMatrixTimesScalar %m22 %_? %_f32", "m22"),
        ("%r = OpTranspose %? %_m23", "m32"),
        ("%r = OpTranspose %m23 %_?", "m32"),
        ("%r = OpTranspose %? %_?", "m22 m33 h22"),
        ("%r = OpMatrixTimesVector %? %_m23 %_f32x2", "f32x3"),
        ("%r = OpMatrixTimesVector %f32x3 %_? %_f32x2", "m23"),
        ("%r = OpMatrixTimesVector %f32x3 %_m23 %_?", "f32x2"),
        ("%r = OpMatrixTimesVector %f16x2 %_? %_f16x2", "h22"),
        ("%r = OpMatrixTimesVector %f16x2 %_? %_f32x2", ""),
        ("%r = OpMatrixTimesVector %f32x2 %_m22 %_?", "f32x2"),
        ("%r = OpVectorTimesMatrix %? %_f32x3 %_m23", "f32x2"),
        ("%r = OpVectorTimesMatrix %f32x2 %_? %_m23", "f32x3"),
        ("%r = OpVectorTimesMatrix %f32x2 %_f32x3 %_?", "m23"),
        ("%r = OpVectorTimesMatrix %f32x2 %_f32x2 %_?", "m22"),
        ("%r = OpVectorTimesMatrix %? %_f32x2 %_m22", "f32x2"),
        ("%r = OpVectorTimesMatrix %? %_f16x2 %_m22", ""),
        ("%r = OpMatrixTimesMatrix %? %_m32 %_m23", "m22"),
        ("%r = OpMatrixTimesMatrix %m22 %_? %_m23", "m32"),
        ("%r = OpMatrixTimesMatrix %m22 %_m32 %_?", "m23"),
        ("%r = OpMatrixTimesMatrix %m22 %_? %_m22", "m22"),
        ("%r = OpMatrixTimesMatrix %m22 %_m22 %_?", "m22"),
        ("%r = OpMatrixTimesMatrix %? %_m22 %_m22", "m22"),
        ("%r = OpOuterProduct %? %_f32x3 %_f32x2", "m23"),
        ("%r = OpOuterProduct %m23 %_? %_f32x2", "f32x3"),
        ("%r = OpOuterProduct %m23 %_f32x3 %_?", "f32x2"),
        ("%r = OpOuterProduct %m22 %_f32x2 %_?", "f32x2"),
        ("%r = OpOuterProduct %m22 %_? %_f32x2", "f32x2"),
        ("%r = OpOuterProduct %? %_f32x2 %_f32x2", "m22"),
        ("%r = OpExtInst %? %glsl Determinant %_m22", "f32"),
        ("%r = OpExtInst %f32 %glsl Determinant %_?", "m22 m33"),
        ("%r = OpExtInst %? %glsl MatrixInverse %_?", "m22 m33 h22"),
        ("%r = OpExtInst %m22 %glsl MatrixInverse %_?", "m22"),
    ]);
}

#[test]
fn a_number_is_split_into_two_that_fit_it() {
    takes(&[
        ("%r = OpExtInst %? %glsl ModfStruct %_f32", "ff"),
        ("%r = OpExtInst %ff %glsl ModfStruct %_?", "f32"),
        ("%r = OpExtInst %? %glsl FrexpStruct %_f32", "fi"),
        ("%r = OpExtInst %fi %glsl FrexpStruct %_?", "f32"),
        ("%r = OpExtInst %? %glsl ModfStruct %_u32", ""),
        ("%r = OpExtInst %? %glsl FrexpStruct %_u32", ""),
        ("%r = OpExtInst %? %glsl Modf %_? %v?", "f16 f32 f64 f16x2 f32x2 f32x3 f32x4 f64x2"),
        ("%r = OpExtInst %f32 %glsl Modf %_f32 %v?", "f32"),
        ("%r = OpExtInst %f32 %glsl Modf %_? %vf32", "f32"),
        ("%r = OpExtInst %? %glsl Frexp %_? %vs32", "f16 f32 f64"),
        ("%r = OpExtInst %f32 %glsl Frexp %_f32 %v?", "s32 u32"),
        ("%r = OpExtInst %f32x2 %glsl Frexp %_f32x2 %v?", "s32x2 u32x2"),
        ("%r = OpExtInst %f32 %glsl Frexp %_? %vs32", "f32"),
    ]);
    only(
        3,
        CAPABILITIES,
        "",
        "%r = OpExtInst %f32 %glsl Modf %_f32 %vf32",
        &[("%vf32", "%vf32 %c1"), ("%vf32", "")],
    );
}

#[test]
fn a_subgroup_reduces_what_fits_in_ways_that_are_declared() {
    takes(&[
        (
            "%r = OpGroupNonUniformIAdd %? %c3 0 %_?",
            "s8 u8 u16 s32 u32 u64 s8x4 u8x4 s32x2 u32x2 u32x3 u32x4 u64x2",
        ),
        ("%r = OpGroupNonUniformFAdd %? %c3 0 %_?", "f16 f32 f64 f16x2 f32x2 f32x3 f32x4 f64x2"),
        ("%r = OpGroupNonUniformLogicalAnd %? %c3 0 %_?", "b bx2 bx4"),
        ("%r = OpGroupNonUniformIAdd %u32 %c3 0 %_?", "u32"),
        ("%r = OpGroupNonUniformBallotBitCount %? %c3 0 %_u32x4", "u32"),
        ("%r = OpGroupNonUniformBallotBitCount %u32 %c3 0 %_?", "u32x4"),
        ("%r = OpGroupNonUniformAllEqual %? %c3 %_u32", "b"),
        (
            "%r = OpGroupNonUniformAllEqual %b %c3 %_?",
            "b s8 u8 u16 s32 u32 u64 f16 f32 f64 bx2 bx4 s8x4 u8x4 s32x2 u32x2 u32x3 u32x4 u64x2 f16x2 f32x2 f32x3 f32x4 f64x2",
        ),
        ("%r = OpGroupNonUniformBroadcast %u32 %c3 %_? %c1", "u32"),
        ("%r = OpGroupNonUniformBroadcast %uu %c3 %_? %c1", ""),
        ("%r = OpGroupNonUniformBroadcast %u32 %c3 %_u32 %_?", ""),
    ]);
    assert_eq!(takes_in(5, "%r = OpGroupNonUniformBroadcast %u32 %c3 %_u32 %_?"), "u32");
    assert_eq!(takes_in(5, "%r = OpGroupNonUniformQuadSwap %u32 %c3 %_u32 %_?"), "");
    let all = CAPABILITIES;
    let signed = "%n1 = OpConstant %s32 1\n";
    only(
        3,
        all,
        "",
        "%r = OpGroupNonUniformIAdd %u32 %c3 2 %_u32",
        &[
            ("%c3 2", "%c2 2"),
            ("%c3 2", "%_u32 2"),
            ("%c3 2", "%c3 3"),
            ("%c3 2", "%c3 4"),
            ("%_u32", "%_u32 %c4"),
            ("%_u32", ""),
        ],
    );
    only(
        3,
        all,
        "",
        "%r = OpGroupNonUniformIAdd %u32 %c3 3 %_u32 %c4",
        &[("%c4", "%c3"), ("%c4", "%c0"), ("%c4", "%_u32"), ("%c4", "%c4 %c4"), ("%c4", "")],
    );
    only(
        3,
        all,
        "",
        "%r = OpGroupNonUniformBallotBitCount %u32 %c3 2 %_u32x4",
        &[("%c3 2", "%c3 3"), ("x4", "x4 %c1"), ("%c3 2", "%c1 2")],
    );
    only(
        3,
        all,
        "",
        "%r = OpGroupNonUniformAllEqual %b %c3 %_u32",
        &[("%_u32", "%_u32 %c1"), ("%c3", "%c2")],
    );
    only(
        3,
        all,
        signed,
        "%r = OpGroupNonUniformQuadSwap %u32 %c3 %_u32 %c2",
        &[("%c2", "%c3"), ("%c2", "%c2 %c2"), ("%c2", "%n1"), ("%c3 ", "%c2 ")],
    );
    only(
        3,
        all,
        signed,
        "%r = OpGroupNonUniformBroadcast %u32 %c3 %_u32 %c7",
        &[("%c7", "%c7 %c7"), ("%c7", "%n1"), ("%c7", "%vu32")],
    );
    let without =
        |name: &str| all.split_whitespace().filter(|other| *other != name).collect::<Vec<_>>().join(" ");
    for (name, line) in [
        ("GroupNonUniformArithmetic", "%r = OpGroupNonUniformIAdd %u32 %c3 0 %_u32"),
        ("GroupNonUniformClustered", "%r = OpGroupNonUniformIAdd %u32 %c3 3 %_u32 %c4"),
        ("GroupNonUniformVote", "%r = OpGroupNonUniformAll %b %c3 %_b"),
        ("GroupNonUniformVote", "%r = OpGroupNonUniformAny %b %c3 %_b"),
        ("GroupNonUniformVote", "%r = OpGroupNonUniformAllEqual %b %c3 %_b"),
        ("GroupNonUniformBallot", "%r = OpGroupNonUniformBroadcast %u32 %c3 %_u32 %c1"),
        ("GroupNonUniformBallot", "%r = OpGroupNonUniformBallot %u32x4 %c3 %_b"),
        ("GroupNonUniformShuffle", "%r = OpGroupNonUniformShuffle %u32 %c3 %_u32 %_u32"),
        ("GroupNonUniformShuffleRelative", "%r = OpGroupNonUniformShuffleUp %u32 %c3 %_u32 %_u32"),
        ("GroupNonUniformQuad", "%r = OpGroupNonUniformQuadSwap %u32 %c3 %_u32 %c1"),
        ("DotProduct", "%r = OpUDot %u32 %_u32 %_u32 0"),
        ("DotProductInput4x8BitPacked", "%r = OpUDot %u32 %_u32 %_u32 0"),
        ("DotProductInputAll", "%r = OpUDot %u32 %_u32x2 %_u32x2"),
        ("Int64Atomics", "%r = OpAtomicIAdd %u64 %wu64 %c1 %c0 %_u64"),
        ("AtomicFloat32AddEXT", "%r = OpAtomicFAddEXT %f32 %wf32 %c1 %c0 %_f32"),
    ] {
        assert!(check(3, all, "", line).is_ok(), "{line}");
        assert!(check(3, &without(name), "", line).is_err(), "{line} without {name}");
    }
    assert!(check(3, "Shader GroupNonUniform", "", "").is_err(), "the table needs more");
    // Vectors of 4 bytes have a capability of their own, or that of all vectors.
    let line = "%r = OpUDot %u32 %_u8x4 %_u8x4";
    let (one, both) = (without("DotProductInputAll"), without("DotProductInput4x8Bit"));
    assert!(check(3, &one, "", line).is_ok() && check(3, &both, "", line).is_ok());
    let neither = one.replace("DotProductInput4x8Bit ", "");
    assert!(check(3, &neither, "", line).is_err());
    assert!(check(3, &one, "", "%r = OpUDot %u32 %_u32x2 %_u32x2").is_err(), "it is of bytes");
}

#[test]
fn packed_products_fit_their_vectors_signs_and_width() {
    takes(&[
        ("%r = OpSDot %s32 %_? %_? 0", "s32 u32"),
        ("%r = OpSDot %s32 %_u32 %_? 0", "s32 u32"),
        ("%r = OpSDot %? %_u32 %_u32 0", "s8 u8 u16 s32 u32 u64"),
        ("%r = OpUDot %? %_u32 %_u32 0", "u8 u16 u32 u64"),
        ("%r = OpUDot %u32 %_? %_s32 0", "s32 u32"),
        ("%r = OpSUDot %s32 %_s32 %_? 0", "s32 u32"),
        ("%r = OpUDot %u64 %_? %_?", "u8x4 u32x2 u32x3 u32x4 u64x2"),
        ("%r = OpUDot %u32 %_? %_?", "u8x4 u32x2 u32x3 u32x4"),
        ("%r = OpUDot %? %_u8x4 %_u8x4", "u8 u16 u32 u64"),
        ("%r = OpUDot %u32 %_? %_u8x4", "u8x4"),
        ("%r = OpUDot %u32 %_u8x4 %_?", "u8x4"),
        ("%r = OpSDot %? %_s32x2 %_s32x2", "s32 u32 u64"),
        ("%r = OpSDot %s32 %_s32x2 %_?", "s32x2 u32x2"),
        ("%r = OpSUDot %s32 %_s8x4 %_?", "u8x4"),
        ("%r = OpSUDot %s32 %_? %_u8x4", "s8x4 u8x4"),
        ("%r = OpSDotAccSat %? %_u32 %_u32 %_? 0", "s8 u8 u16 s32 u32 u64"),
        ("%r = OpSDotAccSat %s32 %_u32 %_u32 %_? 0", "s32"),
        ("%r = OpUDotAccSat %u32 %_u8x4 %_u8x4 %_?", "u32"),
        ("%r = OpUDotAccSat %? %_u8x4 %_u8x4 %_?", "u8 u16 u32 u64"),
        ("%r = OpSUDotAccSat %s32 %_s8x4 %_? %_s32", "u8x4"),
        ("%r = OpUDot %b %_? %_?", ""),
        ("%r = OpSDot %s32 %_f32x2 %_?", ""),
    ]);
    let all = CAPABILITIES;
    only(
        3,
        all,
        "",
        "%r = OpSDot %s32 %_u32 %_u32 0",
        &[("u32 0", "u32 1"), ("u32 0", "u32"), ("u32 0", "u32 0 0"), ("%_u32 0", "0")],
    );
    only(3, all, "", "%r = OpUDot %u32 %_u8x4 %_u8x4", &[("%_u8x4 %_u8x4", "%_u8x4 %_u8x4 0")]);
    only(
        3,
        all,
        "",
        "%r = OpSDotAccSat %s32 %_u32 %_u32 %_s32 0",
        &[("%_s32 0", "%_s32"), ("%_s32 0", "%_s32 1"), ("%_s32 0", "0")],
    );
}

#[test]
fn memory_holds_what_is_loaded_from_it_and_stored_to_it() {
    takes(&[
        ("%r = OpLoad %? %vu32", "u32"),
        ("%r = OpLoad %u32 %v?", "u32"),
        ("OpStore %v? %_u32", "u32"),
        ("OpStore %vu32 %_?", "u32"),
        ("OpStore %wu32 %_?", "u32"),
        ("OpCopyMemory %v? %vu32", "u32"),
        ("OpCopyMemory %vu32 %v?", "u32"),
    ]);
    let all = CAPABILITIES;
    only(
        3,
        all,
        "",
        "%r = OpLoad %u32 %vu32",
        &[
            ("%vu32", "%_u32"),
            ("%vu32", "%vu32 8"),
            ("%vu32", "%vu32 16 %c1"),
            ("%vu32", "%vu32 32"),
            ("%vu32", "%vu32 2 4 4"),
            ("%vu32", "%vu32 2"),
        ],
    );
    only(
        3,
        all,
        "",
        "%r = OpLoad %u32 %vu32 2 4",
        &[("2 4", "2 0"), ("2 4", "2 3"), ("2 4", "1 4"), ("2 4", "64 4")],
    );
    assert!(check(3, all, "", "%r = OpLoad %u32 %vu32 7 4").is_ok());
    only(
        3,
        all,
        "",
        "OpStore %vu32 %_u32 7 4",
        &[("7 4", "7"), ("7 4", "7 4 4"), ("7 4", "7 4 4 4"), ("%vu32", "%_u32")],
    );
    only(3, all, "", "OpCopyMemory %vu32 %vu32", &[("%vu32 %vu32", "%vu32 %vu32 8"), ("%vu32", "%_u32")]);
    let vulkan = format!("{all} VulkanMemoryModel");
    only(
        3,
        &vulkan,
        "",
        "%r = OpLoad %u32 %wu32 48 %c2",
        &[
            ("48", "16"),
            ("48", "32"),
            ("48", "56"),
            ("48 %c2", "48"),
            ("%c2", "%c1"),
            ("%c2", "%c4"),
            ("%c2", "%c6"),
        ],
    );
    only(
        3,
        &vulkan,
        "",
        "%r = OpLoad %u32 %wu32 50 4 %c5",
        &[("50 4", "50 3"), ("4 %c5", "4"), ("4 %c5", "%c5 4")],
    );
    only(
        3,
        &vulkan,
        "",
        "OpStore %wu32 %_u32 40 %c3",
        &[("40", "8"), ("40", "48"), ("40 %c3", "40"), ("%c3", "%_u32")],
    );
    assert!(check(3, &vulkan, "", "%r = OpLoad %u32 %wu32 32").is_ok());
    assert!(
        check(3, &format!("{vulkan} VulkanMemoryModelDeviceScope"), "", "%r = OpLoad %u32 %wu32 48 %c1")
            .is_ok()
    );
}

#[test]
fn atomics_are_on_integers_and_some_on_floats_in_shared_memory() {
    takes(&[
        ("%r = OpAtomicIAdd %? %w? %c1 %c0 %_?", "s32 u32 u64"),
        ("%r = OpAtomicIAdd %u32 %w? %c1 %c0 %_u32", "u32"),
        ("%r = OpAtomicIAdd %u32 %wu32 %c1 %c0 %_?", "u32"),
        ("%r = OpAtomicIAdd %? %wu32 %c1 %c0 %_u32", "u32"),
        ("%r = OpAtomicIAdd %u32 %v? %c1 %c0 %_u32", ""),
        ("%r = OpAtomicLoad %? %w? %c1 %c0", "s32 u32 u64 f32"),
        ("OpAtomicStore %w? %c1 %c0 %_?", "s32 u32 u64 f32"),
        ("%r = OpAtomicExchange %? %w? %c1 %c0 %_?", "s32 u32 u64 f32"),
        ("%r = OpAtomicFAddEXT %? %w? %c1 %c0 %_?", "f32"),
        ("%r = OpAtomicFAddEXT %f32 %v? %c1 %c0 %_f32", ""),
        ("%r = OpAtomicCompareExchange %u32 %wu32 %c1 %c0 %c0 %_? %_u32", "u32"),
        ("%r = OpAtomicCompareExchange %u32 %wu32 %c1 %c0 %c0 %_u32 %_?", "u32"),
        ("%r = OpAtomicIIncrement %? %w? %c1 %c0", "s32 u32 u64"),
    ]);
    let all = CAPABILITIES;
    for name in ["Exchange", "IAdd", "ISub", "SMin", "UMin", "SMax", "UMax", "And", "Or", "Xor"] {
        let line = format!("%r = OpAtomic{name} %u32 %wu32 %c1 %c0 %_u32");
        only(3, all, "", &line, &[("%_u32", "%_u32 %_u32"), ("%_u32", ""), ("%wu32", "%vu32")]);
    }
    only(
        3,
        all,
        "",
        "%r = OpAtomicLoad %u32 %wu32 %c1 %c0",
        &[("%c1 %c0", "%c1 %c0 %c0"), ("%c1 %c0", "%c1")],
    );
    only(
        3,
        all,
        "",
        "%r = OpAtomicIDecrement %u32 %wu32 %c1 %c0",
        &[("%c1 %c0", "%c1 %c0 %c0"), ("%c1 %c0", "%c1")],
    );
    only(3, all, "", "OpAtomicStore %wu32 %c1 %c0 %_u32", &[("%_u32", "%_u32 %_u32"), ("%_u32", "")]);
    only(
        3,
        all,
        "",
        "%r = OpAtomicCompareExchange %u32 %wu32 %c1 %c0 %c0 %_u32 %_u32",
        &[("%c0 %c0", "%c0"), ("%c0 %c0", "%c0 %c0 %c0"), ("%_u32 %_u32", "%_u32")],
    );
    let wide = "%r = OpAtomicCompareExchange %u64 %wu64 %c1 %c0 %c0 %_u64 %_u64";
    only(3, all, "", wide, &[("%_u64 %_u64", "%_u32 %_u64"), ("%_u64 %_u64", "%_u64 %_u32")]);
}

/// Of these values, those that may stand for the constant `%m` in `line`.
fn values(capabilities: &str, line: &str, from: &[u32]) -> Vec<u32> {
    let passes =
        |value: &&u32| check(3, capabilities, &format!("%m = OpConstant %u32 {value}\n"), line).is_ok();
    from.iter().filter(passes).copied().collect()
}

#[test]
fn scopes_and_orders_of_memory_are_those_of_kernels() {
    let all = CAPABILITIES;
    let vulkan = &format!("{all} VulkanMemoryModel");
    let device = &format!("{vulkan} VulkanMemoryModelDeviceScope");
    let scopes: Vec<u32> = (0..8).collect();
    let atomic = "%r = OpAtomicIAdd %u32 %wu32 %m %c0 %_u32";
    assert_eq!(values(all, atomic, &scopes), [1, 2, 3]);
    assert_eq!(values(vulkan, atomic, &scopes), [2, 3, 5]);
    assert_eq!(values(device, atomic, &scopes), [1, 2, 3, 5]);
    let barrier = "OpControlBarrier %m %c2 %c0";
    assert_eq!(values(all, barrier, &scopes), [2, 3]);
    assert_eq!(values(vulkan, "OpControlBarrier %c2 %m %c0", &scopes), [2, 3, 4, 5]);
    assert_eq!(values(all, "OpMemoryBarrier %m %c8 ", &scopes), [1, 2, 3, 4]);

    let uniform = [0x40, 0x42, 0x44, 0x48, 0x50];
    let orders = [
        0, 2, 4, 8, 16, 0x42, 0x44, 0x48, 0x50, 0x102, 0x402, 0x802, 0x442, 0x40, 0x400, 0x842, 0x1042, 0x46,
    ];
    assert_eq!(values(all, "OpControlBarrier %c2 %c2 %m", &orders), orders[..17]);
    assert_eq!(values(all, "OpMemoryBarrier %c1 %m", &uniform), [0x42, 0x44, 0x48, 0x50]);
    let ordered: Vec<u32> = orders[..17].iter().copied().filter(|value| value & 0x1e != 0).collect();
    assert_eq!(values(all, "OpMemoryBarrier %c1 %m", &orders), ordered);
    assert_eq!(values(all, "%r = OpAtomicIAdd %u32 %wu32 %c1 %m %_u32", &orders), orders[..17]);
    let loads = [0, 2, 16, 0x42, 0x50, 0x102, 0x402, 0x802, 0x442, 0x40, 0x400, 0x842, 0x1042];
    assert_eq!(values(all, "%r = OpAtomicLoad %u32 %wu32 %c1 %m", &orders), loads);
    let stores = [0, 4, 16, 0x44, 0x50, 0x40, 0x400];
    assert_eq!(values(all, "OpAtomicStore %wu32 %c1 %m %_u32", &orders), stores);
    assert_eq!(values(all, "%r = OpAtomicIIncrement %u32 %wu32 %c1 %m", &uniform), uniform);
    let exchange = "%r = OpAtomicCompareExchange %u32 %wu32 %c1 %a %m %_u32 %_u32";
    let acquire = |line: &str| line.replace("%a", "%c0");
    assert_eq!(values(all, &acquire(exchange), &orders), loads);
    assert_eq!(
        values(all, "%r = OpAtomicCompareExchange %u32 %wu32 %c1 %m %c0 %_u32 %_u32", &uniform),
        uniform
    );

    // Only atomics of the Vulkan model are volatile, compared equal or not alike.
    let volatile = [0x8000, 0x8042, 0x8048];
    let add = "%r = OpAtomicIAdd %u32 %wu32 %c2 %m %_u32";
    assert_eq!(values(vulkan, add, &volatile), volatile);
    assert_eq!(values(all, add, &volatile), [] as [u32; 0]);
    assert_eq!(values(vulkan, "OpMemoryBarrier %c2 %m", &volatile), [] as [u32; 0]);
    assert_eq!(values(vulkan, "OpControlBarrier %c2 %c2 %m", &volatile), [] as [u32; 0]);
    let compare = "%r = OpAtomicCompareExchange %u32 %wu32 %c2 %m %n %_u32 %_u32";
    assert_eq!(values(vulkan, &compare.replace("%n", "%m"), &volatile), volatile[..2]);
    assert_eq!(values(vulkan, &compare.replace("%n", "%c0"), &volatile), [] as [u32; 0]);

    // Only the Vulkan model makes memory available, before a release, and visible, after an acquire.
    let moves = [0x2042, 0x2044, 0x2048, 0x4042, 0x4044, 0x4048, 0x2000, 0x4000, 0x2040];
    assert_eq!(values(all, "OpMemoryBarrier %c2 %m", &moves), [] as [u32; 0]);
    assert_eq!(values(vulkan, "OpMemoryBarrier %c2 %m", &moves), [0x2044, 0x2048, 0x4042, 0x4048]);
    for (line, changes) in [
        ("OpControlBarrier %c2 %c2 %c0", [("%c0", "%_u32"), ("%c2 %c2", "%c2"), ("%c0", "%c0 %c0")]),
        ("OpMemoryBarrier %c2 %a", [("%a", "%_u32"), ("%c2", "%_u32"), ("%a", "%a %a")]),
    ] {
        only(3, all, "%a = OpConstant %u32 72\n", line, &changes);
    }
    let kinds = "%i2 = OpConstant %s32 2
         %l2 = OpConstant %u64 2 0
         %z = OpConstantNull %u32
         %s = OpSpecConstant %u32 2
         %t = OpSpecConstantOp %u32 IAdd %s %c1
         %null = OpConstantNull %u32x2
         %e = OpSpecConstantOp %u32 CompositeExtract %null 0
";
    for good in ["%i2", "%s", "%t"] {
        assert!(check(3, all, kinds, &format!("OpControlBarrier {good} %c2 %z")).is_ok(), "{good}");
    }
    assert!(check(3, all, kinds, "OpControlBarrier %l2 %c2 %z").is_err());
}
