//! Pages that the guest's CPU can write. Nothing tells when it does, so their contents are compared with what was last
//! sent of them.
//!
//! What is remembered is the hash of the very bytes that were sent: of a page that changed between the look at its bits
//! and the copy, and then changed back, the other side has something else, and that shows in the next comparison.

use rustix::rand::GetRandomFlags;
use xxhash_rust::xxh3::xxh3_64_with_secret;

use super::basis::Pages;
use super::plane::Plane;

/// Bytes of the secret, so that no guest can make up two contents with one hash.
const SECRET_BYTES: usize = 192;
/// Pages that are compared at a time.
pub(super) const BATCH: u64 = 64;

/// Hashes contents with a secret of its own.
#[derive(Debug)]
pub(super) struct Hasher {
    secret: [u8; SECRET_BYTES],
}

impl Hasher {
    /// With a new secret.
    pub(super) fn new() -> std::io::Result<Self> {
        let mut secret = [0; SECRET_BYTES];
        let mut filled = 0;
        while filled < secret.len() {
            filled += rustix::rand::getrandom(&mut secret[filled..], GetRandomFlags::empty())?;
        }
        Ok(Self { secret })
    }

    pub(super) fn hash(&self, page: &[u8]) -> u64 {
        xxh3_64_with_secret(page, &self.secret)
    }
}

/// Which pages those are, and what was last sent of each.
#[derive(Debug)]
pub(super) struct Visible {
    shown: Plane,
    settled: Plane,
    hashes: Vec<u64>,
    pages: u64,
}

impl Visible {
    pub(super) fn new(pages: u64) -> Self {
        Self { shown: Plane::new(pages), settled: Plane::new(pages), hashes: Vec::new(), pages }
    }

    pub(super) fn show(&mut self, pages: Pages) {
        self.shown.set(pages);
        self.settled.clear(pages);
        let end = usize::try_from(pages.end().min(self.pages)).unwrap_or(0);
        if self.hashes.len() < end {
            self.hashes.resize(end, 0);
        }
    }

    /// The same where what was sent is remembered elsewhere.
    pub(super) fn show_without_hash(&mut self, pages: Pages) {
        self.shown.set(pages);
    }

    pub(super) fn hide(&mut self, pages: Pages) {
        self.shown.clear(pages);
        self.settled.clear(pages);
    }

    /// Those pages.
    pub(super) fn shown(&self) -> &Plane {
        &self.shown
    }

    pub(super) fn is_shown(&self, page: u64) -> bool {
        self.shown.has(page)
    }

    fn hash_of(&self, page: u64) -> Option<u64> {
        let hash = usize::try_from(page).ok().and_then(|page| self.hashes.get(page)).copied();
        hash.filter(|_| self.settled.has(page))
    }

    /// Whether a page with these contents, as their hash, differs from what was sent of it.
    pub(super) fn differs(&self, page: u64, hash: u64) -> bool {
        self.is_shown(page) && self.hash_of(page) != Some(hash)
    }

    /// The next run of pages from `within` of which something was sent, at most [`BATCH`]; those before it of which
    /// nothing was sent are handed to `unsettled`.
    pub(super) fn next(&self, within: Pages, mut unsettled: impl FnMut(Pages)) -> Option<Pages> {
        let within = within.common(Pages { first: 0, count: self.hashes.len() as u64 });
        let mut run: Option<Pages> = None;
        for page in within.first..within.end() {
            let is_settled = self.settled.has(page);
            if self.is_shown(page) && !is_settled && run.is_none() {
                unsettled(Pages { first: page, count: 1 });
            }
            match run {
                Some(pages) if !is_settled || pages.count == BATCH => return run,
                Some(pages) => run = Some(Pages { count: pages.count + 1, ..pages }),
                None if is_settled => run = Some(Pages { first: page, count: 1 }),
                None => {}
            }
        }
        run
    }

    /// This was sent of a page; whether something else was before.
    pub(super) fn settle(&mut self, page: u64, hash: u64) -> bool {
        if !self.is_shown(page) {
            return false;
        }
        let before = self.hash_of(page);
        self.settled.set(Pages { first: page, count: 1 });
        if let Some(place) = usize::try_from(page).ok().and_then(|page| self.hashes.get_mut(page)) {
            *place = hash;
        }
        before != Some(hash)
    }
}

#[cfg(test)]
mod tests {
    use super::BATCH;
    use super::Pages;
    use super::Visible;

    fn pages(first: u64, count: u64) -> Pages {
        Pages { first, count }
    }

    /// Pages 0 to 99 of 200 are shown, and something was sent of some of them.
    fn shown() -> Visible {
        let mut visible = Visible::new(200);
        visible.show(pages(0, 100));
        for page in [2, 3, 5].into_iter().chain(20..96) {
            assert!(visible.settle(page, 7), "{page}");
        }
        visible
    }

    #[test]
    fn what_was_sent_comes_in_runs_and_what_was_not_is_named_page_by_page() {
        let mut visible = shown();
        let next = |visible: &Visible, first| {
            let mut unsettled = Vec::new();
            let run = visible.next(pages(first, 100 - first), |pages| {
                assert_eq!(pages.count, 1);
                unsettled.push(pages.first);
            });
            (run, unsettled)
        };
        assert_eq!(next(&visible, 0), (Some(pages(2, 2)), vec![0, 1]));
        assert_eq!(next(&visible, 4), (Some(pages(5, 1)), vec![4]));
        assert_eq!(next(&visible, 6), (Some(pages(20, BATCH)), (6..20).collect()));
        assert_eq!(next(&visible, 84), (Some(pages(84, 12)), vec![]));
        assert_eq!(next(&visible, 96), (None, (96..100).collect()));
        visible.hide(pages(0, 1));
        assert_eq!(next(&visible, 0), (Some(pages(2, 2)), vec![1]));
    }

    #[test]
    fn pages_behind_those_that_were_ever_shown_are_passed_over() {
        let run = shown().next(pages(98, 100), |pages| assert!(pages.first < 100));
        assert_eq!(run, None);
    }

    #[test]
    fn what_is_sent_of_a_page_is_compared_with_what_was_before() {
        let mut visible = shown();
        assert!(!visible.settle(2, 7), "the same");
        assert!(visible.settle(2, 8), "something else");
        assert!(!visible.differs(2, 8) && visible.differs(2, 7));
        assert!(!visible.settle(150, 8), "no page that the guest can write");
        assert!(!visible.differs(150, 8));
        visible.show(pages(2, 1));
        assert!(visible.settle(2, 8), "shown anew, nothing was sent of it");
    }
}
