//! The mutants that there are: what `cargo mutants --list --json` prints.

use std::ops::Range;

use anyhow::Context;
use anyhow::Result;
use serde::Deserialize;
use xxhash_rust::xxh3::xxh3_64;

/// One mutant, as cargo-mutants describes it.
#[derive(Clone, Debug, Deserialize)]
pub struct Listed {
    /// The package whose tests have to notice it.
    pub package: String,
    /// File, relative to the root of the checkout.
    pub file: String,
    /// File, line, column and change.
    pub name: String,
    /// What kind of change.
    pub genre: Genre,
    /// What stands there instead.
    pub replacement: String,
    span: Span,
}

/// Kinds of changes.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
pub enum Genre {
    /// A function returns this at once.
    FnValue,
    /// Another operator with two operands; the span is that of the operator.
    BinaryOperator,
    /// No operator; the span is that of the operator.
    UnaryOperator,
    /// One arm less.
    MatchArm,
    /// A guard that is always true, or never.
    MatchArmGuard,
    /// A field that is the one of the base expression.
    StructField,
}

#[derive(Clone, Copy, Debug, Deserialize)]
struct Span {
    start: Place,
    end: Place,
}

/// A place in a file: line and column from 1, a column for each character.
#[derive(Clone, Copy, Debug, Deserialize)]
struct Place {
    line: usize,
    column: usize,
}

impl Listed {
    /// The bytes of the file that change, in the text of the file.
    pub fn range(&self, text: &str) -> Range<usize> {
        offset(text, self.span.start)..offset(text, self.span.end)
    }
}

fn offset(text: &str, place: Place) -> usize {
    let mut lines = text.split_inclusive('\n');
    let before: usize = lines.by_ref().take(place.line.saturating_sub(1)).map(str::len).sum();
    let line = lines.next().unwrap_or("");
    let column = line.char_indices().nth(place.column.saturating_sub(1));
    before + column.map_or(line.len(), |(column, _)| column)
}

/// Reads the list.
pub fn parse(json: &str) -> Result<Vec<Listed>> {
    serde_json::from_str(json).context("this is no list of cargo-mutants")
}

/// Which mutants of the list are tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    /// All of them.
    All,
    /// So many, chosen by the seed.
    Sample(usize, String),
    /// One part, counted from 0, of so many.
    Shard(usize, usize),
    /// Those in these files and folders.
    Within(Vec<String>),
}

impl Choice {
    /// The mutants that are tried, in the order of the list.
    pub fn of(&self, listed: Vec<Listed>) -> Vec<Listed> {
        let mutants = listed.into_iter();
        match self {
            Self::All => mutants.collect(),
            Self::Sample(count, seed) => {
                let mut drawn: Vec<_> = mutants.enumerate().collect();
                drawn.sort_by_cached_key(|(_, mutant)| xxh3_64(format!("{seed} {}", mutant.name).as_bytes()));
                drawn.truncate(*count);
                drawn.sort_by_key(|(number, _)| *number);
                drawn.into_iter().map(|(_, mutant)| mutant).collect()
            }
            Self::Shard(part, of) => {
                let in_part = mutants.enumerate().filter(|(number, _)| number % of == *part);
                in_part.map(|(_, mutant)| mutant).collect()
            }
            Self::Within(paths) => {
                let is_in = |path: &String, file: &str| {
                    let rest = file.strip_prefix(path.trim_end_matches('/'));
                    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
                };
                let is_chosen = |mutant: &Listed| paths.iter().any(|path| is_in(path, &mutant.file));
                mutants.filter(is_chosen).collect()
            }
        }
    }
}

/// A mutant of a text for tests: what is replaced there, and with what. It stands in one line, and there once.
#[cfg(test)]
pub fn listed(genre: &str, text: &str, what: &str, with: &str) -> Listed {
    let at = text.find(what).unwrap();
    let before = &text[..at];
    let (line, column) =
        (before.matches('\n').count() + 1, at - before.rfind('\n').map_or(0, |end| end + 1) + 1);
    let place = |column: usize| Place { line, column };
    Listed {
        package: "p".to_owned(),
        file: "a.rs".to_owned(),
        name: format!("a.rs:{line}:{column}: {what} {with}"),
        genre: serde_json::from_value(genre.into()).unwrap(),
        replacement: with.to_owned(),
        span: Span { start: place(column), end: place(column + what.len()) },
    }
}

#[cfg(test)]
mod tests {
    use super::Choice;
    use super::Genre;
    use super::Listed;
    use super::parse;

    fn listed(file: &str, line: usize) -> String {
        format!(
            r#"{{"package":"p","file":"{file}","name":"{file}:{line}:3: x","genre":"UnaryOperator","replacement":"","diff":"",
            "span":{{"start":{{"line":{line},"column":3}},"end":{{"line":{line},"column":4}}}}}}"#
        )
    }

    fn lines(chosen: &[Listed]) -> Vec<usize> {
        chosen.iter().map(|mutant| mutant.span.start.line).collect()
    }

    #[test]
    fn a_mutant_is_some_bytes_of_a_file() {
        let list = parse(&format!("[{}]", listed("a/b.rs", 2))).unwrap();
        assert_eq!(list[0].genre, Genre::UnaryOperator);
        let text = "one\nä !x\n";
        assert_eq!(&text[list[0].range(text)], "!");
        assert!(parse("{}").is_err());
    }

    #[test]
    fn a_part_of_the_list_can_be_chosen() {
        let text: Vec<_> =
            (0..9).map(|line| listed(if line < 4 { "a/b.rs" } else { "a/bc/d.rs" }, line)).collect();
        let list = parse(&format!("[{}]", text.join(","))).unwrap();
        let chosen = |choice: Choice| lines(&choice.of(list.clone()));
        assert_eq!(chosen(Choice::All).len(), 9);
        assert_eq!(chosen(Choice::Shard(1, 3)), [1, 4, 7]);
        assert_eq!(chosen(Choice::Within(vec!["a/b.rs".to_owned()])), [0, 1, 2, 3]);
        assert_eq!(chosen(Choice::Within(vec!["a/bc/".to_owned()])), [4, 5, 6, 7, 8]);
        assert!(chosen(Choice::Within(vec!["a/b".to_owned()])).is_empty());
        let sample = |seed: &str| chosen(Choice::Sample(3, seed.to_owned()));
        assert_eq!(sample("one").len(), 3);
        assert_eq!(sample("one"), sample("one"));
        assert!((0..9).any(|seed| sample(&seed.to_string()) != sample("one")));
    }
}
