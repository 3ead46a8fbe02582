//! Whose kernel-mode buffer goes to the engine next, and whether one that runs must make room.
//!
//! ```text
//!   software queue not empty ─▶ listed ─┐
//!   buffers with the engine ────────────┴▶ awake ─▶ policy ─▶ next: whose buffer fills the hardware queue
//!                                                        └──▶ must_yield: the head is preempted, or looked at again
//! ```
//!
//! A context whose first buffer waits has no work, as far as the policy knows (MCDM-18, PRE-57): less urgent work
//! runs meanwhile. It is tried again after a while, and at once where no other context has work.
//!
//! Time on the engine is what is shared. It is known when a buffer is done, so a context pays for a buffer in advance
//! what its last one took, and the rest, or less the next time, afterwards.

use std::collections::BTreeMap;
use std::collections::VecDeque;
use std::time::Duration;

use crate::ids::GuestProcess;
use crate::vgpu::objects::ids::ContextHandle;
use campanile_host_gpu::ids::ContextIndex;
use campanile_host_gpu::sched::parameters::Parameters;
use campanile_host_gpu::sched::parameters::Settings;
use campanile_host_gpu::sched::policy::Current;
use campanile_host_gpu::sched::policy::EntityId;
use campanile_host_gpu::sched::policy::Policy;

/// How long a context whose first buffer waits is left alone while others have work.
const RETRY: Duration = Duration::from_millis(2);
/// What a context's first buffer is taken to cost.
const FIRST_GUESS: Duration = Duration::from_micros(50);

#[derive(Debug)]
struct Member {
    /// Guest process and context.
    owner: (GuestProcess, ContextHandle),
    is_listed: bool,
    /// Whether it is to be listed again after a while.
    is_blocked: bool,
    /// Whether the policy was told that it has work.
    is_told: bool,
    /// Buffers with the engine.
    in_flight: u32,
    /// Paid for, and not used yet.
    prepaid: Duration,
    /// How long its oldest buffer has been the engine's oldest.
    elapsed: Duration,
    /// Engine time so far, as the engine says.
    used: Duration,
    /// What its next buffer is taken to cost.
    expected: Duration,
}

impl Member {
    const fn is_awake(&self) -> bool {
        self.is_listed || self.in_flight > 0
    }
}

/// The contexts of one engine, by their entries.
#[derive(Debug)]
pub struct RunList {
    policy: Box<dyn Policy>,
    members: BTreeMap<ContextIndex, Member>,
    /// The context of the oldest buffer with the engine, since when without a break, and up to when it has paid for that.
    head: Option<(ContextIndex, Duration, Duration)>,
    /// Those whose first buffer waits, and since when; the longest first. One that is not blocked any more is none of them.
    blocked: VecDeque<(ContextIndex, Duration)>,
    /// How many have buffers to give.
    listed: usize,
    /// How many the policy knows to have work.
    told: usize,
}

const fn entity(entry: ContextIndex) -> EntityId {
    EntityId(entry.get() as u64)
}

impl RunList {
    /// No contexts.
    pub fn new(mut policy: Box<dyn Policy>, bands: &Settings) -> Self {
        policy.set_bands(bands);
        Self { policy, members: BTreeMap::new(), head: None, blocked: VecDeque::new(), listed: 0, told: 0 }
    }

    /// A context is there, without work; its entry has had the engine for `used` before.
    pub fn add(
        &mut self,
        entry: ContextIndex,
        owner: (GuestProcess, ContextHandle),
        parameters: Parameters,
        used: Duration,
        now: Duration,
    ) {
        self.remove(entry);
        self.policy.add(entity(entry), parameters, now);
        let prepaid = Duration::ZERO;
        let member = Member {
            owner,
            is_listed: false,
            is_blocked: false,
            is_told: false,
            in_flight: 0,
            prepaid,
            elapsed: Duration::ZERO,
            used,
            expected: FIRST_GUESS,
        };
        self.members.insert(entry, member);
    }

    /// It is scheduled otherwise from now on (PRE-69).
    pub fn change(&mut self, entry: ContextIndex, parameters: Parameters, now: Duration) {
        self.policy.change(entity(entry), parameters, now);
    }

    /// It is gone.
    pub fn remove(&mut self, entry: ContextIndex) {
        self.policy.remove(entity(entry));
        if let Some(member) = self.members.remove(&entry) {
            self.listed -= usize::from(member.is_listed);
            self.told -= usize::from(member.is_told);
        }
    }

    /// All are gone.
    pub fn clear(&mut self) {
        while let Some((&entry, _)) = self.members.first_key_value() {
            self.remove(entry);
        }
        self.head = None;
        self.blocked.clear();
    }

    /// It has buffers to give, or has none.
    pub fn list(&mut self, entry: ContextIndex, is_listed: bool, now: Duration) {
        self.set_listed(entry, is_listed);
        self.tell(entry, now);
    }

    /// Its first buffer waits for something that is not announced.
    pub fn block(&mut self, entry: ContextIndex, now: Duration) {
        self.list(entry, false, now);
        if let Some(member) = self.members.get_mut(&entry) {
            member.is_blocked = true;
            self.blocked.retain(|&(other, _)| other != entry);
            self.blocked.push_back((entry, now));
        }
    }

    /// Lists a context that was blocked for long enough, or beside which no other would run.
    pub fn retry(&mut self, now: Duration) {
        while let Some(&(entry, since)) = self.blocked.front() {
            if now < since + RETRY && self.told > 0 {
                return;
            }
            self.blocked.pop_front();
            if self.members.get(&entry).is_some_and(|member| member.is_blocked) {
                self.list(entry, true, now);
                return;
            }
        }
    }

    /// When one is to be listed again.
    pub fn retry_at(&self) -> Option<Duration> {
        self.blocked.front().map(|&(_, since)| since + RETRY)
    }

    /// It is about to give one, and has more or not; [`Self::submitted`] follows.
    pub fn give(&mut self, entry: ContextIndex, has_more: bool) {
        self.set_listed(entry, has_more);
    }

    fn set_listed(&mut self, entry: ContextIndex, is_listed: bool) {
        let Some(member) = self.members.get_mut(&entry) else { return };
        member.is_blocked = false;
        let was_listed = std::mem::replace(&mut member.is_listed, is_listed);
        self.listed += usize::from(is_listed);
        self.listed -= usize::from(was_listed);
    }

    /// Tells the policy whether it has work, where that has changed.
    fn tell(&mut self, entry: ContextIndex, now: Duration) {
        let Some(member) = self.members.get_mut(&entry) else { return };
        let is_awake = member.is_awake();
        if std::mem::replace(&mut member.is_told, is_awake) == is_awake {
            return;
        }
        if is_awake {
            self.told += 1;
            self.policy.wake(entity(entry), now);
        } else {
            self.told -= 1;
            self.policy.sleep(entity(entry), now);
        }
    }

    /// Whose buffer is the next: guest process, context, entry.
    pub fn next(&mut self, now: Duration) -> Option<(GuestProcess, ContextHandle, ContextIndex)> {
        if self.listed == 0 {
            return None;
        }
        // Those whose buffers are all with the engine have none to give: at most as many as it holds.
        let mut passed = Vec::new();
        let found = loop {
            let Some(EntityId(chosen)) = self.policy.decide(None, now).next else { break None };
            let Ok(entry) = u32::try_from(chosen).map(ContextIndex::new) else { break None };
            match self.members.get(&entry) {
                Some(member) if member.is_listed => break Some((member.owner.0, member.owner.1, entry)),
                _ => {
                    self.policy.sleep(entity(entry), now);
                    passed.push(entry);
                }
            }
        };
        for entry in passed {
            self.policy.wake(entity(entry), now);
        }
        found
    }

    /// A buffer of it is with the engine now; the oldest there is of `head`.
    pub fn submitted(&mut self, entry: ContextIndex, head: Option<ContextIndex>, now: Duration) {
        if let Some(member) = self.members.get_mut(&entry) {
            member.in_flight += 1;
            let due = member.expected.saturating_sub(member.prepaid);
            member.prepaid += due;
            self.policy.charge(entity(entry), due, now);
            self.tell(entry, now);
        }
        self.set_head(head, now);
    }

    /// A buffer of it has come back, done or not; the context has used the engine for `used` in all.
    pub fn returned(
        &mut self,
        entry: ContextIndex,
        used: Duration,
        head: Option<ContextIndex>,
        now: Duration,
    ) {
        if let Some(member) = self.members.get_mut(&entry) {
            member.in_flight = member.in_flight.saturating_sub(1);
            let cost = used.saturating_sub(std::mem::replace(&mut member.used, used));
            member.expected = cost;
            member.elapsed = Duration::ZERO;
            let due = cost.saturating_sub(member.prepaid);
            member.prepaid = member.prepaid.saturating_sub(cost);
            self.policy.charge(entity(entry), due, now);
            self.tell(entry, now);
        }
        self.set_head(head, now);
    }

    /// A buffer has come back that no device has any more.
    pub fn forgotten(&mut self, head: Option<ContextIndex>, now: Duration) {
        self.set_head(head, now);
    }

    fn set_head(&mut self, head: Option<ContextIndex>, now: Duration) {
        self.head = match (self.head, head) {
            (Some((before, since, _)), Some(entry)) if before == entry => Some((entry, since, now)),
            (_, head) => head.map(|entry| (entry, now, now)),
        };
    }

    /// Whether the engine's oldest buffer must make room for another context's, or when to ask again.
    pub fn must_yield(&mut self, now: Duration) -> Result<(), Option<Duration>> {
        let Some((entry, since, paid)) = self.head.filter(|_| self.told > 1) else { return Err(None) };
        self.head = Some((entry, since, now));
        if let Some(member) = self.members.get_mut(&entry) {
            // What its buffer takes shows while it runs: what was paid for it in advance was a guess.
            member.elapsed += now.saturating_sub(paid);
            let due = member.elapsed.saturating_sub(member.prepaid);
            member.prepaid += due;
            self.policy.charge(entity(entry), due, now);
        }
        let current = Current { entity: entity(entry), since };
        let decision = self.policy.decide(Some(current), now);
        match decision.next {
            Some(next) if next != current.entity => Ok(()),
            _ => Err(decision.until),
        }
    }
}

#[cfg(test)]
mod tests;
