//! The source's side.

/// Where a source stands with one bundle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Holder {
    /// It runs, or may: nothing was given away.
    #[default]
    Runs,
    /// A target holds the bundle, and has not asked.
    Offered,
    /// The target may run.
    Granted,
    /// The target may run, and was asked to forget it.
    Recalls,
    /// The guest runs elsewhere, or that cannot be known: it never runs here again.
    Gone,
}

/// What the source must do now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Duty {
    /// Nothing.
    Nothing,
    /// Say GRANTED.
    Grant,
    /// Say DECLINED.
    Decline,
    /// Run, and say REVOKE, without waiting for an answer.
    RunAndRevoke,
    /// Run.
    Run,
    /// Say REVOKE, and wait for the answer before anything runs.
    Recall,
    /// Do not run: all devices are lost.
    Lose,
}

impl Holder {
    /// The target holds all of it.
    pub fn complete(&mut self) -> Duty {
        if *self == Self::Runs {
            *self = Self::Offered;
        }
        Duty::Nothing
    }

    /// The target asks whether it may run.
    pub fn asked(&mut self) -> Duty {
        match self {
            Self::Offered | Self::Granted => {
                *self = Self::Granted;
                Duty::Grant
            }
            Self::Runs | Self::Recalls | Self::Gone => Duty::Decline,
        }
    }

    /// The rings of the source run again.
    pub fn thaw(&mut self) -> Duty {
        match self {
            Self::Runs => Duty::Run,
            Self::Offered => {
                *self = Self::Runs;
                Duty::RunAndRevoke
            }
            Self::Granted => {
                *self = Self::Recalls;
                Duty::Recall
            }
            Self::Recalls => Duty::Nothing,
            Self::Gone => Duty::Lose,
        }
    }

    /// The target has forgotten it.
    pub fn revoked(&mut self) -> Duty {
        match self {
            Self::Recalls => {
                *self = Self::Runs;
                Duty::Run
            }
            _ => Duty::Nothing,
        }
    }

    /// The target runs; or it does not answer.
    pub fn committed(&mut self) -> Duty {
        match self {
            Self::Recalls => {
                *self = Self::Gone;
                Duty::Lose
            }
            _ => Duty::Nothing,
        }
    }

    /// The line has failed. No peer will ask any more.
    pub fn unreachable(&mut self) -> Duty {
        self.committed()
    }

    /// The front-end has closed its connection after a SAVE: nothing can run here any more.
    pub fn closed(&mut self) -> Duty {
        match std::mem::replace(self, Self::Gone) {
            Self::Offered => Duty::Grant,
            _ => Duty::Nothing,
        }
    }
}
