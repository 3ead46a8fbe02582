//! Copies of pointers: each is what it copies.

use spirv::Op;
use spirv::StorageClass;

use crate::shader::tests::samples::all;
use crate::shader::tests::samples::breaks;
use crate::shader::tests::samples::kernel;
use crate::shader::tests::samples::pass;
use crate::shader::tests::samples::plain;

#[test]
fn a_copied_pointer_reads_and_writes_what_it_copies() {
    let read = "%c = OpCopyObject %pblock %o\n%q = OpAccessChain %pword %c %0 %x\n%d = OpCopyObject %pword %q\n%y = OpLoad %uint %d\nOpReturn";
    let shader = pass(&kernel("", "", "", read)).unwrap();
    assert_eq!(all(&shader.words, Op::CopyObject).len(), 2);
    assert!(!shader.bindings[0].is_written);
    let write = read.replace("%y = OpLoad %uint %d", "OpStore %d %x");
    assert!(pass(&kernel("", "", "", &write)).unwrap().bindings[0].is_written, "through two copies");
}

#[test]
fn a_copied_pointer_has_the_type_of_what_it_copies() {
    let good =
        plain("%c = OpCopyObject %pblock %o\n%q = OpAccessChain %pword %c %0 %x\n%y = OpLoad %uint %q");
    breaks(
        &good,
        &[
            ("OpCopyObject %pblock", "OpCopyObject %pword", "not of the type of what it copies"),
            ("OpCopyObject %pblock %o", "OpCopyObject %pblock %x", "is not a pointer"),
            ("OpCopyObject %pblock %o", "OpCopyObject %pblock %id", "not of the type of what it copies"),
            ("OpCopyObject %pblock %o", "OpCopyObject %pblock %o %o", "too few or too many operands"),
            ("OpCopyObject %pblock", "OpCopyObject %uint", "operand"),
        ],
    );
}

#[test]
fn which_of_several_buffers_is_bounded_through_a_copy_too() {
    let text = kernel(
        "OpCapability StorageBufferArrayDynamicIndexing",
        "OpDecorate %t DescriptorSet 0\nOpDecorate %t Binding 9",
        "%several = OpTypeArray %block %4\n%ps = OpTypePointer StorageBuffer %several\n%t = OpVariable %ps StorageBuffer",
        "%c = OpCopyObject %ps %t\n%q = OpAccessChain %pword %c %x %0 %x\nOpStore %q %x\nOpReturn",
    );
    let words = pass(&text).unwrap().words;
    let [select] = &all(&words, Op::Select)[..] else { panic!("no bound") };
    let last = all(&words, Op::Constant).into_iter().find(|c| c[1] == select[4]).unwrap()[2];
    assert_eq!(last, 3);
    assert!(all(&words, Op::AccessChain).iter().any(|chain| chain[3] == select[1]));
}

#[test]
fn a_copied_pointer_to_the_number_of_workgroups_leads_into_its_buffer() {
    let body = "%c = OpCopyObject %in3 %groups\n%d = OpCopyObject %in3 %c\n%v = OpLoad %uint3 %c\n%g = OpAccessChain %in1 %d %1\n%y = OpLoad %uint %g";
    let shader = pass(&plain(body)).unwrap();
    assert!(shader.uses_num_workgroups);
    let pointers = all(&shader.words, Op::TypePointer);
    let class = |ty: u32| pointers.iter().find(|p| p[0] == ty).unwrap()[1];
    let storage = StorageClass::StorageBuffer as u32;
    let [copy] = &all(&shader.words, Op::CopyObject)[..] else { panic!("the first one is a chain") };
    assert_eq!(class(copy[0]), storage);
    let chains = all(&shader.words, Op::AccessChain);
    let first = chains.iter().find(|chain| chain[1] == copy[2]).unwrap();
    assert_eq!((class(first[0]), first.len()), (storage, 4), "into the only member");
    let second = chains.iter().find(|chain| chain[2] == copy[1]).unwrap();
    assert_eq!((class(second[0]), second.len()), (storage, 4), "into the vector");
}
