//! One thing that is wrong, and where.

use std::fmt;

/// A violation of a house rule, printed as `path:line: message`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// File, relative to the root of the checkout.
    pub path: String,
    /// Line, from 1; 0 says that the file as a whole is meant.
    pub line: usize,
    /// What is wrong and what to do about it.
    pub message: String,
}

impl Finding {
    /// A finding in one line of a file.
    pub fn new(path: &str, line: usize, message: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, message: message.into() }
    }

    /// A finding about a file as a whole.
    pub fn in_file(path: &str, message: impl Into<String>) -> Self {
        Self::new(path, 0, message)
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.path, self.message),
            line => write!(f, "{}:{}: {}", self.path, line, self.message),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Finding;

    #[test]
    fn a_finding_reads_as_path_line_message() {
        assert_eq!(Finding::new("a/b.rs", 3, "no").to_string(), "a/b.rs:3: no");
        assert_eq!(Finding::in_file("a/b.rs", "no").to_string(), "a/b.rs: no");
    }
}
