//! A Rust file as a sequence of tokens.

use std::ops::Range;

use proc_macro2::Delimiter;
use proc_macro2::Span;
use proc_macro2::TokenStream;
use proc_macro2::TokenTree;

/// The tokens of a file, by index from 0. A group is its opening delimiter, what is inside, and its closing delimiter.
#[derive(Clone, Debug)]
pub struct Tokens {
    text: String,
    tokens: Vec<Token>,
    error: Option<usize>,
}

#[derive(Clone, Debug)]
struct Token {
    range: Range<usize>,
    line: usize,
    behind: usize,
}

impl Tokens {
    /// Reads `text`. One that is not made of Rust's tokens has none, and an error.
    pub fn new(text: &str) -> Self {
        let mut read = Self { text: text.to_owned(), tokens: Vec::new(), error: None };
        match text.parse::<TokenStream>() {
            Ok(stream) => read.add(stream),
            Err(error) => read.error = Some(error.span().start().line),
        }
        read
    }

    /// The line where reading failed.
    pub fn error(&self) -> Option<usize> {
        self.error
    }

    /// The number of tokens.
    pub fn count(&self) -> usize {
        self.tokens.len()
    }

    /// A token as it is written; empty behind the last one.
    pub fn text(&self, at: usize) -> &str {
        self.tokens.get(at).map_or("", |token| &self.text[token.range.clone()])
    }

    /// Several tokens as they are written.
    pub fn span(&self, tokens: Range<usize>) -> &str {
        let found = self.tokens.get(tokens).unwrap_or_default();
        found
            .first()
            .zip(found.last())
            .map_or("", |(first, last)| &self.text[first.range.start..last.range.end])
    }

    /// True if the tokens from `at` on are these; `::` is two tokens.
    pub fn has(&self, at: usize, tokens: &[&str]) -> bool {
        tokens.iter().enumerate().all(|(index, token)| self.text(at + index) == *token)
    }

    /// The line, from 1, in which a token starts; 0 behind the last one.
    pub fn line(&self, at: usize) -> usize {
        self.tokens.get(at).map_or(0, |token| token.line)
    }

    /// The index behind the group that a token opens, or behind the token.
    pub fn behind(&self, at: usize) -> usize {
        self.tokens.get(at).map_or(at + 1, |token| token.behind)
    }

    /// The text with everything blanked but comments.
    pub fn comments(&self) -> String {
        let mut comments = String::with_capacity(self.text.len());
        for token in &self.tokens {
            comments.push_str(&self.text[comments.len()..token.range.start]);
            comments.extend(
                self.text[token.range.clone()].bytes().map(|byte| if byte == b'\n' { '\n' } else { ' ' }),
            );
        }
        comments.push_str(&self.text[comments.len()..]);
        comments
    }

    fn add(&mut self, stream: TokenStream) {
        for tree in stream {
            let span = tree.span();
            let written = &self.text[span.byte_range()];
            if written.starts_with("//") || written.starts_with("/*") {
                // Doc comments come as attributes.
                continue;
            }
            match tree {
                TokenTree::Group(group) if group.delimiter() != Delimiter::None => {
                    let open = self.push(group.span_open());
                    self.add(group.stream());
                    self.push(group.span_close());
                    self.tokens[open].behind = self.tokens.len();
                }
                _ => {
                    self.push(span);
                }
            }
        }
    }

    fn push(&mut self, span: Span) -> usize {
        let at = self.tokens.len();
        self.tokens.push(Token { range: span.byte_range(), line: span.start().line, behind: at + 1 });
        at
    }
}

#[cfg(test)]
mod tests {
    use super::Tokens;

    fn tokens(text: &str) -> Vec<String> {
        let source = Tokens::new(text);
        (0..source.count()).map(|at| source.text(at).to_owned()).collect()
    }

    #[test]
    fn comments_are_apart_from_tokens() {
        let text = "/// d\na // x\n\"//\" /* y\n */ b";
        assert_eq!(tokens(text), ["a", "\"//\"", "b"]);
        assert_eq!(Tokens::new(text).comments(), "/// d\n  // x\n     /* y\n */  ");
    }

    #[test]
    fn length_and_lines_stay() {
        let text = "\u{e9} = \"\u{e9}\n\"; // \u{e9}\n";
        let source = Tokens::new(text);
        assert_eq!(source.comments().len(), text.len());
        assert_eq!((source.text(0), source.line(0), source.line(3), source.line(4)), ("\u{e9}", 1, 2, 0));
    }

    #[test]
    fn a_group_ends_behind_its_last_delimiter() {
        let source = Tokens::new("x[a(b){c}]d");
        assert_eq!((source.behind(0), source.text(source.behind(1)), source.behind(3)), (1, "d", 6));
        assert_eq!(source.span(1..4), "[a(");
        assert!(source.has(7, &["c", "}"]) && !source.has(9, &["]", "d", "e"]));
    }

    #[test]
    fn what_is_no_rust_has_an_error_and_its_line() {
        let source = Tokens::new("a\n)");
        assert_eq!((source.error(), source.count()), (Some(2), 0));
        assert_eq!(Tokens::new("a").error(), None);
    }
}
