//! Interrupts of one ring: where the guest is signalled, and what it has not been told of yet.

use super::super::call::Call;

/// The call and error eventfds of a ring, which come from the front-end, and what is due to be signalled.
#[derive(Debug, Default)]
pub(super) struct Interrupts {
    call: Option<Call>,
    error: Option<Call>,
    /// Used entries since the guest was last considered for an interrupt.
    pub(super) unsignalled: bool,
    /// An interrupt was due, but there was no descriptor.
    pub(super) owed: bool,
}

impl Interrupts {
    /// Whether the front-end has said where to signal.
    pub(super) fn has_call(&self) -> bool {
        self.call.is_some()
    }

    /// Takes a new call descriptor; an interrupt that is owed goes out at once.
    pub(super) fn set_call(&mut self, call: Option<Call>) {
        self.call = call;
        if self.owed
            && let Some(call) = &self.call
        {
            self.owed = false;
            call.signal();
        }
    }

    pub(super) fn set_error(&mut self, error: Option<Call>) {
        self.error = error;
    }

    /// Interrupts the guest; without a descriptor the interrupt is owed. True if it was sent.
    pub(super) fn send(&mut self) -> bool {
        match &self.call {
            Some(call) => {
                call.signal();
                true
            }
            None => {
                self.owed = true;
                false
            }
        }
    }

    /// Tells the front-end that the ring is broken.
    pub(super) fn fail(&self) {
        if let Some(error) = &self.error {
            error.signal();
        }
    }
}
