//! How a vGPU stands: whether it may work, over all its sessions.

use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::time::Duration;
use std::time::Instant;
use std::time::SystemTime;

use super::policy::Policy;
use super::policy::Readmission;
use crate::vgpu::objects::recent::Recent;

/// Why and since when a vGPU may not work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quarantine {
    /// Why, in words.
    pub why: String,
    /// Since when, for people.
    pub since: SystemTime,
    begun: Instant,
}

#[derive(Debug, Default)]
struct Record {
    adapter_resets: Recent,
    quarantine: Option<Quarantine>,
    quarantines: u64,
}

/// Shared by a vGPU's thread, which acts on it, and the operator's, which looks and allows.
#[derive(Debug, Default)]
pub struct Standing {
    record: Mutex<Record>,
}

impl Standing {
    fn lock(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes an adapter reset at `now`. False when that was one too many (TDR-19).
    pub fn adapter_reset(&self, policy: &Policy, now: Instant) -> bool {
        let within = self.lock().adapter_resets.note(now, policy.limit_count, policy.limit_time);
        within || !policy.has_limits()
    }

    /// From `now` on the vGPU may not work. False when it may not already; the first reason stays.
    pub fn quarantine(&self, why: &str, now: Instant) -> bool {
        let mut record = self.lock();
        if record.quarantine.is_some() {
            return false;
        }
        record.quarantine = Some(Quarantine { why: why.to_owned(), since: SystemTime::now(), begun: now });
        record.quarantines += 1;
        true
    }

    /// How long ago each adapter reset was that may still count.
    pub fn reset_ages(&self, now: Instant) -> Vec<Duration> {
        self.lock().adapter_resets.ages(now)
    }

    /// Takes over what is known of it elsewhere: the ages of adapter resets, and why it may not work, if so.
    pub fn take_over(&self, ages: &[Duration], quarantine: Option<&str>, now: Instant) {
        self.lock().adapter_resets = Recent::from_ages(ages, now);
        if let Some(why) = quarantine {
            self.quarantine(why, now);
        }
    }

    /// Why it may not work, if so.
    pub fn quarantined(&self) -> Option<Quarantine> {
        self.lock().quarantine.clone()
    }

    /// How often it was quarantined.
    pub fn quarantines(&self) -> u64 {
        self.lock().quarantines
    }

    /// The operator lets it work again, and forgets the past. What it was quarantined for, if it was.
    pub fn allow(&self) -> Option<Quarantine> {
        let mut record = self.lock();
        record.adapter_resets.clear();
        record.quarantine.take()
    }

    /// The guest begins anew at `now`. True when that lifts a quarantine.
    pub fn reboot(&self, policy: &Policy, now: Instant) -> bool {
        let is_due =
            |quarantine: &Quarantine| now.saturating_duration_since(quarantine.begun) >= policy.limit_time;
        let mut record = self.lock();
        let lifts =
            policy.readmission == Readmission::Reboot && record.quarantine.as_ref().is_some_and(is_due);
        if lifts {
            record.quarantine = None;
            record.adapter_resets.clear();
        }
        lifts
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::Standing;
    use crate::vgpu::tdr::policy::DebugMode;
    use crate::vgpu::tdr::policy::Policy;
    use crate::vgpu::tdr::policy::Readmission;

    #[test]
    fn tdr_19_five_adapter_resets_are_tolerated_and_the_sixth_is_not() {
        let (standing, now, policy) = (Standing::default(), Instant::now(), Policy::default());
        assert!((0..5).all(|_| standing.adapter_reset(&policy, now)));
        assert!(!standing.adapter_reset(&policy, now));
        standing.allow();
        assert!(standing.adapter_reset(&policy, now), "the past is forgotten");
    }

    #[test]
    fn tdr_17_without_limits_no_reset_is_one_too_many() {
        let (standing, now) = (Standing::default(), Instant::now());
        let always = Policy { debug: DebugMode::RecoverAlways, ..Policy::default() };
        assert!((0..100).all(|_| standing.adapter_reset(&always, now)));
    }

    #[test]
    fn a_quarantine_is_lifted_by_the_operator_or_where_so_decided_by_a_late_reboot() {
        let (standing, now, policy) = (Standing::default(), Instant::now(), Policy::default());
        let reboots = Policy { readmission: Readmission::Reboot, ..Policy::default() };
        assert!(standing.quarantine("first", now) && !standing.quarantine("second", now));
        assert_eq!(standing.quarantined().unwrap().why, "first");
        assert!(!standing.reboot(&policy, now + policy.limit_time));
        assert!(!standing.reboot(&reboots, now), "not by a guest that resets again and again");
        assert!((0..5).all(|_| standing.adapter_reset(&policy, now)));
        assert!(standing.reboot(&reboots, now + policy.limit_time));
        assert_eq!(standing.quarantined(), None);
        assert!(standing.adapter_reset(&policy, now), "the past is forgotten");
        standing.quarantine("third", now);
        assert_eq!(standing.allow().unwrap().why, "third");
        assert_eq!((standing.quarantined(), standing.quarantines()), (None, 2));
    }
}
