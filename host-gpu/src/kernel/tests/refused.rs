use crate::kernel::error::DIAGNOSTIC_LIMIT;
use crate::kernel::error::KernelError;
use crate::kernel::sanitizer::sanitize;
use crate::kernel::source::Language;
use crate::kernel::source::Source;
use crate::kernel::tests::samples;
use crate::kernel::tests::samples::doing;

fn refuse(text: &str) -> String {
    match sanitize(&Source::wgsl(text)) {
        Ok(_) => panic!("accepted: {text}"),
        Err(e) => e.to_string(),
    }
}

/// Asserts that the message for `text` says each of `words`.
fn says(text: &str, words: &[&str]) {
    let message = refuse(text);
    for word in words {
        assert!(message.contains(word), "`{word}` is not in: {message}");
    }
}

#[test]
fn random_bytes_are_not_spirv() {
    let bytes: Vec<u8> = (0..4096_u32).map(|i| i.wrapping_mul(2_654_435_761).to_be_bytes()[0]).collect();
    let answer = sanitize(&Source::spirv(bytes));
    assert!(matches!(answer, Err(KernelError::Parse(_))), "{answer:?}");
}

#[test]
fn a_source_beyond_the_limit_is_not_looked_at() {
    for source in [Source::wgsl(""), Source::spirv(Vec::new())] {
        let limit = source.language.limit();
        let answer = sanitize(&Source { bytes: vec![b' '; limit + 1], ..source });
        assert_eq!(answer.map(|_| ()), Err(KernelError::TooLong { length: limit + 1, limit }));
    }
    assert!(Language::Wgsl.limit() < Language::SpirV.limit(), "a parser that nests reads it");
}

#[test]
fn a_syntax_error_is_shown_where_it_is() {
    says(&doing("b[0] = ;"), &["does not parse", "b[0] = ;", "kernel:2"]);
}

#[test]
fn a_diagnostic_is_bounded() {
    let message = refuse(&format!("fn {}", "very".repeat(20_000)));
    assert!(message.len() < DIAGNOSTIC_LIMIT + 100, "{}", message.len());
}

#[test]
fn a_module_without_a_compute_entry_is_refused() {
    says("fn helper() {}", &["no compute entry point"]);
    says("@fragment fn shade() {}", &["no compute entry point"]);
}

#[test]
fn two_entries_without_a_choice_are_listed() {
    let text = "@compute @workgroup_size(1) fn left() {} @compute @workgroup_size(1) fn right() {}";
    says(text, &["left, right"]);
    let source = Source { entry: Some("middle".to_owned()), ..Source::wgsl(text) };
    let message = sanitize(&source).unwrap_err().to_string();
    assert!(message.contains("`middle`") && message.contains("left, right"), "{message}");
}

#[test]
fn what_no_dispatch_can_bind_is_named() {
    let main = "@compute @workgroup_size(1) fn main() { _ = v; }";
    let sized = "@compute @workgroup_size(1) fn main() { _ = textureDimensions(v); }";
    says(&format!("@group(0) @binding(0) var v: texture_2d<f32>; {sized}"), &["`v`", "an image"]);
    says(&format!("@group(0) @binding(0) var v: sampler; {main}"), &["`v`", "a sampler"]);
    says(&format!("@group(8) @binding(0) var<storage> v: u32; {main}"), &["`v`", "a set above 7"]);
    says(&format!("@group(0) @binding(64) var<storage> v: u32; {main}"), &["`v`", "above 63"]);
    says(&format!("@group(7) @binding(64) var<uniform> v: u32; {main}"), &["`v`", "above 63"]);
    let (mut many, mut sum) = (String::new(), "0u".to_owned());
    for binding in 0..65 {
        let (set, binding) = (binding / 33, binding % 33);
        many += &format!("@group({set}) @binding({binding}) var<storage> v{set}_{binding}: u32; ");
        sum += &format!(" + v{set}_{binding}");
    }
    says(
        &format!("{many} @compute @workgroup_size(1) fn main() {{ var sum = {sum}; }}"),
        &["65", "buffers", "64"],
    );
}

#[test]
fn inputs_of_graphics_stages_are_refused_where_drivers_would_crash() {
    says("@compute @workgroup_size(1) fn main(@location(3) lost: vec3<u32>) {}", &["`lost`", "an input"]);
    let members = "struct In { @builtin(workgroup_id) w: vec3<u32>, @location(0) lost: u32 }";
    says(&format!("{members} @compute @workgroup_size(1) fn main(i: In) {{}}"), &["`lost`", "an input"]);
    says("@compute @workgroup_size(1) fn main() -> @location(0) u32 { return 1u; }", &[]);
}

#[test]
fn constants_misaligned_by_spirv_are_refused() {
    let text = "struct Pair { a: u32, b: u32 } var<immediate> pair: Pair;
         @group(0) @binding(0) var<storage, read_write> b: array<u32>;
         @compute @workgroup_size(1) fn main() { b[0] = pair.b; }";
    let mut words = sanitize(&Source::wgsl(text)).unwrap().spirv;
    // OpMemberDecorate %struct 1 Offset 4, the only one of its kind: make it 5.
    let at = words.windows(5).position(|w| w[0] == 0x0005_0048 && w[2..] == [1, 35, 4]).unwrap();
    words[at + 4] = 5;
    let bytes = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let message = sanitize(&Source::spirv(bytes)).unwrap_err().to_string();
    assert!(message.contains("misaligned"), "{message}");
}

#[test]
fn huge_memory_is_refused() {
    let array = |space: &str, words: u32| {
        format!(
            "var<{space}> big: array<u32, {words}>;
             @compute @workgroup_size(1) fn main() {{ big[0] = 1u; }}"
        )
    };
    says(&array("workgroup", 268_435_456), &["bytes of workgroup memory", "32768"]);
    says(&array("workgroup", 8193), &["32772 bytes of workgroup memory"]);
    says(&array("private", 4097), &["bytes in a private variable"]);
    says(&doing("var big: array<u32, 16777216>; big[b[0]] = 1u; b[0] = big[b[1]];"), &["local variable"]);
    says(
        "@group(0) @binding(0) var<storage, read_write> b: array<u32, 8192>;
         @compute @workgroup_size(1) fn main() { let copy = b; b[1] = copy[0]; }",
        &["bytes in one value"],
    );
}

#[test]
fn local_memory_is_counted_through_calls() {
    let text = "fn leaf(i: u32) -> u32 { var cells: array<u32, 4096>; cells[i] = i; return cells[i / 2]; }
         @group(0) @binding(0) var<storage, read_write> b: array<u32>;
         @compute @workgroup_size(1) fn main() { b[0] = leaf(1u) + leaf(2u) + leaf(3u) + leaf(4u) + leaf(5u); }";
    says(text, &["all calls inlined"]);
}

#[test]
fn oversized_workgroups_and_constants_are_refused() {
    says("@compute @workgroup_size(64, 32) fn main() {}", &["2048 invocations in a workgroup"]);
    says("@compute @workgroup_size(1, 1, 65) fn main() {}", &["65 invocations along one side"]);
    let constants = "var<immediate> c: array<vec4<u32>, 17>;
         @group(0) @binding(0) var<storage, read_write> b: array<u32>;
         @compute @workgroup_size(1) fn main() { b[0] = c[16].x; }";
    says(constants, &["272 bytes in var<immediate>"]);
}

#[test]
fn wider_types_than_the_driver_demands_are_refused() {
    says(&doing("let wide = 1lu; b[0] = u32(wide);"), &["not valid"]);
    says(&format!("enable f16; {}", samples::SAXPY.replace("f32", "f16")), &[]);
}
