//! Interrupts of one ring: where the guest is signalled, and what it has not been told of yet.

use std::os::fd::AsFd;
use std::os::fd::BorrowedFd;

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

    pub(super) fn call(&self) -> Option<BorrowedFd<'_>> {
        self.call.as_ref().map(Call::as_fd)
    }

    pub(super) fn error(&self) -> Option<BorrowedFd<'_>> {
        self.error.as_ref().map(Call::as_fd)
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

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use rustix::event::EventfdFlags;
    use rustix::event::eventfd;
    use rustix::io::read;

    use super::Call;
    use super::Interrupts;

    /// An eventfd of the front-end, and the ring's descriptor of it.
    fn call() -> (OwnedFd, Call) {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        let call = Call::new(fd.try_clone().unwrap()).unwrap();
        (fd, call)
    }

    /// How often it was signalled since the last look.
    fn signals(fd: &OwnedFd) -> u64 {
        let mut count = [0; 8];
        read(fd, &mut count).map_or(0, |_| u64::from_ne_bytes(count))
    }

    #[test]
    fn lm_44_an_interrupt_without_a_descriptor_is_owed_and_goes_out_once_when_one_comes() {
        let mut interrupts = Interrupts::default();
        assert!(!interrupts.has_call());
        let (first, call) = self::call();
        interrupts.set_call(Some(call));
        assert!(interrupts.has_call());
        assert_eq!(signals(&first), 0, "nothing is owed");
        assert!(interrupts.send() && !interrupts.owed);
        assert_eq!(signals(&first), 1);
        interrupts.set_call(None);
        assert!(!interrupts.send() && !interrupts.send(), "none was sent");
        assert!(interrupts.owed && !interrupts.has_call());
        interrupts.set_call(None);
        assert!(interrupts.owed, "there is no descriptor yet");
        let (second, call) = self::call();
        interrupts.set_call(Some(call));
        assert_eq!((signals(&first), signals(&second)), (0, 1));
        assert!(!interrupts.owed);
        let (third, call) = self::call();
        interrupts.set_call(Some(call));
        assert_eq!(signals(&third), 0, "it went out");
    }

    #[test]
    fn a_broken_ring_is_told_by_the_error_descriptor_and_not_by_that_of_calls() {
        let mut interrupts = Interrupts::default();
        interrupts.fail();
        let [(calls, call), (errors, error)] = [(); 2].map(|()| self::call());
        interrupts.set_call(Some(call));
        interrupts.set_error(Some(error));
        interrupts.fail();
        assert_eq!((signals(&calls), signals(&errors)), (0, 1));
        interrupts.set_error(None);
        interrupts.fail();
        assert_eq!((signals(&calls), signals(&errors)), (0, 0));
    }
}
