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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use super::Backing;
    use super::Blob;
    use super::Blobs;
    use super::Part;
    use super::Stage;
    use super::place;
    use crate::vgpu::objects::budget::Budget;
    use crate::vgpu::objects::budget::Charge;
    use crate::vgpu::objects::budget::Kind;
    use crate::vgpu::objects::timeline::Token;

    const PAGE: u32 = 4096;

    fn charge() -> Option<Charge> {
        Some(Arc::new(Budget::default()).vm().charge(Kind::Blobs, 1).unwrap())
    }

    fn pages(owner: u32, bytes: u32) -> Blob {
        let backing = Backing::Pages { parts: BTreeMap::new() };
        Blob { owner, bytes: u64::from(bytes), backing, stage: Stage::Waits, awaited: Vec::new() }
    }

    fn part(bytes: u32, pages: Option<Vec<(u64, u32)>>) -> Part {
        Part { bytes, token: Token(1), pages, charge: None }
    }

    /// Blob 7 of file 1, of two pages.
    fn blobs() -> Blobs {
        let mut blobs = Blobs::default();
        blobs.by_name.insert(7, pages(1, 2 * PAGE));
        blobs
    }

    #[test]
    fn names_go_round_from_one_on_and_none_is_given_twice() {
        let mut blobs = Blobs::default();
        assert_eq!([(); 2].map(|()| blobs.new_name()), [1, 2]);
        blobs.by_name.insert(1, pages(1, PAGE));
        blobs.last = place::MAX_BLOB - 1;
        assert_eq!(
            [(); 2].map(|()| blobs.new_name()),
            [place::MAX_BLOB, 2],
            "1 has a blob, and 0 is no name"
        );
    }

    #[test]
    fn a_blob_is_that_of_its_file_until_its_name_is_given_up() {
        let mut blobs = blobs();
        assert!(blobs.own(1, 7).is_ok());
        assert!(blobs.own(2, 7).is_err() && blobs.own(1, 8).is_err());
        blobs.by_name.get_mut(&7).unwrap().stage = Stage::Retired;
        assert!(blobs.own(1, 7).is_err());
    }

    #[test]
    fn a_blob_is_complete_when_all_its_pages_are_registered_and_known() {
        let mut blobs = blobs();
        let is_complete = |blobs: &Blobs| blobs.by_name[&7].is_complete();
        let entries = |blobs: &Blobs| -> Vec<(u64, u32)> {
            blobs.by_name[&7].entries().iter().map(|entry| (entry.address, entry.length)).collect()
        };
        blobs.add_part(7, u64::from(PAGE), part(PAGE, Some(vec![(0x9000, PAGE)])));
        assert!(blobs.complete.contains(&7), "it is to be looked at");
        assert!(!is_complete(&blobs), "the first page is missing");
        blobs.add_part(7, 0, part(PAGE, None));
        assert!(!is_complete(&blobs), "and not known");
        assert_eq!(blobs.registered_bytes, 2 * u64::from(PAGE));
        blobs.complete.clear();
        blobs.part_is_found(7, 0, Some(vec![(0x3000, PAGE)]), None);
        assert!(!is_complete(&blobs), "there is no room for its list");
        blobs.part_is_found(7, 0, Some(vec![(0x3000, 1024), (0x5000, 3072)]), charge());
        assert!(is_complete(&blobs) && blobs.complete.contains(&7));
        let order = [(0x3000, 1024), (0x5000, 3072), (0x9000, PAGE)];
        assert_eq!(entries(&blobs), order, "in the order of the blob");
        let video = Blob { backing: Backing::Video, bytes: 0, ..pages(1, 0) };
        assert!(!video.is_complete() && video.entries().is_empty());
    }

    #[test]
    fn pages_count_as_registered_until_their_parts_are_taken_or_lost() {
        let mut blobs = blobs();
        blobs.by_name.insert(8, pages(1, PAGE));
        blobs.add_part(8, 0, part(PAGE, None));
        blobs.add_part(7, 0, part(PAGE, None));
        blobs.add_part(7, u64::from(PAGE), part(PAGE / 2, None));
        blobs.part_is_lost(7, 1);
        assert_eq!(blobs.registered_bytes, 10240, "no part begins there");
        blobs.part_is_lost(7, 0);
        blobs.part_is_lost(7, 0);
        assert_eq!(blobs.registered_bytes, 6144);
        assert_eq!(blobs.take_parts(7).iter().map(|part| part.bytes).collect::<Vec<_>>(), [PAGE / 2]);
        assert_eq!(blobs.registered_bytes, u64::from(PAGE));
        assert!(blobs.take_parts(7).is_empty() && blobs.take_parts(9).is_empty());
        assert_eq!(blobs.registered_bytes, u64::from(PAGE), "blob 8 has its page");
    }
}
