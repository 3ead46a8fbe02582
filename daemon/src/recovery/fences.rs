//! The fence ids of one engine: what was submitted last, what has completed last (TDR-52 to TDR-56).

/// The ids of kernel-mode buffers of one engine, in the order in which they were given.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Fences {
    submitted: u64,
    completed: u64,
}

/// An id that no engine can have meant (TDR-41, TDR-83).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("fence {id} is outside {completed} to {submitted}")]
pub struct InvalidFence {
    /// The id.
    pub id: u64,
    /// Last completed.
    pub completed: u64,
    /// Last submitted.
    pub submitted: u64,
}

impl Fences {
    /// Of an engine that goes on elsewhere, with nothing under way (LM-54).
    pub const fn after(last: u64) -> Self {
        Self { submitted: last, completed: last }
    }

    /// The id of the next buffer.
    pub fn submit(&mut self) -> u64 {
        self.submitted += 1;
        self.submitted
    }

    /// Last submitted.
    pub const fn submitted(&self) -> u64 {
        self.submitted
    }

    /// Last completed.
    pub const fn completed(&self) -> u64 {
        self.completed
    }

    /// A buffer has completed (TDR-53): they do so in order.
    ///
    /// # Errors
    /// It was not the next.
    pub fn complete(&mut self, id: u64) -> Result<(), InvalidFence> {
        if id != self.completed + 1 || id > self.submitted {
            return Err(InvalidFence { id, completed: self.completed, submitted: self.submitted });
        }
        self.completed = id;
        Ok(())
    }

    /// The engine was reset, and aborted buffers up to `last_aborted` (TDR-41). Their results are collected like those of
    /// any other, and raise the last completed id to it (TDR-54).
    ///
    /// # Errors
    /// The id lies outside what was completed and submitted.
    pub fn check(&self, last_aborted: u64) -> Result<(), InvalidFence> {
        if (self.completed..=self.submitted).contains(&last_aborted) {
            return Ok(());
        }
        Err(InvalidFence { id: last_aborted, completed: self.completed, submitted: self.submitted })
    }

    /// The adapter was reset: nothing submitted is left (TDR-55).
    pub fn adapter_reset(&mut self) {
        self.completed = self.submitted;
    }
}

#[cfg(test)]
mod tests {
    use super::Fences;
    use super::InvalidFence;

    fn with_three() -> Fences {
        let mut fences = Fences::default();
        assert_eq!([fences.submit(), fences.submit(), fences.submit()], [1, 2, 3]);
        assert_eq!(fences.complete(1), Ok(()));
        fences
    }

    #[test]
    fn tdr_52_tdr_53_a_node_always_has_a_last_completed_id_and_it_follows_completions() {
        let mut fences = Fences::default();
        assert_eq!((fences.completed(), fences.submitted()), (0, 0));
        fences.submit();
        assert_eq!(fences.completed(), 0, "submitting, or being preempted, completes nothing");
        assert_eq!(fences.complete(1), Ok(()));
        assert_eq!(fences.completed(), 1);
    }

    #[test]
    fn tdr_41_tdr_42_the_id_of_a_reset_lies_between_completed_and_submitted() {
        for (id, is_valid) in [(0, false), (1, true), (2, true), (3, true), (4, false)] {
            let outside = InvalidFence { id, completed: 1, submitted: 3 };
            assert_eq!(with_three().check(id), if is_valid { Ok(()) } else { Err(outside) });
        }
    }

    #[test]
    fn tdr_55_tdr_56_an_adapter_reset_completes_what_was_submitted_and_nothing_else_moves_it() {
        let mut fences = with_three();
        for wrong in [0, 1, 3, 4, u64::MAX] {
            assert!(fences.complete(wrong).is_err(), "{wrong}");
            assert_eq!(fences.completed(), 1);
        }
        fences.adapter_reset();
        assert_eq!((fences.completed(), fences.submitted()), (3, 3));
        assert!(fences.complete(3).is_err());
    }
}
