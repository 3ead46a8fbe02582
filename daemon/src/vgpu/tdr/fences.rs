//! The fence ids of one engine: what was submitted last, what has completed last (TDR-52 to TDR-56).

/// The ids of kernel-mode buffers of one engine, in the order in which they were given.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Fences {
    submitted: u64,
    completed: u64,
    /// The last whose result came: it completed, or was handed back.
    ended: u64,
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
    /// Of an engine that goes on elsewhere, with nothing under way (LM-54): what was submitted after `completed` was
    /// handed back.
    pub const fn after(submitted: u64, completed: u64) -> Self {
        Self { submitted, completed, ended: submitted }
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

    /// A buffer has completed (TDR-53): results come in order.
    ///
    /// # Errors
    /// It was not the next.
    pub fn complete(&mut self, id: u64) -> Result<(), InvalidFence> {
        self.hand_back(id)?;
        self.completed = id;
        Ok(())
    }

    /// A buffer was handed back, in its place among the results: it was preempted, suspended, or waits. It has not
    /// completed (TDR-53), and is submitted again under another id.
    ///
    /// # Errors
    /// It was not the next.
    pub fn hand_back(&mut self, id: u64) -> Result<(), InvalidFence> {
        if id != self.ended + 1 || id > self.submitted {
            return Err(InvalidFence { id, completed: self.completed, submitted: self.submitted });
        }
        self.ended = id;
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
        (self.completed, self.ended) = (self.submitted, self.submitted);
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
    fn tdr_53_tdr_56_what_is_handed_back_ends_in_order_and_does_not_advance_the_last_completed_id() {
        let mut fences = with_three();
        assert!(fences.hand_back(1).is_err() && fences.hand_back(3).is_err(), "not the next");
        assert_eq!(fences.hand_back(2), Ok(()));
        assert_eq!((fences.completed(), fences.submitted()), (1, 3));
        assert!(fences.complete(2).is_err(), "it has ended");
        assert_eq!(fences.check(1), Ok(()), "a reset that aborts nothing says what completed last");
        assert_eq!(fences.complete(3), Ok(()));
        assert_eq!(fences.completed(), 3);
        assert_eq!(fences.submit(), 4);
        assert_eq!(fences.hand_back(4), Ok(()));
        assert!(fences.hand_back(5).is_err(), "it was never submitted");
        assert_eq!((fences.completed(), fences.submitted()), (3, 4));
    }

    #[test]
    fn lm_54_fences_that_go_on_elsewhere_say_what_completed_and_end_after_what_was_submitted() {
        let mut fences = Fences::after(9, 7);
        assert_eq!((fences.completed(), fences.submitted()), (7, 9));
        assert!(fences.complete(9).is_err(), "it was handed back");
        assert_eq!((fences.submit(), fences.complete(10)), (10, Ok(())));
        assert_eq!(fences.completed(), 10);
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
        assert_eq!((fences.submit(), fences.complete(4)), (4, Ok(())), "the next has the next id");
        assert!(fences.complete(3).is_err());
    }
}
