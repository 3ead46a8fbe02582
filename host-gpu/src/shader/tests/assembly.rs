//! An assembler for the tests: one instruction a line, as `spirv-dis` writes them, with numbers for literals.

use std::collections::HashMap;
use std::str::FromStr;
use std::sync::LazyLock;

use spirv::BuiltIn;
use spirv::Capability;
use spirv::Decoration;
use spirv::ExecutionMode;
use spirv::GlslStd450Op;
use spirv::Op;
use spirv::StorageClass;

/// A module of which a part is assembled.
#[derive(Debug, Clone)]
pub(crate) struct Assembly {
    ids: HashMap<String, u32>,
    words: Vec<u32>,
}

impl Assembly {
    /// Of SPIR-V 1.`minor`, with nothing but its header.
    pub(crate) fn new(minor: u32) -> Self {
        Self { ids: HashMap::new(), words: vec![spirv::MAGIC_NUMBER, 0x0001_0000 | minor << 8, 0, 0, 0] }
    }

    /// Goes on with `text`.
    pub(crate) fn add(&mut self, text: &str) {
        let Self { ids, words } = self;
        for line in text
            .lines()
            .map(|line| line.split(';').next().expect("right assembly").trim())
            .filter(|line| !line.is_empty())
        {
            let (result, instruction) = match line.split_once(" = ") {
                Some((id, rest)) => (Some(id.trim()), rest.trim()),
                None => (None, line),
            };
            let mut tokens = instruction.split_whitespace();
            let name = tokens.next().expect("right assembly");
            let op = op_of(name.strip_prefix("Op").expect("right assembly"));
            let mut operands: Vec<u32> = tokens.flat_map(|token| operand(op, token, ids)).collect();
            if let Some(id) = result {
                let id = id_of(id, ids);
                // Types and imports have no type of their own.
                let first =
                    name.starts_with("OpType") || matches!(op, Op::Label | Op::ExtInstImport | Op::String);
                operands.insert(usize::from(!first), id);
            }
            words.push(u32::try_from(operands.len() + 1).expect("right assembly") << 16 | op as u32);
            words.extend(operands);
        }
    }

    /// The words, with the bound of their ids.
    pub(crate) fn into_words(mut self) -> Vec<u32> {
        self.words[3] = u32::try_from(self.ids.len() + 1).expect("right assembly");
        keep_for_fuzzers(&self.words);
        self.words
    }
}

/// The words of `text`, a module of SPIR-V 1.`minor`.
pub(crate) fn assemble(minor: u32, text: &str) -> Vec<u32> {
    let mut assembly = Assembly::new(minor);
    assembly.add(text);
    assembly.into_words()
}

/// Every module of these tests is one to begin with: `ci/fuzz/run shader` names the folder.
fn keep_for_fuzzers(words: &[u32]) {
    let Some(folder) = std::env::var_os("CAMPANILE_FUZZ_MODULES") else { return };
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let name = format!("{:016x}", xxhash_rust::xxh3::xxh3_64(&bytes));
    std::fs::write(std::path::Path::new(&folder).join(name), bytes).expect("a folder for modules");
}

/// The crate has names for instructions, and no way back from them.
fn op_of(name: &str) -> Op {
    static NAMES: LazyLock<HashMap<String, Op>> =
        LazyLock::new(|| (0..7000).filter_map(Op::from_u32).map(|op| (format!("{op:?}"), op)).collect());
    *NAMES.get(name).expect("an instruction of SPIR-V")
}

fn id_of(token: &str, ids: &mut HashMap<String, u32>) -> u32 {
    let next = u32::try_from(ids.len() + 1).expect("right assembly");
    *ids.entry(token.to_owned()).or_insert(next)
}

fn operand(op: Op, token: &str, ids: &mut HashMap<String, u32>) -> Vec<u32> {
    if token.starts_with('%') {
        return vec![id_of(token, ids)];
    }
    if let Some(text) = token.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) {
        let mut bytes = text.as_bytes().to_vec();
        bytes.resize(bytes.len() / 4 * 4 + 4, 0);
        return bytes
            .chunks_exact(4)
            .map(|b| u32::from_le_bytes(b.try_into().expect("right assembly")))
            .collect();
    }
    if let Ok(number) = token.parse::<i64>() {
        return vec![u32::try_from(number & 0xffff_ffff).expect("right assembly")];
    }
    let named = match op {
        Op::Capability => Capability::from_str(token).map(|x| x as u32),
        Op::ExecutionMode | Op::ExecutionModeId => ExecutionMode::from_str(token).map(|x| x as u32),
        Op::Variable | Op::TypePointer => StorageClass::from_str(token).map(|x| x as u32),
        Op::ExtInst => (0..100)
            .find(|code| GlslStd450Op::from_u32(*code).is_some_and(|op| format!("{op:?}") == token))
            .ok_or(()),
        Op::SpecConstantOp => Ok(op_of(token) as u32),
        _ => Decoration::from_str(token)
            .map(|x| x as u32)
            .or_else(|()| BuiltIn::from_str(token).map(|x| x as u32)),
    };
    vec![named.expect("a name that SPIR-V has")]
}
