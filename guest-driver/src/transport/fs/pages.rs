//! Blobs whose bytes are pages of this process.

use std::fs::File;
use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use std::time::Instant;

use campanile_protocol::fs::MAX_TRANSFER;
use campanile_protocol::fs::body::AwaitBlob;
use campanile_protocol::fs::body::CreatedBlob;
use campanile_protocol::fs::body::Key;
use campanile_protocol::fs::body::Waited;
use campanile_protocol::fs::call::Call;
use rustix::fs::MemfdFlags;
use vm_memory::FileOffset;
use vm_memory::MmapRegion;

use super::channel::FsChannel;
use super::parked::ParkedReads;
use super::parked::ReadId;
use super::reader_process;
use super::reader_process::HelperRead;
use crate::transport::error::TransportError;

/// How long the daemon may keep one AWAIT_BLOB: then the reads are looked at.
const STEP: Duration = Duration::from_millis(100);
/// How long all of it may take.
const LIMIT: Duration = Duration::from_secs(30);

/// The way by which pages are registered, opened when the first blob needs it.
#[derive(Debug)]
pub(super) enum Registrar {
    /// io_uring holds the reads.
    Ring(ParkedReads),
    /// A process of its own holds each; the file is opened once.
    Helpers(File),
}

/// One read that is held.
#[derive(Debug)]
enum Read {
    Ring(ReadId),
    Helper(HelperRead),
}

/// Zeroed memory of this process, of whole pages, which its children share.
pub(super) fn memory(bytes: u64) -> Result<Arc<MmapRegion>, TransportError> {
    let refused = |source| TransportError::System { what: "memory for a blob", source };
    let memfd =
        rustix::fs::memfd_create("campanile-blob", MemfdFlags::CLOEXEC).map_err(|e| refused(e.into()))?;
    rustix::fs::ftruncate(&memfd, bytes).map_err(|e| refused(e.into()))?;
    let length = usize::try_from(bytes).map_err(|e| refused(e.into()))?;
    let region = MmapRegion::from_file(FileOffset::new(memfd.into(), 0), length);
    Ok(Arc::new(region.map_err(|e| refused(e.into()))?))
}

impl Registrar {
    /// Opens a file of its own, which joins the session of `channel`.
    pub(super) fn open(channel: &FsChannel) -> Result<Self, TransportError> {
        let file = open_direct(channel.path())
            .map_err(|source| TransportError::System { what: "a second open file", source: source.into() })?;
        let key: Key = channel.ask("KEY", Call::Key, &(), &[])?;
        let () = channel.ask_on(&file, "JOIN", Call::Join, &key, &[])?;
        let for_ring = file
            .try_clone()
            .map_err(|source| TransportError::System { what: "a second open file", source: source.into() })?;
        Ok(match ParkedReads::new(for_ring) {
            Ok(reads) => Self::Ring(reads),
            Err(error) => {
                log::info!("io_uring is not available ({error}): helper processes hold reads instead");
                Self::Helpers(file)
            }
        })
    }

    fn start(&self, region: &Arc<MmapRegion>, at: usize, length: u32, offset: u64) -> io::Result<Read> {
        match self {
            Self::Ring(reads) => reads.start(region, at, length, offset).map(Read::Ring),
            Self::Helpers(file) => reader_process::start(file, region, at, length, offset).map(Read::Helper),
        }
    }

    /// How a read ended; `None` while it is under way.
    fn end_of(&self, read: &mut Read) -> Option<io::Result<u32>> {
        match (self, read) {
            (Self::Ring(reads), Read::Ring(read)) => reads.end_of(*read),
            (_, Read::Helper(read)) => read.end(),
            (Self::Helpers(_), Read::Ring(_)) => None,
        }
    }

    /// The daemon has these reads.
    fn pinned(&self, held: &[Read]) {
        if let Self::Ring(reads) = self {
            let id = |read: &Read| if let Read::Ring(id) = read { Some(*id) } else { None };
            reads.pinned(&held.iter().filter_map(id).collect::<Vec<_>>());
        }
    }

    /// Has the daemon take the pages of `region` as those of a blob, and waits until it has them all.
    pub(super) fn register(
        &self,
        channel: &FsChannel,
        blob: CreatedBlob,
        region: &Arc<MmapRegion>,
    ) -> Result<(), TransportError> {
        let mut reads = Vec::new();
        let step = usize::try_from(MAX_TRANSFER).unwrap_or(region.size()).max(1);
        let parts = (0..region.size()).step_by(step);
        for at in parts {
            let length = u32::try_from((region.size() - at).min(step)).unwrap_or(MAX_TRANSFER);
            let started = self.start(region, at, length, blob.offset + at as u64);
            reads.push(started.map_err(|source| refused(source.into()))?);
        }
        self.wait_until_registered(channel, blob.blob, &mut reads)?;
        self.pinned(&reads);
        Ok(())
    }

    fn wait_until_registered(
        &self,
        channel: &FsChannel,
        blob: u32,
        reads: &mut [Read],
    ) -> Result<(), TransportError> {
        let timeout = u64::try_from(STEP.as_nanos()).unwrap_or_default();
        let begun = Instant::now();
        loop {
            let body = AwaitBlob { blob, reserved: 0, timeout };
            let waited: Waited = channel.ask("AWAIT_BLOB", Call::AwaitBlob, &body, &[])?;
            if waited.done != 0 {
                return Ok(());
            }
            // The daemon answers none that it wants to keep.
            if let Some(ended) = reads.iter_mut().find_map(|read| self.end_of(read)) {
                return Err(match ended {
                    Ok(_) => refused("the daemon answered at once".into()),
                    Err(source) => refused(source.into()),
                });
            }
            if begun.elapsed() > LIMIT {
                return Err(TransportError::Timeout { what: "AWAIT_BLOB", after: begun.elapsed() });
            }
        }
    }
}

fn refused(source: Box<dyn std::error::Error + Send + Sync>) -> TransportError {
    TransportError::System { what: "registering pages", source }
}

fn open_direct(path: &Path) -> io::Result<File> {
    let flags = i32::try_from(rustix::fs::OFlags::DIRECT.bits()).unwrap_or_default();
    OpenOptions::new().read(true).write(true).custom_flags(flags).open(path)
}
