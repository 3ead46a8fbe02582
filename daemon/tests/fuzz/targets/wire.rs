//! A line from a source that says what an input says.
//!
//! ```text
//!   op │ arguments       op: what (3 bits), and what is wrong with the frame
//! ```

use std::fs::File;
use std::io;
use std::io::Read;
use std::io::Write;
use std::os::fd::AsFd;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::Condvar;
use std::sync::Mutex;
use std::sync::OnceLock;
use std::time::Duration;

use campanile_daemon::migration::channel::frame;
use campanile_daemon::migration::channel::frame::Kind;
use campanile_daemon::migration::channel::message::Message;
use campanile_daemon::migration::channel::record::RecordWriter;
use campanile_daemon::migration::channel::stream::Stream;
use campanile_daemon::migration::memory::Memory;

use super::input::Input;
use super::stream::Target;

/// A message: its bytes.
pub(crate) const MESSAGE: u8 = 0;
/// A record: its bytes.
pub(crate) const PAGES: u8 = 1;
/// A record that is right: memory and packing, page (2 bytes), how many, what is in them.
pub(crate) const FILLED: u8 = 2;
/// Bytes that are no frame.
pub(crate) const RAW: u8 = 3;
/// A session claims the bundle.
pub(crate) const CLAIM: u8 = 4;
/// And is let run.
pub(crate) const START: u8 = 5;
/// Or ends.
pub(crate) const DROP: u8 = 6;
/// Another line: what it says.
pub(crate) const LINE: u8 = 7;
/// With an op: the frame has the number of the next.
pub(crate) const EARLY: u8 = 8;
/// It is sent twice.
pub(crate) const TWICE: u8 = 16;
/// Its last byte is another one.
pub(crate) const FLIPPED: u8 = 32;
/// It says that it is saved state.
pub(crate) const STATE: u8 = 64;

/// One end of a line: what the target reads and writes.
pub(crate) struct Wire {
    target: Arc<Target>,
    input: Vec<u8>,
    at: usize,
    ready: Vec<u8>,
    sent: usize,
    sequence: u64,
    said: Arc<Mutex<Vec<u8>>>,
    is_first: bool,
}

/// What a wire took from the target.
pub(crate) type Said = Arc<Mutex<Vec<u8>>>;

impl Wire {
    /// A line that says what `input` says.
    pub(crate) fn new(target: &Arc<Target>, input: &[u8], is_first: bool) -> (Self, Said) {
        let said = Said::default();
        let wire = Self {
            target: Arc::clone(target),
            input: input.to_vec(),
            at: 0,
            ready: Vec::new(),
            sent: 0,
            sequence: 0,
            said: Arc::clone(&said),
            is_first,
        };
        (wire, said)
    }

    fn frame(&mut self, op: u8, kind: Kind, body: &[u8]) {
        if let (Kind::Message, Ok(Message::Hello(hello))) = (kind, Message::decode(body)) {
            self.target.heard(hello.bundle);
        }
        let kind = if op & STATE == 0 { kind } else { Kind::State };
        let mut bytes = frame::framed(kind, self.sequence + u64::from(op & EARLY != 0), body);
        if op & FLIPPED != 0
            && let Some(last) = bytes.last_mut()
        {
            *last ^= 1;
        }
        self.sequence += 1;
        self.ready = if op & TWICE == 0 { bytes } else { bytes.repeat(2) };
        self.sent = 0;
    }

    /// Does what comes next; false at the end.
    fn go_on(&mut self) -> bool {
        let bytes = std::mem::take(&mut self.input);
        let mut rest = Input(&bytes[self.at..]);
        let Some(op) = rest.byte() else { return false };
        match op & 7 {
            MESSAGE => self.frame(op, Kind::Message, rest.piece()),
            PAGES => self.frame(op, Kind::Pages, rest.piece()),
            FILLED => {
                let body = filled(&mut rest);
                self.frame(op, Kind::Pages, &body);
            }
            RAW => {
                self.ready = rest.piece().to_vec();
                self.sent = 0;
            }
            CLAIM => self.target.claim(),
            START => self.target.start(),
            DROP => self.target.forget(),
            _ => {
                let inner = rest.piece();
                if self.is_first {
                    Target::serve_beside(&self.target, inner);
                }
            }
        }
        self.at = bytes.len() - rest.0.len();
        self.input = bytes;
        true
    }
}

/// The body of a record.
fn filled(rest: &mut Input<'_>) -> Vec<u8> {
    let kind = rest.byte().unwrap_or(0);
    let (page, count, fill) = (rest.short(), rest.byte().unwrap_or(0) % 16 + 1, rest.byte().unwrap_or(0));
    let memory = if kind & 1 == 0 { Memory::Vram } else { Memory::Evicted };
    let bytes = usize::from(count) * 4096;
    let mut writer = RecordWriter::default();
    writer.room(bytes).fill(fill);
    let (frame, _) =
        writer.finish(memory, &[(u64::from(page) * 4096, bytes)], (kind & 2 != 0).then_some(1), 0);
    frame[frame::HEADER..].to_vec()
}

impl Read for Wire {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.sent == self.ready.len() {
            if !self.go_on() {
                if self.is_first {
                    // Its session, if there is one, has nobody to ask any more.
                    self.target.forget();
                    self.target.lines.end();
                } else {
                    // A source closes it when it closes the first.
                    self.target.lines.stay();
                }
                return Ok(0);
            }
        }
        let count = into.len().min(self.ready.len() - self.sent);
        into[..count].copy_from_slice(&self.ready[self.sent..self.sent + count]);
        self.sent += count;
        Ok(count)
    }
}

impl Write for Wire {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.said.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn nothing() -> BorrowedFd<'static> {
    static NOTHING: OnceLock<File> = OnceLock::new();
    NOTHING.get_or_init(|| File::open("/dev/null").unwrap()).as_fd()
}

impl Stream for Wire {
    fn set_timeout(&self, _limit: Duration) -> io::Result<()> {
        Ok(())
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        nothing()
    }

    fn has_buffered(&self) -> bool {
        true
    }

    fn shutdown(&self) {
        if self.is_first {
            self.target.start();
            self.target.forget();
            self.target.lines.end();
        }
    }
}

/// The lines beside the first: threads that say what they have to say, one after the other, and stay until it ends.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    /// Those that have said it, and whether the first has ended.
    state: Mutex<(usize, bool)>,
    changed: Condvar,
}

impl Lines {
    /// The first has ended.
    pub(crate) fn end(&self) {
        self.state.lock().unwrap().1 = true;
        self.changed.notify_all();
    }

    /// A line has said all.
    fn stay(&self) {
        let mut state = self.state.lock().unwrap();
        state.0 += 1;
        self.changed.notify_all();
        drop(self.changed.wait_while(state, |(_, has_ended)| !*has_ended).unwrap());
    }

    /// Waits until one more has said all, or `is_over`.
    pub(crate) fn wait(&self, before: usize, is_over: impl Fn() -> bool) {
        let mut state = self.state.lock().unwrap();
        while state.0 <= before && !is_over() {
            state = self.changed.wait_timeout(state, Duration::from_millis(1)).unwrap().0;
        }
    }

    /// How many have said all.
    pub(crate) fn count(&self) -> usize {
        self.state.lock().unwrap().0
    }
}

/// Another handle of a line.
pub(crate) struct Handle;

impl Read for Handle {
    fn read(&mut self, _into: &mut [u8]) -> io::Result<usize> {
        Ok(0)
    }
}

impl Write for Handle {
    fn write(&mut self, _bytes: &[u8]) -> io::Result<usize> {
        Err(io::ErrorKind::BrokenPipe.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Stream for Handle {
    fn set_timeout(&self, _limit: Duration) -> io::Result<()> {
        Ok(())
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        nothing()
    }

    fn shutdown(&self) {}
}
