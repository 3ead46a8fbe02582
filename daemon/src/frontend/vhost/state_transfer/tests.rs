//! Claims about descriptors whose other end does not do its part.

use std::fs::File;
use std::io;
use std::io::Read;
use std::io::Write;
use std::thread;
use std::time::Duration;

use rustix::pipe::pipe;

use super::Direction;
use super::Done;
use super::Timeouts;
use super::Transfer;
use super::receive;
use super::send;
use crate::frontend::vhost::saved::MAX_STATE;

const SHORT: Timeouts = Timeouts { step: Duration::from_millis(20), whole: Duration::from_secs(60) };
const LONG: Timeouts = Timeouts { step: Duration::from_secs(60), whole: Duration::from_secs(60) };

fn ends() -> (File, File) {
    let (reader, writer) = pipe().unwrap();
    (File::from(reader), File::from(writer))
}

#[test]
fn state_goes_through_a_pipe_that_blocks() {
    let (mut reader, writer) = ends();
    let bytes: Vec<u8> = (0..3_000_000_u32).flat_map(u32::to_le_bytes).take(5 << 20).collect();
    let sent = bytes.clone();
    let sender = thread::spawn(move || send(&writer, &sent, LONG));
    let mut received = Vec::new();
    reader.read_to_end(&mut received).unwrap();
    sender.join().unwrap().unwrap();
    assert!(received == bytes);
    let (reader, mut writer) = ends();
    let receiver = thread::spawn(move || receive(&reader, LONG));
    writer.write_all(&bytes).unwrap();
    drop(writer);
    assert!(receiver.join().unwrap().unwrap() == bytes);
}

#[test]
fn front_end_that_stalls_is_given_up() {
    let (reader, writer) = ends();
    let stalled = send(&writer, &vec![0; 1 << 20], SHORT).unwrap_err();
    assert_eq!(stalled.kind(), io::ErrorKind::TimedOut);
    drop(reader);
    let (reader, mut writer) = ends();
    writer.write_all(b"CAMP").unwrap();
    assert_eq!(receive(&reader, SHORT).unwrap_err().kind(), io::ErrorKind::TimedOut);
}

/// One byte at a time, always in time: the whole has its end, too.
#[test]
fn front_end_that_dribbles_is_given_up() {
    let (reader, mut writer) = ends();
    let dribble = thread::spawn(move || while writer.write_all(b"C").is_ok() {});
    let whole = Timeouts { whole: Duration::from_millis(50), ..LONG };
    let ended = receive(&reader, whole).unwrap_err();
    drop(reader);
    dribble.join().unwrap();
    // Whichever comes first.
    assert!(ended.kind() == io::ErrorKind::TimedOut || ended.to_string().contains("more than"));
}

#[test]
fn end_that_closes_is_an_error_and_no_signal() {
    let (reader, writer) = ends();
    drop(reader);
    assert_eq!(send(&writer, b"state", LONG).unwrap_err().kind(), io::ErrorKind::BrokenPipe);
}

#[test]
fn more_than_a_state_can_have_is_refused() {
    let (reader, mut writer) = ends();
    let flood = thread::spawn(move || writer.write_all(&vec![0; MAX_STATE + 1]));
    assert!(receive(&reader, LONG).unwrap_err().to_string().contains("more than"));
    drop(reader);
    // It may have got everything into the pipe.
    let _ = flood.join().unwrap();
}

#[test]
fn promise_that_is_dropped_is_an_error() {
    let (transfer, promise) = Transfer::new(Direction::Save);
    assert!(!transfer.is_over());
    assert_eq!(transfer.wait(Duration::ZERO), None);
    drop(promise);
    assert!(matches!(transfer.wait(Duration::ZERO), Some(Err(_))));
    let (transfer, promise) = Transfer::new(Direction::Load);
    promise.keep(Ok(Done::AsSaved));
    assert!(transfer.is_over());
    assert_eq!(transfer.wait(Duration::ZERO), Some(Ok(Done::AsSaved)));
}
