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
    /// The kernel cannot restrict files.
    #[error(
        "this kernel has no Landlock (Linux 5.13, built in and named in its `lsm=` list), so threads of guests would see \
         every file of this user; `--no-confinement` runs them nevertheless"
    )]
    NoLandlock,
    /// Landlock refused the rules.
    #[error("Landlock: {0}; `--no-confinement` runs without it")]
    Landlock(#[from] landlock::RulesetError),
    /// No filter can be made for this processor.
    #[error("no system call filter for this processor: {0}; `--no-confinement` runs without it")]
    Filter(#[from] seccompiler::BackendError),
    /// The kernel refused the filter.
    #[error(
        "this kernel takes no seccomp filter (CONFIG_SECCOMP_FILTER): {0}; `--no-confinement` runs without it"
    )]
    Seccomp(#[from] seccompiler::Error),
    /// A thread panicked while it began a role.
    #[error("the thread that begins the role {role} panicked")]
    Panic {
        /// Which role.
        role: &'static str,
    },
}

impl ConfineError {
    /// For `map_err` on a system call.
    pub(super) fn of<E: Into<io::Error>>(step: &'static str) -> impl FnOnce(E) -> Self {
        move |error| Self::Refused { step, source: error.into() }
    }
}
