//! Ids of a module that has few and calls them by large numbers: drivers take memory by the largest, so the host refuses such a module. Its ids are
//! counted from 1 here, in the order in which they are named.

use std::collections::HashMap;

use ::spirv::Op;

use crate::debug;
use crate::spirv;
use crate::spirv::Long;

/// So many ids for each word of a module are no gaps to speak of.
const IDS_PER_WORD: usize = 4;

/// A module with its ids counted anew, where it needs that and all its instructions are known. Without what is there for debuggers: not all of that is.
pub(crate) fn counted(words: &[u32]) -> Option<Vec<u32>> {
    let bound = *words.get(3)?;
    // The host takes as many.
    if usize::try_from(bound).ok()? <= IDS_PER_WORD.saturating_mul(words.len()) {
        return None;
    }
    let mut words = spirv::words(&debug::stripped(&spirv::bytes(words).collect::<Vec<u8>>()));
    let (mut long, mut names, mut at) = (Long::default(), HashMap::new(), spirv::HEADER);
    while let Some(first) = words.get(at) {
        let (length, op) = ((first >> 16) as usize, first & 0xffff);
        let instruction = words.get_mut(at..at + length).filter(|_| length > 0)?;
        long.note(op, instruction);
        for place in ids(Op::from_u32(op)?, instruction, &long)? {
            let Some(id) = instruction.get_mut(place) else { continue };
            if *id == 0 || *id >= bound {
                return None;
            }
            let next = u32::try_from(names.len() + 1).ok()?;
            *id = *names.entry(*id).or_insert(next);
        }
        at += length;
    }
    *words.get_mut(3)? = u32::try_from(names.len() + 1).ok()?;
    Some(words)
}

/// The words of an instruction that are ids; none where that is not known.
fn ids(op: Op, instruction: &[u32], long: &Long) -> Option<Vec<usize>> {
    let length = instruction.len();
    let some = |end: usize| (1..end).collect();
    // All but this one.
    let but = |literal: usize| (1..length).filter(|at| *at != literal).collect();
    Some(match op {
        Op::Nop
        | Op::Extension
        | Op::MemoryModel
        | Op::Capability
        | Op::FunctionEnd
        | Op::Kill
        | Op::Return
        | Op::Unreachable
        | Op::TerminateInvocation => Vec::new(),
        Op::ExtInstImport
        | Op::ExecutionMode
        | Op::TypeInt
        | Op::TypeFloat
        | Op::Decorate
        | Op::MemberDecorate
        | Op::SelectionMerge => some(2),
        Op::TypeVector | Op::TypeMatrix | Op::TypeImage | Op::Constant | Op::SpecConstant | Op::LoopMerge => {
            some(3)
        }
        Op::CompositeExtract | Op::BranchConditional | Op::ArrayLength => some(4),
        Op::VectorShuffle | Op::CompositeInsert | Op::SDot | Op::UDot | Op::SUDot => some(5),
        Op::SDotAccSat | Op::UDotAccSat | Op::SUDotAccSat => some(6),
        Op::TypePointer | Op::ExecutionModeId | Op::DecorateId => but(2),
        Op::Variable | Op::Function => but(3),
        Op::ExtInst => but(4),
        Op::EntryPoint => {
            let is_last = |word: &u32| word.to_le_bytes().contains(&0);
            let name = instruction.iter().skip(3).position(is_last)?;
            [2].into_iter().chain(name + 4..length).collect()
        }
        Op::SpecConstantOp => {
            let end = match Op::from_u32(*instruction.get(3)?)? {
                Op::CompositeExtract => 5,
                Op::CompositeInsert | Op::VectorShuffle => 6,
                _ => length,
            };
            (1..end).filter(|at| *at != 3).collect()
        }
        Op::Load => with_access(instruction, 4)?,
        Op::Store | Op::CopyMemory => with_access(instruction, 3)?,
        Op::Switch => [1].into_iter().chain(long.labels(instruction)).collect(),
        // Their image operands are ids, behind a mask.
        Op::ImageWrite => but(4),
        Op::ImageSampleImplicitLod
        | Op::ImageSampleExplicitLod
        | Op::ImageSampleProjImplicitLod
        | Op::ImageSampleProjExplicitLod
        | Op::ImageFetch
        | Op::ImageRead => but(5),
        Op::ImageSampleDrefImplicitLod
        | Op::ImageSampleDrefExplicitLod
        | Op::ImageSampleProjDrefImplicitLod
        | Op::ImageSampleProjDrefExplicitLod
        | Op::ImageGather
        | Op::ImageDrefGather => but(6),
        _ => match op as u32 {
            // What a group does with a value.
            342 | 349..=364 => but(4),
            // Types; constants; functions and memory; composites; images; conversions; arithmetic; comparisons; bits; derivatives; barriers; atomics; blocks; subgroups.
            1
            | 19
            | 20
            | 26..=30
            | 33
            | 41
            | 42
            | 44
            | 46
            | 48
            | 49
            | 51
            | 55
            | 57
            | 60
            | 65..=67
            | 70
            | 77
            | 78
            | 80
            | 83
            | 84
            | 86
            | 100
            | 103..=107
            | 109..=122
            | 124
            | 126..=152
            | 154..=191
            | 194..=205
            | 207..=215
            | 224
            | 225
            | 227..=242
            | 245
            | 248
            | 249
            | 254
            | 333..=341
            | 343..=348
            | 365
            | 366
            | 400
            | 5630
            | 5631
            | 5614
            | 5615
            | 6035 => some(length),
            _ => return None,
        },
    })
}

/// The ids of an instruction on memory, whose operands say at `mask` how it is accessed.
fn with_access(instruction: &[u32], mask: usize) -> Option<Vec<usize>> {
    const ALIGNED: u32 = 2;
    /// Makes available, makes visible: each with a scope.
    const MOVES: [u32; 2] = [8, 16];
    const KNOWN: u32 = 0x3f;
    let (mut ids, mut at): (Vec<usize>, usize) = ((1..mask).collect(), mask);
    while let Some(bits) = instruction.get(at) {
        if bits & !KNOWN != 0 {
            return None;
        }
        at += 1 + usize::from(bits & ALIGNED != 0);
        for _ in MOVES.iter().filter(|moves| bits & **moves != 0) {
            ids.push(at);
            at += 1;
        }
    }
    Some(ids)
}

#[cfg(test)]
mod tests {
    use ::spirv::Op;

    use super::counted;
    use super::ids;
    use crate::lower::tests::shader;
    use crate::lower::tests::validate;
    use crate::spirv;
    use crate::spirv::Long;

    /// Far apart: `far(1)`, `far(2)` and so on, all of which are within what Vulkan promises to take.
    const fn far(id: u32) -> u32 {
        0x003f_ff00 - id * 1000
    }

    /// A module of instructions, with a bound. What they have from `far(1)` on are ids.
    fn module(instructions: &[&[u32]], bound: u32) -> Vec<u32> {
        let mut words = vec![0x0723_0203, 0x0001_0300, 0, bound, 0];
        for instruction in instructions {
            words.push(u32::try_from(instruction.len()).unwrap() << 16 | instruction[0]);
            words.extend(&instruction[1..]);
        }
        words
    }

    /// One of each form, and a literal that is as an id is wherever there may be any.
    fn all(id: fn(u32) -> u32, literal: u32) -> Vec<Vec<u32>> {
        let main = u32::from_le_bytes(*b"main");
        let same = |op: u32, ids: &[u32]| -> Vec<u32> {
            [op].into_iter().chain(ids.iter().map(|at| id(*at))).collect()
        };
        let with = |mut words: Vec<u32>, more: &[u32]| {
            words.extend(more);
            words
        };
        vec![
            vec![17, literal],
            with(same(11, &[1]), &[literal, main, 0]),
            vec![14, 0, literal],
            [vec![15, literal, id(2), main, 0], vec![id(3)]].concat(),
            with(same(16, &[2]), &[literal, literal]),
            vec![331, id(2), literal, id(4)],
            with(same(71, &[3]), &[literal, literal]),
            vec![332, id(3), literal, id(4)],
            with(same(72, &[5]), &[literal, literal]),
            with(same(21, &[6]), &[64, 0]),
            with(same(22, &[7]), &[literal]),
            with(same(23, &[8, 7]), &[literal]),
            vec![32, id(9), literal, id(8)],
            with(same(43, &[6, 10]), &[literal, literal]),
            vec![52, id(6), id(11), 81, id(10), literal],
            vec![52, id(6), id(11), 128, id(10), id(10)],
            vec![54, id(12), id(2), literal, id(13)],
            vec![59, id(9), id(14), literal, id(10)],
            vec![61, id(8), id(15), id(14), 2 | 8, literal, id(4)],
            vec![61, id(8), id(15), id(14)],
            vec![62, id(14), id(15), 2, literal],
            vec![63, id(14), id(14), 2, literal, 2 | 16, literal, id(4)],
            vec![12, id(8), id(16), id(1), literal, id(15)],
            vec![79, id(8), id(17), id(15), id(16), literal, literal],
            vec![98, id(8), id(18), id(19), id(10), literal, id(20)],
            vec![99, id(19), id(10), id(15), literal, id(20)],
            vec![96, id(8), id(18), id(19), id(10), id(10), literal, id(20)],
            vec![349, id(8), id(21), id(4), literal, id(15)],
            vec![4450, id(6), id(22), id(10), id(10), literal],
            with(same(246, &[23, 24]), &[literal]),
            with(same(250, &[25, 23, 24]), &[literal, literal]),
            vec![251, id(10), id(23), literal, literal, id(24), literal, literal, id(26)],
            vec![251, id(25), id(23), literal, id(24)],
            same(128, &[6, 27, 10, 10]),
            vec![253],
        ]
    }

    fn of(instructions: &[Vec<u32>], bound: u32) -> Vec<u32> {
        module(&instructions.iter().map(Vec::as_slice).collect::<Vec<_>>(), bound)
    }

    #[test]
    fn ids_are_counted_in_the_order_of_their_names_and_literals_stay() {
        let literal = far(5);
        let sparse = of(&all(far, literal), 0x003f_ffff);
        let found = counted(&sparse).unwrap();
        let mut order: Vec<u32> = Vec::new();
        let dense = of(&all(|id| id, literal), 0);
        // Where the same module with small ids has another word, there is an id: each is what its first use has made it.
        for ((far, near), new) in sparse.iter().zip(&dense).zip(&found).skip(5) {
            if far == near {
                assert_eq!(new, far, "a literal");
                continue;
            }
            if !order.contains(near) {
                order.push(*near);
            }
            let number = order.iter().position(|id| id == near).unwrap();
            assert_eq!(*new, u32::try_from(number + 1).unwrap());
        }
        assert_eq!((found[3], order.len()), (28, 27));
    }

    #[test]
    fn modules_without_gaps_and_those_that_are_not_understood_stay_as_they_are() {
        let plain = [&[17, 1][..], &[19, 1], &[33, 2, 1]];
        assert_eq!(counted(&module(&plain, 48)), None, "a bound that the host takes of twelve words");
        assert_eq!(counted(&module(&plain, 49)).unwrap()[3], 3);
        for odd in [&[9999, 1, 2][..], &[61, 1, 2, 3, 0x40], &[19, 0], &[19, 5000], &[52, 1, 2, 9999]] {
            assert_eq!(counted(&module(&[odd], 5000)), None, "{odd:?}");
        }
        let whole = of(&all(far, 7), 0x003f_ffff);
        for end in 0..whole.len() {
            let _without_a_panic = counted(&whole[..end]);
        }
    }

    #[test]
    fn modules_of_compilers_are_the_same_after_their_ids_were_spread() {
        for name in ["add", "hang", "images", "layouts", "sampling", "sets", "texels"] {
            let words =
                spirv::words(&crate::debug::stripped(&spirv::bytes(&shader(name)).collect::<Vec<u8>>()));
            let spread = |by: u32| {
                let (mut words, mut long, mut at) = (words.clone(), Long::default(), spirv::HEADER);
                while let Some(first) = words.get(at).copied() {
                    let instruction = &mut words[at..][..(first >> 16) as usize];
                    long.note(first & 0xffff, instruction);
                    let known = ids(Op::from_u32(first & 0xffff).unwrap(), instruction, &long);
                    known.unwrap().into_iter().for_each(|place| instruction[place] *= by);
                    at += (first >> 16) as usize;
                }
                words[3] *= by;
                words
            };
            validate(&spread(4000));
            let again = counted(&spread(4000)).unwrap();
            validate(&again);
            assert_eq!(again, counted(&spread(7919)).unwrap(), "{name}");
            assert_eq!(again.len(), words.len());
        }
    }

    #[test]
    fn what_debuggers_alone_read_is_left_out() {
        let named = [&[5, far(1), 0x61][..], &[19, far(1)]];
        assert_eq!(counted(&module(&named, far(0))).unwrap(), module(&[&[19, 1]], 2));
    }
}
