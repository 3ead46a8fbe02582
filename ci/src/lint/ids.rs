//! What names one thing has a type of its own: a parameter, field or variable of these names is no bare integer.

use crate::finding::Finding;
use crate::tree::Tree;

/// Where the rule holds. Wire structures, which are integers, are in `protocol`.
const FOLDERS: [&str; 2] = ["daemon/src/", "host-gpu/src/"];
/// The names.
const NAMES: [&str; 1] = ["context"];
/// What they are not. A `u64` is a handle as a saved state or an answer has it.
const INTEGERS: [&str; 3] = ["u16", "u32", "usize"];

/// Finds ids that are bare integers.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.rust().filter(|file| FOLDERS.iter().any(|folder| file.path.starts_with(folder))) {
        let source = file.source();
        for at in
            (0..source.count()).filter(|at| NAMES.contains(&source.text(*at)) && source.has(at + 1, &[":"]))
        {
            let ty = (at + 2..).find(|at| !matches!(source.text(*at), "&" | "mut" | "Option" | "<"));
            // `context: u32::MAX` is a value.
            let bare = ty.filter(|ty| INTEGERS.contains(&source.text(*ty)) && source.text(ty + 1) != ":");
            if let Some(ty) = bare {
                let (name, integer) = (source.text(at), source.text(ty));
                let message =
                    format!("`{name}: {integer}` can be any number: give it the type of what it names");
                findings.push(Finding::new(&file.path, source.line(at), &message));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::tree::Tree;

    fn findings(path: &str, text: &str) -> Vec<String> {
        check(&Tree::of([(path, text)])).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn an_id_is_no_bare_integer() {
        let parameter = "\nfn a(context: u32) {}";
        assert_eq!(
            findings("daemon/src/vgpu/a.rs", parameter),
            ["daemon/src/vgpu/a.rs:2: `context: u32` can be any number: give it the type of what it names"]
        );
        for bare in [
            "struct A { pub context: u32 }",
            "fn a(context: &mut u16) {}",
            "fn a(context: Option<u32>) {}",
            "fn a() { let _ = |context: usize| context; }",
        ] {
            assert_eq!(findings("host-gpu/src/engine/a.rs", bare).len(), 1, "{bare}");
        }
    }

    #[test]
    fn what_has_a_type_is_none_nor_what_is_outside() {
        for right in [
            "fn a(context: GuestProcess, contexts: u32) {}",
            "fn a(context: Option<ContextIndex>) {}",
            "struct Saved { context: u64 }",
            "fn a() { b(B { context: u32::MAX }) }",
        ] {
            assert!(findings("daemon/src/a.rs", right).is_empty(), "{right}");
        }
        assert!(findings("protocol/src/a.rs", "struct A { context: u32 }").is_empty());
    }
}
