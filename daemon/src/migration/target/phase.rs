//! What a source may say when. Pure; one for each line.

use crate::migration::channel::message::KERNELS_AHEAD;
use crate::migration::channel::message::Message;
use crate::migration::error::MigrationError;

/// Where a line stands, after it was accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Receiving {
    version: u32,
    /// Passes that have ended on it.
    passes: u32,
    /// Whether it is the first line, which alone says that all has come.
    is_first: bool,
    is_complete: bool,
}

/// What to do about a message.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum Do {
    /// Nothing.
    Nothing,
    /// Say that this pass is there.
    Confirm(u32),
    /// Say how many kernels are to be compiled yet.
    CountKernels,
    /// Seal the stage, if this is what has come.
    Seal {
        /// Records.
        records: u64,
        /// Bytes of pages.
        bytes: u64,
    },
    /// Forget all of it: the source gives up.
    Forget(String),
}

impl Receiving {
    /// A line that was just accepted, and this version is spoken over it.
    pub const fn new(is_first: bool, version: u32) -> Self {
        Self { version, passes: 0, is_first, is_complete: false }
    }

    /// Pages come.
    ///
    /// # Errors
    /// After the last there can be none.
    pub fn pages(&self) -> Result<(), MigrationError> {
        if self.is_complete { Err(MigrationError::protocol("pages after all had come")) } else { Ok(()) }
    }

    /// A kernel comes.
    ///
    /// # Errors
    /// It may not, in this version, on this line, or any more.
    pub fn kernel(&self) -> Result<(), MigrationError> {
        if self.takes_kernels() {
            Ok(())
        } else {
            Err(MigrationError::protocol("a kernel where none may come"))
        }
    }

    fn takes_kernels(&self) -> bool {
        self.version >= KERNELS_AHEAD && self.is_first && !self.is_complete
    }

    /// A message comes.
    ///
    /// # Errors
    /// It cannot be said now.
    pub fn hear(&mut self, message: Message) -> Result<Do, MigrationError> {
        match message {
            Message::GiveUp { reason } => Ok(Do::Forget(reason)),
            Message::Still if !self.is_complete => Ok(Do::Nothing),
            Message::AskKernels if self.takes_kernels() => Ok(Do::CountKernels),
            Message::PassEnd { pass } if !self.is_complete && Some(pass) == self.passes.checked_add(1) => {
                self.passes = pass;
                Ok(Do::Confirm(pass))
            }
            Message::Complete { records, bytes } if self.is_first && !self.is_complete && self.passes > 0 => {
                self.is_complete = true;
                Ok(Do::Seal { records, bytes })
            }
            other => Err(MigrationError::Protocol(format!("{other:?} cannot be said now"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Do;
    use super::Receiving;
    use crate::migration::channel::message::Message;
    use crate::migration::channel::message::VERSION;

    const COMPLETE: Message = Message::Complete { records: 1, bytes: 4096 };

    #[test]
    fn lm_30_what_is_received_comes_in_order() {
        let mut line = Receiving::new(true, VERSION);
        assert!(line.hear(COMPLETE).is_err(), "nothing was sent yet");
        assert!(line.hear(Message::PassEnd { pass: 2 }).is_err());
        assert_eq!(line.hear(Message::PassEnd { pass: 1 }).unwrap(), Do::Confirm(1));
        assert!(line.hear(Message::PassEnd { pass: 1 }).is_err(), "a replay");
        assert_eq!(line.hear(Message::Still).unwrap(), Do::Nothing);
        assert!(line.pages().is_ok());
        assert_eq!(line.hear(COMPLETE).unwrap(), Do::Seal { records: 1, bytes: 4096 });
        assert!(line.pages().is_err());
        for late in
            [COMPLETE, Message::PassEnd { pass: 2 }, Message::Still, Message::Stored, Message::Granted]
        {
            assert!(line.hear(late).is_err());
        }
    }

    #[test]
    fn kernels_come_over_the_first_line_of_version_2_until_all_pages_have_come() {
        let mut line = Receiving::new(true, VERSION);
        assert!(line.kernel().is_ok());
        assert_eq!(line.hear(Message::AskKernels).unwrap(), Do::CountKernels);
        let _confirmed = line.hear(Message::PassEnd { pass: 1 }).unwrap();
        assert!(line.kernel().is_ok());
        let _sealed = line.hear(COMPLETE).unwrap();
        assert!(line.kernel().is_err() && line.hear(Message::AskKernels).is_err());
        for (is_first, version) in [(true, 1), (false, VERSION)] {
            let mut line = Receiving::new(is_first, version);
            let error = line.kernel().unwrap_err().to_string();
            assert!(error.contains("a kernel where none may come"), "{error}");
            assert!(line.hear(Message::AskKernels).is_err());
        }
    }

    #[test]
    fn only_the_first_line_says_that_all_has_come() {
        let mut line = Receiving::new(false, VERSION);
        assert_eq!(line.hear(Message::PassEnd { pass: 1 }).unwrap(), Do::Confirm(1));
        assert!(line.hear(COMPLETE).is_err());
        let reason = "no more".to_owned();
        assert_eq!(line.hear(Message::GiveUp { reason: reason.clone() }).unwrap(), Do::Forget(reason));
    }
}
