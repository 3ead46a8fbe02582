//! An engine that a test moves by hand: it starts as every engine does, and then says and stores what it is told.
//!
//! ```text
//!   test ──lines──▶ puppet (a process of the daemon, in the place of an engine) ──channel, block──▶ daemon
//! ```
//!
//! It is this test program, started again in the place of the engine program. Where no test waits for a puppet, and for other
//! VMs, it becomes the engine program itself on the copy node; on the compute node it does as it should, with kernels that compile
//! and never run: so these tests need no driver.

use std::fmt::Write as _;
use std::fs;
use std::fs::File;
use std::io::BufRead;
use std::io::BufReader;
use std::io::IoSlice;
use std::io::Write;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::fd::BorrowedFd;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixListener;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::time::Duration;

use campanile_host_gpu::engine::channel::Channel;
use campanile_host_gpu::engine::message::Request;
use campanile_host_gpu::engine::message::Response;
use campanile_host_gpu::engine::message::Start;
use campanile_host_gpu::event::Event;
use campanile_host_gpu::kernel::name::KernelName;
use campanile_host_gpu::memory::mapping::Access;
use campanile_host_gpu::memory::mapping::Mapping;
use campanile_host_gpu::memory::vram::create_memfd;
use campanile_protocol::engine::block;
use campanile_protocol::engine::message as wire;
use rustix::fs::SeekFrom;
use rustix::net::RecvFlags;
use rustix::net::SendAncillaryBuffer;
use rustix::net::SendAncillaryMessage;
use rustix::net::SendFlags;
use rustix::net::Shutdown;
use zerocopy::FromBytes;

use crate::daemon::NEVER;
use crate::daemon::until;

/// Where the test waits for puppets.
pub(crate) const SOCKET: &str = "CAMPANILE_TEST_PUPPET";
/// Video memory of the VM whose engines are puppets; others have less, with all that lies behind it.
pub(crate) const VRAM: u64 = 64 << 20;
/// What is searched at once: an honest engine does not keep the daemon waiting meanwhile.
const PIECE: u64 = 1 << 20;
/// Where patterns begin that are searched, in whatever page.
const STEP: usize = 64;

/// What is started as each engine.
#[test]
#[ignore = "an engine: run by the daemons of liars.rs"]
fn engine() {
    let channel = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
    let mut head = [0; size_of::<wire::Header>() + size_of::<wire::Start>()];
    rustix::net::recv(&channel, &mut head[..], RecvFlags::PEEK).unwrap();
    let start = wire::Start::read_from_bytes(&head[size_of::<wire::Header>()..]).unwrap();
    let test = std::env::var_os(SOCKET).filter(|_| start.vram_bytes >= VRAM);
    match test.and_then(|path| UnixStream::connect(path).ok()) {
        Some(test) => Played::new(Channel::from_socket(channel), test).play(),
        None if start.node == wire::NODE_COMPUTE => {
            let (silent, _kept) = UnixStream::pair().unwrap();
            let mut stub = Played::new(Channel::from_socket(channel), silent);
            stub.obey("started");
            (stub.is_honest, stub.compiles) = (true, true);
            stub.play();
        }
        None => {
            let error = Command::new(env!("CARGO_BIN_EXE_campanile")).arg("engine").exec();
            panic!("no engine: {error}");
        }
    }
}

/// The process.
struct Played {
    channel: Channel,
    test: BufReader<UnixStream>,
    shared: Mapping,
    files: Vec<File>,
    is_honest: bool,
    /// Whether it says of kernels that they are compiled.
    compiles: bool,
    /// The last that it was to compile, and that the test has not heard of.
    kernel: Option<KernelName>,
    segments: u64,
}

impl Played {
    fn new(channel: Channel, test: UnixStream) -> Self {
        let received = channel.receive::<Start>(true).unwrap().unwrap();
        let files: Vec<File> = received.descriptors.into_iter().map(File::from).collect();
        let shared =
            Mapping::new(files[0].try_clone().unwrap(), 0, block::BLOCK_BYTES, Access::ReadWrite).unwrap();
        test.set_nonblocking(true).unwrap();
        let (test, is_honest, compiles) = (BufReader::new(test), false, false);
        Self { channel, test, shared, files, is_honest, compiles, kernel: None, segments: 0 }
    }

    fn load(&self, place: u64) -> u64 {
        self.shared.word(place).unwrap().load(Ordering::Acquire)
    }

    fn store(&self, place: u64, value: u64) {
        self.shared.word(place).unwrap().store(value, Ordering::Release);
    }

    fn event(&self, number: usize) -> Event {
        Event::from(OwnedFd::from(self.files[3 + number].try_clone().unwrap()))
    }

    /// Does what it was asked, and acknowledges what it was told.
    fn serve(&mut self) {
        let mut any = false;
        loop {
            let received = match self.channel.receive::<Request>(false) {
                Ok(Some(received)) => received,
                Ok(None) => break,
                // The daemon is gone, or has ended this engine.
                Err(_) => std::process::exit(0),
            };
            any = true;
            self.files.extend(received.descriptors.into_iter().map(File::from));
            match received.message {
                Request::AddSegment { segment, serial, .. } => {
                    self.segments = serial;
                    let added = Response::SegmentAdded { segment, serial, address: None };
                    self.channel.send(&added, &[], &[], true).unwrap();
                }
                Request::RemoveSegment { serial, .. } => self.segments = serial,
                Request::CreateKernel { kernel, .. } => {
                    self.kernel = Some(kernel);
                    let (workgroup, binding_count, constant_bytes) = ([1; 3], 0, 0);
                    let created =
                        Response::KernelCreated { kernel, workgroup, binding_count, constant_bytes };
                    if self.compiles {
                        self.channel.send(&created, &[], &[], true).unwrap();
                    }
                }
                Request::DestroyKernel { kernel } => {
                    self.channel.send(&Response::KernelDestroyed { kernel }, &[], &[], true).unwrap();
                }
                // No local memory is a device's own here, so nothing is to be moved by one.
                Request::Begin { .. } | Request::Move { .. } => {}
            }
        }
        let words = [
            (block::WATCH_ACK, self.load(block::WATCH_SEQUENCE)),
            (block::PAGE_TABLE_ACK, self.load(block::PAGE_TABLE_GENERATION)),
            (block::SEGMENT_ACK, self.segments),
        ];
        for (place, value) in words {
            any |= self.load(place) != value;
            self.store(place, value);
        }
        if any {
            self.event(0).signal();
        }
    }

    fn play(mut self) {
        let mut line = String::new();
        loop {
            match self.test.read_line(&mut line) {
                Ok(0) => return,
                Ok(_) => {
                    let answer = self.obey(line.trim_end()) + "\n";
                    line.clear();
                    let test = self.test.get_mut();
                    test.set_nonblocking(false).unwrap();
                    test.write_all(answer.as_bytes()).unwrap();
                    test.set_nonblocking(true).unwrap();
                }
                // What was read of the line so far stays in it.
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => self.wait(),
                Err(error) => panic!("{error}"),
            }
            if self.is_honest {
                self.serve();
            }
        }
    }

    /// For a line, or for what an honest engine does meanwhile.
    fn wait(&self) {
        let test = self.test.get_ref().as_fd();
        let limit = Duration::from_millis(if self.is_honest { 1 } else { 60_000 });
        let limit = rustix::event::Timespec::try_from(limit).unwrap();
        let mut ends = [rustix::event::PollFd::from_borrowed_fd(test, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut ends, Some(&limit)).unwrap();
    }

    fn obey(&mut self, line: &str) -> String {
        let words: Vec<&str> = line.split(' ').collect();
        let number = |at: usize| words[at].parse::<u64>().unwrap();
        match words[0] {
            "started" => {
                let started =
                    Response::Started { device: "a puppet".to_owned(), is_cpu: true, vram: 0, profile: None };
                self.channel.send(&started, &[], &[], true).unwrap();
            }
            "honest" => self.is_honest = number(1) != 0,
            "load" => return self.load(number(1)).to_string(),
            "store" => self.store(number(1), number(2)),
            "signal" => self.event(usize::try_from(number(1)).unwrap()).signal(),
            "packet" => return self.packet(&unhex(words[1]), &words[2..]),
            "close" => rustix::net::shutdown(&self.channel, Shutdown::Both).unwrap(),
            "kernel" => {
                return self
                    .kernel
                    .take()
                    .map_or(String::new(), |kernel| format!("{} {}", kernel.root, kernel.handle));
            }
            "scan" => return self.scan(&unhex(words[1])),
            other => panic!("a puppet knows no {other}"),
        }
        String::new()
    }

    /// One packet, with descriptors of these kinds beside it.
    fn packet(&self, bytes: &[u8], kinds: &[&str]) -> String {
        let mut held: Vec<OwnedFd> = Vec::new();
        for kind in kinds {
            held.push(match *kind {
                "null" => File::open("/dev/null").unwrap().into(),
                "folder" => File::open("/").unwrap().into(),
                "pipe" => rustix::pipe::pipe().unwrap().0,
                "socket" => UnixStream::pair().unwrap().0.into(),
                "channel" => self.channel.as_fd().try_clone_to_owned().unwrap(),
                "empty" => create_memfd("empty", 0).unwrap().into(),
                "unsealed" => rustix::fs::memfd_create("unsealed", rustix::fs::MemfdFlags::empty()).unwrap(),
                "block" => self.files[0].as_fd().try_clone_to_owned().unwrap(),
                other => panic!("no descriptor is a {other}"),
            });
        }
        let files: Vec<BorrowedFd<'_>> = held.iter().map(AsFd::as_fd).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(250))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() {
            assert!(ancillary.push(SendAncillaryMessage::ScmRights(&files)));
        }
        let parts = [IoSlice::new(bytes)];
        match rustix::net::sendmsg(&self.channel, &parts, &mut ancillary, SendFlags::NOSIGNAL) {
            Ok(_) => String::new(),
            Err(error) => error.to_string(),
        }
    }

    /// How often `pattern` is found in all that it has, file by file, at multiples of [`STEP`].
    fn scan(&mut self, pattern: &[u8]) -> String {
        let mut found = String::new();
        for index in 0..self.files.len() {
            // Eventfds have no size.
            let length = self.files[index].metadata().unwrap().len();
            let (mut count, mut at) = (0, 0);
            // Where nothing was ever written, there is nothing to read.
            while at < length {
                let Ok(begin) = rustix::fs::seek(&self.files[index], SeekFrom::Data(at)) else { break };
                at = rustix::fs::seek(&self.files[index], SeekFrom::Hole(begin)).unwrap().min(begin + PIECE);
                // With the beginning of the next piece.
                let end = (at + pattern.len() as u64 - 1).min(length);
                let mut bytes = vec![0; usize::try_from(end - begin).unwrap()];
                self.files[index].read_exact_at(&mut bytes, begin).unwrap();
                let places = (0..bytes.len()).step_by(STEP);
                count += places.filter(|place| bytes[*place..].starts_with(pattern)).count();
                if self.is_honest {
                    self.serve();
                }
            }
            write!(found, "{length}:{count} ").unwrap();
        }
        found.trim_end().to_owned()
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

fn unhex(text: &str) -> Vec<u8> {
    let digit = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
    (0..text.len()).step_by(2).map(digit).collect()
}

/// The process, from the test.
pub(crate) struct Puppet(Mutex<BufReader<UnixStream>>);

impl Puppet {
    /// The next engine of the VM is one; what `first_use` does must start it. Those after it are engines again.
    pub(crate) fn of(socket: &Path, first_use: impl FnOnce()) -> Self {
        let listener = UnixListener::bind(socket).unwrap();
        listener.set_nonblocking(true).unwrap();
        first_use();
        let mut stream = None;
        until("the engine is a puppet", || {
            stream = listener.accept().ok();
            stream.is_some()
        });
        let (stream, _) = stream.unwrap();
        fs::remove_file(socket).unwrap();
        stream.set_nonblocking(false).unwrap();
        stream.set_read_timeout(Some(NEVER)).unwrap();
        Self(Mutex::new(BufReader::new(stream)))
    }

    /// Has it do something; none where it has ended, or ends meanwhile.
    pub(crate) fn order(&self, line: &str) -> Option<String> {
        let mut stream = self.0.lock().unwrap();
        stream.get_mut().write_all(format!("{line}\n").as_bytes()).ok()?;
        let mut answer = String::new();
        match stream.read_line(&mut answer) {
            Ok(0) => None,
            Ok(_) => Some(answer.trim_end().to_owned()),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => None,
            Err(error) => panic!("{line}: {error}"),
        }
    }

    /// Sends a packet with descriptors of these kinds.
    pub(crate) fn packet(&self, bytes: &[u8], kinds: &[&str]) -> Option<String> {
        let kinds: String = kinds.iter().flat_map(|kind| [" ", kind]).collect();
        self.order(&format!("packet {}{kinds}", hex(bytes)))
    }

    /// How often it finds `pattern` in what it has, file by file: bytes of the file, count.
    pub(crate) fn scan(&self, pattern: &[u8]) -> Vec<(u64, u64)> {
        let found = self.order(&format!("scan {}", hex(pattern))).unwrap();
        let pair = |text: &str| {
            let (length, count) = text.split_once(':').unwrap();
            (length.parse().unwrap(), count.parse().unwrap())
        };
        found.split(' ').map(pair).collect()
    }

    /// Waits until its process is gone.
    pub(crate) fn has_ended(&self, why: &str) {
        let mut stream = self.0.lock().unwrap();
        match stream.read_line(&mut String::new()) {
            Ok(0) => {}
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {}
            other => panic!("{why}: the engine goes on: {other:?}"),
        }
    }
}
