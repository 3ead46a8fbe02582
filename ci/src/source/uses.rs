//! `use` statements.

use super::words::line_of;
use super::words::words;

/// One `use … ;`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UseStatement {
    /// Where the word `use` is.
    pub offset: usize,
    /// Its line.
    pub line: usize,
    /// What is imported, without blanks other than those around `as`.
    pub path: String,
}

/// All `use` statements in masked code.
pub fn use_statements(code: &str) -> Vec<UseStatement> {
    words(code)
        .filter(|(_, word)| *word == "use")
        .filter_map(|(offset, word)| {
            let rest = &code[offset + word.len()..];
            // `impl Trait + use<'a>` captures a lifetime and imports nothing.
            let is_import = starts_item(&code[..offset]) && !rest.trim_start().starts_with('<');
            let path = rest.split(';').next().filter(|_| is_import)?;
            Some(UseStatement { offset, line: line_of(code, offset), path: dense(path) })
        })
        .collect()
}

fn starts_item(before: &str) -> bool {
    let before = before.trim_end();
    before.is_empty() || before.ends_with([';', '{', '}', ']', ')']) || before.ends_with("pub")
}

fn dense(path: &str) -> String {
    let spaced = path.split_whitespace().collect::<Vec<_>>().join(" ");
    spaced.replace(" as ", "\0").replace(' ', "").replace('\0', " as ")
}

#[cfg(test)]
mod tests {
    use super::use_statements;

    #[test]
    fn imports_are_found_with_any_visibility() {
        let code = "use a::b;\npub(crate) use c ::\n d as e;\npub use f::*; fn x() { use g; }";
        let paths: Vec<_> = use_statements(code).into_iter().map(|found| (found.line, found.path)).collect();
        let expected = [(1, "a::b"), (2, "c::d as e"), (4, "f::*"), (4, "g")];
        assert_eq!(paths, expected.map(|(line, path)| (line, path.to_owned())));
    }

    #[test]
    fn captured_lifetimes_are_no_imports() {
        assert_eq!(use_statements("fn f<'a>() -> impl X + use<'a> {}"), []);
    }
}
