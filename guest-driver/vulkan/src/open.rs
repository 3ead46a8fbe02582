//! Arrays of descriptors whose length a module leaves open, and indices into arrays of images that differ between invocations.
//!
//! Neither the protocol nor the host has either. An open array is as long as the pipeline's layout says, so such a module is written anew for
//! each layout. Images are chosen by comparisons (`lower`), which holds for whatever index an invocation has: that it may differ need not be said.

use std::collections::HashMap;
use std::collections::HashSet;

use ::spirv::Capability;
use ::spirv::Decoration;
use ::spirv::Op;
use ::spirv::StorageClass;

use crate::spirv;
use crate::spirv::instructions;

/// What stands before the operands of an instruction.
fn first(op: Op, words: usize) -> u32 {
    u32::try_from(words).unwrap_or(u32::MAX) << 16 | op as u32
}

fn is_bindings(class: u32) -> bool {
    [StorageClass::UniformConstant, StorageClass::Uniform, StorageClass::StorageBuffer]
        .iter()
        .any(|known| *known as u32 == class)
}

/// What a module says of its open arrays.
#[derive(Default)]
struct Arrays {
    /// Array without a length → its element.
    open: HashMap<u32, u32>,
    /// Pointer to one → where it points, and the array.
    pointers: HashMap<u32, (u32, u32)>,
    /// Variables of such a pointer.
    variables: HashSet<u32>,
    sets: HashMap<u32, u32>,
    bindings: HashMap<u32, u32>,
}

impl Arrays {
    fn of(words: &[u32]) -> Self {
        const BINDING: u32 = Decoration::Binding as u32;
        const SET: u32 = Decoration::DescriptorSet as u32;
        let mut found = Self::default();
        for (op, instruction) in instructions(words) {
            match (Op::from_u32(op), instruction) {
                (Some(Op::Decorate), [_, id, SET, set]) => {
                    found.sets.insert(*id, *set);
                }
                (Some(Op::Decorate), [_, id, BINDING, number]) => {
                    found.bindings.insert(*id, *number);
                }
                (Some(Op::TypeRuntimeArray), [_, id, element]) => {
                    found.open.insert(*id, *element);
                }
                (Some(Op::TypePointer), [_, id, class, to])
                    if is_bindings(*class) && found.open.contains_key(to) =>
                {
                    found.pointers.insert(*id, (*class, *to));
                }
                (Some(Op::Variable), [_, ty, id, _]) if found.pointers.contains_key(ty) => {
                    found.variables.insert(*id);
                }
                (Some(Op::Function), _) => break,
                _ => {}
            }
        }
        // Those that end a block are no descriptors.
        let pointed: HashSet<u32> = found.pointers.values().map(|(_, array)| *array).collect();
        found.open.retain(|array, _| pointed.contains(array));
        found
    }
}

/// Whether a module has open arrays of descriptors.
pub(crate) fn is_open(bytes: &[u8]) -> bool {
    !Arrays::of(&spirv::words(bytes)).variables.is_empty()
}

/// A module with open arrays, each of which has as many elements as `count` says of its set and number.
pub(crate) fn closed(bytes: &[u8], count: impl Fn(u32, u32) -> Option<u32>) -> Vec<u8> {
    let words = spirv::words(bytes);
    let arrays = Arrays::of(&words);
    let mut kept = words.get(..spirv::HEADER).unwrap_or(&words).to_vec();
    let mut bound = kept.get(3).copied().unwrap_or(0);
    let mut fresh = || {
        bound = bound.saturating_add(1);
        bound - 1
    };
    // Array and length → the pointer to what stands for it.
    let mut made: HashMap<(u32, u32), u32> = HashMap::new();
    let mut number = None;
    for (op, instruction) in instructions(&words) {
        match (Op::from_u32(op), instruction) {
            (Some(Op::Capability), [_, code]) if *code == Capability::RuntimeDescriptorArray as u32 => {
                continue;
            }
            (Some(Op::TypeRuntimeArray), [_, id, ..]) if arrays.open.contains_key(id) => continue,
            (Some(Op::TypePointer), [_, id, ..]) if arrays.pointers.contains_key(id) => continue,
            (Some(Op::Decorate | Op::Name), [_, id, ..])
                if arrays.open.contains_key(id) || arrays.pointers.contains_key(id) =>
            {
                continue;
            }
            (Some(Op::TypeInt), [_, id, 32, _]) => number = Some(*id),
            (Some(Op::Variable), [head, ty, id, class])
                if let Some((_, array)) = arrays.pointers.get(ty)
                    && let Some(element) = arrays.open.get(array)
                    && let Some(number) = number =>
            {
                let of = |map: &HashMap<u32, u32>| map.get(id).copied().unwrap_or(0);
                let length = count(of(&arrays.sets), of(&arrays.bindings)).unwrap_or(1).max(1);
                let pointer = *made.entry((*ty, length)).or_insert_with(|| {
                    let (constant, sized, pointer) = (fresh(), fresh(), fresh());
                    kept.extend([first(Op::Constant, 4), number, constant, length]);
                    kept.extend([first(Op::TypeArray, 4), sized, *element, constant]);
                    kept.extend([first(Op::TypePointer, 4), pointer, *class, sized]);
                    pointer
                });
                kept.extend([*head, pointer, *id, *class]);
                continue;
            }
            _ => {}
        }
        kept.extend(instruction);
    }
    if let Some(place) = kept.get_mut(3) {
        *place = bound;
    }
    spirv::bytes(&kept).collect()
}

/// The words of a module without what says that indices into arrays of images differ between invocations, unless those into other arrays may,
/// too, and without the capability of open arrays where it has none; none where nothing says so.
pub(crate) fn understood(words: &[u32]) -> Option<Vec<u32>> {
    let of_images = [
        Capability::ShaderNonUniform,
        Capability::SampledImageArrayNonUniformIndexing,
        Capability::StorageImageArrayNonUniformIndexing,
    ];
    let others = [
        Capability::UniformBufferArrayNonUniformIndexing,
        Capability::StorageBufferArrayNonUniformIndexing,
        Capability::InputAttachmentArrayNonUniformIndexing,
        Capability::UniformTexelBufferArrayNonUniformIndexing,
        Capability::StorageTexelBufferArrayNonUniformIndexing,
    ];
    let is_one = |known: &[Capability], (op, instruction): (u32, &[u32])| {
        op == Op::Capability as u32 && known.iter().any(|known| instruction.get(1) == Some(&(*known as u32)))
    };
    let has = |known: &[Capability]| instructions(words).any(|all| is_one(known, all));
    let is_uniform = !has(&others);
    let mut dropped = if is_uniform { of_images.to_vec() } else { Vec::new() };
    if Arrays::of(words).variables.is_empty() {
        dropped.push(Capability::RuntimeDescriptorArray);
    }
    if !has(&dropped) {
        return None;
    }
    let says = |(op, instruction): (u32, &[u32])| {
        let is_decoration =
            op == Op::Decorate as u32 && instruction.get(2) == Some(&(Decoration::NonUniform as u32));
        is_decoration && is_uniform || is_one(&dropped, (op, instruction))
    };
    let mut kept = words.get(..spirv::HEADER)?.to_vec();
    instructions(words).filter(|all| !says(*all)).for_each(|(_, instruction)| kept.extend(instruction));
    Some(kept)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use ::spirv::Capability;
    use ::spirv::Op;

    use super::closed;
    use super::is_open;
    use super::understood;
    use crate::lower::tests::shader;
    use crate::lower::tests::validate;
    use crate::spirv;
    use crate::spirv::instructions;

    fn open() -> Vec<u8> {
        spirv::bytes(&shader("open")).collect()
    }

    /// Lengths of the arrays that variables point to, by set and number.
    fn lengths(words: &[u32]) -> HashMap<(u32, u32), u32> {
        let (mut constants, mut arrays, mut pointers) = (HashMap::new(), HashMap::new(), HashMap::new());
        let (mut places, mut found): (HashMap<u32, [u32; 2]>, _) = (HashMap::new(), HashMap::new());
        for (op, instruction) in instructions(words) {
            match (Op::from_u32(op), instruction) {
                (Some(Op::Constant), [_, _, id, value]) => {
                    constants.insert(*id, *value);
                }
                (Some(Op::TypeArray), [_, id, _, length]) => {
                    arrays.insert(*id, *length);
                }
                (Some(Op::TypePointer), [_, id, _, to]) => {
                    pointers.insert(*id, *to);
                }
                (Some(Op::Decorate), [_, id, 34, set]) => places.entry(*id).or_default()[0] = *set,
                (Some(Op::Decorate), [_, id, 33, number]) => places.entry(*id).or_default()[1] = *number,
                (Some(Op::Variable), [_, ty, id, ..]) => {
                    let length = pointers.get(ty).and_then(|to| arrays.get(to));
                    if let (Some(length), Some([set, number])) = (length, places.get(id)) {
                        found.insert((*set, *number), constants[length]);
                    }
                }
                _ => {}
            }
        }
        found
    }

    fn has(words: &[u32], capability: Capability) -> bool {
        instructions(words)
            .any(|(op, it)| op == Op::Capability as u32 && it.get(1) == Some(&(capability as u32)))
    }

    #[test]
    fn each_open_array_has_the_length_of_its_binding() {
        let count = |set, number| {
            [(0, 0, 3), (0, 1, 2), (1, 0, 2)].iter().find(|it| (it.0, it.1) == (set, number)).map(|it| it.2)
        };
        assert!(is_open(&open()));
        let bytes = closed(&open(), count);
        assert!(!is_open(&bytes));
        let words = spirv::words(&bytes);
        validate(&words);
        assert_eq!(lengths(&words), HashMap::from([((0, 0), 3), ((0, 1), 2), ((1, 0), 2)]));
        assert!(!has(&words, Capability::RuntimeDescriptorArray));
        // Of what the layout does not have, none is used.
        assert_eq!(lengths(&spirv::words(&closed(&open(), |_, _| None))).values().max(), Some(&1));
        // A block that ends with an array leaves nothing open.
        assert!(!is_open(&spirv::bytes(&shader("add")).collect::<Vec<u8>>()));
    }

    #[test]
    fn nothing_says_that_indices_into_arrays_of_images_differ() {
        let words = shader("open");
        assert!(has(&words, Capability::ShaderNonUniform));
        let same = understood(&words).unwrap();
        validate(&same);
        assert!(
            !has(&same, Capability::ShaderNonUniform)
                && !has(&same, Capability::StorageImageArrayNonUniformIndexing)
        );
        assert!(instructions(&same).all(|it| !matches!(it, (71, [_, _, 5300]))));
        assert_eq!(understood(&same), None);
        // Where those into arrays of buffers may differ, it is said.
        let mut buffers = words;
        let more = [2 << 16 | Op::Capability as u32, Capability::StorageBufferArrayNonUniformIndexing as u32];
        buffers.splice(spirv::HEADER..spirv::HEADER, more);
        assert_eq!(understood(&buffers), None);
        // Compilers declare open arrays for programs that have none.
        let mut plain = shader("add");
        assert_eq!(understood(&plain), None);
        let more = [2 << 16 | Op::Capability as u32, Capability::RuntimeDescriptorArray as u32];
        plain.splice(spirv::HEADER..spirv::HEADER, more);
        assert_eq!(understood(&plain), Some(shader("add")));
    }

    #[test]
    fn modules_that_are_cut_anywhere_are_read_as_far_as_they_go() {
        let whole = open();
        for end in 0..whole.len() {
            let cut = &whole[..end];
            let _without_a_panic =
                (is_open(cut), closed(cut, |_, _| Some(2)), understood(&spirv::words(cut)));
        }
    }
}
