//! What is wrong with a file, and where.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

/// A place in a file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The file.
    pub file: Arc<PathBuf>,
    /// Line and column in characters, from 1; none for all of the file.
    pub at: Option<(usize, usize)>,
}

impl Place {
    /// All of a file.
    pub fn whole(file: &Arc<PathBuf>) -> Self {
        Self { file: Arc::clone(file), at: None }
    }

    /// The character at this byte of the file's text.
    pub fn in_text(file: &Arc<PathBuf>, text: &str, byte: usize) -> Self {
        let before = text.get(..byte).unwrap_or(text);
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        Self { file: Arc::clone(file), at: Some((line, column)) }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file.display())?;
        match self.at {
            Some((line, column)) => write!(f, ":{line}:{column}"),
            None => Ok(()),
        }
    }
}

/// What is wrong there.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {text}")]
pub struct Fault {
    /// Where.
    pub place: Place,
    /// What, and what would be right. One line.
    pub text: String,
}

impl Fault {
    /// With this text, each of its control characters escaped: files may hold anything.
    pub fn new(place: Place, text: &str) -> Self {
        let mut line = String::with_capacity(text.len());
        for character in text.trim_end().chars() {
            if character.is_control() {
                line.extend(character.escape_default());
            } else {
                line.push(character);
            }
        }
        Self { place, text: line }
    }
}

/// All that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", lines(.0))]
pub struct Faults(pub Vec<Fault>);

fn lines(faults: &[Fault]) -> String {
    faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::Arc;

    use super::Fault;
    use super::Place;

    #[test]
    fn a_place_counts_lines_and_characters_from_1() {
        let file = Arc::new(PathBuf::from("c.toml"));
        let text = "a = 1\nä = 2\n";
        let at = |byte| Place::in_text(&file, text, byte).at;
        assert_eq!((at(0), at(4), at(6)), (Some((1, 1)), Some((1, 5)), Some((2, 1))));
        assert_eq!(at(8), Some((2, 2)), "behind the first character, which has two bytes");
        assert_eq!(at(1000), Some((3, 1)));
    }

    #[test]
    fn a_fault_is_one_line_without_control_characters() {
        let file = Arc::new(PathBuf::from("c.toml"));
        let fault = Fault::new(Place::in_text(&file, "x", 0), "no \u{1b}[31m\nkey\n");
        assert_eq!(fault.to_string(), "c.toml:1:1: no \\u{1b}[31m\\nkey");
    }
}
