//! Identifiers and lines in masked code.

/// True for a character that can be part of an identifier.
pub fn is_word_char(c: char) -> bool {
    c == '_' || c.is_alphanumeric()
}

/// All words (identifiers, keywords, numbers) with their offsets.
pub fn words(code: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut rest = 0;
    std::iter::from_fn(move || {
        let start = rest + code[rest..].find(is_word_char)?;
        let length = code[start..].find(|c| !is_word_char(c)).unwrap_or(code.len() - start);
        rest = start + length;
        Some((start, &code[start..rest]))
    })
}

/// The line, from 1, of an offset.
pub fn line_of(text: &str, offset: usize) -> usize {
    1 + text.as_bytes()[..offset].iter().filter(|byte| **byte == b'\n').count()
}

/// The offset just behind the bracket that closes the one at `open`; the end of the code if none does.
pub fn behind_matching(code: &str, open: usize) -> usize {
    let mut depth = 0_usize;
    for (offset, byte) in code.bytes().enumerate().skip(open) {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return offset + 1;
                }
            }
            _ => {}
        }
    }
    code.len()
}

#[cfg(test)]
mod tests {
    use super::behind_matching;
    use super::line_of;
    use super::words;

    #[test]
    fn words_are_whole_identifiers() {
        let found: Vec<_> = words("use a_1::b;").collect();
        assert_eq!(found, [(0, "use"), (4, "a_1"), (9, "b")]);
    }

    #[test]
    fn lines_count_from_one() {
        assert_eq!((line_of("a\nb", 0), line_of("a\nb", 2)), (1, 2));
    }

    #[test]
    fn brackets_match_across_kinds() {
        assert_eq!(behind_matching("x[a(b){c}]d", 1), 10);
        assert_eq!(behind_matching("x{a", 1), 3);
    }
}
