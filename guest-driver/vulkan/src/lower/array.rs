//! Arrays of images, and what is known of an element that an index chooses at run time.

use std::collections::HashMap;

use ::spirv::Op;

/// An element of an array that is chosen at run time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Element {
    pub(super) array: Array,
    /// Which one, as a word within the array.
    pub(super) index: u32,
}

/// An array of images.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Array {
    /// Its variable.
    pub(super) variable: u32,
    /// How many it has: one at least.
    pub(super) count: u32,
    /// The type of pointers to one of them.
    pub(super) pointer: u32,
    /// The type of one of them.
    pub(super) image: u32,
}

/// What a function does with the element that it chooses.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Access {
    pub(super) op: Op,
    /// What comes of it; none of what is only written.
    pub(super) result: Option<u32>,
    /// Operands behind the image.
    pub(super) operands: Vec<Operand>,
    /// The type of pointers to a texel, of atomics.
    pub(super) texel: Option<u32>,
}

/// What a module has of arrays whose elements are chosen.
#[derive(Debug, Default)]
pub(super) struct Chosen {
    /// The functions that choose.
    pub(super) functions: HashMap<(Array, Access), u32>,
    /// Pointer to a texel → the element, the index of the texel, and the type of the pointer.
    pub(super) texels: HashMap<u32, (Element, u32, u32)>,
    /// Variable of an array, and an id of the library's → what it is where that array is sampled.
    pub(super) taken: HashMap<(u32, u32), u32>,
}

/// An operand of an access.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Operand {
    /// Given to the function, of this type.
    Given(u32),
    /// The same everywhere: a constant, or a mask.
    Fixed(u32),
}

impl Access {
    pub(super) fn of(op: Op, result: Option<u32>, operands: Vec<Operand>) -> Self {
        Self { op, result, operands, texel: None }
    }
}
