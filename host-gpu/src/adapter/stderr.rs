//! What engine processes write to standard error: a pipe, read by a thread of the daemon, and in its log within limits.
//!
//! ```text
//!   engine, driver ──stderr──▶ pipe ──▶ thread "vgpu-stderr" ──▶ lines, cut and escaped ──▶ log, LINES_PER_SECOND
//!                                         │                                └──▶ beyond that: counted
//!                                         └── BYTES_PER_SECOND; beyond that the pipe fills, and its writer waits
//! ```
//!
//! The pipe is always read again within a second, so no engine waits for ever; one that floods it pays with its own time
//! and not with that of the daemon. The limits are those of an engine, and not of each process that takes its place.

use std::fmt::Write;
use std::io;
use std::io::Read;
use std::process::ChildStderr;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::thread;
use std::time::Duration;
use std::time::Instant;

use rustix::event::PollFd;
use rustix::event::PollFlags;
use rustix::event::Timespec;
use rustix::event::poll;

use crate::log_limit::inherit;

/// Lines of one engine that are logged in a second, its spare's and successors' among them.
pub const LINES_PER_SECOND: u64 = 32;
/// Bytes of a line that are logged, before control characters are escaped.
pub const LINE_BYTES: usize = 512;
/// Bytes of one engine that are read in a second.
pub const BYTES_PER_SECOND: usize = 4 << 20;
/// What the limits are counted over.
const WINDOW: Duration = Duration::from_secs(1);
/// Bytes of one read.
const READ_BYTES: usize = 16 << 10;

/// What one engine has written of late.
#[derive(Debug, Default)]
pub struct Allowance(Mutex<Window>);

/// A second, and what was written in it.
#[derive(Debug, Default, PartialEq, Eq)]
struct Window {
    begun: Option<Instant>,
    lines: u64,
    bytes: usize,
}

impl Window {
    /// Begins the next one where this is over; the number of lines of this one that were not logged.
    fn turn(&mut self, now: Instant) -> Option<u64> {
        if self.begun.is_some_and(|begun| now.saturating_duration_since(begun) < WINDOW) {
            return None;
        }
        let last = std::mem::replace(self, Self { begun: Some(now), ..Self::default() });
        Some(last.suppressed()).filter(|lines| *lines > 0)
    }

    /// Whether one more line is logged.
    fn take_line(&mut self) -> bool {
        self.lines += 1;
        self.lines <= LINES_PER_SECOND
    }

    /// How long to wait before more is read.
    fn take_bytes(&mut self, bytes: usize, now: Instant) -> Duration {
        self.bytes += bytes;
        if self.bytes < BYTES_PER_SECOND { Duration::ZERO } else { self.left(now) }
    }

    fn suppressed(&self) -> u64 {
        self.lines.saturating_sub(LINES_PER_SECOND)
    }

    fn left(&self, now: Instant) -> Duration {
        self.begun.map_or(WINDOW, |begun| (begun + WINDOW).saturating_duration_since(now))
    }
}

/// Bytes, cut into lines.
#[derive(Debug, Default)]
struct Lines {
    line: Vec<u8>,
    /// Bytes of this line beyond [`LINE_BYTES`].
    left_out: u64,
}

impl Lines {
    /// Calls `each` for every line that ends in `bytes`.
    fn feed(&mut self, bytes: &[u8], mut each: impl FnMut(String)) {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            let (text, ends) = piece.strip_suffix(b"\n").map_or((piece, false), |text| (text, true));
            let kept = text.len().min(LINE_BYTES - self.line.len());
            self.line.extend_from_slice(&text[..kept]);
            self.left_out += (text.len() - kept) as u64;
            if ends && let Some(line) = self.take() {
                each(line);
            }
        }
    }

    /// What there is of a line; none where that is nothing.
    fn take(&mut self) -> Option<String> {
        let mut text = escape(&self.line);
        if self.left_out > 0 {
            // Writing to a string does not fail.
            let _written = write!(text, " ({} more bytes)", self.left_out);
        }
        self.line.clear();
        self.left_out = 0;
        (!text.is_empty()).then_some(text)
    }
}

/// Without anything that a terminal or a reader of logs takes for more than text: control and format characters, line
/// separators and bytes that are not UTF-8 are escaped, backslashes too.
fn escape(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            match character {
                '"' | '\'' => text.push(character),
                _ => text.extend(character.escape_debug()),
            }
        }
        text.extend(chunk.invalid().iter().map(|byte| format!("\\x{byte:02x}")));
    }
    text
}

/// Starts the thread that reads `pipe` until its last writer is gone. `origin` begins each line.
///
/// # Errors
/// No thread could be had; then the pipe is closed.
pub(super) fn drain(pipe: ChildStderr, origin: String, allowance: Arc<Allowance>) -> io::Result<()> {
    let say = move |text: &str| log::warn!("{origin}: {text}");
    let reads = move || {
        if let Err(error) = read(pipe, &allowance, &say) {
            say(&format!("reading its standard error: {error}"));
        }
    };
    thread::Builder::new().name("vgpu-stderr".to_owned()).spawn(inherit(reads)).map(drop)
}

fn read(mut pipe: ChildStderr, allowance: &Allowance, say: &dyn Fn(&str)) -> io::Result<()> {
    let mut lines = Lines::default();
    let mut buffer = vec![0; READ_BYTES];
    loop {
        let count = if wait(&pipe, allowance)? { Some(pipe.read(&mut buffer)?) } else { None };
        let bytes = count.map_or(&[][..], |count| &buffer[..count]);
        let mut logged = Vec::new();
        let pause = {
            let mut window = allowance.0.lock().unwrap_or_else(PoisonError::into_inner);
            let now = Instant::now();
            logged.extend(window.turn(now).map(left_out));
            lines.feed(bytes, |line| logged.extend(window.take_line().then_some(line)));
            if count == Some(0) {
                // The last word need not be a line, and may be why it ended.
                logged.extend(lines.take().filter(|_| window.take_line()));
            }
            window.take_bytes(bytes.len(), now)
        };
        // The lock is not kept while the log is written.
        logged.iter().for_each(|line| say(line));
        if count == Some(0) {
            return Ok(());
        }
        if !pause.is_zero() {
            thread::sleep(pause);
        }
    }
}

fn left_out(lines: u64) -> String {
    format!("{lines} more lines within a second were left out")
}

/// Waits for something to read, or for a window to end whose lines were not all logged. Whether there is something.
fn wait(pipe: &ChildStderr, allowance: &Allowance) -> io::Result<bool> {
    let timeout = {
        let window = allowance.0.lock().unwrap_or_else(PoisonError::into_inner);
        (window.suppressed() > 0).then(|| window.left(Instant::now()))
    };
    let timeout = timeout.map(|left| Timespec::try_from(left).unwrap_or_default());
    match poll(&mut [PollFd::new(pipe, PollFlags::IN)], timeout.as_ref()) {
        Ok(ready) => Ok(ready > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing test stops here")]

    use std::process::Command;
    use std::process::Stdio;
    use std::sync::Mutex;
    use std::time::Instant;

    use super::Allowance;
    use super::BYTES_PER_SECOND;
    use super::LINE_BYTES;
    use super::LINES_PER_SECOND;
    use super::Lines;
    use super::WINDOW;
    use super::Window;
    use super::escape;
    use super::read;

    fn lines_of(lines: &mut Lines, bytes: &[u8]) -> Vec<String> {
        let mut all = Vec::new();
        lines.feed(bytes, |line| all.push(line));
        all
    }

    #[test]
    fn what_is_no_text_is_escaped() {
        assert_eq!(escape(b"plain \"text\", it's \xc3\xa4"), "plain \"text\", it's \u{e4}");
        assert_eq!(escape(b"\x1b[2J\r\0\x7f\t\\"), "\\u{1b}[2J\\r\\0\\u{7f}\\t\\\\");
        assert_eq!(escape("\u{9b}31m\u{202e}\u{2028}".as_bytes()), "\\u{9b}31m\\u{202e}\\u{2028}");
        assert_eq!(escape(b"a\xff\xc3"), "a\\xff\\xc3");
    }

    #[test]
    fn lines_come_in_pieces_and_are_cut_at_their_limit() {
        let mut lines = Lines::default();
        assert!(lines_of(&mut lines, b"one ").is_empty());
        assert_eq!(lines_of(&mut lines, b"two\n\nthree\nfo"), ["one two", "three"]);
        assert_eq!(lines.take().as_deref(), Some("fo"));
        assert_eq!(lines.take(), None);
        let long = vec![b'x'; LINE_BYTES + 5];
        for _ in 0..3 {
            assert!(lines_of(&mut lines, &long).is_empty());
            assert!(lines.line.capacity() <= 2 * LINE_BYTES, "{}", lines.line.capacity());
        }
        let expected = format!("{} ({} more bytes)", "x".repeat(LINE_BYTES), 2 * LINE_BYTES + 15);
        assert_eq!(lines_of(&mut lines, b"\nshort\n"), [expected.as_str(), "short"]);
        assert_eq!(lines_of(&mut lines, &long[..LINE_BYTES]).len() + lines_of(&mut lines, b"\n").len(), 1);
    }

    #[test]
    fn a_second_has_its_lines_and_the_next_says_how_many_were_left_out() {
        let (mut window, begun) = (Window::default(), Instant::now());
        assert_eq!(window.turn(begun), None);
        let logged = (0..LINES_PER_SECOND + 7).filter(|_| window.take_line()).count();
        assert_eq!(logged as u64, LINES_PER_SECOND);
        assert_eq!(window.turn(begun + WINDOW / 2), None);
        assert!(!window.take_line());
        assert_eq!(window.turn(begun + WINDOW), Some(8));
        assert!(window.take_line());
        assert_eq!(window.turn(begun + 2 * WINDOW), None);
    }

    #[test]
    fn what_is_read_in_a_second_is_limited_and_then_read_on() {
        let (mut window, begun) = (Window::default(), Instant::now());
        window.turn(begun);
        assert!(window.take_bytes(BYTES_PER_SECOND - 1, begun).is_zero());
        assert_eq!(window.take_bytes(1, begun + WINDOW / 4), WINDOW / 4 * 3);
        window.turn(begun + WINDOW);
        assert!(window.take_bytes(1, begun + WINDOW).is_zero());
    }

    #[test]
    fn all_is_read_and_the_last_word_need_not_be_a_line() {
        let script = "head -c 300000 /dev/zero | tr '\\0' '\\n' >&2; seq 100 >&2; printf end >&2";
        let mut command = Command::new("sh");
        let mut child = command.args(["-c", script]).stderr(Stdio::piped()).spawn().unwrap();
        let allowance = Allowance::default();
        let said = Mutex::new(Vec::new());
        let pipe = child.stderr.take().unwrap();
        read(pipe, &allowance, &|line| said.lock().unwrap().push(line.to_owned())).unwrap();
        child.wait().unwrap();
        let said = said.into_inner().unwrap();
        assert_eq!(said[0], "1", "empty lines are none");
        assert!(said.len() as u64 <= 2 * LINES_PER_SECOND, "{said:?}");
        let window = allowance.0.into_inner().unwrap();
        assert!(window.lines <= 101 && window.bytes > 0, "{window:?}");
    }
}
