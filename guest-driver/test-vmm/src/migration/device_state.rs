//! The device's state, out of one device and into another: a pipe each (vhost-user, DEVICE_STATE).

use std::io;
use std::io::Read;
use std::io::Write;
use std::os::fd::AsFd;
use std::os::fd::OwnedFd;
use std::time::Duration;
use std::time::Instant;

use rustix::event::PollFd;
use rustix::event::PollFlags;
use rustix::event::Timespec;
use rustix::pipe::PipeFlags;
use vhost::vhost_user::VhostUserFrontend;
use vhost::vhost_user::message::VhostTransferStateDirection as Direction;
use vhost::vhost_user::message::VhostTransferStatePhase as Phase;

use crate::front_end::FrontEnd;
use campanile_guest_driver::transport::error::TransportError;

/// Most bytes of a state. A device's is a few MiB; QEMU has no limit.
const MAX_STATE: usize = 64 << 20;

impl FrontEnd {
    /// SAVE: reads the state to its end, and asks whether it is whole.
    pub(super) fn save(&self, limit: Duration) -> Result<Vec<u8>, TransportError> {
        let (ours, theirs) = pipe()?;
        let ours = self.transfer(limit, Direction::SAVE, theirs)?.unwrap_or(ours);
        let state = read_to_end(&ours, limit)?;
        self.check(limit)?;
        Ok(state)
    }

    /// LOAD: writes the state, and asks what the device made of it.
    pub(super) fn load(&self, limit: Duration, state: &[u8]) -> Result<(), TransportError> {
        let (theirs, ours) = pipe()?;
        let ours = self.transfer(limit, Direction::LOAD, theirs)?.unwrap_or(ours);
        // A device that has seen enough closes its end: what it thinks of the state it says below.
        let written = write_all(&ours, state, limit);
        drop(ours);
        self.check(limit)?;
        written
    }

    fn transfer(
        &self,
        limit: Duration,
        direction: Direction,
        theirs: OwnedFd,
    ) -> Result<Option<OwnedFd>, TransportError> {
        let main = self.main();
        let set = || main.frontend.set_device_state_fd(direction, Phase::STOPPED, theirs);
        Ok(self.exchange_within(limit, "SET_DEVICE_STATE_FD", set)?.map(OwnedFd::from))
    }

    fn check(&self, limit: Duration) -> Result<(), TransportError> {
        let main = self.main();
        self.exchange_within(limit, "CHECK_DEVICE_STATE", || main.frontend.check_device_state())
    }
}

/// (end to read, end to write).
fn pipe() -> Result<(OwnedFd, OwnedFd), TransportError> {
    rustix::pipe::pipe_with(PipeFlags::CLOEXEC)
        .map_err(|source| TransportError::System { what: "a pipe", source: source.into() })
}

fn broken(source: io::Error) -> TransportError {
    TransportError::System { what: "the transfer of the device's state", source: source.into() }
}

/// Waits until the end can be read or written.
fn ready(end: &OwnedFd, flags: PollFlags, deadline: Instant, limit: Duration) -> Result<(), TransportError> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(TransportError::Timeout { what: "the device's state", after: limit });
        }
        let timeout = Timespec::try_from(left).ok();
        match rustix::event::poll(&mut [PollFd::from_borrowed_fd(end.as_fd(), flags)], timeout.as_ref()) {
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            Ok(_) => return Ok(()),
            Err(error) => return Err(broken(error.into())),
        }
    }
}

fn read_to_end(end: &OwnedFd, limit: Duration) -> Result<Vec<u8>, TransportError> {
    let deadline = Instant::now() + limit;
    let mut file = std::fs::File::from(end.try_clone().map_err(broken)?);
    let mut state = Vec::new();
    let mut chunk = vec![0; 1 << 16];
    loop {
        ready(end, PollFlags::IN, deadline, limit)?;
        match file.read(&mut chunk).map_err(broken)? {
            0 => return Ok(state),
            count => state.extend_from_slice(&chunk[..count]),
        }
        if state.len() > MAX_STATE {
            let (bytes, limit) = (state.len() as u64, MAX_STATE as u64);
            return Err(TransportError::Size { what: "a device's state", bytes, limit });
        }
    }
}

fn write_all(end: &OwnedFd, mut state: &[u8], limit: Duration) -> Result<(), TransportError> {
    let deadline = Instant::now() + limit;
    // Of our end alone: the two ends of a pipe are different open files.
    rustix::fs::fcntl_setfl(end, rustix::fs::OFlags::NONBLOCK).map_err(|error| broken(error.into()))?;
    let mut file = std::fs::File::from(end.try_clone().map_err(broken)?);
    while !state.is_empty() {
        ready(end, PollFlags::OUT, deadline, limit)?;
        match file.write(state) {
            Ok(count) => state = &state[count..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(broken(error)),
        }
    }
    Ok(())
}
