//! Gives the shared library its name at run time: one for each version with an interface of its own.

use std::env;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let part = |name| env::var(name).unwrap_or_default();
    let (major, minor) = (part("CARGO_PKG_VERSION_MAJOR"), part("CARGO_PKG_VERSION_MINOR"));
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcampanile.so.{major}.{minor}");
}
