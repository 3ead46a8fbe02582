//! The target's side.

/// Where a target stands with one bundle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Claimant {
    /// It holds all of it.
    Stored {
        /// Whether the source has said that it never will run again.
        granted: bool,
    },
    /// A session has taken it, and does not run yet.
    Claimed {
        /// The same.
        granted: bool,
    },
    /// Its session is about to run, and waits for the source's word.
    Asks,
    /// Its session runs.
    Runs,
    /// It is forgotten.
    Dropped,
}

/// What the target must do now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Step {
    /// Nothing.
    Nothing,
    /// Say MAY_I_RUN, and wait.
    Ask,
    /// Run.
    Run,
    /// Free everything; a session that has it loses all devices.
    Drop,
    /// The same, and say REVOKED.
    DropAndConfirm,
    /// Say REVOKED.
    Confirm,
    /// Say COMMITTED.
    Insist,
    /// Refuse: this cannot be now.
    Refuse,
}

impl Claimant {
    /// All of it has come.
    pub const fn stored() -> Self {
        Self::Stored { granted: false }
    }

    /// A LOAD names it.
    pub fn load(&mut self) -> Step {
        match *self {
            Self::Stored { granted } => {
                *self = Self::Claimed { granted };
                Step::Nothing
            }
            _ => Step::Refuse,
        }
    }

    /// The rings of the session that has it begin.
    pub fn started(&mut self) -> Step {
        match *self {
            Self::Claimed { granted: true } => {
                *self = Self::Runs;
                Step::Run
            }
            Self::Claimed { granted: false } => {
                *self = Self::Asks;
                Step::Ask
            }
            _ => Step::Refuse,
        }
    }

    /// The source never will run again.
    pub fn granted(&mut self) -> Step {
        match *self {
            Self::Stored { .. } => *self = Self::Stored { granted: true },
            Self::Claimed { .. } => *self = Self::Claimed { granted: true },
            Self::Asks => {
                *self = Self::Runs;
                return Step::Run;
            }
            Self::Runs | Self::Dropped => {}
        }
        Step::Nothing
    }

    /// The source says no.
    pub fn declined(&mut self) -> Step {
        self.forget()
    }

    /// The source is about to run.
    pub fn revoke(&mut self) -> Step {
        match self {
            Self::Runs => Step::Insist,
            Self::Dropped => Step::Confirm,
            _ => {
                *self = Self::Dropped;
                Step::DropAndConfirm
            }
        }
    }

    /// The line has failed, or there is no answer. What was granted stays granted.
    pub fn unreachable(&mut self) -> Step {
        match self {
            Self::Stored { granted: true } | Self::Claimed { granted: true } => Step::Nothing,
            _ => self.forget(),
        }
    }

    /// The time is over, or the session that had it is gone.
    pub fn forget(&mut self) -> Step {
        match self {
            Self::Runs | Self::Dropped => Step::Nothing,
            _ => {
                *self = Self::Dropped;
                Step::Drop
            }
        }
    }
}
