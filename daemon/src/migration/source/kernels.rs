//! Kernels that a target is sent before the VM is paused, so that it has compiled them when the VM runs there.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;

use campanile_host_gpu::kernel::name::KernelName;

use crate::migration::channel::kernel::SentKernel;
use crate::migration::channel::line::Line;
use crate::migration::channel::message::KERNELS_AHEAD;
use crate::migration::channel::message::Message;
use crate::migration::error::MigrationError;
use crate::migration::passes::pace::Pace;
use crate::migration::passes::pass::wait;
use crate::vgpu::objects::kernel_board::KernelBoard;

/// Kernels that one target is sent, at the most, far below what ends a migration there: a guest that makes kernels without end cannot
/// keep itself from being moved.
const MOST: usize = 16_384;

/// How far it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct KernelsSent {
    /// Kernels that were sent.
    pub sent: u64,
    /// Of those, what the target has neither compiled nor refused yet.
    pub left: u64,
}

/// What one target was sent.
#[derive(Debug)]
pub struct KernelsAhead {
    takes_them: bool,
    sent: BTreeSet<KernelName>,
}

impl KernelsAhead {
    /// Nothing yet, to a target that speaks this version.
    pub fn to(version: u32) -> Self {
        Self { takes_them: version >= KERNELS_AHEAD, sent: BTreeSet::new() }
    }

    /// Sends what it was not sent of the kernels that there are, until `stop`, and asks how far it is.
    ///
    /// # Errors
    /// It is gone, or says what it may not.
    pub fn send(
        &mut self,
        line: &mut Line,
        board: &KernelBoard,
        pace: Option<&Mutex<Pace>>,
        stop: &AtomicBool,
    ) -> Result<KernelsSent, MigrationError> {
        if !self.takes_them {
            return Ok(KernelsSent::default());
        }
        let room = MOST.saturating_sub(self.sent.len());
        for (name, source) in board.those(|name| !self.sent.contains(name)).into_iter().take(room) {
            if stop.load(Ordering::Acquire) {
                break;
            }
            if let Some(pace) = pace {
                wait(pace, source.bytes.len(), stop);
            }
            let (language, entry) = (source.language, source.entry.as_deref());
            line.send_kernel(&SentKernel { language, entry, bytes: &source.bytes })
                .map_err(|error| line.explain(error))?;
            self.sent.insert(name);
        }
        let sent = self.sent.len() as u64;
        if sent == 0 {
            return Ok(KernelsSent::default());
        }
        line.send(&Message::AskKernels).map_err(|error| line.explain(error))?;
        match line.hear()? {
            Message::Kernels { left } => Ok(KernelsSent { sent, left: u64::from(left).min(sent) }),
            other => Err(MigrationError::Protocol(format!("{other:?} in answer to AskKernels"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;
    use std::thread;
    use std::time::Duration;

    use campanile_host_gpu::kernel::name::KernelName;

    use super::KernelsAhead;
    use super::KernelsSent;
    use super::MOST;
    use crate::migration::channel::kernel::SentKernel;
    use crate::migration::channel::line::Line;
    use crate::migration::channel::line::Received;
    use crate::migration::channel::message::KERNELS_AHEAD;
    use crate::migration::channel::message::Message;
    use crate::migration::error::MigrationError;
    use crate::vgpu::objects::budget::Budget;
    use crate::vgpu::objects::budget::Kind;
    use crate::vgpu::objects::kernel_board::KernelBoard;
    use crate::vgpu::objects::kernel_source::KernelSource;
    use crate::vgpu::objects::kernel_source::SourceBytes;

    /// A session's kernels, by the text of each.
    fn put(board: &KernelBoard, handle: u64, text: &str) {
        let charge = Arc::new(Budget::new(1 << 20)).vm().charge(Kind::Kernels, 1).unwrap();
        let bytes = SourceBytes::new(text.as_bytes(), charge);
        let source = KernelSource { language: 1, entry: Some("main".to_owned()), bytes, is_ending: false };
        board.put(KernelName { root: 1, handle }, source);
    }

    fn lines() -> [Line; 2] {
        let (source, target) = UnixStream::pair().unwrap();
        [source, target].map(|stream| Line::new(Box::new(stream), Duration::from_secs(60)).unwrap())
    }

    /// Sends to a target that answers so, if it is asked: what came of it, and the texts that came.
    fn send(
        ahead: &mut KernelsAhead,
        board: &KernelBoard,
        [source, target]: &mut [Line; 2],
        stop: bool,
        answer: &Message,
    ) -> (Result<KernelsSent, MigrationError>, Vec<String>) {
        let stop = AtomicBool::new(stop);
        thread::scope(|scope| {
            let hears = scope.spawn(|| {
                let mut texts = Vec::new();
                while let Received::Kernel = match target.receive() {
                    Ok(Received::Message(Message::AskKernels)) => {
                        target.send(answer).unwrap();
                        return texts;
                    }
                    // The source had nothing to ask.
                    Ok(Received::Message(Message::Still)) => return texts,
                    other => other.unwrap(),
                } {
                    let kernel = SentKernel::decode(target.body()).unwrap();
                    assert_eq!((kernel.language, kernel.entry), (1, Some("main")));
                    texts.push(String::from_utf8(kernel.bytes.to_vec()).unwrap());
                }
                panic!("pages")
            });
            let outcome = ahead.send(source, board, None, &stop);
            if !matches!(&outcome, Ok(sent) if sent.sent > 0) && outcome.is_ok() {
                source.send(&Message::Still).unwrap();
            }
            (outcome, hears.join().unwrap())
        })
    }

    #[test]
    fn each_kernel_is_sent_once_and_those_that_are_gone_before_are_not() {
        let (board, mut lines, mut ahead) =
            (KernelBoard::default(), lines(), KernelsAhead::to(KERNELS_AHEAD));
        let mut send = |board: &KernelBoard, stop, left| {
            let (outcome, texts) = send(&mut ahead, board, &mut lines, stop, &Message::Kernels { left });
            (outcome.unwrap(), texts)
        };
        assert_eq!(send(&board, false, 0), (KernelsSent::default(), vec![]), "nothing is asked of none");
        put(&board, 1, "first");
        put(&board, 2, "second");
        assert_eq!(send(&board, true, 0), (KernelsSent::default(), vec![]), "it was called off");
        let both = ["first", "second"].map(str::to_owned).to_vec();
        assert_eq!(send(&board, false, 2), (KernelsSent { sent: 2, left: 2 }, both));
        put(&board, 3, "third");
        put(&board, 4, "fourth");
        board.remove(KernelName { root: 1, handle: 3 });
        board.remove(KernelName { root: 1, handle: 1 });
        let rest = vec!["fourth".to_owned()];
        assert_eq!(send(&board, false, 1), (KernelsSent { sent: 3, left: 1 }, rest));
        // No more are left than were sent, whatever a target says.
        assert_eq!(send(&board, false, 9), (KernelsSent { sent: 3, left: 3 }, vec![]));
    }

    #[test]
    fn a_guest_that_makes_kernels_without_end_is_moved_all_the_same() {
        let (board, mut lines) = (KernelBoard::default(), lines());
        let mut ahead = KernelsAhead::to(KERNELS_AHEAD);
        ahead.sent = (10..).map(|handle| KernelName { root: 1, handle }).take(MOST - 1).collect();
        put(&board, 1, "last");
        put(&board, 2, "one more");
        let (outcome, texts) = send(&mut ahead, &board, &mut lines, false, &Message::Kernels { left: 1 });
        let most = KernelsSent { sent: MOST as u64, left: 1 };
        assert_eq!((outcome.unwrap(), texts), (most, vec!["last".to_owned()]));
    }

    #[test]
    fn a_target_of_an_older_version_is_sent_none_and_one_that_answers_otherwise_is_refused() {
        let (board, mut lines) = (KernelBoard::default(), lines());
        put(&board, 1, "first");
        let mut older = KernelsAhead::to(KERNELS_AHEAD - 1);
        let (outcome, texts) = send(&mut older, &board, &mut lines, false, &Message::Stored);
        assert_eq!((outcome.unwrap(), texts), (KernelsSent::default(), vec![]));
        let mut ahead = KernelsAhead::to(KERNELS_AHEAD);
        let (outcome, _) = send(&mut ahead, &board, &mut lines, false, &Message::Stored);
        let error = outcome.unwrap_err().to_string();
        assert!(error.contains("Stored in answer to AskKernels"), "{error}");
        let (outcome, _) = send(&mut ahead, &board, &mut lines, false, &Message::give_up(&"no room"));
        assert!(outcome.unwrap_err().to_string().contains("no room"));
    }
}
