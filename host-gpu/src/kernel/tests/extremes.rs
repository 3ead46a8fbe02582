//! Sources built to exhaust the stack, the memory or the patience of a translator. Each must get an answer.

use std::thread;

use naga::back::spv;
use naga::valid::Capabilities;
use naga::valid::ValidationFlags;
use naga::valid::Validator;

use crate::kernel::sanitizer::sanitize;
use crate::kernel::source::Source;
use crate::kernel::source::WGSL_LIMIT;
use crate::kernel::tests::samples::doing;

/// As many `unit` as fit.
fn full_of(unit: &str) -> String {
    unit.repeat((WGSL_LIMIT - 512) / unit.len())
}

/// Numbered lines until the source is full.
fn numbered(line: impl Fn(usize) -> String, lines: usize) -> String {
    (1..lines).map(line).collect()
}

fn refuse(text: &str) -> String {
    sanitize(&Source::wgsl(text)).expect_err("it is absurd").to_string()
}

#[test]
fn chains_and_nests_of_every_kind_get_an_answer() {
    for statements in [
        format!("b[0] = 1u{};", full_of("+b[1]")),
        format!("var x = b[0]; x = x{};", full_of("<<x")),
        format!("var x = true; x = {}x;", full_of("!")),
        format!("b[0] = {}1u;", full_of("(")),
        format!("b[0] = u32({}b[0]);", full_of("~")),
        full_of("{"),
        full_of("if b[0]==1{"),
        full_of("loop{"),
        full_of("b[0]=b[1];"),
        format!("var x = b[0]; x = x{};", full_of("[0]")),
        format!("var x: {}", full_of("array<")),
        full_of("/*"),
    ] {
        // What matters is to return; an absurd program may still be a right one.
        let _ = sanitize(&Source::wgsl(&doing(&statements)));
    }
}

#[test]
fn a_long_else_if_chain_is_too_deep() {
    let chain = format!("if b[0] == 0u {{}} {}", full_of("else if b[0]==1{}"));
    assert!(refuse(&doing(&chain)).contains("levels of nested blocks"));
}

#[test]
fn a_long_chain_of_short_circuits_is_refused_before_it_is_parsed() {
    assert!(refuse(&doing(&format!("var x = true; x = x{};", full_of("||x")))).contains("operators"));
}

#[test]
fn calls_that_double_at_each_level_are_counted_inlined() {
    let calls = numbered(|i| format!("fn f{i}(x:u32)->u32{{return f{0}(x)+f{0}(x);}}\n", i - 1), 60);
    let text = format!("fn f0(x:u32)->u32{{return x+1u;}}\n{calls}{}", doing("b[0] = f59(1u);"));
    assert!(refuse(&text).contains("all calls inlined"));
}

#[test]
fn accesses_that_keep_a_driver_compiling_for_minutes_are_counted() {
    assert!(refuse(&doing(&"b[b[0]]=b[1];".repeat(5462))).contains("16386 accesses to buffers"));
    assert!(sanitize(&Source::wgsl(&doing(&"b[b[0]]=b[1];".repeat(1000)))).is_ok());
}

#[test]
fn a_long_chain_of_calls_is_too_deep() {
    let calls = numbered(|i| format!("fn f{i}(x:u32)->u32{{return f{}(x);}}\n", i - 1), 2000);
    let text = format!("fn f0(x:u32)->u32{{return x+1u;}}\n{calls}{}", doing("b[0] = f1999(1u);"));
    assert!(refuse(&text).contains("levels of nested calls"));
}

#[test]
fn deeply_nested_types_are_refused() {
    let types = numbered(|i| format!("struct S{i} {{ a: S{} }}\n", i - 1), 3000);
    let text = format!("struct S0 {{ a: u32 }}\n{types}{}", doing("var s: S2999;"));
    assert!(refuse(&text).contains("levels of nested types"));
}

#[test]
fn constants_that_double_at_each_level_are_refused() {
    let constants = numbered(|i| format!("const c{i} = array(c{0}, c{0});\n", i - 1), 16);
    let text = format!(
        "const c0 = vec4(1u);\n{constants}{}",
        doing("b[0] = c15[b[1]][b[2]][1][1][1][1][1][1][1][1][1][1][1][1][1].x;")
    );
    assert!(refuse(&text).contains("bytes in"), "{}", refuse(&text));
}

/// naga's writer run without our limits, as an attacker would have it.
fn nested_ifs_in_spirv(levels: usize) -> Vec<u8> {
    let text = doing(&format!("if b[0] == 0u {{}} {}", "else if b[0] == 1u {}".repeat(levels)));
    let writer = thread::Builder::new().stack_size(1 << 30).spawn(move || {
        let module = naga::front::wgsl::parse_str(&text).unwrap();
        let info = Validator::new(ValidationFlags::all(), Capabilities::all()).validate(&module).unwrap();
        spv::write_vec(&module, &info, &spv::Options::default(), None).unwrap()
    });
    let words = writer.unwrap().join().unwrap();
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

#[test]
fn the_deepest_spirv_that_fits_does_not_exhaust_the_stack() {
    let mut levels = 100;
    // As deep as WGSL lets naga write it; the guard itself recurses over no nesting, however long a module is.
    while nested_ifs_in_spirv(levels + 200).len() <= WGSL_LIMIT {
        levels += 200;
    }
    let bytes = nested_ifs_in_spirv(levels);
    let answer = sanitize(&Source::spirv(bytes));
    assert!(answer.unwrap_err().to_string().contains("nest deeper than"));
}
