//! A kernel with a value and a variable of many types, and which of them an instruction takes.

use std::collections::HashMap;
use std::sync::LazyLock;
use std::sync::Mutex;
use std::sync::PoisonError;

use crate::shader::interface::Refusal;
use crate::shader::interface::Wish;
use crate::shader::profile::Profile;
use crate::shader::tests::assembly::Assembly;
use crate::shader::tests::samples::GRID;
use crate::shader::tests::samples::whole;

/// Types, by name. `m23` is a matrix of 2 columns with 3 rows, `h22` one of 16 bits.
const TYPES: [(&str, &str); 47] = [
    ("b", "OpTypeBool"),
    ("s8", "OpTypeInt 8 1"),
    ("u8", "OpTypeInt 8 0"),
    ("u16", "OpTypeInt 16 0"),
    ("s32", "OpTypeInt 32 1"),
    ("u32", "OpTypeInt 32 0"),
    ("u64", "OpTypeInt 64 0"),
    ("f16", "OpTypeFloat 16"),
    ("f32", "OpTypeFloat 32"),
    ("f64", "OpTypeFloat 64"),
    ("bx2", "OpTypeVector %b 2"),
    ("bx4", "OpTypeVector %b 4"),
    ("s8x4", "OpTypeVector %s8 4"),
    ("u8x4", "OpTypeVector %u8 4"),
    ("s32x2", "OpTypeVector %s32 2"),
    ("u32x2", "OpTypeVector %u32 2"),
    ("u32x3", "OpTypeVector %u32 3"),
    ("u32x4", "OpTypeVector %u32 4"),
    ("u64x2", "OpTypeVector %u64 2"),
    ("f16x2", "OpTypeVector %f16 2"),
    ("f32x2", "OpTypeVector %f32 2"),
    ("f32x3", "OpTypeVector %f32 3"),
    ("f32x4", "OpTypeVector %f32 4"),
    ("f64x2", "OpTypeVector %f64 2"),
    ("uu", "OpTypeStruct %u32 %u32"),
    ("vv", "OpTypeStruct %u32 %u32"),
    ("ss", "OpTypeStruct %s32 %s32"),
    ("us", "OpTypeStruct %u32 %s32"),
    ("uuu", "OpTypeStruct %u32 %u32 %u32"),
    ("ff", "OpTypeStruct %f32 %f32"),
    ("fi", "OpTypeStruct %f32 %s32"),
    ("fh", "OpTypeStruct %f32 %f16"),
    ("fl", "OpTypeStruct %f32 %u64"),
    ("fv", "OpTypeStruct %f32 %s32x2"),
    ("nu", "OpTypeStruct %uu %u32"),
    ("nv", "OpTypeStruct %vv %u32"),
    ("ns", "OpTypeStruct %vv %s32"),
    ("a2", "OpTypeArray %u32 %c2"),
    ("d2", "OpTypeArray %u32 %c2"),
    ("a3", "OpTypeArray %u32 %c3"),
    ("s2", "OpTypeArray %s32 %c2"),
    ("n2", "OpTypeArray %uu %c2"),
    ("m22", "OpTypeMatrix %f32x2 2"),
    ("m23", "OpTypeMatrix %f32x3 2"),
    ("m32", "OpTypeMatrix %f32x2 3"),
    ("m33", "OpTypeMatrix %f32x3 3"),
    ("h22", "OpTypeMatrix %f16x2 2"),
];

/// Everything that instructions need, but what tests are about.
pub(super) const CAPABILITIES: &str = "Shader Int8 Int16 Int64 Float16 Float64 Int64Atomics AtomicFloat32AddEXT \
    GroupNonUniform \
    GroupNonUniformVote GroupNonUniformArithmetic GroupNonUniformBallot GroupNonUniformShuffle \
    GroupNonUniformShuffleRelative GroupNonUniformClustered GroupNonUniformQuad DotProduct DotProductInputAll \
    DotProductInput4x8Bit DotProductInput4x8BitPacked";

/// What comes before the values: the same for many lines.
fn head(minor: u32, capabilities: &str) -> Assembly {
    static HEADS: LazyLock<Mutex<HashMap<(u32, String), Assembly>>> = LazyLock::new(Mutex::default);
    let mut heads = HEADS.lock().unwrap_or_else(PoisonError::into_inner);
    let head = heads.entry((minor, capabilities.to_owned())).or_insert_with(|| {
        let memory_model = if capabilities.contains("VulkanMemoryModel") { 3 } else { 1 };
        let mut text = String::new();
        text.extend(capabilities.split_whitespace().map(|name| format!("OpCapability {name}\n")));
        text += &format!(
            "%glsl = OpExtInstImport \"GLSL.std.450\"
             OpMemoryModel 0 {memory_model}
             OpEntryPoint 5 %main \"main\"
             OpExecutionMode %main LocalSize 1 1 1
             %void = OpTypeVoid
             %f = OpTypeFunction %void\n"
        );
        for (name, declaration) in TYPES {
            text += &format!("%{name} = {declaration}\n");
            if name == "u64" {
                text.extend((0..=8).map(|n| format!("%c{n} = OpConstant %u32 {n}\n")));
            }
        }
        let mut head = Assembly::new(minor);
        head.add(&text);
        head
    });
    head.clone()
}

/// `line` in a module of SPIR-V 1.`minor`. `%T` is a type of the table, `%_T` a value of it, `%vT` and `%wT` variables
/// of it in the function and the workgroup (the latter before 1.4 only, where no interface names them), `%cN` a constant
/// from 0 to 8.
fn with(minor: u32, capabilities: &str, more: &str, line: &str) -> Vec<u32> {
    // Values and variables, as far as the line names them.
    let mut tokens: Vec<&str> = line.split_whitespace().collect();
    tokens.sort_unstable();
    tokens.dedup();
    let (mut declarations, mut variables) = (String::new(), String::new());
    for token in tokens {
        let named = |prefix: &str| {
            let rest = token.strip_prefix(prefix)?;
            TYPES.iter().map(|(name, _)| *name).find(|name| *name == rest)
        };
        if let Some(name) = named("%_") {
            declarations += &format!("%_{name} = OpUndef %{name}\n");
        } else if let Some(name) = named("%v") {
            declarations += &format!("%p{name} = OpTypePointer Function %{name}\n");
            variables += &format!("%v{name} = OpVariable %p{name} Function\n");
        } else if let Some(name) = named("%w") {
            declarations += &format!("%pw{name} = OpTypePointer Workgroup %{name}\n");
            declarations += &format!("%w{name} = OpVariable %pw{name} Workgroup\n");
        }
    }
    let mut module = head(minor, capabilities);
    module.add(&format!(
        "{declarations}{more}
         %main = OpFunction %void 0 %f
         %start = OpLabel
         {variables}{line}
         OpReturn
         OpFunctionEnd"
    ));
    module.into_words()
}

/// The answer to `line` in a module with all that a device can have.
pub(super) fn check(minor: u32, capabilities: &str, more: &str, line: &str) -> Result<(), Refusal> {
    let wish = Wish { profile: &Profile::ALL, entry: None, constants: &[], rename: "main", grid: GRID };
    whole(&with(minor, capabilities, more, line), &wish).map(|_| ())
}

/// The types that may stand for each `?` of `line`, in the order of the table. The others are refused for the
/// instruction itself.
pub(super) fn takes_in(minor: u32, line: &str) -> String {
    let name = line.split_whitespace().find(|token| token.starts_with("Op")).expect("an instruction");
    let mut taken = Vec::new();
    for (ty, _) in TYPES {
        match check(minor, CAPABILITIES, "", &line.replace('?', ty)) {
            Ok(()) => taken.push(ty),
            Err(Refusal::Broken(error)) => assert_eq!(error.name, name, "{line}, {ty}: {error}"),
            Err(error) => panic!("{line}, {ty}: {error}"),
        }
    }
    taken.join(" ")
}

/// The least version of SPIR-V, 1 point this, that these tests need for `line`.
pub(super) fn version_of(line: &str) -> u32 {
    if line.contains("OpCopyLogical") { 4 } else { 3 }
}

/// Asserts that the types which may stand for `?` in each line are these.
pub(super) fn takes(cases: &[(&str, &str)]) {
    for (line, types) in cases {
        assert_eq!(takes_in(version_of(line), line), *types, "{line}");
    }
}

/// Asserts that each line is accepted, and refused for its last instruction once it is changed as said.
pub(super) fn only(minor: u32, capabilities: &str, more: &str, line: &str, changes: &[(&str, &str)]) {
    check(minor, capabilities, more, line).unwrap_or_else(|error| panic!("{line}: {error}"));
    for (from, to) in changes {
        assert!(line.contains(from), "{line}: {from}");
        let changed = line.replacen(from, to, 1);
        let refusal = check(minor, capabilities, more, &changed).expect_err(&changed);
        let Refusal::Broken(error) = refusal else { panic!("{changed}: {refusal}") };
        let last =
            line.lines().last().expect("a line").split_whitespace().find(|token| token.starts_with("Op"));
        assert_eq!(Some(error.name.as_str()), last, "{changed}: {error}");
    }
}
