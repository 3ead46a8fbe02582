//! Image operands: what an instruction says of a texel beyond its coordinate.

use ::spirv::ImageOperands;

use super::code::Refusal;

/// The image operands of an instruction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Operands {
    mask: u32,
    pub(super) lod: Option<u32>,
    pub(super) grad: Option<[u32; 2]>,
    offset: Option<u32>,
    pub(super) offsets: Option<u32>,
    pub(super) least: Option<u32>,
    scope: Option<u32>,
}

impl Operands {
    /// Reads them from the mask on.
    pub(super) fn read(words: &[u32]) -> Result<Self, Refusal> {
        const OFFSETS: u32 = ImageOperands::CONST_OFFSETS.bits();
        let Some((mask, mut rest)) = words.split_first() else { return Ok(Self::default()) };
        let mut read = Self { mask: *mask, ..Self::default() };
        let mut next = || -> Result<u32, Refusal> {
            let (first, others) = rest.split_first().ok_or("image operands are cut")?;
            rest = others;
            Ok(*first)
        };
        for bit in (0..32).map(|bit| 1 << bit).filter(|bit| mask & bit != 0) {
            match ImageOperands::from_bits_truncate(bit) {
                ImageOperands::LOD => read.lod = Some(next()?),
                ImageOperands::GRAD => read.grad = Some([next()?, next()?]),
                ImageOperands::CONST_OFFSET | ImageOperands::OFFSET => read.offset = Some(next()?),
                ImageOperands::MIN_LOD => read.least = Some(next()?),
                ImageOperands::MAKE_TEXEL_AVAILABLE | ImageOperands::MAKE_TEXEL_VISIBLE => {
                    read.scope = Some(next()?);
                }
                _ if bit == OFFSETS => read.offsets = Some(next()?),
                ImageOperands::NON_PRIVATE_TEXEL
                | ImageOperands::VOLATILE_TEXEL
                | ImageOperands::SIGN_EXTEND
                | ImageOperands::ZERO_EXTEND
                | ImageOperands::NONTEMPORAL => {}
                _ => return Err("image operands are for samples, or unknown"),
            }
        }
        Ok(read)
    }

    /// What is added to the coordinate.
    pub(super) fn offset(&self) -> Option<u32> {
        self.offset
    }

    /// The mask and operands of an access to a texel buffer: how memory is ordered, and how integers are extended.
    pub(super) fn kept(&self, moves: ImageOperands) -> Result<Vec<u32>, Refusal> {
        let plain = ImageOperands::NON_PRIVATE_TEXEL
            | ImageOperands::VOLATILE_TEXEL
            | ImageOperands::SIGN_EXTEND
            | ImageOperands::ZERO_EXTEND;
        if self.lod.is_some() || self.offset.is_some() || self.grad.is_some() {
            return Err("a storage image is read with a level or an offset");
        }
        let mask = self.mask & (plain | moves).bits();
        let scope = self.scope.filter(|_| mask & moves.bits() != 0);
        Ok(if mask == 0 { Vec::new() } else { [mask].into_iter().chain(scope).collect() })
    }
}
