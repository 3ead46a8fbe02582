//! Threads that their process cannot go on without.
//!
//! A panic ends a thread and nothing else. Without its supervisor a daemon would go on, and never schedule again; without
//! an accepting thread it would never be reached again. So a panic of such a thread ends the process.

use std::any::Any;
use std::io;
use std::panic::AssertUnwindSafe;
use std::panic::catch_unwind;
use std::thread;
use std::thread::JoinHandle;

use crate::log_limit::inherit;

/// The exit status after a panic, as Rust has it for a panic of the main thread.
pub const EXIT_STATUS: i32 = 101;

/// Starts a thread, with the log limit of the calling one. Where `run` panics, the process logs which thread it was and ends with [`EXIT_STATUS`].
///
/// # Errors
/// The thread cannot be made.
pub fn spawn(name: &'static str, run: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    thread::Builder::new().name(name.to_owned()).spawn(inherit(move || {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(run)) {
            log::error!("the {name} thread panicked: {}; this process ends", panic_text(&*panic));
            std::process::exit(EXIT_STATUS);
        }
    }))
}

/// What a panic said.
pub fn panic_text(panic: &(dyn Any + Send)) -> String {
    let said = panic.downcast_ref::<&str>().map(ToString::to_string);
    said.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".into())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::EXIT_STATUS;
    use super::spawn;

    #[test]
    #[ignore = "ends its process: run by the test below"]
    fn a_thread_panics() {
        let thread = spawn("watchman", || panic!("fire")).unwrap();
        // Where the process did not end, this test would pass.
        let _panicked = thread.join();
    }

    #[test]
    fn a_panic_ends_the_process_and_the_thread_is_named() {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--ignored", "--exact", "--nocapture", "essential_thread::tests::a_thread_panics"]);
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(EXIT_STATUS), "{output:?}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("'watchman'") && said.contains("fire"), "{said}");
    }

    #[test]
    fn a_thread_that_ends_leaves_the_process_alone() {
        spawn("watchman", || {}).unwrap().join().unwrap();
    }
}
