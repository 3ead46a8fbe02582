//! Text that came from elsewhere, made fit for logs and terminals.

/// Characters of the longest text of a peer in a log or an answer.
pub const MAX_SHOWN: usize = 512;

/// `text` in printable characters, `most` of them at the most and one more where it was cut. Line ends, other control
/// characters, and those that reorder text become escapes, so that no text makes a line of log of its own, or a terminal do
/// anything. What is printable already stays as it is.
pub fn printable(text: &str, most: usize) -> String {
    let mut shown = String::new();
    let mut count = 0;
    for char in text.chars() {
        let is_plain = matches!(char, '"' | '\'' | '\\') || char.escape_debug().eq([char]);
        let escape = if is_plain { char.to_string() } else { char.escape_unicode().to_string() };
        count += escape.chars().count();
        if count > most {
            shown.push('…');
            break;
        }
        shown.push_str(&escape);
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::printable;

    #[test]
    fn what_is_printable_stays_and_the_rest_is_escaped() {
        assert_eq!(printable("vGPU \"a\\b\": größer than 3", 100), "vGPU \"a\\b\": größer than 3");
        assert_eq!(
            printable("a\nERROR forged\x1b[2J\u{202e}\0", 100),
            "a\\u{a}ERROR forged\\u{1b}[2J\\u{202e}\\u{0}"
        );
        let once = printable("\u{7}\t\u{200b}x", 100);
        assert_eq!(printable(&once, 100), once);
    }

    #[test]
    fn no_text_is_longer_than_it_may_be() {
        assert_eq!(printable("abcdef", 6), "abcdef");
        assert_eq!(printable("abcdefg", 6), "abcdef…");
        assert_eq!(printable(&"\n".repeat(1 << 20), 12), "\\u{a}\\u{a}…");
        assert_eq!(printable(&printable("abcdefg", 6), 7), "abcdef…");
    }
}
