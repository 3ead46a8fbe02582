//! One line's way from a stranger's to an accepted one.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering;

use crate::migration::channel::peer_name::Credentials;

/// Accepted lines at a time: of four migrations with all lines that they may have.
const MAX_ACCEPTED: usize = 64;

/// Counts accepted lines.
#[derive(Debug, Clone, Default)]
pub(super) struct Accepted(Arc<AtomicUsize>);

/// What is known of the peer of one line. Dropping it frees its place among the accepted.
#[derive(Debug)]
pub(super) struct Visit {
    pub(super) credentials: Credentials,
    is_accepted: Arc<AtomicBool>,
    all: Accepted,
}

impl Visit {
    /// Of a stranger; `is_accepted` becomes true when it is none any more.
    pub(super) fn new(credentials: Credentials, is_accepted: Arc<AtomicBool>, all: Accepted) -> Self {
        Self { credentials, is_accepted, all }
    }

    /// Takes a place, and then does what `accept` does, which may refuse in words.
    pub(super) fn accept<T>(&self, accept: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
        let one_more = |count| (count < MAX_ACCEPTED).then_some(count + 1);
        let all = &self.all.0;
        if all.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more).is_err() {
            return Err(format!("{MAX_ACCEPTED} lines are being served already"));
        }
        let outcome = accept();
        if outcome.is_ok() {
            self.is_accepted.store(true, Ordering::Release);
        } else {
            all.fetch_sub(1, Ordering::AcqRel);
        }
        outcome
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        if self.is_accepted.load(Ordering::Acquire) {
            self.all.0.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    use super::Accepted;
    use super::MAX_ACCEPTED;
    use super::Visit;
    use crate::migration::channel::peer_name::Credentials;

    fn visit(all: &Accepted) -> Visit {
        Visit::new(Credentials::None, Arc::new(AtomicBool::new(false)), all.clone())
    }

    #[test]
    fn places_are_taken_by_lines_that_are_accepted_and_free_when_these_end() {
        let all = Accepted::default();
        for _ in 0..2 * MAX_ACCEPTED {
            assert_eq!(visit(&all).accept(|| Err::<(), _>("no".to_owned())).unwrap_err(), "no");
        }
        let visits: Vec<_> = (0..MAX_ACCEPTED).map(|_| visit(&all)).collect();
        assert!(visits.iter().all(|visit| visit.accept(|| Ok(())).is_ok()));
        assert!(visit(&all).accept(|| Ok(())).unwrap_err().contains("64"));
        drop(visits);
        assert!(visit(&all).accept(|| Ok(())).is_ok());
    }
}
