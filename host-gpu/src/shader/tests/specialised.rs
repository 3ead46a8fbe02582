//! Values that a pipeline gives specialisation constants.

use spirv::Op;
use spirv::StorageClass;

use crate::shader::interface::Refusal;
use crate::shader::interface::Shader;
use crate::shader::interface::Wish;
use crate::shader::pass::guard;
use crate::shader::profile::Profile;
use crate::shader::tests::assembly::assemble;
use crate::shader::tests::samples::GRID;
use crate::shader::tests::samples::all;
use crate::shader::tests::samples::kernel;

fn specialise(constants: &[(u32, u64)], text: &str) -> Result<Shader, Refusal> {
    let wish = Wish { profile: &Profile::ALL, entry: None, constants, rename: "main", grid: GRID };
    guard(&assemble(3, text), &wish)
}

/// A kernel that stores `%c`, which is declared so, as its text says.
fn storing(decorations: &str, declarations: &str, body: &str) -> String {
    let body = format!(
        "%place = OpAccessChain %pword %o %0 %x
         {body}
         OpStore %place %y
         OpReturn"
    );
    kernel("OpCapability Int64\nOpCapability Int16\nOpCapability Float64", decorations, declarations, &body)
}

/// The words of the constant that the last addition in `shader` adds.
fn added(shader: &Shader) -> Vec<u32> {
    let last = all(&shader.words, Op::IAdd).last().unwrap()[3];
    all(&shader.words, Op::Constant).into_iter().find(|c| c[1] == last).unwrap()[2..].to_vec()
}

#[test]
fn a_constant_takes_the_value_of_its_id_and_keeps_its_default_without_one() {
    let text = storing(
        "OpDecorate %c SpecId 7",
        "%c = OpSpecConstant %uint 5\n%twice = OpSpecConstantOp %uint IMul %c %4",
        "%y = OpIAdd %uint %x %twice",
    );
    for (constants, wanted) in [
        (&[][..], 20),
        (&[(7, 3)], 12),
        (&[(6, 3), (8, 4)], 20),
        (&[(0, 1), (7, 9), (9, 1)], 36),
        // More bits than its type has are left out.
        (&[(7, 0xff_0000_0002)], 8),
    ] {
        let shader = specialise(constants, &text).unwrap();
        assert_eq!(added(&shader), [wanted], "{constants:?}");
        assert!(all(&shader.words, Op::SpecConstant).is_empty(), "the driver must not choose again");
    }
}

#[test]
fn values_have_the_bits_of_their_type() {
    let long = storing(
        "OpDecorate %c SpecId 0",
        "%long = OpTypeInt 64 0\n%c = OpSpecConstant %long 1 0",
        "%l = OpUConvert %long %x\n%s = OpIAdd %long %l %c\n%y = OpUConvert %uint %s",
    );
    assert_eq!(added(&specialise(&[(0, 0x1234_5678_9abc_def0)], &long).unwrap()), [0x9abc_def0, 0x1234_5678]);
    let short = storing(
        "OpDecorate %c SpecId 0",
        "%short = OpTypeInt 16 1\n%c = OpSpecConstant %short 1",
        "%l = OpSConvert %short %x\n%s = OpIAdd %short %l %c\n%y = OpSConvert %uint %s",
    );
    // A signed number of fewer than 32 bits is written with its sign.
    assert_eq!(added(&specialise(&[(0, 0xfffe)], &short).unwrap()), [0xffff_fffe]);
    assert_eq!(added(&specialise(&[(0, 0x1_0003)], &short).unwrap()), [3]);
}

#[test]
fn a_bool_is_true_for_all_but_zero() {
    for (default, constants, wanted) in [
        ("True", &[][..], true),
        ("False", &[], false),
        ("True", &[(1, 0)], false),
        ("False", &[(1, 1)], true),
        ("False", &[(1, 0x100)], true),
    ] {
        let text = storing(
            "OpDecorate %c SpecId 1",
            &format!(
                "%c = OpSpecConstant{default} %bool
                 %chosen = OpSpecConstantOp %uint Select %c %1 %4"
            ),
            "%z = OpSelect %uint %c %1 %4\n%y = OpIAdd %uint %z %chosen",
        );
        let shader = specialise(constants, &text).unwrap();
        assert_eq!(added(&shader), [if wanted { 1 } else { 4 }], "where the guard computes with it");
        let chosen = all(&shader.words, Op::Select)[0][2];
        let is_true = all(&shader.words, Op::ConstantTrue).iter().any(|c| c[1] == chosen);
        assert_eq!(is_true, wanted, "{default} {constants:?}");
    }
}

#[test]
fn lengths_and_workgroup_sizes_follow() {
    let text = storing(
        "OpDecorate %c SpecId 0\nOpDecorate %size BuiltIn WorkgroupSize",
        "%c = OpSpecConstant %uint 5
         %size = OpSpecConstantComposite %uint3 %c %1 %4
         %array = OpTypeArray %uint %c
         %parray = OpTypePointer Workgroup %array
         %pcell = OpTypePointer Workgroup %uint
         %cells = OpVariable %parray Workgroup",
        "%cell = OpAccessChain %pcell %cells %x\n%y = OpLoad %uint %cell",
    );
    for (constants, length) in [(&[][..], 5), (&[(0, 12)], 12)] {
        let shader = specialise(constants, &text).unwrap();
        assert_eq!((shader.workgroup, shader.workgroup_memory), ([length, 1, 4], u64::from(length) * 4));
        // Its index is kept below that length.
        let last = all(&shader.words, Op::Constant).iter().any(|c| c[2..] == [length - 1]);
        let variables = all(&shader.words, Op::Variable);
        assert!(variables.iter().any(|v| v[2] == StorageClass::Workgroup as u32) && last);
    }
    for wrong in [0, 1 << 32, 0xffff_ffff] {
        let refused = specialise(&[(0, wrong)], &text).unwrap_err().to_string();
        assert!(refused.contains("its length is not"), "{refused}");
    }
}

#[test]
fn a_constant_has_one_id() {
    let text = storing(
        "OpDecorate %c SpecId 0\nOpDecorate %c SpecId 1",
        "%c = OpSpecConstant %uint 5",
        "%y = OpIAdd %uint %x %c",
    );
    let refused = specialise(&[(0, 1), (1, 2)], &text).unwrap_err().to_string();
    assert!(refused.contains("has a SpecId already"), "{refused}");
}
