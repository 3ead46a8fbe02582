//! Why a sandbox could not be built.

use std::io;

use super::driver_profiles::ProfileError;

/// Why a process could not give something up. It then must not go on.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// A step failed that every supported kernel can do.
    #[error("{step}: {source}")]
    Refused {
        /// What was tried.
        step: &'static str,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// The kernel cannot restrict files.
    #[error(
        "this kernel has no Landlock (Linux 5.13, built in and named in its `lsm=` list), so an engine would see \
         every file of this user; `--no-sandbox` runs it nevertheless"
    )]
    NoLandlock,
    /// What drivers open and ask cannot be read.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// Landlock refused the rules.
    #[error("Landlock: {0}; `--no-sandbox` runs without it")]
    Landlock(#[from] landlock::RulesetError),
    /// No filter can be made for this processor.
    #[error("no system call filter for this processor: {0}; `--no-sandbox` runs without it")]
    Filter(#[from] seccompiler::BackendError),
    /// The kernel refused the filter.
    #[error(
        "this kernel takes no seccomp filter (CONFIG_SECCOMP_FILTER): {0}; `--no-sandbox` runs without it"
    )]
    Seccomp(#[from] seccompiler::Error),
}

impl SandboxError {
    /// For `map_err` on a system call.
    pub(super) fn of(step: &'static str) -> impl FnOnce(rustix::io::Errno) -> Self {
        move |errno| Self::Refused { step, source: errno.into() }
    }
}
