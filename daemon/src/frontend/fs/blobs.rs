//! Blobs of guest processes, and the pages that are registered for them.

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use campanile_protocol::fs::place;
use campanile_protocol::virtio_gpu::blob::MemEntry;

use super::answer::Fault;
use crate::vgpu::objects::budget::Charge;
use crate::vgpu::objects::refusal::Refusal;
use crate::vgpu::objects::timeline::Token;

/// Pages that were registered by one read.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) bytes: u32,
    /// The read.
    pub(super) token: Token,
    /// Guest-physical address and bytes; none before its request is found again.
    pub(super) pages: Option<Vec<(u64, u32)>>,
    /// What was charged for them.
    pub(super) charge: Option<Charge>,
}

/// Where the memory of a blob is.
#[derive(Debug)]
pub(super) enum Backing {
    /// A range of the aperture.
    Aperture { offset: u64 },
    /// Pages of the process; parts by their first byte.
    Pages { parts: BTreeMap<u64, Part> },
    /// Video memory.
    Video,
}

/// How far a blob is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// Not all of its pages are registered.
    Waits,
    /// Engines are told of it.
    Making,
    /// It can be used.
    Ready,
    /// It never can.
    Failed(Refusal),
    /// Its name was given up.
    Retired,
}

/// A blob. Its name is that of the session's resource, which is there from MAKING to READY.
#[derive(Debug)]
pub(super) struct Blob {
    /// The file of the process.
    pub(super) owner: u32,
    pub(super) bytes: u64,
    pub(super) backing: Backing,
    pub(super) stage: Stage,
    /// Waits until it is ready.
    pub(super) awaited: Vec<Token>,
}

impl Blob {
    /// Whether all its pages are registered, and known.
    pub(super) fn is_complete(&self) -> bool {
        let Backing::Pages { parts } = &self.backing else { return false };
        let known = parts.values().filter(|part| part.pages.is_some());
        known.map(|part| u64::from(part.bytes)).sum::<u64>() == self.bytes
    }

    /// Its page list.
    pub(super) fn entries(&self) -> Vec<MemEntry> {
        let Backing::Pages { parts } = &self.backing else { return Vec::new() };
        let pages = parts.values().filter_map(|part| part.pages.as_ref()).flatten();
        pages.map(|&(address, length)| MemEntry { address, length, padding: 0 }).collect()
    }
}

/// The blobs of one VM.
#[derive(Debug, Default)]
pub(super) struct Blobs {
    /// Name of the last one.
    pub(super) last: u32,
    pub(super) by_name: BTreeMap<u32, Blob>,
    /// Those whose pages may all be there.
    pub(super) complete: BTreeSet<u32>,
    /// Those of pages that are being made, by what the session will say.
    pub(super) making: BTreeMap<Token, u32>,
    /// Those without a name, by what the session will say.
    pub(super) retired: BTreeMap<Token, u32>,
    /// Bytes of guest memory.
    pub(super) memory_bytes: u64,
    /// Those of them that are registered.
    pub(super) registered_bytes: u64,
}

impl Blobs {
    /// A name that no blob has; the session's resources are named here only.
    pub(super) fn new_name(&mut self) -> u32 {
        loop {
            self.last = self.last % place::MAX_BLOB + 1;
            if !self.by_name.contains_key(&self.last) {
                return self.last;
            }
        }
    }

    /// A blob of this process.
    pub(super) fn own(&self, owner: u32, name: u32) -> Result<&Blob, Fault> {
        let blob = self.by_name.get(&name).filter(|blob| blob.owner == owner && blob.stage != Stage::Retired);
        blob.ok_or(Fault::Refused(Refusal::Resource))
    }

    /// Pages of a blob are registered from byte `at` on.
    pub(super) fn add_part(&mut self, name: u32, at: u64, part: Part) {
        self.registered_bytes += u64::from(part.bytes);
        self.complete.insert(name);
        if let Some(Blob { backing: Backing::Pages { parts }, .. }) = self.by_name.get_mut(&name) {
            parts.insert(at, part);
        }
    }

    /// The pages of a blob are registered no more: the parts that they were registered by.
    pub(super) fn take_parts(&mut self, name: u32) -> Vec<Part> {
        let Some(Blob { backing: Backing::Pages { parts }, .. }) = self.by_name.get_mut(&name) else {
            return Vec::new();
        };
        let parts: Vec<Part> = std::mem::take(parts).into_values().collect();
        let bytes: u64 = parts.iter().map(|part| u64::from(part.bytes)).sum();
        self.registered_bytes = self.registered_bytes.saturating_sub(bytes);
        parts
    }

    /// A read was found again.
    pub(super) fn part_is_found(
        &mut self,
        name: u32,
        at: u64,
        pages: Option<Vec<(u64, u32)>>,
        charge: Option<Charge>,
    ) {
        if let Some(blob) = self.by_name.get_mut(&name)
            && let Backing::Pages { parts } = &mut blob.backing
            && let Some(part) = parts.get_mut(&at)
        {
            // Without room for its list nothing becomes of its blob.
            part.pages = pages.filter(|_| charge.is_some());
            part.charge = charge;
            self.complete.insert(name);
        }
    }

    /// A read is not what it was: its pages are not registered.
    pub(super) fn part_is_lost(&mut self, name: u32, at: u64) {
        if let Some(blob) = self.by_name.get_mut(&name)
            && let Backing::Pages { parts } = &mut blob.backing
            && let Some(part) = parts.remove(&at)
        {
            self.registered_bytes = self.registered_bytes.saturating_sub(u64::from(part.bytes));
        }
    }
}
