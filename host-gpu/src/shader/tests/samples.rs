//! Modules that several tests use.

use spirv::Op;

use crate::shader::interface::Place;
use crate::shader::interface::Refusal;
use crate::shader::interface::Shader;
use crate::shader::interface::Wish;
use crate::shader::interface::guard;
use crate::shader::profile::Profile;
use crate::shader::tests::assembly::assemble;

/// Where the grid is put.
pub(super) const GRID: Place = Place { set: 0, binding: 16 };

pub(super) fn pass(text: &str) -> Result<Shader, Refusal> {
    pass_for(&Profile::ALL, text)
}

pub(super) fn pass_for(profile: &Profile, text: &str) -> Result<Shader, Refusal> {
    guard(&assemble(3, text), &Wish { profile, entry: None, rename: "main", grid: GRID })
}

/// Asserts that `text` is refused with words that contain `why`.
pub(super) fn says(text: &str, why: &str) {
    let words = pass(text).expect_err(text).to_string();
    assert!(words.contains(why), "`{why}` is not in: {words}");
}

/// The instructions `op` of a module, without their first words.
pub(super) fn all(words: &[u32], op: Op) -> Vec<Vec<u32>> {
    let (mut at, mut found) = (5, Vec::new());
    while at < words.len() {
        let len = usize::try_from(words[at] >> 16).unwrap();
        if words[at] & 0xffff == op as u32 {
            found.push(words[at + 1..at + len].to_vec());
        }
        at += len;
    }
    found
}

/// A kernel with capabilities, decorations, declarations and a body put in. `%o` is a storage buffer of words, `%id` where
/// the invocation is, `%x` its first component.
pub(super) fn kernel(capabilities: &str, decorations: &str, declarations: &str, body: &str) -> String {
    format!(
        "OpCapability Shader
         {capabilities}
         %glsl = OpExtInstImport \"GLSL.std.450\"
         OpMemoryModel 0 1
         OpEntryPoint 5 %main \"work\" %id %groups
         OpExecutionMode %main LocalSize 8 4 2
         OpDecorate %id BuiltIn GlobalInvocationId
         OpDecorate %groups BuiltIn NumWorkgroups
         OpDecorate %words ArrayStride 4
         OpDecorate %block Block
         OpMemberDecorate %block 0 Offset 0
         OpDecorate %o DescriptorSet 0
         OpDecorate %o Binding 3
         {decorations}
         %void = OpTypeVoid
         %f = OpTypeFunction %void
         %bool = OpTypeBool
         %uint = OpTypeInt 32 0
         %int = OpTypeInt 32 1
         %float = OpTypeFloat 32
         %uint3 = OpTypeVector %uint 3
         %0 = OpConstant %uint 0
         %1 = OpConstant %uint 1
         %4 = OpConstant %uint 4
         %7 = OpConstant %uint 7
         %true = OpConstantTrue %bool
         %in3 = OpTypePointer Input %uint3
         %in1 = OpTypePointer Input %uint
         %id = OpVariable %in3 Input
         %groups = OpVariable %in3 Input
         %words = OpTypeRuntimeArray %uint
         %block = OpTypeStruct %words
         %pblock = OpTypePointer StorageBuffer %block
         %pword = OpTypePointer StorageBuffer %uint
         %o = OpVariable %pblock StorageBuffer
         {declarations}
         %main = OpFunction %void 0 %f
         %start = OpLabel
         %at = OpAccessChain %in1 %id %0
         %x = OpLoad %uint %at
         {body}
         OpFunctionEnd"
    )
}

/// The end of a body that stores `%y` where the invocation is.
pub(super) const STORE: &str = "%place = OpAccessChain %pword %o %0 %x
     OpStore %place %y
     OpReturn";

/// A kernel that needs nothing special.
pub(super) fn plain(body: &str) -> String {
    kernel("", "", "", &format!("{body}\n{STORE}"))
}
