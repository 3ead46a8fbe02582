//! What types are made of.

use spirv::StorageClass;

use crate::shader::interface::Texels;

/// What a type is made of; `None` for no type at all. Types are named by their ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    None,
    Void,
    Bool,
    Int {
        bits: u32,
        signed: bool,
    },
    Float {
        bits: u32,
    },
    Vector {
        of: u32,
        count: u32,
    },
    Matrix {
        column: u32,
        count: u32,
    },
    Array {
        of: u32,
        count: u32,
    },
    Runtime {
        of: u32,
    },
    Struct,
    Pointer {
        class: StorageClass,
        to: u32,
    },
    Function,
    /// A texel buffer, with the type of its components.
    Image {
        of: u32,
        is_storage: bool,
        texels: Texels,
    },
    SampledImage {
        image: u32,
    },
}

/// A scalar, or the components of a vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scalar {
    Bool,
    Int,
    Float,
}

/// A number or a vector of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Numeric {
    pub(super) scalar: Scalar,
    pub(super) bits: u32,
    pub(super) signed: bool,
    pub(super) count: u32,
}

/// What is inside a type, however deep.
pub(super) mod has {
    pub(in super::super) const INT_8: u32 = 1;
    pub(in super::super) const INT_16: u32 = 2;
    pub(in super::super) const FLOAT_16: u32 = 4;
    pub(in super::super) const BOOL: u32 = 8;
    pub(in super::super) const RUNTIME: u32 = 16;
    /// What is no number and no bytes.
    pub(in super::super) const OPAQUE: u32 = 32;
}

/// A declared type.
#[derive(Debug, Clone, Copy)]
pub(super) struct Type {
    pub(super) shape: Shape,
    /// Bytes of a value, a runtime-sized array counted as empty.
    pub(super) bytes: u64,
    pub(super) has: u32,
    /// How deep types nest in it.
    pub(super) depth: u32,
}
