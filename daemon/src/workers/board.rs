//! What is known of the workers, for those that answer the operator.

use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;

use rustix::process::Pid;
use serde_json::Value;
use serde_json::json;

/// A worker, as it is now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// Its vGPU.
    pub vgpu: String,
    /// Its keeper; none between one that has ended and the next.
    pub keeper: Option<Pid>,
    /// It has said that it serves.
    pub serves: bool,
    /// How many keepers have ended that were not to.
    pub ended: u64,
}

impl Seen {
    /// As the operator sees it, with the process that its worker says to be.
    pub fn describe(&self, pid: &Value) -> Value {
        let keeper = self.keeper.map(|pid| pid.as_raw_nonzero().get());
        json!({ "vgpu": self.vgpu, "pid": pid, "keeper": keeper, "serves": self.serves, "ended": self.ended })
    }
}

/// All of them, in the order in which they came.
#[derive(Debug, Default)]
pub struct Board(Mutex<Vec<Seen>>);

impl Board {
    /// Those of now.
    pub fn all(&self) -> Vec<Seen> {
        self.locked().clone()
    }

    /// Whether there is one of this vGPU.
    pub fn has(&self, vgpu: &str) -> bool {
        self.locked().iter().any(|seen| seen.vgpu == vgpu)
    }

    /// One more, or as it is now.
    pub fn show(&self, now: Seen) {
        let mut all = self.locked();
        match all.iter_mut().find(|seen| seen.vgpu == now.vgpu) {
            Some(seen) => *seen = now,
            None => all.push(now),
        }
    }

    /// One is gone.
    pub fn remove(&self, vgpu: &str) {
        self.locked().retain(|seen| seen.vgpu != vgpu);
    }

    fn locked(&self) -> MutexGuard<'_, Vec<Seen>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use rustix::process::getpid;
    use serde_json::json;

    use super::Board;
    use super::Seen;

    fn seen(vgpu: &str, ended: u64) -> Seen {
        Seen { vgpu: vgpu.to_owned(), keeper: None, serves: false, ended }
    }

    #[test]
    fn a_worker_is_shown_once_as_it_is_now_in_the_order_in_which_they_came() {
        let board = Board::default();
        assert!(!board.has("a"));
        for (vgpu, ended) in [("a", 0), ("b", 0), ("a", 3)] {
            board.show(seen(vgpu, ended));
        }
        assert_eq!(board.all(), [seen("a", 3), seen("b", 0)]);
        assert!(board.has("a") && board.has("b") && !board.has("c"));
        board.remove("a");
        board.remove("c");
        assert_eq!(board.all(), [seen("b", 0)]);
    }

    #[test]
    fn the_operator_sees_both_processes_of_a_worker() {
        let pid = getpid();
        let now = Seen { keeper: Some(pid), serves: true, ..seen("a", 2) };
        let keeper = pid.as_raw_nonzero().get();
        let expected = json!({ "vgpu": "a", "pid": 7, "keeper": keeper, "serves": true, "ended": 2 });
        assert_eq!(now.describe(&json!(7)), expected);
        assert_eq!(seen("b", 0).describe(&json!(null))["keeper"], json!(null));
    }
}
