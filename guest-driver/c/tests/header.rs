//! The header is what the source says.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::env;
use std::fs;
use std::path::Path;

/// The files with something for the header, in its order.
const FILES: [&str; 12] = [
    "result",
    "last_error",
    "device",
    "context",
    "scheduling",
    "buffer",
    "local_buffer",
    "kernel",
    "commands",
    "fence_point",
    "user_queue",
    "kernel_queue",
];

fn generated(root: &Path) -> String {
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).unwrap();
    let builder = FILES.iter().fold(cbindgen::Builder::new().with_config(config), |builder, file| {
        builder.with_src(root.join(format!("src/{file}.rs")))
    });
    let mut header = Vec::new();
    // Docs of a Rust crate have a section where a header has a word.
    builder.generate().unwrap().write(&mut header);
    String::from_utf8(header).unwrap().replace(" * # Safety\n * ", " * Safety: ")
}

#[test]
fn the_header_is_up_to_date() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let path = root.join("include/campanile.h");
    let generated = generated(root);
    if env::var_os("UPDATE_HEADER").is_some() {
        fs::write(&path, &generated).unwrap();
    }
    let stored = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        stored == generated,
        "{} is out of date; run `UPDATE_HEADER=1 cargo test --package campanile-guest-driver-c --test header`",
        path.display()
    );
}

#[test]
fn every_exported_function_is_in_the_header() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let header = fs::read_to_string(root.join("include/campanile.h")).unwrap();
    for entry in fs::read_dir(root.join("src")).unwrap() {
        let text = fs::read_to_string(entry.unwrap().path()).unwrap();
        for rest in text.split("extern \"C\" fn campanile_").skip(1) {
            let name = rest.split('(').next().unwrap();
            assert!(
                header.contains(&format!(" campanile_{name}("))
                    || header.contains(&format!("*campanile_{name}(")),
                "{name}"
            );
        }
    }
}
