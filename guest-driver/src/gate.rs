//! The gate of a device that may be taken away: a thread that speaks with the daemon passes it, and the one that takes
//! the device along closes it meanwhile (decision 64).
//!
//! Memory needs no gate: it is there all the time (`transport/away.rs`).

use std::cell::Cell;
use std::sync::Condvar;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::time::Duration;
use std::time::Instant;

/// How often the thread that closes it asks whether that is in vain.
const LOOK: Duration = Duration::from_millis(50);

thread_local! {
    /// The gate that this thread is inside of, and how often.
    static INSIDE: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

#[derive(Debug, Default)]
struct State {
    /// Threads inside.
    passes: usize,
    is_closed: bool,
    /// How often the device has come back.
    returns: u64,
}

/// The gate.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

/// The holder may speak with the daemon. A thread may hold several.
#[derive(Debug)]
pub(crate) struct Pass<'a> {
    gate: &'a Gate,
}

impl Gate {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn name(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Passes. Blocks while the device is away, unless this thread is inside already.
    pub(crate) fn enter(&self) -> Pass<'_> {
        let (inside, depth) = INSIDE.get();
        if depth > 0 && inside == self.name() {
            INSIDE.set((inside, depth + 1));
            return Pass { gate: self };
        }
        let mut state = self.state();
        while state.is_closed {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.passes += 1;
        drop(state);
        if depth == 0 {
            INSIDE.set((self.name(), 1));
        }
        Pass { gate: self }
    }

    /// Closes it, once no thread is inside; false, and it stays open, where that takes longer than `limit`, or it is in
    /// vain.
    pub(crate) fn close(&self, limit: Duration, is_vain: impl Fn() -> bool) -> bool {
        let until = Instant::now() + limit;
        let mut state = self.state();
        // Nobody new comes in.
        state.is_closed = true;
        while state.passes > 0 {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || is_vain() {
                state.is_closed = false;
                self.changed.notify_all();
                return false;
            }
            state =
                self.changed.wait_timeout(state, left.min(LOOK)).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// Opens it.
    pub(crate) fn open(&self) {
        let mut state = self.state();
        state.is_closed = false;
        state.returns += 1;
        self.changed.notify_all();
    }

    /// How often the device has come back, once it is here; none where it is not within `limit`.
    pub(crate) fn here(&self, limit: Option<Duration>) -> Option<u64> {
        let until = limit.map(|limit| Instant::now() + limit);
        let mut state = self.state();
        while state.is_closed {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return None;
            }
            let wait = left.unwrap_or(Duration::MAX);
            state = self.changed.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner).0;
        }
        Some(state.returns)
    }

    /// The same without waiting.
    pub(crate) fn is_here(&self) -> Option<u64> {
        let state = self.state();
        (!state.is_closed).then_some(state.returns)
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        let (inside, depth) = INSIDE.get();
        let is_counted = inside == self.gate.name() && depth > 0;
        if is_counted {
            INSIDE.set((inside, depth - 1));
        }
        if !is_counted || depth == 1 {
            let mut state = self.gate.state();
            state.passes -= 1;
            if state.passes == 0 {
                self.gate.changed.notify_all();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::Gate;

    #[test]
    fn a_gate_closes_when_nobody_is_inside_and_lets_who_is_inside_in_again() {
        let gate = Gate::default();
        let outer = gate.enter();
        assert!(!gate.close(Duration::from_millis(1), || false), "a thread is inside");
        drop(gate.enter());
        drop(outer);
        assert!(gate.close(Duration::ZERO, || false));
        assert_eq!((gate.is_here(), gate.here(Some(Duration::ZERO))), (None, None));
        std::thread::scope(|scope| {
            let enters = scope.spawn(|| drop(gate.enter()));
            gate.open();
            enters.join().unwrap();
        });
        assert_eq!((gate.is_here(), gate.here(None)), (Some(1), Some(1)));
    }

    #[test]
    fn passes_of_two_gates_do_not_mix() {
        let (one, other) = (Gate::default(), Gate::default());
        let (first, second) = (one.enter(), other.enter());
        let third = other.enter();
        drop(first);
        assert!(one.close(Duration::ZERO, || false));
        drop(second);
        assert!(!other.close(Duration::ZERO, || false));
        drop(third);
        assert!(other.close(Duration::ZERO, || false));
    }
}
