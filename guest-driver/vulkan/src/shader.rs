//! Shader modules, and which buffers an entry point uses.
//!
//! A dispatch carries the buffers that its kernel uses, and no others. The host's guard finds them in the same way: global variables
//! that the functions name which the entry point reaches. The daemon says how many it found, and a pipeline is refused where the two
//! do not agree.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::collections::HashMap;
use std::collections::HashSet;
use std::sync::Arc;

use ash::vk;

use crate::abi;
use crate::abi::handle;

/// A module.
#[derive(Debug)]
pub(crate) struct Module {
    /// Its words, as the program passed them.
    pub(crate) bytes: Arc<[u8]>,
}

handle!(Module, vk::ShaderModule);

/// A binding that an entry point uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Use {
    /// The descriptor set.
    pub(crate) set: u32,
    /// The number within it.
    pub(crate) binding: u32,
    /// Buffers that it has: more than one in an array. None where a specialisation constant says how many.
    pub(crate) count: Option<u32>,
}

/// First words of a module.
const HEADER: usize = 5;

/// Opcodes that are looked at, and where the ids stand in them that may be pointers.
mod op {
    pub(super) const ENTRY_POINT: u32 = 15;
    pub(super) const TYPE_ARRAY: u32 = 28;
    pub(super) const TYPE_POINTER: u32 = 32;
    pub(super) const CONSTANT: u32 = 43;
    pub(super) const FUNCTION: u32 = 54;
    pub(super) const FUNCTION_CALL: u32 = 57;
    pub(super) const VARIABLE: u32 = 59;
    pub(super) const DECORATE: u32 = 71;

    /// The operands of an instruction that may name a variable.
    pub(super) fn pointers(op: u32, words: &[u32]) -> &[u32] {
        let at = |range: std::ops::Range<usize>| words.get(range).unwrap_or_default();
        match op {
            // Load, access chains, array length, copy of an object, loads and changes of atomics.
            61 | 65..=68 | 70 | 83 | 227 | 229..=242 | 318 | 6035 => at(3..4),
            // Store, store of an atomic.
            62 | 228 | 319 => at(1..2),
            // Copies of memory.
            63 | 64 => at(1..3),
            FUNCTION_CALL => words.get(4..).unwrap_or_default(),
            _ => &[],
        }
    }
}

const DECORATION_BINDING: u32 = 33;
const DECORATION_DESCRIPTOR_SET: u32 = 34;
const CLASS_UNIFORM: u32 = 2;
const CLASS_STORAGE_BUFFER: u32 = 12;
const MODEL_COMPUTE: u32 = 5;

/// What was read of a module.
#[derive(Default)]
struct Reader {
    sets: HashMap<u32, u32>,
    bindings: HashMap<u32, u32>,
    constants: HashMap<u32, u32>,
    /// Pointer → what it points to.
    pointers: HashMap<u32, u32>,
    /// Array → id of its length.
    arrays: HashMap<u32, u32>,
    /// Variable of a buffer → its type.
    variables: BTreeMap<u32, u32>,
    /// Function → the variables and the functions that it names.
    functions: HashMap<u32, (HashSet<u32>, Vec<u32>)>,
    entry: Option<u32>,
}

fn note(map: &mut HashMap<u32, u32>, id: u32, value: u32) {
    map.insert(id, value);
}

impl Reader {
    fn read(words: &[u32], entry: &[u8]) -> Self {
        let (mut reader, mut function, mut rest) =
            (Self::default(), 0, words.get(HEADER..).unwrap_or_default());
        while let Some(first) = rest.first() {
            let (length, op) = ((first >> 16) as usize, first & 0xffff);
            let Some((instruction, after)) = rest.split_at_checked(length.max(1)) else { break };
            reader.instruction(op, instruction, entry, &mut function);
            rest = after;
        }
        reader
    }

    fn instruction(&mut self, op: u32, words: &[u32], entry: &[u8], function: &mut u32) {
        match (op, words) {
            (op::ENTRY_POINT, [_, MODEL_COMPUTE, id, name @ ..]) => {
                let name: Vec<u8> =
                    name.iter().flat_map(|word| word.to_le_bytes()).take_while(|byte| *byte != 0).collect();
                if name == entry {
                    self.entry = Some(*id);
                }
            }
            (op::DECORATE, [_, id, DECORATION_DESCRIPTOR_SET, set, ..]) => note(&mut self.sets, *id, *set),
            (op::DECORATE, [_, id, DECORATION_BINDING, binding, ..]) => {
                note(&mut self.bindings, *id, *binding)
            }
            (op::TYPE_POINTER, [_, id, _, to, ..]) => note(&mut self.pointers, *id, *to),
            (op::TYPE_ARRAY, [_, id, _, length, ..]) => note(&mut self.arrays, *id, *length),
            (op::CONSTANT, [_, _, id, value, ..]) => note(&mut self.constants, *id, *value),
            (op::VARIABLE, [_, ty, id, CLASS_UNIFORM | CLASS_STORAGE_BUFFER, ..]) => {
                self.variables.insert(*id, *ty);
            }
            (op::FUNCTION, [_, _, id, ..]) => *function = *id,
            _ => {}
        }
        if *function != 0 {
            let (names, calls) = self.functions.entry(*function).or_default();
            let variables = &self.variables;
            names.extend(op::pointers(op, words).iter().filter(|id| variables.contains_key(id)));
            if let (op::FUNCTION_CALL, [_, _, _, callee, ..]) = (op, words) {
                calls.push(*callee);
            }
        }
    }

    /// The variables that the entry point uses, where it is there.
    fn used(&self) -> Option<BTreeSet<u32>> {
        let (mut seen, mut open, mut used) = (HashSet::new(), vec![self.entry?], BTreeSet::new());
        while let Some(id) = open.pop() {
            if let Some((names, calls)) = self.functions.get(&id).filter(|_| seen.insert(id)) {
                used.extend(names);
                open.extend(calls);
            }
        }
        Some(used)
    }

    fn count(&self, variable: u32) -> Option<u32> {
        let held = self.variables.get(&variable).and_then(|ty| self.pointers.get(ty));
        let Some(length) = held.and_then(|held| self.arrays.get(held)) else { return Some(1) };
        self.constants.get(length).copied()
    }
}

/// The bindings that the compute entry point called `entry` uses, by set and number; none where there is no such entry point.
pub(crate) fn uses(bytes: &[u8], entry: &[u8]) -> Option<Vec<Use>> {
    let words: Vec<u32> = bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
    let reader = Reader::read(&words, entry);
    let mut found = BTreeMap::new();
    for variable in reader.used()? {
        let at = |map: &HashMap<u32, u32>| map.get(&variable).copied().unwrap_or(0);
        found.insert((at(&reader.sets), at(&reader.bindings)), reader.count(variable));
    }
    Some(found.into_iter().map(|((set, binding), count)| Use { set, binding, count }).collect())
}

pub(crate) extern "system" fn create(
    _device: vk::Device,
    info: *const vk::ShaderModuleCreateInfo<'_>,
    _allocator: *const vk::AllocationCallbacks<'_>,
    out: *mut vk::ShaderModule,
) -> vk::Result {
    abi::command("vkCreateShaderModule", || {
        let info = abi::read(info);
        let bytes = abi::items(info.p_code.cast::<u8>(), info.code_size);
        abi::give(Module { bytes: Arc::from(bytes) }, out);
        Ok(())
    })
}

pub(crate) extern "system" fn destroy(
    _device: vk::Device,
    module: vk::ShaderModule,
    _allocator: *const vk::AllocationCallbacks<'_>,
) {
    abi::quiet("vkDestroyShaderModule", || drop(abi::take::<Module>(module)));
}
