//! Virtio timelines: when a fence may signal.

use std::collections::BTreeMap;
use std::collections::VecDeque;

use super::budget::Charge;

/// A front's own name for something that waits to be answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

/// One piece of work on a timeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Item(pub(in crate::vgpu) u64);

/// The order of one ring index of one context: a fence signals when all work begun before it has ended, and
/// fences signal in order.
#[derive(Debug, Default)]
pub struct Timeline {
    pub(in crate::vgpu) next: u64,
    /// Work that has not ended, and what was charged for it; nothing where it ends something that was.
    pub(in crate::vgpu) open: BTreeMap<u64, Option<Charge>>,
    pub(in crate::vgpu) fences: VecDeque<(u64, Token)>,
}

impl Timeline {
    /// None of whose work has a number up to `last`: what ends work of a context that is gone, and comes late, ends none here.
    pub fn after(last: u64) -> Self {
        Self { next: last, ..Self::default() }
    }

    /// The number that was given out last.
    pub fn last(&self) -> u64 {
        self.next
    }

    /// Work begins; `charge` is held until it ends.
    pub fn begin(&mut self, charge: Option<Charge>) -> Item {
        self.next += 1;
        self.open.insert(self.next, charge);
        Item(self.next)
    }

    /// Work ends.
    pub fn end(&mut self, item: Item) {
        self.open.remove(&item.0);
    }

    /// A fence behind all work begun so far.
    pub fn fence(&mut self, token: Token) {
        self.fences.push_back((self.next, token));
    }

    /// The next fence that is due.
    pub fn take_due(&mut self) -> Option<Token> {
        let &(behind, token) = self.fences.front()?;
        if self.open.first_key_value().is_some_and(|(oldest, _)| *oldest <= behind) {
            return None;
        }
        self.fences.pop_front();
        Some(token)
    }

    /// All fences, due or not: the context is going.
    pub fn take_all(&mut self) -> Vec<Token> {
        self.open.clear();
        self.fences.drain(..).map(|(_, token)| token).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::Timeline;
    use super::Token;

    #[test]
    fn a_fence_waits_for_what_came_before_it_and_nothing_else() {
        let mut timeline = Timeline::default();
        timeline.fence(Token(1));
        assert_eq!(timeline.take_due(), Some(Token(1)));
        let first = timeline.begin(None);
        timeline.fence(Token(2));
        let second = timeline.begin(None);
        timeline.fence(Token(3));
        timeline.end(second);
        assert_eq!(timeline.take_due(), None, "in order, although the second work ended first");
        timeline.end(first);
        assert_eq!(timeline.take_due(), Some(Token(2)));
        assert_eq!(timeline.take_due(), Some(Token(3)));
        assert_eq!(timeline.take_due(), None);
    }
}
