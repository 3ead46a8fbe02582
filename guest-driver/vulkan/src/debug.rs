//! What a module has for debuggers alone: names, lines, sources, and instructions without a meaning. Large modules go to the daemon without.

use std::collections::HashSet;

use crate::spirv;

mod op {
    pub(super) const EXT_INST_IMPORT: u32 = 11;
    pub(super) const EXT_INST: u32 = 12;

    /// Sources and their names, names of ids and members, lines, what has worked on the module, text on ids.
    pub(super) fn is_debug(op: u32) -> bool {
        matches!(op, 2..=8 | 317 | 330 | 5632 | 5633)
    }
}

/// Instruction sets of which nothing is left in what a driver compiles.
const SETS: [&[u8]; 2] = [b"NonSemantic.", b"OpenCL.DebugInfo.100\0"];

/// The module without what is there for debuggers. One that is cut is kept from there on.
pub(crate) fn stripped(bytes: &[u8]) -> Vec<u8> {
    let words = spirv::words(bytes);
    let mut kept = words.get(..spirv::HEADER).unwrap_or(&words).to_vec();
    let mut rest = words.get(spirv::HEADER..).unwrap_or_default();
    let mut sets = HashSet::new();
    while let Some(first) = rest.first() {
        let (length, op) = ((first >> 16) as usize, first & 0xffff);
        let Some((instruction, after)) = rest.split_at_checked(length).filter(|_| length > 0) else { break };
        rest = after;
        let is_dropped = match (op, instruction) {
            (op::EXT_INST_IMPORT, [_, id, name @ ..]) => {
                let name: Vec<u8> = spirv::bytes(name).collect();
                SETS.iter().any(|set| name.starts_with(set)) && sets.insert(*id)
            }
            (op::EXT_INST, [_, _, _, set, ..]) => sets.contains(set),
            _ => op::is_debug(op),
        };
        if !is_dropped {
            kept.extend(instruction);
        }
    }
    kept.extend(rest);
    spirv::bytes(&kept).collect()
}

#[cfg(test)]
mod tests {
    use super::stripped;

    fn module(instructions: &[&[u32]]) -> Vec<u8> {
        let mut words = vec![0x0723_0203, 0x0001_0300, 0, 100, 0];
        for instruction in instructions {
            let length = u32::try_from(instruction.len()).unwrap();
            words.push(length << 16 | instruction[0]);
            words.extend(&instruction[1..]);
        }
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    fn text(text: &str) -> Vec<u32> {
        let mut bytes = text.as_bytes().to_vec();
        bytes.resize(bytes.len() / 4 * 4 + 4, 0);
        bytes.chunks(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect()
    }

    #[test]
    fn what_debuggers_alone_read_is_left_out_and_all_else_stays_in_its_order() {
        let import = |id: u32, name: &str| [vec![11, id], text(name)].concat();
        let (glsl, shader) = (import(1, "GLSL.std.450"), import(2, "NonSemantic.Shader.DebugInfo.100"));
        let (opencl, other) = (import(3, "OpenCL.DebugInfo.100"), import(4, "OpenCL.DebugInfo.1000"));
        let kept: [&[u32]; 5] = [&[17, 1], &glsl, &other, &[12, 20, 31, 1, 4, 5], &[253]];
        let all: [&[u32]; 14] = [
            kept[0],
            kept[1],
            &shader,
            &opencl,
            kept[2],
            &[3, 2, 450],
            &[5, 9, 0],
            &[6, 9, 0, 0],
            &[7, 8, 0],
            &[8, 8, 1, 1],
            &[12, 20, 30, 2, 1, 8],
            kept[3],
            &[317],
            kept[4],
        ];
        assert_eq!(stripped(&module(&all)), module(&kept));
        assert_eq!(stripped(&module(&kept)), module(&kept));
        let whole = module(&all);
        for end in (0..whole.len()).step_by(4) {
            let _without_a_panic = stripped(&whole[..end]);
        }
        // An instruction without length, and what is behind it.
        let cut = [module(&kept), vec![0; 8]].concat();
        assert_eq!(stripped(&cut), cut);
    }
}
