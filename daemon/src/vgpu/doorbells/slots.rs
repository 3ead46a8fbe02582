//! The physical doorbells of one engine.

use std::time::Duration;
use std::time::Instant;

use crate::ids::GuestProcess;
use campanile_host_gpu::ids::DoorbellIndex;
use campanile_protocol::handle::Handle;

/// How long a slot is not taken away that nothing was done through yet (UMS-77): long enough for a guest that was told
/// of its connect to ring, short enough that a guest which does not costs others little.
pub const MIN_HOLD: Duration = Duration::from_micros(50);

/// A doorbell of a guest process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holder {
    /// The virtio-gpu context.
    pub context: GuestProcess,
    /// The doorbell.
    pub doorbell: Handle,
}

#[derive(Debug, Clone, Copy)]
struct Held {
    holder: Holder,
    /// Progress seen when the slot was last looked at.
    progress: u64,
    /// When it was last seen to move, or connected; counts looks.
    used: u64,
    /// Whether it has moved since it was connected.
    served: bool,
    since: Instant,
}

impl Held {
    /// When it may be taken away; `None`: now.
    fn protected_until(&self, now: Instant) -> Option<Instant> {
        let end = self.since + MIN_HOLD;
        (!self.served && now < end).then_some(end)
    }
}

/// What a request for a slot comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Taken {
    /// This slot is free.
    Free(DoorbellIndex),
    /// This slot must first be taken from its holder (UMS-13).
    Victim(DoorbellIndex, Holder),
    /// All have just been given away; ask again then.
    Later(Instant),
    /// The engine has no slots at all.
    None,
}

/// Who holds which slot.
#[derive(Debug, Default)]
pub struct Slots {
    held: Vec<Option<Held>>,
    looks: u64,
}

impl Slots {
    /// `count` physical doorbells.
    pub fn new(count: u32) -> Self {
        Self { held: vec![None; count as usize], looks: 0 }
    }

    /// Chooses a slot: a free one, or of those that may be taken away that of the holder that was idle for longest
    /// (UMS-14). `progress` tells how far a holder's queue has come, so that use is seen without the holder saying so.
    pub fn choose(&mut self, now: Instant, progress: impl Fn(Holder) -> u64) -> Taken {
        if let Some((index, _)) = (0u32..).zip(&self.held).find(|(_, held)| held.is_none()) {
            return Taken::Free(DoorbellIndex::new(index));
        }
        self.looks += 1;
        for held in self.held.iter_mut().flatten() {
            let reached = progress(held.holder);
            if reached != held.progress {
                held.progress = reached;
                held.used = self.looks;
                held.served = true;
            }
        }
        let all = || (0u32..).zip(self.held.iter().flatten());
        let victim = all()
            .filter(|(_, held)| held.protected_until(now).is_none())
            .min_by_key(|(_, held)| held.used)
            .map(|(index, held)| Taken::Victim(DoorbellIndex::new(index), held.holder));
        let later = || all().filter_map(|(_, held)| held.protected_until(now)).min().map(Taken::Later);
        victim.or_else(later).unwrap_or(Taken::None)
    }

    /// Gives a slot to a holder.
    pub fn hold(&mut self, slot: DoorbellIndex, holder: Holder, progress: u64, now: Instant) {
        self.looks += 1;
        let used = self.looks;
        if let Some(place) = self.held.get_mut(slot.get() as usize) {
            *place = Some(Held { holder, progress, used, served: false, since: now });
        }
    }

    /// Frees a slot.
    pub fn free(&mut self, slot: DoorbellIndex) {
        if let Some(place) = self.held.get_mut(slot.get() as usize) {
            *place = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use campanile_protocol::handle::Handle;

    use super::Holder;
    use super::MIN_HOLD;
    use super::Slots;
    use super::Taken;
    use crate::ids::GuestProcess;
    use campanile_host_gpu::ids::DoorbellIndex;

    fn holder(index: u32) -> Holder {
        Holder { context: GuestProcess::new(1), doorbell: Handle::new(index, 1) }
    }

    #[test]
    fn ums_14_the_doorbell_that_was_idle_for_longest_is_the_victim() {
        let mut slots = Slots::new(2);
        let begun = Instant::now();
        let later = begun + MIN_HOLD;
        assert_eq!(slots.choose(begun, |_| 0), Taken::Free(DoorbellIndex::new(0)));
        slots.hold(DoorbellIndex::new(0), holder(0), 0, begun);
        assert_eq!(slots.choose(begun, |_| 0), Taken::Free(DoorbellIndex::new(1)));
        slots.hold(DoorbellIndex::new(1), holder(1), 0, begun);
        // The first was rung after the second was connected.
        let progress = |which: Holder| u64::from(which == holder(0));
        assert_eq!(slots.choose(later, progress), Taken::Victim(DoorbellIndex::new(1), holder(1)));
        slots.hold(DoorbellIndex::new(1), holder(2), 0, begun);
        assert_eq!(slots.choose(later, progress), Taken::Victim(DoorbellIndex::new(0), holder(0)));
    }

    #[test]
    fn ums_12_the_pool_is_finite() {
        let mut slots = Slots::new(1);
        let begun = Instant::now();
        slots.hold(DoorbellIndex::new(0), holder(0), 0, begun);
        assert_eq!(slots.choose(begun + MIN_HOLD, |_| 0), Taken::Victim(DoorbellIndex::new(0), holder(0)));
        slots.free(DoorbellIndex::new(0));
        assert_eq!(slots.choose(begun, |_| 0), Taken::Free(DoorbellIndex::new(0)));
        assert_eq!(Slots::new(0).choose(begun, |_| 0), Taken::None);
    }

    #[test]
    fn ums_77_a_doorbell_is_no_victim_before_a_ring_was_served_or_the_minimum_hold_is_over() {
        let mut slots = Slots::new(2);
        let begun = Instant::now();
        slots.hold(DoorbellIndex::new(0), holder(0), 5, begun);
        slots.hold(DoorbellIndex::new(1), holder(1), 5, begun + MIN_HOLD / 2);
        assert_eq!(slots.choose(begun, |_| 5), Taken::Later(begun + MIN_HOLD), "the first to be free");
        // The younger one has served a ring: it goes, though the other was idle for longer.
        let progress = |which: Holder| if which == holder(1) { 6 } else { 5 };
        assert_eq!(slots.choose(begun, progress), Taken::Victim(DoorbellIndex::new(1), holder(1)));
        assert_eq!(slots.choose(begun + MIN_HOLD, progress), Taken::Victim(DoorbellIndex::new(0), holder(0)));
        // The next owner of the slot is safe in turn.
        slots.hold(DoorbellIndex::new(1), holder(2), 0, begun + MIN_HOLD / 2);
        slots.hold(DoorbellIndex::new(0), holder(3), 0, begun + MIN_HOLD);
        assert_eq!(slots.choose(begun + MIN_HOLD, |_| 0), Taken::Later(begun + MIN_HOLD * 3 / 2));
    }

    #[test]
    fn ums_14_of_doorbells_that_were_never_rung_the_one_that_was_connected_first_is_the_victim() {
        let mut slots = Slots::new(3);
        let begun = Instant::now();
        for slot in [1, 2, 0] {
            slots.hold(DoorbellIndex::new(slot), holder(slot), 0, begun);
        }
        assert_eq!(slots.choose(begun + MIN_HOLD, |_| 0), Taken::Victim(DoorbellIndex::new(1), holder(1)));
        slots.hold(DoorbellIndex::new(1), holder(3), 0, begun);
        assert_eq!(slots.choose(begun + MIN_HOLD, |_| 0), Taken::Victim(DoorbellIndex::new(2), holder(2)));
    }
}
