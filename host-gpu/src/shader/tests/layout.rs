//! Where the members of buffers may lie.

use crate::shader::profile::Profile;
use crate::shader::tests::samples::kernel;
use crate::shader::tests::samples::pass_for;

/// A device of the old rules alone.
const STRICT: Profile = Profile { uniform_standard: false, scalar_layout: false, ..Profile::ALL };
/// One with `uniformBufferStandardLayout`.
const STANDARD: Profile = Profile { uniform_standard: true, ..STRICT };
/// One with `scalarBlockLayout` too.
const SCALAR: Profile = Profile::ALL;

const TYPES: &str = "%byte = OpTypeInt 8 0
     %long = OpTypeInt 64 0
     %uint2 = OpTypeVector %uint 2
     %uint4 = OpTypeVector %uint 4
     %float2 = OpTypeVector %float 2
     %float3 = OpTypeVector %float 3
     %float4 = OpTypeVector %float 4
     %m22 = OpTypeMatrix %float2 2
     %m33 = OpTypeMatrix %float3 3
     %m23 = OpTypeMatrix %float3 2
     %inner = OpTypeStruct %uint %uint
     %a4 = OpTypeArray %uint %4
     %a16 = OpTypeArray %uint %4
     %ai = OpTypeArray %inner %4
     %am = OpTypeArray %m22 %4
     %rest = OpTypeRuntimeArray %uint2";

/// The size that a buffer needs with these members, each a type, an offset, and a matrix stride with its order; none where
/// they lie badly.
fn size(class: &str, members: &[(&str, u32, &str)]) -> Option<u64> {
    size_for(&STRICT, class, members)
}

/// The same on a device of this profile.
fn size_for(profile: &Profile, class: &str, members: &[(&str, u32, &str)]) -> Option<u64> {
    let mut decorations = String::from(
        "OpDecorate %b Block\nOpDecorate %p DescriptorSet 0\nOpDecorate %p Binding 4\nOpDecorate %a4 ArrayStride 4\nOpDecorate %a16 ArrayStride 16\nOpDecorate %ai ArrayStride 8\nOpDecorate %am ArrayStride 16\nOpDecorate %rest ArrayStride 8\nOpMemberDecorate %inner 0 Offset 0\nOpMemberDecorate %inner 1 Offset 4\n",
    );
    for (index, (_, offset, matrix)) in members.iter().enumerate() {
        decorations += &format!("OpMemberDecorate %b {index} Offset {offset}\n");
        for what in matrix.split_terminator(',') {
            decorations += &format!("OpMemberDecorate %b {index} {what}\n");
        }
    }
    let types: String = members.iter().map(|(ty, ..)| format!(" {ty}")).collect();
    let text = kernel(
        "OpCapability Int8\nOpCapability Int64\nOpCapability StorageBuffer8BitAccess\nOpCapability UniformAndStorageBuffer8BitAccess",
        &decorations,
        &format!(
            "{TYPES}\n%b = OpTypeStruct{types}\n%pb = OpTypePointer {class} %b\n%p = OpVariable %pb {class}\n%pm = OpTypePointer {class} {}",
            members[0].0
        ),
        "%q = OpAccessChain %pm %p %0\nOpReturn",
    );
    match pass_for(profile, &text) {
        Ok(shader) => Some(shader.bindings.iter().find(|b| b.binding == 4).expect("it is used").min_size),
        Err(error) => {
            assert!(error.to_string().contains("no offsets and strides"), "{error}");
            None
        }
    }
}

const STORAGE: &str = "StorageBuffer";
const UNIFORM: &str = "Uniform";
const COLUMNS: &str = "ColMajor,MatrixStride 8";

#[test]
fn members_lie_aligned_and_apart() {
    for (members, bytes) in [
        (&[("%uint", 0, "")][..], Some(4)),
        (&[("%uint", 0, ""), ("%uint", 4, "")], Some(8)),
        (&[("%uint", 4, ""), ("%uint", 0, "")], Some(8)),
        (&[("%uint", 0, ""), ("%uint", 3, "")], None),
        (&[("%uint", 0, ""), ("%uint", 0, "")], None),
        (&[("%uint", 2, "")], None),
        (&[("%byte", 3, "")], Some(4)),
        (&[("%byte", 4, "")], Some(8)),
        (&[("%long", 8, "")], Some(16)),
        (&[("%long", 4, "")], None),
        (&[("%long", 4_294_967_280, "")], Some(4_294_967_288)),
        (&[("%long", 4_294_967_288, "")], None),
        // Vectors: aligned to a component, if they do not straddle 16 bytes.
        (&[("%uint2", 4, "")], Some(12)),
        (&[("%uint2", 8, "")], Some(16)),
        (&[("%uint2", 12, "")], None),
        (&[("%uint2", 2, "")], None),
        (&[("%uint3", 4, "")], Some(16)),
        (&[("%uint3", 8, "")], None),
        (&[("%uint4", 16, "")], Some(32)),
        (&[("%uint4", 4, "")], None),
        (&[("%uint3", 0, ""), ("%uint", 12, "")], Some(16)),
        // Arrays and structs.
        (&[("%a4", 4, "")], Some(20)),
        (&[("%a4", 2, "")], None),
        (&[("%a16", 0, "")], Some(64)),
        (&[("%a4", 0, ""), ("%uint", 16, "")], Some(20)),
        (&[("%a4", 0, ""), ("%uint", 12, "")], None),
        (&[("%inner", 4, "")], Some(12)),
        (&[("%inner", 6, "")], None),
        (&[("%ai", 0, "")], Some(32)),
        (&[("%rest", 0, "")], Some(8)),
        (&[("%uint", 0, ""), ("%rest", 8, "")], Some(16)),
        (&[("%uint", 0, ""), ("%rest", 4, "")], None),
        (&[("%rest", 8, "")], Some(16)),
        // Matrices: columns or rows behind each other.
        (&[("%m22", 0, COLUMNS)], Some(16)),
        (&[("%m22", 8, COLUMNS)], Some(24)),
        (&[("%m22", 4, COLUMNS)], None),
        (&[("%m22", 0, "ColMajor,MatrixStride 4")], None),
        (&[("%m22", 0, "ColMajor,MatrixStride 12")], None),
        (&[("%m22", 0, "ColMajor,MatrixStride 0")], None),
        (&[("%m22", 0, "ColMajor")], None),
        (&[("%m22", 0, "MatrixStride 8")], None),
        (&[("%m22", 0, "ColMajor,RowMajor,MatrixStride 8")], None),
        (&[("%m33", 0, "ColMajor,MatrixStride 16")], Some(48)),
        (&[("%m33", 0, "ColMajor,MatrixStride 12")], None),
        (&[("%m23", 0, "ColMajor,MatrixStride 16")], Some(32)),
        (&[("%m23", 0, "RowMajor,MatrixStride 8")], Some(24)),
        (&[("%m23", 0, "ColMajor,MatrixStride 8")], None),
        (&[("%am", 0, COLUMNS)], Some(64)),
        (&[("%am", 0, "ColMajor,MatrixStride 16")], None),
        (&[("%m22", 0, COLUMNS), ("%uint", 16, "")], Some(20)),
        (&[("%m22", 0, COLUMNS), ("%uint", 12, "")], None),
    ] {
        assert_eq!(size(STORAGE, members), bytes, "{members:?}");
    }
}

#[test]
fn arrays_structs_and_matrices_of_uniform_buffers_are_aligned_to_16() {
    for (members, bytes) in [
        (&[("%uint", 4, "")][..], Some(8)),
        (&[("%a16", 0, "")], Some(64)),
        (&[("%a16", 16, "")], Some(80)),
        (&[("%a16", 8, "")], None),
        (&[("%a4", 0, "")], None),
        (&[("%inner", 16, "")], Some(24)),
        (&[("%inner", 8, "")], None),
        (&[("%inner", 0, ""), ("%uint", 16, "")], Some(20)),
        (&[("%inner", 0, ""), ("%uint", 8, "")], None),
        (&[("%m22", 0, COLUMNS)], None),
        (&[("%m22", 0, "ColMajor,MatrixStride 16")], Some(32)),
        (&[("%m22", 8, "ColMajor,MatrixStride 16")], None),
        (&[("%uint2", 4, "")], Some(12)),
    ] {
        assert_eq!(size(UNIFORM, members), bytes, "{members:?}");
    }
}

#[test]
fn uniform_buffers_may_lie_as_storage_buffers_do_where_the_device_lets_them() {
    for members in [
        &[("%a4", 0, "")][..],
        &[("%inner", 8, "")],
        &[("%inner", 0, ""), ("%uint", 8, "")],
        &[("%m22", 0, COLUMNS)],
    ] {
        assert_eq!(size_for(&STRICT, UNIFORM, members), None, "{members:?}");
        assert_eq!(size_for(&STANDARD, UNIFORM, members), size(STORAGE, members), "{members:?}");
        assert!(size(STORAGE, members).is_some());
    }
    for members in [&[("%uint2", 12, "")][..], &[("%uint", 2, "")], &[("%m22", 4, COLUMNS)]] {
        assert_eq!(size_for(&STANDARD, UNIFORM, members), None, "{members:?}");
    }
}

#[test]
fn scalar_layout_aligns_to_components_alone() {
    for (members, bytes) in [
        (&[("%uint2", 12, "")][..], Some(20)),
        (&[("%uint3", 8, "")], Some(20)),
        (&[("%uint4", 4, "")], Some(20)),
        (&[("%uint4", 2, "")], None),
        (&[("%uint", 0, ""), ("%rest", 4, "")], Some(12)),
        (&[("%m22", 4, COLUMNS)], Some(20)),
        (&[("%m33", 0, "ColMajor,MatrixStride 12")], Some(36)),
        (&[("%m33", 0, "ColMajor,MatrixStride 10")], None),
        (&[("%m33", 0, "ColMajor,MatrixStride 12"), ("%uint", 36, "")], Some(40)),
        (&[("%m33", 0, "ColMajor,MatrixStride 12"), ("%uint", 32, "")], None),
        (&[("%uint3", 0, ""), ("%uint", 8, "")], None),
        (&[("%long", 4, "")], None),
        (&[("%a4", 4, ""), ("%uint", 20, "")], Some(24)),
        // In the padding of the last element of an array whose elements stand 16 bytes apart.
        (&[("%a16", 0, ""), ("%uint", 52, "")], Some(56)),
        (&[("%a16", 0, ""), ("%uint", 48, "")], None),
    ] {
        assert_eq!(size_for(&SCALAR, STORAGE, members), bytes, "{members:?}");
        // `%rest` has no length, as only storage buffers may have it.
        if members.iter().all(|(ty, ..)| *ty != "%rest") {
            assert_eq!(size_for(&SCALAR, UNIFORM, members), bytes, "{members:?}");
        }
    }
}

#[test]
fn vectors_of_more_than_16_bytes_begin_at_a_multiple_of_16() {
    let at = |offset: u32| {
        let text = kernel(
            "OpCapability Int64",
            &format!(
                "OpDecorate %b Block\nOpMemberDecorate %b 0 Offset {offset}\nOpDecorate %p DescriptorSet 0\nOpDecorate %p Binding 4"
            ),
            "%long = OpTypeInt 64 0\n%long3 = OpTypeVector %long 3\n%b = OpTypeStruct %long3\n%pb = OpTypePointer StorageBuffer %b\n%p = OpVariable %pb StorageBuffer",
            "OpReturn",
        );
        pass_for(&STRICT, &text).is_ok()
    };
    assert!(at(0) && at(16) && !at(8) && !at(24));
}
