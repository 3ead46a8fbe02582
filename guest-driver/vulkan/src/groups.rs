//! Groups of decorations, which SPIR-V has no use for any more and older compilers write: each becomes the decorations that it stands for, since neither
//! the rest of the driver nor the host knows of groups.

use std::collections::HashMap;

use ::spirv::Op;

use crate::spirv;

/// Words of the longest result; the host takes fewer. A module whose groups make more of it stays as it is, and is refused.
const MOST: usize = 1 << 20;

/// Opcode and what stands behind the target, of each decoration of a group.
type Groups<'a> = HashMap<u32, Vec<(u32, &'a [u32])>>;

/// A module with decorations in the place of groups; none where it has no groups.
pub(crate) fn expanded(words: &[u32]) -> Option<Vec<u32>> {
    let all = || spirv::instructions(words);
    let mut groups: Groups<'_> = all()
        .filter(|(op, _)| *op == Op::DecorationGroup as u32)
        .filter_map(|(_, instruction)| Some((*instruction.get(1)?, Vec::new())))
        .collect();
    if groups.is_empty() {
        return None;
    }
    for (op, instruction) in all() {
        if let ([_, target, rest @ ..], true) = (instruction, of_member(op).is_some())
            && let Some(group) = groups.get_mut(target)
        {
            group.push((op, rest));
        }
    }
    let mut out = words.get(..spirv::HEADER)?.to_vec();
    for (op, instruction) in all() {
        let of = instruction.get(1).and_then(|id| groups.get(id));
        match (Op::from_u32(op), of) {
            (Some(Op::GroupDecorate), Some(group)) => {
                let targets = instruction.get(2..).unwrap_or_default();
                targets.iter().try_for_each(|target| decorate(&mut out, group, &[*target], Some))?;
            }
            (Some(Op::GroupMemberDecorate), Some(group)) => {
                let targets = instruction.get(2..).unwrap_or_default();
                targets.chunks(2).try_for_each(|target| decorate(&mut out, group, target, of_member))?;
            }
            (
                Some(Op::DecorationGroup | Op::Decorate | Op::DecorateId | Op::DecorateString | Op::Name),
                Some(_),
            ) => {}
            _ => out.extend(instruction),
        }
    }
    Some(out)
}

/// The instruction that decorates a member as `op` does a whole; none where `op` is no decoration. No member is decorated with ids.
fn of_member(op: u32) -> Option<u32> {
    match Op::from_u32(op)? {
        Op::Decorate | Op::DecorateId => Some(Op::MemberDecorate as u32),
        Op::DecorateString => Some(Op::MemberDecorateString as u32),
        _ => None,
    }
}

fn decorate(
    out: &mut Vec<u32>,
    group: &[(u32, &[u32])],
    target: &[u32],
    as_op: fn(u32) -> Option<u32>,
) -> Option<()> {
    for (op, rest) in group {
        let length = u32::try_from(1 + target.len() + rest.len()).ok()?;
        out.push(length << 16 | as_op(*op)?);
        out.extend(target);
        out.extend(*rest);
    }
    (out.len() <= MOST).then_some(())
}

#[cfg(test)]
mod tests {
    use super::MOST;
    use super::expanded;

    fn module(instructions: &[&[u32]]) -> Vec<u32> {
        let mut words = vec![0x0723_0203, 0x0001_0300, 0, 100, 0];
        for instruction in instructions {
            words.push(u32::try_from(instruction.len()).unwrap() << 16 | instruction[0]);
            words.extend(&instruction[1..]);
        }
        words
    }

    #[test]
    fn groups_become_what_they_stand_for_on_each_target() {
        let words = module(&[
            &[17, 1],
            &[5, 9, 0x0067],
            &[71, 20, 34, 1],
            &[71, 9, 24],
            &[71, 9, 35, 16],
            &[332, 10, 27, 40],
            &[73, 9],
            &[73, 10],
            // Nothing stands on this one.
            &[73, 11],
            &[74, 9, 20, 21],
            &[74, 10, 22],
            &[74, 11, 23],
            &[75, 9, 30, 0, 31, 2],
            &[19, 1],
        ]);
        let wanted = module(&[
            &[17, 1],
            &[71, 20, 34, 1],
            &[71, 20, 24],
            &[71, 20, 35, 16],
            &[71, 21, 24],
            &[71, 21, 35, 16],
            &[332, 22, 27, 40],
            &[72, 30, 0, 24],
            &[72, 30, 0, 35, 16],
            &[72, 31, 2, 24],
            &[72, 31, 2, 35, 16],
            &[19, 1],
        ]);
        assert_eq!(expanded(&words).unwrap(), wanted);
        assert_eq!(expanded(&wanted), None, "there are no groups");
        for end in 0..words.len() {
            let _without_a_panic = expanded(&words[..end]);
        }
    }

    #[test]
    fn groups_that_make_too_much_of_a_module_stay_as_they_are() {
        let members = |count: u32| -> Vec<u32> {
            [75, 9].into_iter().chain((0..count).flat_map(|at| [30, at])).collect()
        };
        let text: Vec<u32> =
            [5632, 9, 5635].into_iter().chain((0..1000).map(|_| 0x6161_6161)).chain([0]).collect();
        let with = |count: u32| expanded(&module(&[&text, &[73, 9], &members(count)]));
        assert!(with(1000).is_some_and(|words| words.len() <= MOST));
        assert_eq!(with(2000), None);
    }
}
