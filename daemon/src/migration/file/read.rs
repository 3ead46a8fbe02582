//! Reading such a file.

use std::fs::File;
use std::io;
use std::io::BufReader;
use std::path::Path;

use campanile_host_gpu::outside;
use rustix::fs::Mode;
use rustix::fs::OFlags;
use rustix::fs::open;
use rustix::io::Errno;
use serde::Serialize;

use super::write::wrong;
use crate::migration::channel::frame;
use crate::migration::channel::frame::Kind;
use crate::migration::channel::message::Hello;
use crate::migration::channel::message::Message;
use crate::migration::channel::record::Record;
use crate::migration::error::MigrationError;
use crate::migration::id::BundleId;
use crate::migration::memory::Memory;
use crate::migration::pages::PAGE;
use crate::migration::stage::Stage;
use crate::migration::stage::Unpacker;
use crate::migration::target::arriving::Arriving;

/// What is in a file, but for the pages themselves.
#[derive(Debug, Clone, Serialize)]
pub struct Contents {
    /// What its source said of itself.
    pub hello: Hello,
    /// The state, where it is a snapshot.
    #[serde(skip)]
    pub state: Option<Vec<u8>>,
    /// Records.
    pub records: u64,
    /// Bytes of pages, with those that came more than once.
    pub bytes: u64,
    /// Pages of each memory that have data, by index.
    pub data_pages: [u64; 2],
    /// Pages of each memory that are zero.
    pub zero_pages: [u64; 2],
    /// Bytes of the payloads as they are packed.
    pub packed_bytes: u64,
}

/// Opens a file to read it. A FIFO or device is refused, and not waited for.
fn open_regular(path: &Path, links: bool) -> io::Result<File> {
    let invalid = |what: &str| io::Error::new(io::ErrorKind::InvalidInput, what.to_owned());
    let follow = if links { OFlags::empty() } else { OFlags::NOFOLLOW };
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY | follow;
    let file = File::from(open(path, flags, Mode::empty()).map_err(|errno| match errno {
        Errno::LOOP if !links => invalid("it is a symlink, which is not followed"),
        _ => errno.into(),
    })?);
    if file.metadata()?.is_file() { Ok(file) } else { Err(invalid("it is not a regular file")) }
}

/// The frames of a file.
struct Frames {
    file: BufReader<File>,
    sequence: u64,
}

impl Frames {
    /// Where not `links`, the last part of `path` must be no symlink.
    fn open(path: &Path, links: bool) -> Result<Self, MigrationError> {
        // The thread of a VM, which reads the file, may open next to nothing itself.
        let named = path.to_owned();
        let opened = outside::run(move || open_regular(&named, links)).and_then(|opened| opened);
        let file = opened.map_err(|source| wrong(path, source))?;
        Ok(Self { file: BufReader::with_capacity(1 << 20, file), sequence: 0 })
    }

    fn next(&mut self, body: &mut Vec<u8>) -> Result<Kind, MigrationError> {
        let kind = frame::read_next(&mut self.file, self.sequence, body)?;
        self.sequence += 1;
        kind.ok_or(MigrationError::Corrupt("it ends before it is whole"))
    }

    /// What its source said of itself: the first frame.
    fn hello(&mut self) -> Result<Hello, MigrationError> {
        let mut body = Vec::new();
        match self.next(&mut body)? {
            Kind::Message => match Message::decode(&body)? {
                Message::Hello(hello) => Ok(hello),
                other => Err(MigrationError::Protocol(format!("{other:?} at its beginning"))),
            },
            Kind::Pages | Kind::State | Kind::Kernel => {
                Err(MigrationError::protocol("no message at its beginning"))
            }
        }
    }
}

/// Reads all of a file. `begin` looks at what its source says before anything else is read, and `each` takes every record.
///
/// # Errors
/// It cannot be read, is not whole, or is refused.
fn walk(
    path: &Path,
    links: bool,
    begin: impl FnOnce(&Hello) -> Result<(), MigrationError>,
    mut each: impl FnMut(&Record<'_>) -> Result<(), MigrationError>,
) -> Result<Contents, MigrationError> {
    let mut frames = Frames::open(path, links)?;
    let hello = frames.hello()?;
    begin(&hello)?;
    let mut contents = Contents {
        hello,
        state: None,
        records: 0,
        bytes: 0,
        data_pages: [0; 2],
        zero_pages: [0; 2],
        packed_bytes: 0,
    };
    let mut body = Vec::new();
    loop {
        match frames.next(&mut body)? {
            Kind::Pages => {
                let record = Record::decode(&body)?;
                each(&record)?;
                contents.count(&record);
            }
            Kind::State if contents.state.is_none() => contents.state = Some(std::mem::take(&mut body)),
            Kind::State => return Err(MigrationError::protocol("two states in one file")),
            Kind::Kernel => return Err(MigrationError::protocol("a kernel in a file")),
            Kind::Message => match Message::decode(&body)? {
                Message::Complete { records, bytes } => {
                    if (records, bytes) != (contents.records, contents.bytes) {
                        return Err(MigrationError::Corrupt("records are missing"));
                    }
                    break;
                }
                other => return Err(MigrationError::Protocol(format!("{other:?} within it"))),
            },
        }
    }
    if frame::read_next(&mut frames.file, 0, &mut body).map_or(true, |more| more.is_some()) {
        return Err(MigrationError::Corrupt("there is more behind its end"));
    }
    Ok(contents)
}

impl Contents {
    fn count(&mut self, record: &Record<'_>) {
        self.records += 1;
        self.packed_bytes += record.payload.len() as u64;
        for run in &record.runs {
            let index = record.memory.index();
            let pages = u64::from(run.pages);
            self.bytes = self.bytes.saturating_add(pages * PAGE);
            let counted = if run.is_zero { &mut self.zero_pages } else { &mut self.data_pages };
            counted[index] = counted[index].saturating_add(pages);
        }
    }

    /// Pages of a memory: with data, and zero.
    pub fn pages(&self, memory: Memory) -> (u64, u64) {
        (self.data_pages[memory.index()], self.zero_pages[memory.index()])
    }
}

/// Looks at a file, whatever vGPU it is of, and keeps none of its pages.
///
/// # Errors
/// It cannot be read, or is not whole.
pub fn inspect(path: &Path) -> Result<Contents, MigrationError> {
    walk(path, true, |_| Ok(()), |_| Ok(()))
}

/// Whether a vGPU may begin as this file, as far as what its source said of itself tells. The rest is read when it does.
///
/// # Errors
/// It cannot be read, is no such file, or does not fit.
pub fn examine(path: &Path, vgpu: &Arriving) -> Result<(), MigrationError> {
    let hello = Frames::open(path, true)?.hello()?;
    vgpu.examine(&hello).map(|_| ()).map_err(MigrationError::Refused)
}

/// Reads a file for a vGPU: everything is checked as if it came over a line. `bundle` is what it must be of, where that is
/// known.
///
/// # Errors
/// It cannot be read, is not whole, or does not fit.
pub fn load(
    path: &Path,
    vgpu: &Arriving,
    bundle: Option<BundleId>,
) -> Result<(Contents, Stage), MigrationError> {
    let stage = Stage::new(&vgpu.shape)?;
    let mut unpacker = Unpacker::default();
    let begin = |hello: &Hello| {
        if bundle.is_some_and(|bundle| bundle != hello.bundle) {
            return Err(MigrationError::Refused(format!("it is of bundle {}", hello.bundle)));
        }
        vgpu.examine(hello).map(|_| ()).map_err(MigrationError::Refused)
    };
    // A side file lies under a name of ours; a snapshot under one that the operator gave.
    let contents = walk(path, bundle.is_none(), begin, |record| stage.apply(record, &mut unpacker))?;
    stage.seal(contents.records, contents.bytes)?;
    Ok((contents, stage))
}
