//! Shader modules, and which buffers an entry point uses.
//!
//! A dispatch carries the buffers that its kernel uses, and no others. The host's guard finds them in the same way: global variables
//! that are named in blocks that control can reach, or that end or continue a construct there, of the functions that the entry point reaches. The
//! daemon says how many it found, and a pipeline is refused where the two do not agree.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::collections::HashMap;
use std::collections::HashSet;
use std::sync::Arc;

use ash::vk;
use campanile_protocol::profile;
use campanile_protocol::profile::Profile;

use crate::abi;
use crate::abi::handle;
use crate::debug;
use crate::device::Device;
use crate::groups;
use crate::ids;
use crate::lower::functions::LeftOut;
use crate::lower::records::Images;
use crate::lower::write::Lowered;
use crate::lower::write::has_images;
use crate::lower::write::lowered;
use crate::numbers;
use crate::numbers::Names;
use crate::open;
use crate::report::report;
use crate::spirv;
use crate::spirv::Long;
use crate::unnamed::unnamed;

/// Modules above this size, in bytes, go to the daemon without what they have for debuggers: there is a limit to what goes there. Smaller ones keep it, since
/// the daemon names what it refuses.
const DEBUGGED: usize = 64 << 10;

/// A module.
#[derive(Debug)]
pub(crate) struct Module {
    /// Its words, as the program passed them but for numbers of bindings and images.
    pub(crate) bytes: Arc<[u8]>,
    /// What the program calls its bindings.
    pub(crate) names: Names,
    /// The images that were lowered.
    pub(crate) images: Option<Arc<Images>>,
    /// The entry points that it has no more, since they do with images what cannot be lowered.
    pub(crate) left_out: BTreeMap<Vec<u8>, LeftOut>,
    /// Of a module with arrays of descriptors that have no length: its words. All else is empty.
    pub(crate) open: Option<Arc<[u8]>>,
}

impl Module {
    /// Of a program's words, for a device that may need no formats of storage images to be named.
    pub(crate) fn of(bytes: &[u8], is_bare: bool) -> Self {
        let small = if bytes.len() > DEBUGGED { debug::stripped(bytes).into() } else { Cow::Borrowed(bytes) };
        let plain = plain(small, is_bare);
        if open::is_open(&plain) {
            let (names, left_out) = (Names::new(), BTreeMap::new());
            return Self { bytes: Arc::default(), names, images: None, left_out, open: Some(plain.into()) };
        }
        Self::with_lengths(&plain)
    }

    /// What it is for pipelines of a layout that has as many descriptors as `count` says of a set and a number; none where that makes no
    /// difference.
    pub(crate) fn closed(&self, count: impl Fn(u32, u32) -> Option<u32>) -> Option<Self> {
        self.open.as_ref().map(|open| Self::with_lengths(&open::closed(open, count)))
    }

    /// Of words that are plain and leave no length open.
    fn with_lengths(bytes: &[u8]) -> Self {
        let (bytes, names) = numbers::carried(bytes);
        let found = if has_images(&spirv::words(&bytes)) {
            // What is there for debuggers may speak of what is there no more.
            lowered(&spirv::words(&debug::stripped(&bytes)))
        } else {
            Ok(None)
        };
        match found {
            Ok(Some(Lowered { words, images, left_out })) => {
                for (entry, why) in &left_out {
                    report!("vkCreateShaderModule: `{}` is left out: {why}", entry.escape_ascii());
                }
                let (bytes, images) = (spirv::bytes(&words).collect(), Some(Arc::new(images)));
                Self { bytes, names, images, left_out, open: None }
            }
            Ok(None) => Self { bytes, names, images: None, left_out: BTreeMap::new(), open: None },
            Err(reason) => {
                report!("vkCreateShaderModule: the host will refuse what uses images, since {reason}");
                Self { bytes, names, images: None, left_out: BTreeMap::new(), open: None }
            }
        }
    }
}

/// Whether kernels of a device need not name the formats of storage images.
pub(crate) fn is_bare(profile: &Profile) -> bool {
    let both = profile::FEATURE_READ_WITHOUT_FORMAT | profile::FEATURE_WRITE_WITHOUT_FORMAT;
    profile.features & both == both
}

/// A module without groups of decorations, without words on indices into arrays of images that differ, without names of formats that a device does not
/// need, and without gaps between its ids.
fn plain(bytes: Cow<'_, [u8]>, is_bare: bool) -> Cow<'_, [u8]> {
    let words = spirv::words(&bytes);
    let grouped = groups::expanded(&words);
    let understood = open::understood(grouped.as_deref().unwrap_or(&words)).or(grouped);
    let named = understood.as_deref().unwrap_or(&words);
    let unnamed = is_bare.then(|| unnamed(named)).flatten().or(understood);
    let counted = ids::counted(unnamed.as_deref().unwrap_or(&words));
    counted.or(unnamed).map_or(bytes, |words| spirv::bytes(&words).collect())
}

handle!(Module, vk::ShaderModule);

/// A binding that an entry point uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Use {
    /// The descriptor set.
    pub(crate) set: u32,
    /// The number within it.
    pub(crate) binding: u32,
    /// The number that the kernel has it under.
    pub(crate) slot: u32,
    /// Buffers that it has: more than one in an array. None where the module computes how many.
    pub(crate) count: Option<u32>,
}

/// Opcodes that are looked at, and where the ids stand in them that may be pointers.
mod op {
    pub(super) const ENTRY_POINT: u32 = 15;
    pub(super) const TYPE_ARRAY: u32 = 28;
    pub(super) const TYPE_POINTER: u32 = 32;
    pub(super) const CONSTANT: u32 = 43;
    pub(super) const SPEC_CONSTANT: u32 = 50;
    pub(super) const FUNCTION: u32 = 54;
    pub(super) const FUNCTION_CALL: u32 = 57;
    pub(super) const VARIABLE: u32 = 59;
    pub(super) const DECORATE: u32 = 71;
    pub(super) const LOOP_MERGE: u32 = 246;
    pub(super) const SELECTION_MERGE: u32 = 247;
    pub(super) const LABEL: u32 = 248;
    pub(super) const BRANCH: u32 = 249;
    pub(super) const BRANCH_CONDITIONAL: u32 = 250;
    pub(super) const SWITCH: u32 = 251;

    /// The operands of an instruction that may name a variable.
    pub(super) fn pointers(op: u32, words: &[u32]) -> &[u32] {
        let at = |range: std::ops::Range<usize>| words.get(range).unwrap_or_default();
        match op {
            // Pointer to a texel, load, access chains, array length, copy of an object, loads and changes of atomics.
            60 | 61 | 65..=68 | 70 | 83 | 227 | 229..=242 | 318 | 6035 => at(3..4),
            // Store, store of an atomic.
            62 | 228 | 319 => at(1..2),
            // Copies of memory.
            63 | 64 => at(1..3),
            FUNCTION_CALL => words.get(4..).unwrap_or_default(),
            _ => &[],
        }
    }
}

const DECORATION_SPEC_ID: u32 = 1;
const DECORATION_BINDING: u32 = 33;
const DECORATION_DESCRIPTOR_SET: u32 = 34;
const CLASS_UNIFORM_CONSTANT: u32 = 0;
const CLASS_UNIFORM: u32 = 2;
const CLASS_STORAGE_BUFFER: u32 = 12;
const MODEL_COMPUTE: u32 = 5;

/// What was read of a module.
#[derive(Default)]
struct Reader {
    sets: HashMap<u32, u32>,
    bindings: HashMap<u32, u32>,
    constants: HashMap<u32, u32>,
    /// Specialisation constant → its default.
    defaults: HashMap<u32, u32>,
    /// Specialisation constant → what a pipeline calls it.
    spec_ids: HashMap<u32, u32>,
    /// Pointer → what it points to.
    pointers: HashMap<u32, u32>,
    /// Array → id of its length.
    arrays: HashMap<u32, u32>,
    /// Variable of a buffer → its type.
    variables: BTreeMap<u32, u32>,
    /// Function → its first block.
    functions: HashMap<u32, u32>,
    /// Label → the block.
    blocks: HashMap<u32, Block>,
    long: Long,
    entry: Option<u32>,
}

/// A block of a function.
#[derive(Default)]
struct Block {
    /// Variables that it names.
    names: HashSet<u32>,
    /// Functions that it calls.
    calls: Vec<u32>,
    /// Where control goes, and what ends and continues the construct that it begins.
    next: Vec<u32>,
}

/// Where the text of a module is: the function, and the block in it; 0 before the first.
#[derive(Default)]
struct At {
    function: u32,
    block: u32,
}

fn note(map: &mut HashMap<u32, u32>, id: u32, value: u32) {
    map.insert(id, value);
}

impl Reader {
    fn read(words: &[u32], entry: &[u8]) -> Self {
        let (mut reader, mut at, mut rest) =
            (Self::default(), At::default(), words.get(spirv::HEADER..).unwrap_or_default());
        while let Some(first) = rest.first() {
            let (length, op) = ((first >> 16) as usize, first & 0xffff);
            let Some((instruction, after)) = rest.split_at_checked(length.max(1)) else { break };
            reader.instruction(op, instruction, entry, &mut at);
            rest = after;
        }
        reader
    }

    fn instruction(&mut self, op: u32, words: &[u32], entry: &[u8], at: &mut At) {
        self.long.note(op, words);
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
            (op::DECORATE, [_, id, DECORATION_SPEC_ID, number, ..]) => note(&mut self.spec_ids, *id, *number),
            (op::SPEC_CONSTANT, [_, _, id, value, ..]) => note(&mut self.defaults, *id, *value),
            (op::TYPE_POINTER, [_, id, _, to, ..]) => note(&mut self.pointers, *id, *to),
            (op::TYPE_ARRAY, [_, id, _, length, ..]) => note(&mut self.arrays, *id, *length),
            (op::CONSTANT, [_, _, id, value, ..]) => note(&mut self.constants, *id, *value),
            (
                op::VARIABLE,
                [_, ty, id, CLASS_UNIFORM_CONSTANT | CLASS_UNIFORM | CLASS_STORAGE_BUFFER, ..],
            ) => {
                self.variables.insert(*id, *ty);
            }
            (op::FUNCTION, [_, _, id, ..]) => *at = At { function: *id, block: 0 },
            (op::LABEL, [_, id, ..]) if at.function != 0 => {
                self.functions.entry(at.function).or_insert(*id);
                at.block = *id;
            }
            _ => {}
        }
        if at.block != 0 {
            let block = self.blocks.entry(at.block).or_default();
            let variables = &self.variables;
            block.names.extend(op::pointers(op, words).iter().filter(|id| variables.contains_key(id)));
            match (op, words) {
                (op::FUNCTION_CALL, [_, _, _, callee, ..]) => block.calls.push(*callee),
                (op::BRANCH | op::SELECTION_MERGE, [_, to, ..]) => block.next.push(*to),
                (op::LOOP_MERGE, [_, merge, next, ..]) => block.next.extend([merge, next]),
                (op::BRANCH_CONDITIONAL, [_, _, then, otherwise, ..]) => block.next.extend([then, otherwise]),
                (op::SWITCH, _) => {
                    block.next.extend(self.long.labels(words).filter_map(|label| words.get(label)));
                }
                _ => {}
            }
        }
    }

    /// The variables that the entry point uses, where it is there.
    fn used(&self) -> Option<BTreeSet<u32>> {
        let (mut seen, mut used) = (HashSet::new(), BTreeSet::new());
        let mut open: Vec<u32> = self.functions.get(&self.entry?).copied().into_iter().collect();
        while let Some(label) = open.pop() {
            if let Some(block) = self.blocks.get(&label).filter(|_| seen.insert(label)) {
                used.extend(&block.names);
                open.extend(&block.next);
                open.extend(block.calls.iter().filter_map(|callee| self.functions.get(callee)));
            }
        }
        Some(used)
    }

    /// Buffers of a variable, where the module says it or a constant of this pipeline.
    fn count(&self, variable: u32, constants: &BTreeMap<u32, u64>) -> Option<u32> {
        let held = self.variables.get(&variable).and_then(|ty| self.pointers.get(ty));
        let Some(length) = held.and_then(|held| self.arrays.get(held)) else { return Some(1) };
        let wished =
            || constants.get(self.spec_ids.get(length)?).and_then(|value| u32::try_from(*value).ok());
        let of_pipeline = || self.defaults.get(length).map(|default| wished().unwrap_or(*default));
        self.constants.get(length).copied().or_else(of_pipeline)
    }
}

/// The bindings that the compute entry point called `entry` uses with these values of specialisation constants, by set and number in the module; none where
/// there is no such entry point.
pub(crate) fn uses(bytes: &[u8], entry: &[u8], constants: &BTreeMap<u32, u64>) -> Option<Vec<Use>> {
    let reader = Reader::read(&spirv::words(bytes), entry);
    let mut found = BTreeMap::new();
    for variable in reader.used()? {
        let at = |map: &HashMap<u32, u32>| map.get(&variable).copied().unwrap_or(0);
        found.insert((at(&reader.sets), at(&reader.bindings)), reader.count(variable, constants));
    }
    let used = |((set, slot), count)| Use { set, binding: slot, slot, count };
    Some(found.into_iter().map(used).collect())
}

pub(crate) extern "system" fn create(
    device: vk::Device,
    info: *const vk::ShaderModuleCreateInfo<'_>,
    _allocator: *const vk::AllocationCallbacks<'_>,
    out: *mut vk::ShaderModule,
) -> vk::Result {
    abi::command("vkCreateShaderModule", || {
        let info = abi::read(info);
        let bytes = abi::items(info.p_code.cast::<u8>(), info.code_size);
        abi::give(Module::of(bytes, is_bare(&Device::of(device).profile)), out);
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::Module;
    use super::Use;
    use super::uses;
    use crate::spirv;

    /// Ids of what the modules below have.
    const MAIN: u32 = 1;
    const CALLED: u32 = 2;
    const UNUSED: u32 = 3;
    const PLAIN: u32 = 10;
    const ARRAY: u32 = 11;
    const SIZED: u32 = 12;
    const OTHER: u32 = 13;
    const ALIAS: u32 = 14;

    fn instruction(op: u32, operands: &[u32]) -> Vec<u32> {
        let length = u32::try_from(operands.len() + 1).unwrap();
        [&[length << 16 | op], operands].concat()
    }

    fn function(id: u32, body: &[Vec<u32>]) -> Vec<u32> {
        let label = instruction(248, &[id + 70]);
        let returns = instruction(253, &[]);
        [instruction(54, &[20, id, 0, 21]), label, body.concat(), returns, instruction(56, &[])].concat()
    }

    /// A module with five buffers, of the functions given; its entry point is called `main`.
    fn module(functions: &[Vec<u32>]) -> Vec<u8> {
        let mut words = vec![0x0723_0203, 0x0001_0300, 0, 100, 0];
        words.extend(instruction(15, &[5, MAIN, u32::from_le_bytes(*b"main"), 0]));
        for (id, set, binding) in [(PLAIN, 0, 4), (ARRAY, 0, 2), (SIZED, 1, 0), (OTHER, 7, 63), (ALIAS, 0, 4)]
        {
            words.extend(instruction(71, &[id, 34, set]));
            words.extend(instruction(71, &[id, 33, binding]));
        }
        // A block; arrays of it, of three and of as many as a specialisation constant says; pointers to all.
        words.extend(instruction(43, &[22, 31, 3]));
        words.extend(instruction(71, &[32, 1, 6]));
        words.extend(instruction(50, &[22, 32, 9]));
        words.extend(instruction(28, &[41, 40, 31]));
        words.extend(instruction(28, &[42, 40, 32]));
        for (pointer, to) in [(50, 40), (51, 41), (52, 42)] {
            words.extend(instruction(32, &[pointer, 12, to]));
        }
        for (id, pointer) in [(PLAIN, 50), (ARRAY, 51), (SIZED, 52), (OTHER, 50), (ALIAS, 50)] {
            words.extend(instruction(59, &[pointer, id, 12]));
        }
        words.extend(functions.concat());
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    fn chain(base: u32) -> Vec<u32> {
        instruction(65, &[60, 90, base, 31])
    }

    fn found(functions: &[Vec<u32>]) -> Vec<(u32, u32, Option<u32>)> {
        found_with(functions, &BTreeMap::new())
    }

    fn found_with(functions: &[Vec<u32>], constants: &BTreeMap<u32, u64>) -> Vec<(u32, u32, Option<u32>)> {
        let uses = uses(&module(functions), b"main", constants).expect("an entry point");
        uses.into_iter().map(|Use { set, binding, count, .. }| (set, binding, count)).collect()
    }

    #[test]
    fn what_is_used_is_what_functions_name_that_the_entry_point_reaches() {
        let call = instruction(57, &[20, 91, CALLED]);
        let called = function(CALLED, &[chain(OTHER)]);
        let unused = function(UNUSED, &[chain(ARRAY), instruction(57, &[20, 92, UNUSED])]);
        let main = function(MAIN, &[chain(PLAIN), call]);
        assert_eq!(found(&[main, called, unused]), [(0, 4, Some(1)), (7, 63, Some(1))]);
    }

    #[test]
    fn arrays_have_their_length_where_the_module_says_it() {
        let main = function(MAIN, &[chain(SIZED), chain(ARRAY)]);
        let all = [main];
        assert_eq!(found(&all), [(0, 2, Some(3)), (1, 0, Some(9))]);
        // Or a pipeline, of a specialisation constant.
        assert_eq!(found_with(&all, &[(6, 5), (7, 8)].into()), [(0, 2, Some(3)), (1, 0, Some(5))]);
    }

    #[test]
    fn blocks_that_control_cannot_reach_use_nothing_but_those_that_end_or_continue_a_construct_do() {
        let block = |id: u32, body: &[Vec<u32>]| [instruction(248, &[id]), body.concat()].concat();
        let to = |label: u32| instruction(249, &[label]);
        let nowhere = block(200, &[chain(OTHER), instruction(57, &[20, 91, CALLED]), to(201)]);
        let called = function(CALLED, &[chain(ARRAY)]);
        let end = block(201, &[]);
        let skipped = function(MAIN, &[to(201), nowhere.clone(), end.clone()]);
        assert_eq!(found(&[skipped, called.clone()]), []);
        let conditional = instruction(250, &[93, 200, 201]);
        let switch = instruction(251, &[93, 201, 7, 200]);
        let loops = [instruction(246, &[201, 200, 0]), to(201)].concat();
        for branch in [conditional, switch, loops] {
            let main = function(MAIN, &[branch, nowhere.clone(), end.clone()]);
            assert_eq!(found(&[main, called.clone()]), [(0, 2, Some(3)), (7, 63, Some(1))]);
        }
        // No label is a literal of a switch.
        let literal = function(MAIN, &[instruction(251, &[93, 201, 200, 201]), nowhere, end]);
        assert_eq!(found(&[literal, called]), []);
    }

    #[test]
    fn literals_of_a_switch_on_a_long_integer_are_two_words() {
        let (nowhere, end) = (called_block(200), called_block(201));
        let long = [instruction(21, &[95, 64, 0]), instruction(43, &[95, 94, 1, 0])].concat();
        // Only the second literal's label is there; the words of the first one are no labels.
        let main = function(MAIN, &[instruction(251, &[94, 202, 0, 201, 202, 7, 1, 200]), nowhere, end]);
        assert_eq!(found(&[long, main]), [(0, 4, Some(1))]);
    }

    #[test]
    fn a_module_is_read_without_groups_of_decorations_and_without_gaps_between_ids() {
        let main = function(MAIN, &[chain(OTHER)]);
        let mut words = spirv::words(&module(&[main]));
        // Set 6, binding 5 instead.
        let at = words.iter().position(|word| *word == OTHER).unwrap() - 1;
        let groups = [instruction(71, &[98, 34, 6]), instruction(71, &[98, 33, 5]), instruction(73, &[98])];
        let of = instruction(74, &[98, OTHER]);
        words.splice(at..at + 8, [groups.concat(), of].concat());
        for bound in [100, 0x003f_ffff] {
            words[3] = bound;
            let bytes: Vec<u8> = spirv::bytes(&words).collect();
            let module = Module::of(&bytes, true);
            let found = uses(&module.bytes, b"main", &BTreeMap::new()).unwrap();
            assert_eq!(found, [Use { set: 6, binding: 5, slot: 5, count: Some(1) }]);
            assert!(spirv::words(&module.bytes)[3] <= 100);
        }
    }

    /// A block that uses a buffer by its label: `PLAIN` in 200, `ARRAY` in any other.
    fn called_block(label: u32) -> Vec<u32> {
        let used = if label == 200 { PLAIN } else { ARRAY };
        [instruction(248, &[label]), chain(used), instruction(253, &[])].concat()
    }

    #[test]
    fn two_variables_of_one_binding_are_one_use() {
        let main = function(MAIN, &[chain(PLAIN), chain(ALIAS)]);
        assert_eq!(found(&[main]), [(0, 4, Some(1))]);
    }

    #[test]
    fn pointers_are_looked_for_where_instructions_have_them_and_not_in_literals() {
        let literal = instruction(81, &[60, 90, 31, PLAIN]);
        let store_of_a_number = instruction(62, &[OTHER, PLAIN]);
        let load = instruction(61, &[60, 90, ARRAY, PLAIN]);
        let length = instruction(68, &[60, 90, SIZED, PLAIN]);
        let main = function(MAIN, &[literal, store_of_a_number, load, length]);
        assert_eq!(found(&[main]), [(0, 2, Some(3)), (1, 0, Some(9)), (7, 63, Some(1))]);
        let argument = instruction(57, &[20, 91, CALLED, PLAIN]);
        assert_eq!(found(&[function(MAIN, &[argument])]), [(0, 4, Some(1))]);
        let atomic = instruction(234, &[60, 90, PLAIN, 31, 31, 31]);
        assert_eq!(found(&[function(MAIN, &[atomic])]), [(0, 4, Some(1))]);
    }

    #[test]
    fn modules_that_are_cut_anywhere_are_read_as_far_as_they_go() {
        let whole = module(&[function(MAIN, &[chain(PLAIN)])]);
        let none = BTreeMap::new();
        assert_eq!(uses(&whole, b"other", &none), None);
        for end in 0..whole.len() {
            let _without_a_panic = uses(&whole[..end], b"main", &none);
        }
        let mut endless = whole;
        // An instruction without length.
        endless[20..24].fill(0);
        assert_eq!(uses(&endless, b"main", &none), None);
    }
}
