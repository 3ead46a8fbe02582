//! Types of images, as the program declares them and as they become.

use campanile_protocol::texels;
use campanile_protocol::texels::Number;

use super::code::Scalar;

const SAMPLED: u32 = 1;
const STORAGE: u32 = 2;
const DIM_BUFFER: u32 = 5;

/// What coordinates of an image are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Dim {
    One,
    Two,
    Three,
    Cube,
}

/// An image that becomes a texel buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) dim: Dim,
    pub(super) is_arrayed: bool,
    pub(super) is_storage: bool,
    /// The type of its components.
    pub(super) of: Scalar,
    /// The format that the texel buffer names, by its code; 0 where it names none.
    pub(super) format: u16,
}

impl Shape {
    /// What its components are read as.
    pub(super) fn number(self) -> Number {
        match self.of {
            Scalar::Int => Number::Signed,
            Scalar::Uint => Number::Unsigned,
            Scalar::Float | Scalar::Bool => Number::Float,
        }
    }

    /// Coordinates of a texel, of which the last may be a layer.
    pub(super) fn coordinates(self) -> u32 {
        match self.dim {
            Dim::One => 1 + u32::from(self.is_arrayed),
            Dim::Two => 2 + u32::from(self.is_arrayed),
            Dim::Three | Dim::Cube => 3,
        }
    }

    /// How many of them are no layer or face.
    pub(super) fn dimensions(self) -> u32 {
        match self.dim {
            Dim::One => 1,
            Dim::Two => 2,
            Dim::Three => 3,
            Dim::Cube => 2,
        }
    }
}

/// The operands of an `OpTypeImage` behind its result.
#[derive(Debug, Clone, Copy)]
pub(super) struct Operands {
    pub(super) sampled_type: u32,
    /// None of a texel buffer.
    pub(super) dim: Option<Dim>,
    pub(super) is_arrayed: bool,
    pub(super) is_storage: bool,
    format: u32,
}

impl Operands {
    /// None where it is an image of more than one sample, or of another kind than kernels have.
    pub(super) fn read(operands: &[u32]) -> Option<Self> {
        let [sampled_type, dim, _depth, arrayed, 0, sampled @ (SAMPLED | STORAGE), format, ..] = *operands
        else {
            return None;
        };
        let dim = match dim {
            0 => Some(Dim::One),
            1 => Some(Dim::Two),
            2 => Some(Dim::Three),
            3 => Some(Dim::Cube),
            DIM_BUFFER => None,
            _ => return None,
        };
        Some(Self { sampled_type, dim, is_arrayed: arrayed != 0, is_storage: sampled == STORAGE, format })
    }

    /// Whether it becomes another type.
    pub(super) fn changes(&self) -> bool {
        self.dim.is_some() || self.is_nameless()
    }

    /// Whether it names a format that no texel buffer names.
    fn is_nameless(&self) -> bool {
        self.is_storage && self.format != 0 && texels::of_image(self.format).is_none()
    }

    /// The operands of the texel buffer that it becomes, where it is read as components of this kind.
    pub(super) fn lowered(&self, of: Scalar) -> [u32; 7] {
        let format = if self.loses_format(of) || !self.is_storage { 0 } else { self.format };
        let sampled = if self.is_storage { STORAGE } else { SAMPLED };
        [self.sampled_type, DIM_BUFFER, 0, 0, 0, sampled, format]
    }

    /// The code of the format that the texel buffer names.
    pub(super) fn named(&self, of: Scalar) -> u16 {
        let [.., format] = self.lowered(of);
        texels::of_image(format).map_or(0, |format| format.code)
    }

    /// Whether the texel buffer names no format where the image names one: one that texel buffers do not name, or of integers whose
    /// sign is another than that of what is read.
    pub(super) fn loses_format(&self, of: Scalar) -> bool {
        let number = texels::of_image(self.format).map(|format| format.number);
        let is_other_sign = matches!(
            (number, of),
            (Some(Number::Signed), Scalar::Uint) | (Some(Number::Unsigned), Scalar::Int)
        );
        self.is_nameless() || self.is_storage && is_other_sign
    }
}
