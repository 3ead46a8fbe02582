//! The physical doorbells of one engine.

use campanile_protocol::handle::Handle;

/// A doorbell of a guest process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holder {
    /// The virtio-gpu context.
    pub context: u32,
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
}

/// What a request for a slot comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Taken {
    /// This slot is free.
    Free(u32),
    /// This slot must first be taken from its holder (UMS-13).
    Victim(u32, Holder),
    /// The engine has no slots at all.
    None,
}

/// Who holds which slot.
#[derive(Debug)]
pub struct Slots {
    held: Vec<Option<Held>>,
    looks: u64,
}

impl Slots {
    /// `count` physical doorbells.
    pub fn new(count: u32) -> Self {
        Self { held: vec![None; count as usize], looks: 0 }
    }

    /// Chooses a slot: a free one, or that of the holder that was idle for longest (UMS-14). `progress` tells
    /// how far a holder's queue has come, so that use is seen without the holder saying so.
    pub fn choose(&mut self, progress: impl Fn(Holder) -> u64) -> Taken {
        self.looks += 1;
        for held in self.held.iter_mut().flatten() {
            let now = progress(held.holder);
            if now != held.progress {
                held.progress = now;
                held.used = self.looks;
            }
        }
        if let Some((index, _)) = (0u32..).zip(&self.held).find(|(_, held)| held.is_none()) {
            return Taken::Free(index);
        }
        let oldest = (0u32..)
            .zip(&self.held)
            .filter_map(|(index, held)| held.map(|held| (held.used, index, held.holder)));
        oldest
            .min_by_key(|(used, ..)| *used)
            .map_or(Taken::None, |(_, index, holder)| Taken::Victim(index, holder))
    }

    /// Slots that are held.
    pub fn in_use(&self) -> usize {
        self.held.iter().flatten().count()
    }

    /// Gives a slot to a holder.
    pub fn hold(&mut self, slot: u32, holder: Holder, progress: u64) {
        self.looks += 1;
        let used = self.looks;
        if let Some(place) = self.held.get_mut(slot as usize) {
            *place = Some(Held { holder, progress, used });
        }
    }

    /// Frees a slot.
    pub fn free(&mut self, slot: u32) {
        if let Some(place) = self.held.get_mut(slot as usize) {
            *place = None;
        }
    }

    /// All holders.
    pub fn holders(&self) -> Vec<Holder> {
        self.held.iter().flatten().map(|held| held.holder).collect()
    }
}

#[cfg(test)]
mod tests {
    use campanile_protocol::handle::Handle;

    use super::Holder;
    use super::Slots;
    use super::Taken;

    fn holder(index: u32) -> Holder {
        Holder { context: 1, doorbell: Handle::new(index, 1) }
    }

    #[test]
    fn ums_14_the_doorbell_that_was_idle_for_longest_is_the_victim() {
        let mut slots = Slots::new(2);
        assert_eq!(slots.choose(|_| 0), Taken::Free(0));
        slots.hold(0, holder(0), 0);
        assert_eq!(slots.choose(|_| 0), Taken::Free(1));
        slots.hold(1, holder(1), 0);
        // The first was rung after the second was connected.
        let progress = |which: Holder| u64::from(which == holder(0));
        assert_eq!(slots.choose(progress), Taken::Victim(1, holder(1)));
        slots.hold(1, holder(2), 0);
        assert_eq!(slots.choose(progress), Taken::Victim(0, holder(0)));
    }

    #[test]
    fn ums_12_the_pool_is_finite() {
        let mut slots = Slots::new(1);
        slots.hold(0, holder(0), 0);
        assert_eq!(slots.choose(|_| 0), Taken::Victim(0, holder(0)));
        slots.free(0);
        assert_eq!(slots.choose(|_| 0), Taken::Free(0));
        assert_eq!(Slots::new(0).choose(|_| 0), Taken::None);
    }
}
