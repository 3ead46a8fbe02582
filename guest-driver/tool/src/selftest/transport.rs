//! Checks of the trait `Transport`.

use std::sync::atomic::Ordering;

use anyhow::Context;
use anyhow::ensure;
use campanile_guest_driver::transport::Transport;
use campanile_guest_driver::transport::blob::BlobMemory;
use campanile_guest_driver::transport::error::TransportError;
use campanile_protocol::PAGE_SIZE;
use campanile_protocol::PROTOCOL_VERSION;
use campanile_protocol::control::frame::MAX_CONTROL_BYTES;

use super::check::Check;
use crate::target::Machine;
use crate::target::WithTransport;

/// The checks.
pub(super) const CHECKS: &[Check] = &[
    Check { claim: "the capability set says which protocol the daemon speaks", holds: |at| at.with(Capset)? },
    Check { claim: "a blob is whole pages, zeroed, and keeps what is written", holds: |at| at.with(Blobs)? },
    Check {
        claim: "a blob mapped twice is the same memory, without a command",
        holds: |at| at.with(MappedTwice)?,
    },
    Check { claim: "a mapping outlives its blob", holds: |at| at.with(Outlives)? },
    Check { claim: "sizes and timelines that cannot be are refused", holds: |at| at.with(Limits)? },
    Check { claim: "a blob of another process is refused", holds: foreign },
];

/// The kinds of memory that this machine has for blobs.
fn kinds(transport: &impl Transport) -> Vec<BlobMemory> {
    let mut kinds = vec![BlobMemory::GuestRam];
    if transport.sees_video_memory() {
        kinds.push(BlobMemory::Vram);
    }
    kinds
}

struct Capset;

impl WithTransport for Capset {
    type Output = anyhow::Result<()>;

    fn with(self, transport: impl Transport) -> Self::Output {
        let capset = transport.capset()?;
        ensure!(capset.protocol_version == PROTOCOL_VERSION, "it says {:#x}", capset.protocol_version);
        ensure!(capset.node_count > 0 && capset.vram_bytes > 0, "no nodes, or no memory: {capset:?}");
        ensure!(transport.is_connected(), "it counts as disconnected");
        Ok(())
    }
}

struct Blobs;

impl WithTransport for Blobs {
    type Output = anyhow::Result<()>;

    fn with(self, transport: impl Transport) -> Self::Output {
        for kind in kinds(&transport) {
            let small = transport.create_blob(kind, 1)?;
            ensure!(small.size() == PAGE_SIZE, "one byte became {} bytes", small.size());
            let blob = transport.create_blob(kind, 3 * PAGE_SIZE)?;
            ensure!(blob.resource_id() != small.resource_id(), "two blobs have one name");
            let (one, other) = (transport.map(&small)?, transport.map(&blob)?);
            let mut bytes = vec![1; usize::try_from(other.len())?];
            other.read(0, &mut bytes).context("reading a whole blob")?;
            ensure!(bytes.iter().all(|byte| *byte == 0), "a new {kind:?} blob is not zeroed");
            other.write(PAGE_SIZE - 2, &[1, 2, 3, 4]).context("writing over a page's end")?;
            one.word(8).context("a word")?.store(99, Ordering::Release);
            let mut back = [0; 4];
            other.read(PAGE_SIZE - 2, &mut back).context("reading over a page's end")?;
            ensure!(back == [1, 2, 3, 4], "{kind:?}: found {back:?}");
            ensure!(other.word(8).is_some_and(|word| word.load(Ordering::Acquire) == 0), "blobs overlap");
            transport.destroy_blob(small)?;
            transport.destroy_blob(blob)?;
        }
        Ok(())
    }
}

struct MappedTwice;

impl WithTransport for MappedTwice {
    type Output = anyhow::Result<()>;

    fn with(self, transport: impl Transport) -> Self::Output {
        for kind in kinds(&transport) {
            let blob = transport.create_blob(kind, PAGE_SIZE)?;
            let first = transport.map(&blob)?;
            let before = transport.commands_sent();
            let second = transport.map(&blob)?;
            first.word(0).context("a word")?.store(7, Ordering::Release);
            ensure!(second.word(0).is_some_and(|word| word.load(Ordering::Acquire) == 7), "two memories");
            let sent = transport.commands_sent() - before;
            ensure!(sent == 0, "{sent} commands were sent");
            transport.destroy_blob(blob)?;
        }
        Ok(())
    }
}

struct Outlives;

impl WithTransport for Outlives {
    type Output = anyhow::Result<()>;

    fn with(self, transport: impl Transport) -> Self::Output {
        for kind in kinds(&transport) {
            let blob = transport.create_blob(kind, PAGE_SIZE)?;
            let memory = transport.map(&blob)?;
            transport.destroy_blob(blob)?;
            memory.word(0).context("a word")?.store(5, Ordering::Release);
            let mut byte = [0];
            memory.read(0, &mut byte).context("reading")?;
        }
        Ok(())
    }
}

struct Limits;

impl WithTransport for Limits {
    type Output = anyhow::Result<()>;

    fn with(self, transport: impl Transport) -> Self::Output {
        let refused = matches!(
            transport.create_blob(BlobMemory::GuestRam, 0),
            Err(TransportError::Size { bytes: 0, .. })
        );
        ensure!(refused, "a blob of no bytes was made");
        let long = vec![0; usize::try_from(MAX_CONTROL_BYTES)? + 8];
        let refused = matches!(transport.submit(&long, None), Err(TransportError::Size { .. }));
        ensure!(refused, "a submission that is too long was taken");
        let refused = matches!(transport.submit(&[0; 8], Some(64)), Err(TransportError::RingIndex { .. }));
        ensure!(refused, "timeline 64 was taken");
        Ok(())
    }
}

/// Opens a second transport while the first holds a blob.
fn foreign(machine: &Machine) -> anyhow::Result<()> {
    struct Owner<'a>(&'a Machine);
    struct Stranger(campanile_guest_driver::transport::blob::Blob);

    impl WithTransport for Owner<'_> {
        type Output = anyhow::Result<()>;

        fn with(self, transport: impl Transport) -> Self::Output {
            let blob = transport.create_blob(BlobMemory::GuestRam, PAGE_SIZE)?;
            self.0.with(Stranger(blob))?
        }
    }

    impl WithTransport for Stranger {
        type Output = anyhow::Result<()>;

        fn with(self, transport: impl Transport) -> Self::Output {
            let mapped = transport.map(&self.0);
            ensure!(matches!(mapped, Err(TransportError::ForeignBlob { .. })), "it was mapped");
            let destroyed = transport.destroy_blob(self.0);
            ensure!(matches!(destroyed, Err(TransportError::ForeignBlob { .. })), "it was destroyed");
            Ok(())
        }
    }

    machine.with(Owner(machine))?
}
