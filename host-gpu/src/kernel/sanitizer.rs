//! The thread on which naga and the guard run.

use std::any::Any;
use std::panic;
use std::sync::Once;
use std::sync::mpsc;
use std::sync::mpsc::Receiver;
use std::sync::mpsc::Sender;
use std::thread;

use crate::kernel::error::Diagnostic;
use crate::kernel::error::KernelError;
use crate::kernel::program::Kernel;
use crate::kernel::source::Source;
use crate::kernel::translate::translate;
use crate::shader::profile::Profile;

/// The stack of the sanitizer's thread, bytes. naga recurses along nesting, and 128 KiB of source hold tens of
/// thousands of levels; the worst of them need less than a quarter of this. Address space only: pages come when touched.
const STACK: usize = 256 * 1024 * 1024;

const THREAD_NAME: &str = "kernel-sanitizer";

/// The way from a [`Source`] to a [`Kernel`]. Start it before the process drops the right to make threads;
/// afterwards it needs only futexes and anonymous memory.
#[derive(Debug)]
pub struct Sanitizer {
    request_tx: Sender<Request>,
}

#[derive(Debug)]
struct Request {
    source: Source,
    answer_tx: Sender<Result<Kernel, KernelError>>,
}

impl Sanitizer {
    /// Starts the thread, which takes kernels for a device that offers `profile`. It ends when the `Sanitizer` is dropped.
    pub fn start(profile: Profile) -> Result<Self, KernelError> {
        silence_panics_of_the_thread();
        let (request_tx, request_rx) = mpsc::channel();
        thread::Builder::new()
            .name(THREAD_NAME.to_owned())
            .stack_size(STACK)
            .spawn(move || serve(&request_rx, &profile))
            .map_err(|e| KernelError::NoThread(Diagnostic::new(&e.to_string())))?;
        Ok(Self { request_tx })
    }

    /// Translates `source`, one at a time. Blocks until done: microseconds for a usual kernel, up to about a
    /// second for the worst that the limits let through.
    pub fn sanitize(&self, source: &Source) -> Result<Kernel, KernelError> {
        // Before the copy, so that a guest cannot make us copy more than the limit.
        let (length, limit) = (source.bytes.len(), source.language.limit());
        if length > limit {
            return Err(KernelError::TooLong { length, limit });
        }
        let gone = || KernelError::NoThread(Diagnostic::new("it ended"));
        let (answer_tx, answer_rx) = mpsc::channel();
        self.request_tx.send(Request { source: source.clone(), answer_tx }).map_err(|_| gone())?;
        answer_rx.recv().map_err(|_| gone())?
    }
}

/// Translates one kernel on a thread of its own, for any device. An engine keeps a [`Sanitizer`] instead.
pub fn sanitize(source: &Source) -> Result<Kernel, KernelError> {
    Sanitizer::start(Profile::default())?.sanitize(source)
}

fn serve(request_rx: &Receiver<Request>, profile: &Profile) {
    for Request { source, answer_tx } in request_rx {
        // Nothing outlives a panic: the closure owns or only reads what it touches.
        let answer = panic::catch_unwind(|| translate(&source, profile))
            .unwrap_or_else(|payload| Err(KernelError::Crashed(Diagnostic::new(words_of(payload.as_ref())))));
        // A caller that went away does not want its answer.
        let _ = answer_tx.send(answer);
    }
}

fn words_of(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("no message")
}

/// A guest can make naga panic as often as it likes, and each panic would print to the host's log. The answer
/// carries the message instead.
fn silence_panics_of_the_thread() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let previous = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if thread::current().name() != Some(THREAD_NAME) {
                previous(info);
            }
        }));
    });
}
