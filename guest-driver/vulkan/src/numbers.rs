//! Numbers of bindings: Vulkan has no limit of them, and compilers of HLSL count from 1000; packets carry 64 of a set. So a module with
//! larger ones is given free smaller ones in their place, of which programs see nothing.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::collections::HashMap;
use std::sync::Arc;

use crate::spirv;

/// Numbers of a set that packets carry.
const CARRIED: u32 = 64;

const OP_DECORATE: u32 = 71;
const DECORATION_BINDING: u32 = 33;
const DECORATION_DESCRIPTOR_SET: u32 = 34;

/// What a module's bindings are called by the program, by set and the number that its kernel has; those that are called so anyway are
/// not in here.
pub(crate) type Names = BTreeMap<(u32, u32), u32>;

/// A module whose numbers all can be carried, as far as there are as many.
pub(crate) fn carried(bytes: &[u8]) -> (Arc<[u8]>, Names) {
    let mut words = spirv::words(bytes);
    let (mut sets, mut places) = (HashMap::new(), Vec::new());
    let mut at = spirv::HEADER;
    while let Some(first) = words.get(at) {
        let (length, op) = ((first >> 16) as usize, first & 0xffff);
        match words.get(at + 1..at + length) {
            Some([id, DECORATION_DESCRIPTOR_SET, set]) if op == OP_DECORATE => {
                sets.insert(*id, *set);
            }
            Some([id, DECORATION_BINDING, number]) if op == OP_DECORATE => {
                places.push((at + 3, *id, *number))
            }
            _ => {}
        }
        at += length.max(1);
    }
    if places.iter().all(|(_, _, number)| *number < CARRIED) {
        return (Arc::from(bytes), Names::new());
    }
    let set_of = |id: &u32| sets.get(id).copied().unwrap_or(0);
    let taken: BTreeSet<(u32, u32)> = places.iter().map(|(_, id, number)| (set_of(id), *number)).collect();
    let (mut names, mut given) = (Names::new(), BTreeMap::new());
    for (set, number) in taken.iter().filter(|(_, number)| *number >= CARRIED) {
        let is_free = |free: &u32| !taken.contains(&(*set, *free)) && !names.contains_key(&(*set, *free));
        if let Some(free) = (0..CARRIED).find(is_free) {
            names.insert((*set, free), *number);
            given.insert((*set, *number), free);
        }
    }
    for (place, id, number) in &places {
        if let (Some(word), Some(free)) = (words.get_mut(*place), given.get(&(set_of(id), *number))) {
            *word = *free;
        }
    }
    (spirv::bytes(&words).collect(), names)
}

#[cfg(test)]
mod tests {
    use super::Names;
    use super::carried;

    /// A module with these sets and numbers, and the numbers of one.
    fn module(bindings: &[(u32, u32)]) -> Vec<u8> {
        let mut words = vec![0x0723_0203, 0x0001_0300, 0, 100, 0];
        for (id, (set, number)) in (10..).zip(bindings) {
            words.extend([4 << 16 | 71, id, 33, *number, 4 << 16 | 71, id, 34, *set]);
        }
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    fn numbers(bytes: &[u8]) -> Vec<u32> {
        bytes.chunks(4).skip(8).step_by(8).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect()
    }

    #[test]
    fn numbers_beyond_64_become_free_ones_of_their_set() {
        let (bytes, names) = carried(&module(&[(0, 0), (0, 1000), (0, 64), (1, 1000), (0, 1), (0, 1000)]));
        // Two variables of one binding stay so.
        assert_eq!(numbers(&bytes), [0, 3, 2, 0, 1, 3]);
        assert_eq!(names, Names::from([((0, 3), 1000), ((0, 2), 64), ((1, 0), 1000)]));
    }

    #[test]
    fn a_module_of_small_numbers_stays_as_it_is() {
        let whole = module(&[(0, 0), (7, 63)]);
        assert_eq!(carried(&whole), (whole.as_slice().into(), Names::new()));
    }

    #[test]
    fn what_finds_no_free_number_keeps_its_own_and_what_is_cut_is_read_as_far_as_it_goes() {
        let full: Vec<(u32, u32)> = (0..64).chain([70]).map(|number| (0, number)).collect();
        let (bytes, names) = carried(&module(&full));
        assert_eq!((numbers(&bytes)[64], names.len()), (70, 0));
        let whole = module(&[(0, 1000)]);
        for end in 0..whole.len() {
            let _without_a_panic = carried(&whole[..end]);
        }
    }
}
