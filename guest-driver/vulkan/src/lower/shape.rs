//! Types of images, as the program declares them and as they become.

use super::code::Scalar;

const SAMPLED: u32 = 1;
const STORAGE: u32 = 2;
pub(super) const DIM_BUFFER: u32 = 5;

/// Formats of SPIR-V that storage texel buffers have, but name by none: two components of 32 bits.
const NAMELESS: [u32; 3] = [6, 25, 35];

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
    /// The type that it becomes.
    pub(super) ty: u32,
}

impl Shape {
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
    pub(super) dim: Dim,
    pub(super) is_arrayed: bool,
    pub(super) is_storage: bool,
    pub(super) format: u32,
}

impl Operands {
    /// None where it is no image that is lowered.
    pub(super) fn read(operands: &[u32]) -> Option<Self> {
        let [sampled_type, dim, _depth, arrayed, 0, sampled @ (SAMPLED | STORAGE), format, ..] = *operands else {
            return None;
        };
        let dim = match dim {
            0 => Dim::One,
            1 => Dim::Two,
            2 => Dim::Three,
            3 => Dim::Cube,
            _ => return None,
        };
        Some(Self { sampled_type, dim, is_arrayed: arrayed != 0, is_storage: sampled == STORAGE, format })
    }

    /// The operands of the texel buffer that it becomes. A format that no texel buffer has stays, so that the host says which it was.
    pub(super) fn lowered(&self) -> [u32; 7] {
        let format = if self.loses_format() || !self.is_storage { 0 } else { self.format };
        let sampled = if self.is_storage { STORAGE } else { SAMPLED };
        [self.sampled_type, DIM_BUFFER, 0, 0, 0, sampled, format]
    }

    /// Whether the texel buffer names no format where the image names one.
    pub(super) fn loses_format(&self) -> bool {
        self.is_storage && NAMELESS.contains(&self.format)
    }
}
