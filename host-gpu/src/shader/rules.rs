//! The table of instructions that compute a value from values: what type comes out, and what types go in.

use spirv::GlslStd450Op;
use spirv::Op;

use crate::shader::profile::MIXED_DOT_OP;

/// What the type of the result must be. Vectors count as their components unless said otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Out {
    Float,
    /// Floats of 16 or 32 bits.
    Float32,
    Int,
    /// Integers of 32 bits.
    Int32,
    /// Integers without a sign.
    Unsigned,
    Bool,
    OneBool,
    OneFloat,
    /// One integer of 32 bits.
    Int32One,
    /// A vector of these many components, kind and bits.
    Floats(u32, u32),
    /// The same of integers without a sign.
    Words(u32, u32),
    /// A vector of 3 floats.
    Float3,
    /// Any number or boolean, or a vector of them.
    Any,
    /// Any number, or a vector of them.
    Number,
    /// Whatever can be stored.
    Value,
    /// A struct of two equal members, integers.
    IntPair,
    /// The same, without a sign.
    UnsignedPair,
}

/// What the type of an operand must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum In {
    /// That of the result.
    Same,
    /// That of the first operand.
    First,
    /// Integers, as many and as wide as the result.
    Int,
    /// Integers, as many as the result, of any width.
    IntOf,
    /// The same of 32 bits.
    Int32Of,
    /// Integers as many and as wide as the first operand.
    IntFirst,
    /// Floats, as many as the result.
    FloatOf,
    /// Integers, as many as the result, not as wide.
    OtherInt,
    /// Floats, as many as the result, not as wide.
    OtherFloat,
    /// A vector of booleans.
    Bools,
    /// One boolean, or as many as the result.
    Condition,
    /// One number of the type of the result's components.
    Component,
    /// One number of the type of the result, or of its components.
    OneOfResult,
    /// A vector of floats of the type of the result.
    FloatsOfResult,
    /// Floats of the type of the result, one or a vector.
    FloatOfResult,
    /// One integer.
    AnyInt,
    /// One integer of 32 bits.
    OneInt,
    /// One integer of 32 bits without a sign.
    Index,
    /// The members of the resulting pair.
    Member,
    /// As many bits as the result, numbers.
    Bits,
    /// A vector of these many floats of these bits; one where the count is 1.
    Floats(u32, u32),
    /// The same of integers without a sign.
    Words(u32, u32),
    /// A scope, which must be the subgroup.
    Subgroup,
    OneBool,
    /// A type that logically equals that of the result.
    Logical,
}

/// What an instruction takes and results in.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rule {
    pub(super) out: Out,
    pub(super) ins: &'static [In],
}

const fn rule(out: Out, ins: &'static [In]) -> Option<Rule> {
    Some(Rule { out, ins })
}

/// The row of instruction `code`.
pub(super) fn of(code: u32) -> Option<Rule> {
    if code == MIXED_DOT_OP {
        return rule(Out::Floats(1, 32), &[In::Floats(2, 16), In::Floats(2, 16), In::Same]);
    }
    match Op::from_u32(code)? {
        Op::FAdd | Op::FSub | Op::FMul | Op::FDiv | Op::FRem | Op::FMod => {
            rule(Out::Float, &[In::Same, In::Same])
        }
        Op::FNegate => rule(Out::Float, &[In::Same]),
        Op::UDiv | Op::UMod => rule(Out::Unsigned, &[In::Same, In::Same]),
        Op::IAdd | Op::ISub | Op::IMul | Op::SDiv | Op::SRem | Op::SMod => {
            rule(Out::Int, &[In::Int, In::Int])
        }
        Op::BitwiseAnd | Op::BitwiseOr | Op::BitwiseXor => rule(Out::Int, &[In::Int, In::Int]),
        Op::SNegate | Op::Not => rule(Out::Int, &[In::Int]),
        Op::ShiftLeftLogical | Op::ShiftRightLogical | Op::ShiftRightArithmetic => {
            rule(Out::Int, &[In::Int, In::IntOf])
        }
        Op::BitFieldInsert => rule(Out::Int32, &[In::Same, In::Same, In::AnyInt, In::AnyInt]),
        Op::BitFieldSExtract | Op::BitFieldUExtract => rule(Out::Int32, &[In::Same, In::AnyInt, In::AnyInt]),
        Op::BitReverse => rule(Out::Int32, &[In::Same]),
        Op::BitCount => rule(Out::Int, &[In::Int32Of]),
        Op::IAddCarry | Op::ISubBorrow | Op::UMulExtended => {
            rule(Out::UnsignedPair, &[In::Member, In::Member])
        }
        Op::SMulExtended => rule(Out::IntPair, &[In::Member, In::Member]),
        Op::Any | Op::All => rule(Out::OneBool, &[In::Bools]),
        Op::IsNan | Op::IsInf => rule(Out::Bool, &[In::FloatOf]),
        Op::LogicalEqual | Op::LogicalNotEqual | Op::LogicalOr | Op::LogicalAnd => {
            rule(Out::Bool, &[In::Same, In::Same])
        }
        Op::LogicalNot => rule(Out::Bool, &[In::Same]),
        Op::Select => rule(Out::Any, &[In::Condition, In::Same, In::Same]),
        Op::FOrdEqual
        | Op::FUnordEqual
        | Op::FOrdNotEqual
        | Op::FUnordNotEqual
        | Op::FOrdLessThan
        | Op::FUnordLessThan
        | Op::FOrdGreaterThan
        | Op::FUnordGreaterThan
        | Op::FOrdLessThanEqual
        | Op::FUnordLessThanEqual
        | Op::FOrdGreaterThanEqual
        | Op::FUnordGreaterThanEqual => rule(Out::Bool, &[In::FloatOf, In::First]),
        Op::IEqual
        | Op::INotEqual
        | Op::UGreaterThan
        | Op::SGreaterThan
        | Op::UGreaterThanEqual
        | Op::SGreaterThanEqual
        | Op::ULessThan
        | Op::SLessThan
        | Op::ULessThanEqual
        | Op::SLessThanEqual => rule(Out::Bool, &[In::IntOf, In::IntFirst]),
        Op::ConvertFToU => rule(Out::Unsigned, &[In::FloatOf]),
        Op::ConvertFToS => rule(Out::Int, &[In::FloatOf]),
        Op::ConvertSToF | Op::ConvertUToF => rule(Out::Float, &[In::IntOf]),
        Op::UConvert => rule(Out::Unsigned, &[In::OtherInt]),
        Op::SConvert => rule(Out::Int, &[In::OtherInt]),
        Op::FConvert => rule(Out::Float, &[In::OtherFloat]),
        Op::QuantizeToF16 => rule(Out::Float, &[In::Same]),
        Op::Bitcast => rule(Out::Number, &[In::Bits]),
        Op::CopyObject => rule(Out::Value, &[In::Same]),
        Op::CopyLogical => rule(Out::Value, &[In::Logical]),
        Op::Dot => rule(Out::OneFloat, &[In::FloatsOfResult, In::First]),
        Op::VectorTimesScalar => rule(Out::Float, &[In::Same, In::Component]),
        _ => of_subgroup(code),
    }
}

fn of_subgroup(code: u32) -> Option<Rule> {
    match Op::from_u32(code)? {
        Op::GroupNonUniformElect => rule(Out::OneBool, &[In::Subgroup]),
        Op::GroupNonUniformAll | Op::GroupNonUniformAny => rule(Out::OneBool, &[In::Subgroup, In::OneBool]),
        Op::GroupNonUniformBallot => rule(Out::Words(4, 32), &[In::Subgroup, In::OneBool]),
        Op::GroupNonUniformInverseBallot => rule(Out::OneBool, &[In::Subgroup, In::Words(4, 32)]),
        Op::GroupNonUniformBallotBitExtract => {
            rule(Out::OneBool, &[In::Subgroup, In::Words(4, 32), In::Index])
        }
        Op::GroupNonUniformBallotFindLSB | Op::GroupNonUniformBallotFindMSB => {
            rule(Out::Words(1, 32), &[In::Subgroup, In::Words(4, 32)])
        }
        Op::GroupNonUniformBroadcastFirst => rule(Out::Any, &[In::Subgroup, In::Same]),
        Op::GroupNonUniformShuffle
        | Op::GroupNonUniformShuffleXor
        | Op::GroupNonUniformShuffleUp
        | Op::GroupNonUniformShuffleDown => rule(Out::Any, &[In::Subgroup, In::Same, In::Index]),
        _ => None,
    }
}

/// The row of instruction `number` of `GLSL.std.450`.
pub(super) fn of_glsl(number: u32) -> Option<Rule> {
    use In::Same;
    match GlslStd450Op::from_u32(number)? {
        GlslStd450Op::Round
        | GlslStd450Op::RoundEven
        | GlslStd450Op::Trunc
        | GlslStd450Op::FAbs
        | GlslStd450Op::FSign
        | GlslStd450Op::Floor
        | GlslStd450Op::Ceil
        | GlslStd450Op::Fract
        | GlslStd450Op::Sqrt
        | GlslStd450Op::InverseSqrt
        | GlslStd450Op::Normalize => rule(Out::Float, &[Same]),
        GlslStd450Op::Radians
        | GlslStd450Op::Degrees
        | GlslStd450Op::Sin
        | GlslStd450Op::Cos
        | GlslStd450Op::Tan
        | GlslStd450Op::Asin
        | GlslStd450Op::Acos
        | GlslStd450Op::Atan
        | GlslStd450Op::Sinh
        | GlslStd450Op::Cosh
        | GlslStd450Op::Tanh
        | GlslStd450Op::Asinh
        | GlslStd450Op::Acosh
        | GlslStd450Op::Atanh
        | GlslStd450Op::Exp
        | GlslStd450Op::Log
        | GlslStd450Op::Exp2
        | GlslStd450Op::Log2 => rule(Out::Float32, &[Same]),
        GlslStd450Op::Atan2 | GlslStd450Op::Pow => rule(Out::Float32, &[Same, Same]),
        GlslStd450Op::FMin
        | GlslStd450Op::FMax
        | GlslStd450Op::NMin
        | GlslStd450Op::NMax
        | GlslStd450Op::Step
        | GlslStd450Op::Reflect => rule(Out::Float, &[Same, Same]),
        GlslStd450Op::FClamp
        | GlslStd450Op::NClamp
        | GlslStd450Op::FMix
        | GlslStd450Op::SmoothStep
        | GlslStd450Op::Fma
        | GlslStd450Op::FaceForward => rule(Out::Float, &[Same, Same, Same]),
        GlslStd450Op::Refract => rule(Out::Float, &[Same, Same, In::OneOfResult]),
        GlslStd450Op::SAbs | GlslStd450Op::SSign => rule(Out::Int, &[In::Int]),
        GlslStd450Op::UMin | GlslStd450Op::SMin | GlslStd450Op::UMax | GlslStd450Op::SMax => {
            rule(Out::Int, &[In::Int, In::Int])
        }
        GlslStd450Op::UClamp | GlslStd450Op::SClamp => rule(Out::Int, &[In::Int, In::Int, In::Int]),
        GlslStd450Op::FindILsb | GlslStd450Op::FindSMsb | GlslStd450Op::FindUMsb => {
            rule(Out::Int32, &[In::Int])
        }
        GlslStd450Op::Length => rule(Out::OneFloat, &[In::FloatOfResult]),
        GlslStd450Op::Distance => rule(Out::OneFloat, &[In::FloatOfResult, In::First]),
        GlslStd450Op::Cross => rule(Out::Float3, &[Same, Same]),
        GlslStd450Op::Ldexp => rule(Out::Float, &[Same, In::Int32Of]),
        GlslStd450Op::PackSnorm4x8 | GlslStd450Op::PackUnorm4x8 => rule(Out::Int32One, &[In::Floats(4, 32)]),
        GlslStd450Op::PackSnorm2x16 | GlslStd450Op::PackUnorm2x16 | GlslStd450Op::PackHalf2x16 => {
            rule(Out::Int32One, &[In::Floats(2, 32)])
        }
        GlslStd450Op::UnpackSnorm4x8 | GlslStd450Op::UnpackUnorm4x8 => {
            rule(Out::Floats(4, 32), &[In::OneInt])
        }
        GlslStd450Op::UnpackSnorm2x16 | GlslStd450Op::UnpackUnorm2x16 | GlslStd450Op::UnpackHalf2x16 => {
            rule(Out::Floats(2, 32), &[In::OneInt])
        }
        GlslStd450Op::PackDouble2x32 => rule(Out::Floats(1, 64), &[In::Words(2, 32)]),
        GlslStd450Op::UnpackDouble2x32 => rule(Out::Words(2, 32), &[In::Floats(1, 64)]),
        _ => None,
    }
}
