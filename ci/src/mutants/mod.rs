//! Mutants: does a test fail for each change that cargo-mutants makes in the modules that decide?
//!
//! ```text
//!   cargo mutants --list ──▶ list ──▶ sites ──▶ rewrite ──▶ a file in which each mutant can be chosen at run time
//!                                                  ▲──── refusals ◀──── what the compiler says of it
//!
//!   .cargo/mutants.toml ──▶ modules ────┐
//!   trials ───────────────▶ outcomes ───┴──▶ judge ──▶ one count a module, findings
//!   ci/mutants.txt ───────▶ survivors ──┘
//! ```
//!
//! `trials` builds and runs them; a mutant that survives is a finding unless the list of survivors has it with a reason. Entries of
//! that list go by file and description, without line and column, which change with every edit above them.

pub mod judge;
pub mod list;
pub mod modules;
pub mod outcomes;
pub mod refusals;
pub mod rewrite;
pub mod sites;
pub mod survivors;

/// A mutant: file and what was changed, as cargo-mutants writes it behind line and column.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mutant {
    /// File, relative to the root of the checkout.
    pub path: String,
    /// The change, such as `replace < with <= in due`.
    pub change: String,
}

impl Mutant {
    /// Reads `path:line:column: change` or `path: change`.
    pub fn parse(text: &str) -> Option<Self> {
        let (place, change) = text.split_once(": ")?;
        let path = place.split(':').next()?;
        let change = change.trim();
        let is_file = path.ends_with(".rs") && !path.contains(char::is_whitespace);
        (is_file && !change.is_empty()).then(|| Self { path: path.to_owned(), change: change.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::Mutant;

    #[test]
    fn a_mutant_goes_by_file_and_change() {
        let written = Mutant::parse("a/b.rs:12:5: replace <impl A for B>::c -> u64 with 0").unwrap();
        assert_eq!(written.path, "a/b.rs");
        assert_eq!(written.change, "replace <impl A for B>::c -> u64 with 0");
        assert_eq!(Mutant::parse("a/b.rs: replace <impl A for B>::c -> u64 with 0"), Some(written));
    }

    #[test]
    fn other_lines_are_no_mutants() {
        for text in ["", "a/b.rs", "a/b.rs:1:1: ", "some words: more", "a/b.toml:1:1: x"] {
            assert_eq!(Mutant::parse(text), None, "{text}");
        }
    }
}
