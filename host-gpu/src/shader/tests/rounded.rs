//! How conversions for buffers round.

use spirv::Decoration;
use spirv::Op;

use crate::shader::tests::samples::all;
use crate::shader::tests::samples::breaks;
use crate::shader::tests::samples::kernel;
use crate::shader::tests::samples::pass;

#[test]
fn a_conversion_to_16_bits_may_say_how_it_rounds_for_a_buffer_and_nothing_else_may() {
    let good = kernel(
        "OpCapability Float16\nOpCapability StorageBuffer16BitAccess",
        "OpDecorate %h FPRoundingMode 1
         OpDecorate %halves ArrayStride 2
         OpMemberDecorate %b 0 Offset 0
         OpDecorate %b Block
         OpDecorate %p DescriptorSet 0
         OpDecorate %p Binding 4",
        "%half = OpTypeFloat 16
         %halves = OpTypeRuntimeArray %half
         %b = OpTypeStruct %halves
         %pb = OpTypePointer StorageBuffer %b
         %ph = OpTypePointer StorageBuffer %half
         %p = OpVariable %pb StorageBuffer
         %own = OpTypePointer Private %half
         %mine = OpVariable %own Private",
        "%wide = OpConvertUToF %float %x
         %h = OpFConvert %half %wide
         %more = OpFConvert %half %wide
         %q = OpAccessChain %ph %p %0 %x
         OpStore %q %h
         OpReturn",
    );
    let words = pass(&good).unwrap_or_else(|why| panic!("{why}")).words;
    let rounded = |d: &Vec<u32>| d[1..] == [Decoration::FPRoundingMode as u32, 1];
    assert_eq!(all(&words, Op::Decorate).into_iter().filter(rounded).count(), 1);
    assert!(pass(&good.replace("FPRoundingMode 1", "FPRoundingMode 0")).is_ok());
    // A decoration of what is not there says nothing.
    let missing = good.replace("OpDecorate %h FPRoundingMode 1", "OpDecorate %nothing FPRoundingMode 1");
    assert!(!all(&pass(&missing).unwrap().words, Op::Decorate).iter().any(rounded));
    // What is only for debuggers uses nothing, whatever its numbers are.
    for line in 1..80 {
        let text = good
            .replace("OpDecorate %id BuiltIn", "%file = OpString \"file\"\nOpDecorate %id BuiltIn")
            .replace("OpStore %q", &format!("OpLine %file {line} {line}\nOpStore %q"));
        assert!(pass(&text).is_ok(), "{line}: {:?}", pass(&text).map(|_| ()));
    }
    let converts = "it stands on no conversion to floats of 16 bits";
    let used = "it uses what is rounded for a buffer";
    breaks(
        &good,
        &[
            ("OpCapability StorageBuffer16BitAccess", "", "needs a capability of 16 bits in buffers"),
            ("FPRoundingMode 1", "FPRoundingMode 2", converts),
            ("%h FPRoundingMode 1", "%wide FPRoundingMode 1", converts),
            ("OpDecorate %h FPRoundingMode 1", "OpMemberDecorate %h 0 FPRoundingMode 1", converts),
            ("%h FPRoundingMode 1", "%float FPRoundingMode 1", "FPRoundingMode does not belong on"),
            ("FPRoundingMode 1", "FPRoundingMode", "too few or too many operands"),
            ("OpStore %q %h\n", "OpStore %q %h\nOpStore %mine %h\n", used),
            ("OpStore %q %h\n", "OpStore %q %h\n%twice = OpFAdd %half %more %h\n", used),
            ("OpStore %q %h\n", "OpStore %q %h\n%back = OpFConvert %float %h\n", used),
            (
                "OpDecorate %h FPRoundingMode 1",
                "OpDecorate %h FPRoundingMode 1\nOpDecorate %h FPRoundingMode 0",
                "FPRoundingMode stands twice",
            ),
        ],
    );
}
