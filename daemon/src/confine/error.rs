//! Why the daemon is not confined. It does not start then.

use std::io;

/// Why the daemon could not give something up.
#[derive(Debug, thiserror::Error)]
pub enum ConfineError {
    /// The account of `--user` cannot be had.
    #[error("--user {name}: {why}")]
    User {
        /// As the operator wrote it.
        name: String,
        /// What is wrong with it.
        why: String,
    },
    /// A step failed that every supported kernel can do.
    #[error("{step}: {source}")]
    Refused {
        /// What was tried.
        step: &'static str,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// Other threads run, which would keep what this one gives up.
    #[error("the daemon must confine itself before it starts threads, and has {threads}")]
    Threads {
        /// Threads of this process.
        threads: usize,
    },
}

impl ConfineError {
    /// For `map_err` on a system call.
    pub(super) fn of<E: Into<io::Error>>(step: &'static str) -> impl FnOnce(E) -> Self {
        move |error| Self::Refused { step, source: error.into() }
    }
}
