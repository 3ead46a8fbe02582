//! A Rust file taken apart into code and comments.

/// Two copies of a text: in `code` comments and literals are blanked, in `comments` everything else.
#[derive(Clone, Debug)]
pub struct Masked {
    /// The text without comments and without the content of strings and characters.
    pub code: String,
    /// The text of the comments only.
    pub comments: String,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Code,
    Comment,
    Literal,
}

impl Masked {
    /// Takes `text` apart.
    pub fn new(text: &str) -> Self {
        let mut parts = Self { code: String::with_capacity(text.len()), comments: String::new() };
        let mut at = 0;
        while at < text.len() {
            let (kind, length) = piece(text, at);
            let part = &text[at..at + length];
            parts.code.push_str(&if kind == Kind::Code { part.to_owned() } else { blank(part) });
            parts.comments.push_str(&if kind == Kind::Comment { part.to_owned() } else { blank(part) });
            at += length;
        }
        parts
    }
}

/// As many blanks as `text` has bytes, with its line ends kept.
pub fn blank(text: &str) -> String {
    text.bytes().map(|byte| if byte == b'\n' { '\n' } else { ' ' }).collect()
}

/// The kind and length of the piece of source that starts at `at`.
fn piece(text: &str, at: usize) -> (Kind, usize) {
    let rest = &text[at..];
    if rest.starts_with("//") {
        return (Kind::Comment, rest.find('\n').unwrap_or(rest.len()));
    }
    if rest.starts_with("/*") {
        return (Kind::Comment, block_comment(rest));
    }
    if rest.starts_with('"') {
        return (Kind::Literal, quoted(rest, '"'));
    }
    if rest.starts_with('\'') {
        return character(rest).map_or((Kind::Code, 1), |length| (Kind::Literal, length));
    }
    let starts_word = rest.starts_with(|c: char| c == '_' || c.is_alphanumeric());
    if starts_word {
        return raw_string(rest).map_or((Kind::Code, word(rest)), |length| (Kind::Literal, length));
    }
    (Kind::Code, rest.chars().next().map_or(1, char::len_utf8))
}

fn word(rest: &str) -> usize {
    rest.find(|c: char| c != '_' && !c.is_alphanumeric()).unwrap_or(rest.len())
}

fn block_comment(rest: &str) -> usize {
    let mut depth = 0_usize;
    let mut at = 0;
    while at < rest.len() {
        if rest[at..].starts_with("/*") {
            depth += 1;
            at += 2;
        } else if rest[at..].starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += rest[at..].chars().next().map_or(1, char::len_utf8);
        }
    }
    rest.len()
}

/// Length of a literal from its opening to its closing `quote`, with `\` as escape.
fn quoted(rest: &str, quote: char) -> usize {
    let mut chars = rest.char_indices().skip(1);
    while let Some((offset, c)) = chars.next() {
        if c == '\\' {
            chars.next();
        } else if c == quote {
            return offset + 1;
        }
    }
    rest.len()
}

/// Length of a character literal; none if the quote starts a lifetime.
fn character(rest: &str) -> Option<usize> {
    let mut chars = rest.chars().skip(1);
    let (first, second) = (chars.next()?, chars.next()?);
    (first == '\\' || second == '\'').then(|| quoted(rest, '\''))
}

/// Length of a raw string, `r"…"`, `br#"…"#` and so on; none if `rest` is something else.
fn raw_string(rest: &str) -> Option<usize> {
    let prefix = ["br", "cr", "r"].into_iter().find(|prefix| rest.starts_with(prefix))?;
    let behind = &rest[prefix.len()..];
    let hashes = behind.bytes().take_while(|byte| *byte == b'#').count();
    let body = behind[hashes..].strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    let start = prefix.len() + hashes + 1;
    Some(body.find(&end).map_or(rest.len(), |offset| start + offset + end.len()))
}

#[cfg(test)]
mod tests {
    use super::Masked;

    fn code(text: &str) -> String {
        Masked::new(text).code
    }

    #[test]
    fn comments_leave_the_code() {
        let masked = Masked::new("a // x\nb /* y /* z */ */ c");
        assert_eq!(masked.code, "a     \nb                 c");
        assert_eq!(masked.comments, "  // x\n  /* y /* z */ */  ");
    }

    #[test]
    fn strings_of_every_kind_are_blanked() {
        assert_eq!(code(r#"f("a \" // b", c)"#).replace(' ', ""), "f(,c)");
        assert_eq!(code("f(r#\"a \" b\"#, c)").replace(' ', ""), "f(,c)");
        assert_eq!(code("f(br\"a\\\", c)").replace(' ', ""), "f(,c)");
        assert_eq!(code("f(b\"a\", 'x', '\\'', '\u{e9}', c)").replace(' ', ""), "f(b,,,,c)");
    }

    #[test]
    fn lifetimes_and_raw_identifiers_stay() {
        let text = "fn f<'a>(r#type: &'a str) {}";
        assert_eq!(code(text), text);
    }

    #[test]
    fn length_and_lines_stay() {
        let text = "\u{e9} = \"\u{e9}\n\"; // \u{e9}\n";
        let masked = Masked::new(text);
        assert_eq!((masked.code.len(), masked.comments.len()), (text.len(), text.len()));
        assert_eq!(masked.code.matches('\n').count(), 2);
    }
}
