//! The text of a kernel around what a test is about.

/// What a test puts into a kernel: lines of assembly, each part where SPIR-V wants it.
#[derive(Clone, Copy, Default)]
pub(crate) struct Parts<'a> {
    /// Invocations of a workgroup, three numbers.
    pub(crate) size: &'a str,
    pub(crate) capabilities: &'a str,
    pub(crate) decorations: &'a str,
    pub(crate) declarations: &'a str,
    /// Of the function.
    pub(crate) variables: &'a str,
    /// The rest of the function, with its end.
    pub(crate) body: &'a str,
}

/// A kernel of these parts. `%o` is a storage buffer of words, `%id` where the invocation is, `%x` its first component.
pub(crate) fn kernel(parts: &Parts<'_>) -> String {
    let Parts { size, capabilities, decorations, declarations, variables, body } = parts;
    format!(
        "OpCapability Shader
         {capabilities}
         %glsl = OpExtInstImport \"GLSL.std.450\"
         OpMemoryModel 0 1
         OpEntryPoint 5 %main \"work\" %id %groups
         OpExecutionMode %main LocalSize {size}
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
         {variables}
         %at = OpAccessChain %in1 %id %0
         %x = OpLoad %uint %at
         {body}
         OpFunctionEnd"
    )
}
