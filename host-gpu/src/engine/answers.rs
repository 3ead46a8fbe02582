//! What an engine still has to answer. It answers what is of one kernel in the order in which it was asked, of several in any, and all else
//! in one order; and says once, before all else, how its start went: whatever else comes ends it.

use std::collections::VecDeque;

use super::message::Request;
use super::message::Response;
use crate::kernel::name::KernelName;

/// How an engine broke the protocol.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Breach {
    /// It has said already that it has started, or why not.
    #[error("it says a second time how its start went")]
    StartedTwice,
    /// It answers before it has started.
    #[error("it answers before it has started")]
    NotStarted,
    /// It answers what it was not asked, or not next.
    #[error("it answers what was not asked: {0}")]
    Unasked(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Due {
    Segment { segment: u16, serial: u64 },
    Move(u64),
}

/// Of the threads that compile, which nothing else waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DueKernel {
    Created(KernelName),
    Forgotten(KernelName),
}

impl DueKernel {
    fn kernel(self) -> KernelName {
        match self {
            Self::Created(kernel) | Self::Forgotten(kernel) => kernel,
        }
    }
}

/// The state of the conversation with one process.
#[derive(Debug, Default)]
pub struct Answers {
    has_begun: bool,
    due: VecDeque<Due>,
    kernels: VecDeque<DueKernel>,
}

impl Answers {
    /// It was sent a request.
    pub fn asked(&mut self, request: &Request) {
        match request {
            Request::AddSegment { segment, serial, .. } => {
                self.due.push_back(Due::Segment { segment: *segment, serial: *serial });
            }
            Request::CreateKernel { kernel, .. } => self.kernels.push_back(DueKernel::Created(*kernel)),
            Request::DestroyKernel { kernel } => self.kernels.push_back(DueKernel::Forgotten(*kernel)),
            Request::Move { serial, .. } => self.due.push_back(Due::Move(*serial)),
            Request::Begin { .. } | Request::RemoveSegment { .. } => {}
        }
    }

    /// It has said something.
    ///
    /// # Errors
    /// It may not say that now; nothing is to be done with it.
    pub fn judge(&mut self, response: &Response) -> Result<(), Breach> {
        if matches!(
            response,
            Response::Started { .. } | Response::Refused { .. } | Response::Allocated { .. }
        ) {
            return match std::mem::replace(&mut self.has_begun, true) {
                false => Ok(()),
                true => Err(Breach::StartedTwice),
            };
        }
        if !self.has_begun {
            return Err(Breach::NotStarted);
        }
        let is_due = match response {
            Response::KernelCreated { kernel, .. } | Response::KernelRefused { kernel, .. } => {
                take_kernel(&mut self.kernels, DueKernel::Created(*kernel))
            }
            Response::KernelDestroyed { kernel } => {
                take_kernel(&mut self.kernels, DueKernel::Forgotten(*kernel))
            }
            Response::SegmentAdded { segment, serial, .. } => {
                take(&mut self.due, |due| *due == Due::Segment { segment: *segment, serial: *serial })
            }
            Response::SegmentRefused { segment, .. } => {
                take(&mut self.due, |due| matches!(due, Due::Segment { segment: of, .. } if of == segment))
            }
            Response::Moved { serial } | Response::MoveRefused { serial, .. } => {
                take(&mut self.due, |due| *due == Due::Move(*serial))
            }
            Response::Started { .. }
            | Response::Refused { .. }
            | Response::Allocated { .. }
            | Response::Opened => false,
        };
        if is_due { Ok(()) } else { Err(Breach::Unasked(named(response))) }
    }
}

/// Takes the next of these, where it is the one.
fn take<T>(due: &mut VecDeque<T>, is_it: impl FnOnce(&mut T) -> bool) -> bool {
    due.pop_front_if(is_it).is_some()
}

/// Takes this, where it is what comes next of its kernel.
fn take_kernel(due: &mut VecDeque<DueKernel>, answered: DueKernel) -> bool {
    let next = due.iter().position(|due| due.kernel() == answered.kernel());
    next.filter(|next| due[*next] == answered).and_then(|next| due.remove(next)).is_some()
}

/// A response without its words.
fn named(response: &Response) -> String {
    match response {
        Response::Started { .. } => "Started".to_owned(),
        Response::Refused { .. } => "Refused".to_owned(),
        Response::SegmentAdded { segment, serial, .. } => {
            format!("SegmentAdded, segment {segment}, serial {serial}")
        }
        Response::SegmentRefused { segment, .. } => format!("SegmentRefused, segment {segment}"),
        Response::KernelCreated { kernel, .. } => format!("KernelCreated, {kernel:x?}"),
        Response::KernelRefused { kernel, .. } => format!("KernelRefused, {kernel:x?}"),
        Response::KernelDestroyed { kernel } => format!("KernelDestroyed, {kernel:x?}"),
        Response::Moved { serial } => format!("Moved, serial {serial}"),
        Response::MoveRefused { serial, .. } => format!("MoveRefused, serial {serial}"),
        Response::Allocated { .. } => "Allocated".to_owned(),
        Response::Opened => "Opened".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::Answers;
    use super::Breach;
    use crate::engine::message::Request;
    use crate::engine::message::Response;
    use crate::kernel::name::KernelName;

    const KERNEL: KernelName = KernelName { root: 7, handle: 9 };

    fn started() -> Response {
        Response::Started { device: String::new(), is_cpu: true, vram: 0, profile: None }
    }

    fn running() -> Answers {
        let mut answers = Answers::default();
        answers.judge(&started()).unwrap();
        answers
    }

    /// One of each, as answers to the three requests of [`ask`].
    fn answers_of(kernel: KernelName, segment: u16, serial: u64) -> [Response; 5] {
        let reason = String::new();
        [
            Response::SegmentAdded { segment, serial, address: None },
            Response::SegmentRefused { segment, reason: reason.clone() },
            Response::KernelCreated { kernel, workgroup: [1; 3], binding_count: 0, constant_bytes: 0 },
            Response::KernelRefused { kernel, reason },
            Response::KernelDestroyed { kernel },
        ]
    }

    fn asked(which: usize) -> Answers {
        let mut answers = running();
        answers.asked(&Request::Begin { segments: 0 });
        answers.asked(&Request::RemoveSegment { segment: 3, serial: 1 });
        answers.asked(&match which {
            0 | 1 => Request::AddSegment { segment: 3, serial: 2, runs: 1 },
            2 | 3 => Request::CreateKernel { kernel: KERNEL, language: 1, entry: None, alone: false },
            _ => Request::DestroyKernel { kernel: KERNEL },
        });
        answers
    }

    #[test]
    fn how_the_start_went_is_said_once() {
        let refused = Response::Refused { reason: String::new() };
        for first in [started(), refused.clone()] {
            for second in [started(), refused.clone()] {
                let mut answers = Answers::default();
                assert_eq!(answers.judge(&first), Ok(()));
                assert_eq!(answers.judge(&second), Err(Breach::StartedTwice));
            }
        }
    }

    #[test]
    fn each_answer_is_taken_once_for_what_was_asked() {
        let right = answers_of(KERNEL, 3, 2);
        for (due, answer) in right.iter().enumerate() {
            let mut answers = asked(due);
            assert_eq!(answers.judge(answer), Ok(()), "{answer:?}");
            assert!(matches!(answers.judge(answer), Err(Breach::Unasked(_))), "twice: {answer:?}");
        }
        // Which request each of the five answers: 0 a segment, 1 a kernel, 2 the end of one.
        let of = [0, 0, 1, 1, 2];
        for due in 0..5 {
            for (at, answer) in right.iter().enumerate() {
                assert_eq!(asked(due).judge(answer).is_ok(), of[due] == of[at], "{due}: {answer:?}");
            }
        }
    }

    #[test]
    fn kernels_and_all_else_are_answered_in_orders_of_their_own() {
        let [added, _, created, _, destroyed] = answers_of(KERNEL, 3, 2);
        let next = answers_of(KERNEL, 4, 3)[0].clone();
        let answers = || {
            let mut answers = running();
            answers.asked(&Request::CreateKernel { kernel: KERNEL, language: 1, entry: None, alone: false });
            answers.asked(&Request::AddSegment { segment: 3, serial: 2, runs: 1 });
            answers.asked(&Request::DestroyKernel { kernel: KERNEL });
            answers.asked(&Request::AddSegment { segment: 4, serial: 3, runs: 1 });
            answers
        };
        for order in [[&added, &next, &created, &destroyed], [&created, &added, &destroyed, &next]] {
            let mut answers = answers();
            order.into_iter().for_each(|answer| assert_eq!(answers.judge(answer), Ok(()), "{answer:?}"));
        }
        for early in [&next, &destroyed] {
            assert!(matches!(answers().judge(early), Err(Breach::Unasked(_))), "{early:?}");
        }
    }

    #[test]
    fn kernels_are_answered_in_any_order_and_what_is_of_one_kernel_in_that_in_which_it_was_asked() {
        let other = KernelName { handle: 4, ..KERNEL };
        let [_, _, created, refused, destroyed] = answers_of(KERNEL, 3, 2);
        let [_, _, others, ..] = answers_of(other, 3, 2);
        let answers = || {
            let mut answers = running();
            for kernel in [KERNEL, other] {
                answers.asked(&Request::CreateKernel { kernel, language: 1, entry: None, alone: false });
            }
            answers.asked(&Request::DestroyKernel { kernel: KERNEL });
            answers.asked(&Request::CreateKernel { kernel: KERNEL, language: 1, entry: None, alone: false });
            answers
        };
        for order in [[&others, &created, &destroyed, &refused], [&created, &destroyed, &refused, &others]] {
            let mut answers = answers();
            order.into_iter().for_each(|answer| assert_eq!(answers.judge(answer), Ok(()), "{answer:?}"));
        }
        for (first, early) in [(&others, &destroyed), (&created, &refused), (&created, &created)] {
            let mut answers = answers();
            assert_eq!(answers.judge(first), Ok(()));
            assert!(matches!(answers.judge(early), Err(Breach::Unasked(_))), "{early:?} behind {first:?}");
        }
    }

    #[test]
    fn an_answer_that_names_something_else_is_a_breach() {
        let others = [KernelName { root: 8, ..KERNEL }, KernelName { handle: 8, ..KERNEL }];
        for (due, other) in others.iter().flat_map(|other| (2..5).map(move |due| (due, *other))) {
            let answer = &answers_of(other, 3, 2)[due];
            assert!(matches!(asked(due).judge(answer), Err(Breach::Unasked(_))), "{answer:?}");
        }
        for (segment, serial) in [(4, 2), (3, 1), (3, 3)] {
            let answer = &answers_of(KERNEL, segment, serial)[0];
            assert!(matches!(asked(0).judge(answer), Err(Breach::Unasked(_))), "{answer:?}");
        }
        assert!(asked(1).judge(&answers_of(KERNEL, 4, 2)[1]).is_err());
    }

    #[test]
    fn nothing_is_answered_before_the_start_and_nothing_that_was_not_asked() {
        for answer in answers_of(KERNEL, 3, 2) {
            assert_eq!(Answers::default().judge(&answer), Err(Breach::NotStarted));
            assert!(matches!(running().judge(&answer), Err(Breach::Unasked(_))));
        }
    }
}
