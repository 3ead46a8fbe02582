//! SPIR-V as words.

use std::collections::HashSet;

use ::spirv::Op;

/// Words before the first instruction: magic number, version, generator, bound, schema.
pub(crate) const HEADER: usize = 5;

/// The words of a module; bytes of a last one that is cut are left out.
pub(crate) fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect()
}

/// The bytes of words.
pub(crate) fn bytes(words: &[u32]) -> impl Iterator<Item = u8> {
    words.iter().flat_map(|word| word.to_le_bytes())
}

/// The instructions of a module behind its header; one that is cut or has no length ends them.
pub(crate) fn instructions(words: &[u32]) -> impl Iterator<Item = (u32, &[u32])> {
    let mut rest = words.get(HEADER..).unwrap_or_default();
    std::iter::from_fn(move || {
        let first = rest.first()?;
        let (length, op) = ((first >> 16) as usize, first & 0xffff);
        let (instruction, after) = rest.split_at_checked(length).filter(|_| length > 0)?;
        rest = after;
        Some((op, instruction))
    })
}

/// Values of 64-bit integers, as far as a module has been read: each literal of a switch on one takes two words.
#[derive(Debug, Default)]
pub(crate) struct Long {
    types: HashSet<u32>,
    values: HashSet<u32>,
}

impl Long {
    /// Takes note of what an instruction defines.
    pub(crate) fn note(&mut self, op: u32, instruction: &[u32]) {
        match instruction {
            [_, id, 64, _] if op == Op::TypeInt as u32 => {
                self.types.insert(*id);
            }
            [_, ty, id, ..] if self.types.contains(ty) => {
                self.values.insert(*id);
            }
            _ => {}
        }
    }

    /// Which words of an `OpSwitch` are labels: that of the default, and one behind each literal.
    pub(crate) fn labels(&self, switch: &[u32]) -> impl Iterator<Item = usize> + use<> {
        let is_long = switch.get(1).is_some_and(|selector| self.values.contains(selector));
        (2..switch.len()).step_by(if is_long { 3 } else { 2 })
    }
}
